//! `rdma-serve` as a library: accepts clients, serves the files of its exports to them, and stores
//! their uploads. Never parses a command line, and knows nothing of the client crates. Below it are
//! the libraries in `common`; the server's commands stand above it.
//!
//! Modules import one way, lowest first: `config`; `limits`, `exports`, `sandbox`, `rdma_setup`;
//! `observe`; `net`; `session` with `worker`; `server`.

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
pub use net::listener::{ShutdownMode, bind_port};
pub use observe::server_stats::MetricsError;
pub use server::{Server, ServerError, ServerOptions, check, check_metrics};
use verbatim_serve::rdma;
pub use verbatim_serve::rdma::devices::Devices;
