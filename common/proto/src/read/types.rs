//! What the reading client is given and what it asks for: options, effects,
//! and the outcomes the driver answers with. Plain values without behaviour.

use super::chunk::Chunk;
use crate::message::{FileId, FileInfo, LinkId, ReadRequest, WindowId};
use crate::meta::Kept;
use crate::{Digest, Extent, ExtentSet, Fault, RootBuilder};
use std::time::Duration;

/// How a session reads.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// The unit of transfer and retry.
    pub chunk_bytes: u32,
    /// Reads in flight on each link.
    pub slots_per_link: u16,
    /// After how long without an answer a link, or the peer, is given up.
    pub timeout: Duration,
    /// Whether the metadata of files is asked for.
    pub describe: bool,
}

/// What is already there of a file that is resumed, and of which version of it.
#[derive(Clone, Debug)]
pub struct Have {
    /// The size the file had.
    pub size: u64,
    /// When its content had changed.
    pub mtime_ns: i64,
    /// Its version, if it was known.
    pub version: Option<u64>,
    /// What of it is verified.
    pub extents: ExtentSet,
    /// The digests of those extents.
    pub root: RootBuilder,
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEffect {
    /// Send this.
    Send(ReadRequest),
    /// A file was opened: make a place for it.
    Opened {
        /// The file.
        file: FileId,
        /// What it is.
        info: FileInfo,
        /// How many bytes of it an earlier run has, which are not asked for.
        had: u64,
    },
    /// Read a chunk, verify it, write it; answer with `fetched`.
    Fetch(Fetch),
    /// Make a range of the target zeros, and hash zeros; answer with `zeroed`.
    Zero(Zero),
    /// This link gave no answer in time: end it; answer with `link_down`.
    DropLink {
        /// The link.
        link: LinkId,
    },
    /// The source changed: forget what has landed of this file.
    Restart {
        /// The file.
        file: FileId,
    },
    /// All of the file is there and verified, and the source did not change.
    Finished {
        /// The file.
        file: FileId,
        /// Its digest; none of a file of which only a part was wanted.
        root: Option<Digest>,
        /// Its metadata, if that was asked for.
        meta: Kept,
    },
    /// The file failed; nothing of it is in flight.
    Failed {
        /// The file.
        file: FileId,
        /// Why.
        fault: Fault,
    },
    /// The session cannot go on.
    Broken(Fault),
}

/// One read to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// On which link.
    pub link: LinkId,
    /// Into which slot of that link.
    pub slot: u16,
    /// What to read, and what must be in it.
    pub chunk: Chunk,
}

/// A hole, or a part of one, to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zero {
    /// What the list of holes is known by.
    pub window: WindowId,
    /// The file.
    pub file: FileId,
    /// The range.
    pub extent: Extent,
}

/// How a read ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The bytes came; one outcome per piece.
    Landed(Vec<PieceOutcome>),
    /// The link died first.
    LinkLost,
}

/// What became of one piece of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PieceOutcome {
    /// Its digests matched and it is in the target.
    Verified,
    /// A digest did not match.
    Mismatch,
    /// It could not be written.
    Failed(Fault),
}

impl Have {
    /// Whether it looks like what is there now. Enough for a sender, who compares the digest of
    /// all of it in the end.
    pub fn is_of(&self, info: &FileInfo) -> bool {
        self.size == info.size && self.mtime_ns == info.mtime_ns
    }

    /// Whether it is of the very version that is there now.
    pub fn is_exactly(&self, info: &FileInfo) -> bool {
        self.is_of(info) && self.version.is_some() && self.version == info.version
    }
}
