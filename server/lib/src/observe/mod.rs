//! What people see of a running server: who is in, what moves, what went wrong. Sessions
//! and the accept path report to it. Nothing here changes what the server does, and nothing
//! here waits.

pub(crate) mod counters;
mod doctor;
mod health_poll;
mod history;
pub(crate) mod http;
pub(crate) mod observatory;
pub(crate) mod session_stats;
mod status;
