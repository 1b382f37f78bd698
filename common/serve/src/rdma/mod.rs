//! RDMA of a program that serves: open devices, the ports that links may use, registrations of one
//! client, and the budget of pinned memory. Never decides what a client reads or writes.
//! Stands below sessions and workers, and knows neither exports nor limits.

pub mod devices;
mod pin_book;
pub mod pin_budget;
pub mod rails;
pub mod registrations;
