//! RDMA on the server: open devices, the ports that links may use, registrations of one
//! client, and the budget of pinned memory. Never decides what a client reads or writes.
//! Stands below sessions and workers, and knows neither exports nor limits.

pub(crate) mod devices;
pub(crate) mod pin_book;
pub(crate) mod pin_budget;
pub(crate) mod rails;
pub(crate) mod registrations;
