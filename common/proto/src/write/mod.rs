//! Writing: the server grants slots, the client writes chunks into them
//! one-sided, and the server trusts none of it before its digests, which came
//! over the control connection, match what it copied out of the slot.
//!
//! ```text
//! client                                   server
//!   Create{files}          ------------->    temporary file beside the target
//!                          <-------------    Created, Granted{slots}
//!   pread, hash, WRITE + notification on the grant's link
//!   Sent{tag, pieces, digests} --------->    copy out, hash, compare, pwrite
//!                          <-------------    Granted{verdicts, slots again}
//!   Holes{extents}, instead of zeros --->    punch, hash zeros
//!                          <-------------    Zeroed
//!   Commit{root}           ------------->    compare, fsync, rename, fsync folder
//!                          <-------------    Committed
//! ```

mod client;
mod server;
mod types;

pub use client::WriteClient;
pub use server::WriteServer;
pub use types::{Absorb, ClientEffect, ClientOptions, Post, Posted, ServerEffect, SlotId};
