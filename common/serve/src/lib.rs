//! What a program needs to serve files to clients, without configuration, quotas or metrics: the
//! event queue of a session and the file jobs that answer into it. The server builds its sessions
//! on it; knows nothing of the server and the client crates.

#![forbid(unsafe_code)]

pub mod event_port;
pub mod jobs;

pub use event_port::{EVENTS_MAX, EventPort, TellError};
pub use jobs::{JobLimits, Jobs, Panicked};
