//! What is in folders, as scans tell it and as clients have it made. Plain
//! values; each knows what it takes in a message, so that pages stay below the
//! largest frame. Re-exported by `message`.

use crate::WirePath;
use crate::meta::{Kept, Meta};
use serde::{Deserialize, Serialize};

/// What kind of thing an entry is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A folder, or an export.
    Folder,
    /// A symbolic link, with what it points to.
    Symlink {
        /// The bytes of the target.
        #[serde(with = "serde_bytes")]
        target: Vec<u8>,
    },
    /// A fifo, socket or device.
    Special,
}

/// One thing in a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Where it is, relative to what was asked for.
    pub path: WirePath,
    /// What it is.
    pub kind: EntryKind,
    /// How many bytes a file has.
    pub size: u64,
    /// The permission bits.
    pub mode: u32,
    /// When its content changed, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// All else of a folder or link, where it was asked for.
    pub meta: Kept,
}

/// A folder or symbolic link to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewEntry {
    /// Where, export first.
    pub path: WirePath,
    /// A folder (an existing one is fine) or a symbolic link (replaces one).
    pub kind: EntryKind,
    /// Whether a file that is where a folder goes is removed.
    pub force: bool,
    /// The permission bits of a new folder.
    pub mode: u32,
    /// A link is made with it. A folder is not made but found, and gets it.
    pub meta: Kept,
    /// Metadata of this folder follows when all in it is done: until then it must be open to
    /// its owner, also one that was there before.
    pub unfinished: bool,
}

impl Entry {
    /// About how many bytes it takes in a message.
    pub fn weight(&self) -> usize {
        weight(&self.path, &self.kind, self.meta.as_deref())
    }
}

impl NewEntry {
    /// About how many bytes it takes in a message.
    pub fn weight(&self) -> usize {
        weight(&self.path, &self.kind, self.meta.as_deref())
    }
}

fn weight(path: &WirePath, kind: &EntryKind, meta: Option<&Meta>) -> usize {
    let target = match kind {
        EntryKind::Symlink { target } => target.len(),
        _ => 0,
    };
    path.as_bytes().len() + target + meta.map_or(0, Meta::weight) + NUMBERS_BYTES
}

/// What the numbers and lengths of an entry take at most.
const NUMBERS_BYTES: usize = 64;
