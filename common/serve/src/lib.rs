//! What a program needs to serve files to clients, without configuration, exports, quotas or
//! metrics: the event queue of a session, the file jobs that answer into it, the threads that own
//! links, reads, and what is registered with RDMA devices. The server builds its sessions on it;
//! knows nothing of the server and the client crates.
//!
//! Modules import one way, lowest first: `event_port`, `rdma`; `jobs`, `link_worker`, `host`; `open_file`;
//! `windows`; `leases`.

#![forbid(unsafe_code)]

pub mod event_port;
pub mod host;
pub mod jobs;
pub mod leases;
pub mod link_worker;
mod open_file;
pub mod rdma;
mod windows;

pub use event_port::{EVENTS_MAX, EventPort, SendError};
pub use jobs::{JobLimits, Jobs, Panicked};
pub use leases::{ReadEvent, ReadOut, ReadService};
pub use open_file::{Guard, Opened, OpenedFile};
pub use windows::Window;
