//! One connection of a client to a server, and the transfers over it. The modules, the lowest
//! first; each imports only those before it:
//!
//! - `model`: values, such as locations, policies, placement and reports.
//! - `local_io`: the local ends: files, ranges in memory, buffers, pipes, spooled lists.
//! - `connection`: links, workers, the clock, ids, messages, the rate, outcomes: the [`Engine`].
//! - `transfer`: downloads, uploads, comparisons, folders and pipes, each an object that is handed
//!   the engine.
//!
//! Never plans a copy, never waits, and never reads the control connection: `verbatim-client` does,
//! and dispatches each message to its activity.

#![forbid(unsafe_code)]

pub mod connection;
pub mod local_io;
pub mod model;
pub mod transfer;

pub use crate::connection::Engine;
