//! `rdma-serve` as a library: exports, sessions, and the workers that move
//! their data. `server` binds and stops, `net` lets clients in, `session` drives one
//! client's machines, `worker` owns the links. Knows nothing of the client crate.

#![forbid(unsafe_code)]

pub mod config;
pub mod exports;
mod limits;
mod net;
mod observe;
mod rdma;
mod rdma_setup;
pub mod sandbox;
mod server;
mod session;
mod worker;

pub use limits::client_limits::FILE_THREADS_MAX;
pub use observe::observatory::MetricsError;
pub use rdma::devices::Devices;
pub use server::{Ending, Server, ServerError, ServerOptions, check, check_metrics, take_port};
