//! `rdma-serve` as a library: exports, sessions, and the workers that move
//! their data. `server` binds and stops, `net` lets clients in, `session` drives one
//! client's machines, `worker` owns the links. Knows nothing of the client crate.
//!
//! Modules import one way, lowest first: `config`; `limits`, `exports`, `sandbox`,
//! `rdma_setup`; `observe`; `net`; `session` with `worker`; `server`.

#![forbid(unsafe_code)]

pub mod config;
pub mod exports;
mod limits;
mod net;
mod observe;
mod rdma_setup;
pub mod sandbox;
mod server;
mod session;
mod worker;

pub use limits::client_limits::FILE_THREADS_MAX;
pub use net::listener::{Ending, take_port};
pub use observe::observatory::MetricsError;
pub use server::{Server, ServerError, ServerOptions, check, check_metrics};
use verbatim_serve::rdma;
pub use verbatim_serve::rdma::devices::Devices;
