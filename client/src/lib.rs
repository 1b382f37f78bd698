//! `rdma-cp` and `rdma-sync` (`sync`) as a library: where things are (`location`), what goes where by
//! the rules of cp (`targets`, `glob`), what of it (`rules`), how fast (`pace`), a
//! session that copies (`session`), and what is told on the way (`report`). Never touches the terminal: the binary does.
//! Knows nothing of the server crate.

#![forbid(unsafe_code)]

pub mod basis;
pub mod copy;
pub mod current;
mod ends;
mod glob;
mod inside;
mod landing;
mod likeness;
mod local;
pub mod location;
pub mod pace;
pub mod part;
mod patience;
mod pipe;
mod pools;
pub mod probe;
pub mod reconnect;
pub mod remote_fs;
pub mod report;
pub mod rules;
pub mod session;
mod sink;
pub mod size;
pub mod spares;
mod stats;
pub mod sync;
pub mod targets;
mod trace;
pub mod watching;
mod worker;

pub use copy::{CopyOptions, copy, list};
pub use location::Location;
pub use report::{
    Altered, Failure, FileDone, NO_TRANSPORT, Observer, Planned, Port, Progress, Quiet, Retry,
    SkipReason, Skipped, Summary,
};
pub use rules::{Replace, Rules, Task};
pub use session::{CarrierOptions, ClientError, Session, SessionOptions};
pub use trace::Trace;
pub use watching::{Heard, Watching};
