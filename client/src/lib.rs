//! `rdma-cp` and `rdma-sync` (`sync`) as a library: where things are (`location`), what goes where by
//! the rules of cp (`targets`, `glob`), what of it (`rules`), how fast (`pace`), a
//! session that copies (`session`), and what is told on the way (`report`). Never touches the terminal: the binary does.
//! Knows nothing of the server crate.

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
pub use crate::engine::transport::CarrierOptions;
pub use crate::local_io::trace::Trace;
pub use crate::model::copy_policy::{Replace, Rules, Task};
pub use crate::model::location::Location;
pub use crate::model::report::{
    Altered, Failure, FileDone, NO_TRANSPORT, Observer, Planned, Port, Progress, Quiet, Retry,
    SkipReason, Skipped, Summary,
};
pub use crate::session::{ClientError, Session, SessionOptions};
pub use crate::watch::{Heard, Watching};
