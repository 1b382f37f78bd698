//! The protocol of Verbatim, pure: messages, digests, extents and the state
//! machines of reading and writing. Nothing here does I/O, reads a clock or
//! starts a thread: a machine takes an event and `now`, and queues effects.
//! `client` and `server` drive the machines; `fabric` does not know this crate.

#![forbid(unsafe_code)]

pub mod alike;
mod batch;
pub mod chosen;
pub mod digest;
pub mod entry;
pub mod extent;
pub mod fault;
mod greeting;
pub mod habits;
pub mod holes;
pub mod ids;
mod info;
pub mod looking;
pub mod message;
pub mod meta;
pub mod mirror;
pub mod numbered;
pub mod offer;
pub mod owners;
pub mod path;
pub mod pattern;
mod piece;
pub mod plan;
pub mod probing;
pub mod rails;
pub mod read;
pub mod resolution;
pub mod spots;
pub mod text;
mod touched;
pub mod tree;
mod turns;
pub mod units;
pub mod watching;
pub mod wire;
pub mod write;

pub use digest::{Digest, GrainHasher, RootBuilder};
pub use extent::{Extent, ExtentSet};
pub use fault::{Class, Code, Fault};
pub use habits::{Habits, Lacks};
pub use holes::Survey;
pub use looking::{Look, Named, Scan, Ties};
pub use message::{ClientMessage, FileId, LinkId, Region, ServerMessage, Tag, WindowId};
pub use meta::{Dropped, Keeps, Kept, Meta};
pub use mirror::{MirrorReply, MirrorRequest};
pub use path::WirePath;
pub use pattern::{Excludes, Filter, Meter, Pattern};
pub use resolution::Resolution;
pub use tree::{Node, Twin};
pub use watching::{Change, Changes, Watch, WatchReply, WatchRequest};
