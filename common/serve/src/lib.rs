//! What a program needs to serve files to clients, without configuration, quotas or metrics: the
//! event queue of a session, the file jobs that answer into it, and what it registers with RDMA
//! devices. The server builds its sessions on it; knows nothing of the server and the client crates.

#![forbid(unsafe_code)]

pub mod event_port;
pub mod host;
pub mod jobs;
pub mod rdma;

pub use event_port::{EVENTS_MAX, EventPort, TellError};
pub use jobs::{JobLimits, Jobs, Panicked};
