//! `rdma-serve` as a library: exports, sessions, and the workers that move
//! their data. `listener` lets clients in, `session` drives one client's
//! machines, `worker` owns the links. Knows nothing of the client crate.

#![forbid(unsafe_code)]

pub mod cache;
pub mod config;
pub mod confine;
mod devices;
mod doorstep;
pub mod export;
mod gate;
mod guests;
mod hashing;
mod joins;
mod keyring;
mod listener;
mod matching;
mod memory;
mod observe;
mod paces;
mod pins;
mod places;
mod quota;
mod rails;
pub mod range;
mod rdma;
mod reach;
mod reaper;
mod refusals;
mod session;
mod shares;
pub mod span;
mod surveys;
mod worker;

pub use devices::Devices;
pub use listener::{Ending, Server, ServerError, ServerOptions, check, check_metrics, take_port};
pub use observe::MetricsError;
pub use shares::FILE_THREADS_MAX;
