//! READDIR and READDIRPLUS: returns a folder in pieces, as names alone or with
//! attributes, which saves the kernel a lookup for each name. Called by `fuse`.
//!
//! In fuser an entry has one field for the node number and for st_ino. Where these
//! differ (a changed file, a hard link) the entry carries st_ino and an invalid size.
//! The kernel then returns the name, ignores the attributes, and looks the name up when
//! it is used. It sends a FORGET for the number, so a lookup of it is counted.

use super::fuse_types::{errno, file_attr, file_type};
use super::handles::{FolderSnapshot, OpenFolder};
use super::tree::{Tree, TreeError};
use fuser::{Errno, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use verbatim_client::remote_fs::attributes::{Facts, Kind};

/// A size that Linux rejects as invalid.
const INVALID_SIZE: u64 = u64::MAX;

/// An entry and its offset: `.` is at 0, `..` at 1, the entries of the folder follow.
pub(super) struct DirEntry<'a> {
    folder: u64,
    at: u64,
    name: &'a [u8],
    facts: Facts,
    /// Whether a change was reported since the listing.
    is_stale: bool,
}

/// Values of the mount that replies need.
pub(super) struct ReplyContext {
    /// The owner of files without an owner.
    pub mounter: (u32, u32),
    /// Whether this kernel rejects invalid attributes.
    pub validates_attrs: bool,
}

/// A READDIR or READDIRPLUS reply.
pub(super) trait DirReply: Send + 'static {
    /// Adds an entry; true if the buffer is full.
    fn push(&mut self, tree: &Tree, context: &ReplyContext, entry: &DirEntry<'_>) -> bool;
    fn finish(self);
    fn fail(self, error: Errno);
}

/// Replies with the entries of a folder from an offset on.
pub(super) async fn reply_listing(
    tree: Arc<Tree>,
    open: Arc<OpenFolder>,
    from: u64,
    context: ReplyContext,
    mut reply: impl DirReply,
) {
    let folder = open.number;
    let (changes, listing) = match listing(&tree, &open, from).await {
        Ok(listed) => listed,
        Err(trouble) => return reply.fail(errno(&trouble)),
    };
    let is_stale = changes != tree.changes();
    let own_facts = Facts::unknown(Kind::Folder, 0o755, 4096, 0);
    for at in from.. {
        let found = match at {
            0 => Some((b".".as_slice(), own_facts)),
            1 => Some((b"..".as_slice(), own_facts)),
            _ => listing.at((at - 2) as usize),
        };
        let Some((name, facts)) = found else { break };
        if reply.push(&tree, &context, &DirEntry { folder, at, name, facts, is_stale }) {
            break;
        }
    }
    reply.finish();
}

/// The listing of an open folder. A read from offset 0 lists it anew; later reads use the same
/// listing, because their offsets refer to it.
async fn listing(tree: &Tree, open: &OpenFolder, from: u64) -> Result<FolderSnapshot, TreeError> {
    let snapshot = || open.listing.lock().unwrap_or_else(PoisonError::into_inner);
    if let (Some(listed), true) = (snapshot().clone(), from > 0) {
        return Ok(listed);
    }
    let changes = tree.changes();
    let listed = (changes, tree.list(open.number, &open.path).await?);
    *snapshot() = Some(listed.clone());
    Ok(listed)
}

impl DirReply for ReplyDirectory {
    fn push(&mut self, tree: &Tree, _: &ReplyContext, entry: &DirEntry<'_>) -> bool {
        let DirEntry { folder, at, name, facts, .. } = entry;
        let number = match at {
            0 | 1 => *folder,
            _ => tree.nodes().ino_of_name(*folder, name, facts),
        };
        self.add(INodeNo(number), at + 1, file_type(facts.kind), OsStr::from_bytes(name))
    }

    fn finish(self) {
        self.ok();
    }

    fn fail(self, error: Errno) {
        self.error(error);
    }
}

impl DirReply for ReplyDirectoryPlus {
    fn push(&mut self, tree: &Tree, context: &ReplyContext, entry: &DirEntry<'_>) -> bool {
        let DirEntry { folder, at, name, mut facts, is_stale } = *entry;
        let mut nodes = tree.nodes();
        // For `.` and `..` the kernel counts no lookups.
        let (own, shown) = match at {
            0 | 1 => (folder, nodes.shown_ino(folder)),
            _ => nodes.record_lookup_with_ino(folder, name, facts),
        };
        // Attributes that may be stale are not cached.
        let (mut number, mut ttl) = (own, if is_stale { Duration::ZERO } else { tree.ttl() });
        if at > 1 && shown != own {
            ttl = Duration::ZERO;
            if context.validates_attrs {
                nodes.forget(own, 1);
                nodes.add_lookup(shown);
                (number, facts.size) = (shown, INVALID_SIZE);
            }
        }
        let attr = file_attr(number, facts, context.mounter);
        let name = OsStr::from_bytes(name);
        let full = self.add(INodeNo(number), at + 1, name, &ttl, &attr, Generation(0));
        if full && at > 1 {
            nodes.forget(number, 1);
        }
        full
    }

    fn finish(self) {
        self.ok();
    }

    fn fail(self, error: Errno) {
        self.error(error);
    }
}
