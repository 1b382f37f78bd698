//! Owns what a program needs to serve files to clients: the event queue of a session, its file
//! jobs, the threads that own links, reads, and RDMA registrations. Never decides what a client may
//! read, and knows neither configuration, exports, quotas nor metrics: the program above it,
//! `server/lib`, does. Below it are `fabric`, `files` and `proto`.
//!
//! Modules import one way, lowest first: `event_port`, `rdma`; `jobs`, `link_worker`, `host`;
//! `open_file`; `windows`; `leases`.

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
