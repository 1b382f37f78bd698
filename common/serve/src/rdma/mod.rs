//! Owns RDMA of a serving program: open devices, the ports that links may use, registrations of
//! each client, and the budget of pinned memory. Never decides what a client reads or writes.
//! Sessions and workers stand above it, `fabric` below; it knows neither exports nor limits.

pub mod devices;
mod pin_book;
pub mod pin_budget;
pub mod rails;
pub mod registrations;
