//! `rdma-cp` and `rdma-sync` as a library, above the engine of one connection (`verbatim-engine`).
//! Its modules, the lowest first; each imports only those before it:
//!
//! - `tree_sync`: mirrors of trees. `remote_fs`: the file service for mounts.
//! - `session`: dispatches messages and events to activities; queries, retry.
//! - `watch`: streams of changes of a source.
//! - `cp`, `sync`: plan a copy; mirrors and the loop that follows a source.
//! - `probe`: tests and measures the path to a server.
//!
//! Never touches the terminal: the commands do. Knows nothing of the server crate.

#![forbid(unsafe_code)]

pub mod cp;
pub mod probe;
pub mod remote_fs;
pub mod session;
pub mod sync;
pub mod tree_sync;
pub mod watch;

pub use verbatim_engine::connection::error::{ClientError, fault_of};
pub use verbatim_engine::connection::options::SessionOptions;
pub use verbatim_engine::connection::rate_limit;
pub use verbatim_engine::connection::transport::{CarrierOptions, Transport};
pub use verbatim_engine::local_io::trace::Trace;
pub use verbatim_engine::model;
pub use verbatim_engine::model::copy_policy::{CopyPolicy, Replace, Task};
pub use verbatim_engine::model::location::Location;
pub use verbatim_engine::model::report::{
    Altered, Failure, FileDone, NO_TRANSPORT, Observer, Planned, Port, Progress, Retry,
    ServerSilence, SkipReason, Skipped, Summary,
};

pub use crate::cp::{CopyOptions, copy, list};
pub use crate::session::Session;
pub use crate::watch::{SourceWatch, WatchEvent};
