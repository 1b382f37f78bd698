//! What a client asks for to try its links: two pieces of the server's memory, one
//! to read and one to write, that belong to no file. Plain values, carried by
//! `Probe` and `Probed`. One probe a session; it goes with the session.

use crate::{LinkId, Region};
use serde::{Deserialize, Serialize};

/// The most bytes of each piece.
pub const PROBE_BYTES_MAX: u32 = 1 << 20;

/// Memory to try links with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeRequest {
    /// A link of those that will be tried; the others end at the same device.
    pub link: LinkId,
    /// How much, `PROBE_BYTES_MAX` at most.
    pub bytes: u32,
}

/// Where the memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probed {
    /// What may be read.
    pub read: Region,
    /// What may be written.
    pub write: Region,
    /// How long each is.
    pub bytes: u32,
}
