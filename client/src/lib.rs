//! `rdma-cp` and `rdma-sync` as a library. Its modules, the lowest first; each imports only those
//! before it:
//!
//! - `model`: values, such as locations, rules, placement and reports.
//! - `local_io`: the local ends: files, ranges in memory, buffers, pipes, spooled lists.
//! - `engine`: one connection: links, workers, the clock, ids, messages, the rate, outcomes.
//! - `transfer`: downloads, uploads, comparisons, folders and pipes, each an object that is handed
//!   the engine.
//! - `tree_sync`: making trees equal. `remote_fs`: answers for mounts.
//! - `session`: dispatches what comes to the activity that it is for; queries, retry.
//! - `watch`: streams of changes.
//! - `cp`, `sync`: planning a copy; mirrors and the loop that follows a source.
//! - `probe`: measuring the way to a server.
//!
//! Never touches the terminal: the commands do. Knows nothing of the server crate.

#![forbid(unsafe_code)]

pub mod cp;
pub mod engine;
pub mod local_io;
pub mod model;
pub mod probe;
pub mod remote_fs;
pub mod session;
pub mod sync;
pub mod transfer;
pub mod tree_sync;
pub mod watch;

pub use crate::cp::{CopyOptions, copy, list};
pub use crate::engine::error::ClientError;
pub use crate::engine::options::SessionOptions;
pub use crate::engine::transport::CarrierOptions;
pub use crate::local_io::trace::Trace;
pub use crate::model::copy_policy::{Replace, Rules, Task};
pub use crate::model::location::Location;
pub use crate::model::report::{
    Altered, Failure, FileDone, NO_TRANSPORT, Observer, Planned, Port, Progress, Quiet, Retry,
    SkipReason, Skipped, Summary,
};
pub use crate::session::Session;
pub use crate::watch::{Heard, Watching};
