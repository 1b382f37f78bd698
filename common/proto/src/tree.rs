//! What one side tells the other of a tree that is to be mirrored: every entry
//! with all that is compared, in the order of a sorted walk. Plain values, part
//! of the messages; `plan` compares two such streams.

use crate::meta::Meta;
use crate::{Digest, Fault, WirePath};
use serde::{Deserialize, Serialize};

pub use crate::entry::EntryKind;

/// The version from which on a server says which symbolic links are names of one.
pub const LINK_TWINS_VERSION: usize = 5;

/// One thing in a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Where it is, relative to the root of the tree, which has the empty path.
    pub path: WirePath,
    /// What it is.
    pub kind: EntryKind,
    /// How many bytes a file has.
    pub size: u64,
    /// All else that is kept of it.
    pub meta: Meta,
    /// Of a file or symbolic link that has several names: which one it is. Links have it from
    /// `LINK_TWINS_VERSION` on.
    pub twin: Option<Twin>,
    /// The digest of a file's content, where it was asked for.
    pub digest: Option<Digest>,
}

/// Which file or link of a machine something is: all names of one have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Twin {
    /// The device.
    pub device: u64,
    /// The inode.
    pub inode: u64,
}

/// What a walk finds: an entry, or one that cannot be told, and why.
pub type Found = Result<Box<Node>, (WirePath, Fault)>;

/// Where something that was found is.
pub fn path_of(found: &Found) -> &WirePath {
    match found {
        Ok(node) => &node.path,
        Err((path, _)) => path,
    }
}

impl Node {
    /// Whether it is a folder.
    pub fn is_folder(&self) -> bool {
        self.kind == EntryKind::Folder
    }

    /// About how many bytes it takes in a message.
    pub fn weight(&self) -> usize {
        let target = match &self.kind {
            EntryKind::Symlink { target } => target.len(),
            _ => 0,
        };
        self.path.as_bytes().len() + target + self.meta.weight() + NUMBERS_BYTES
    }
}

/// What size, kind, twin and digest of a node take at most.
const NUMBERS_BYTES: usize = 72;
