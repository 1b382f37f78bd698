//! Metrics, status and last errors of a running server. Sessions and the accept path report to
//! it. It never changes the server's behaviour and never blocks a caller.

pub(crate) mod counters;
mod doctor;
mod health_poll;
mod history;
pub(crate) mod http;
pub(crate) mod server_stats;
pub(crate) mod session_stats;
mod status;
