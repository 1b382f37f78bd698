//! `rdma-cp` as a library: where things are (`location`), what goes where by
//! the rules of cp (`targets`), a session that copies (`session`), and what is
//! told on the way (`report`). Never touches the terminal: the binary does.
//! Knows nothing of the server crate.

#![forbid(unsafe_code)]

pub mod copy;
mod ends;
pub mod location;
mod pipe;
pub mod report;
pub mod session;
mod sink;
pub mod targets;
mod worker;

pub use copy::{CopyOptions, copy, list};
pub use location::Location;
pub use report::{Failure, FileDone, Observer, Progress, Summary};
pub use session::{ClientError, Session, SessionOptions};
