//! The numbers by which client and server name things to each other: files,
//! windows, tags, links, regions. Plain values that cross the wire; re-exported
//! by `message`, where they are used.

use serde::{Deserialize, Serialize};

/// A file of this session, numbered by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId(pub u32);

/// A leased window, numbered by the server and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WindowId(pub u64);

/// One granted use of an upload slot. Never used again: a late write names a dead tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Tag(pub u32);

/// A link of this session. A stream that fails over keeps its index in a new epoch; what
/// names an older epoch is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LinkId {
    /// Which stream.
    pub index: u16,
    /// Which try at it.
    pub epoch: u16,
}

/// Registered memory of the server, as a client addresses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Region {
    /// The key that opens it, on links of this session alone.
    pub key: u64,
    /// The address of its first byte.
    pub base: u64,
}
