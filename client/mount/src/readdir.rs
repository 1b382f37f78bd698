//! Folders as the kernel asks for them, a piece at a time: names alone, or with what is
//! known of each, so that it need not ask for them one by one. Called by `fuse`.
//!
//! In fuser an entry has one field for its inode number and the number that the kernel
//! asks by. Where these differ (a file that changed, or has several names) it carries the
//! inode number, with a size that no file can have: the kernel then tells the name,
//! believes nothing else of it, and looks it up when it is used. It gives the number back
//! as if it had been told of it, so it is counted as told.

use super::fuse_types::{errno, file_attr, file_type};
use super::handles::{FolderSnapshot, OpenFolder};
use super::tree::{Tree, TreeError};
use fuser::{Errno, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use verbatim_client::remote_fs::attributes::{Facts, Kind};

/// A size that Linux takes for nonsense.
const INVALID_SIZE: u64 = u64::MAX;

/// An entry, and where: a folder itself is at 0, the one above at 1, then what is in it.
pub(super) struct DirEntry<'a> {
    folder: u64,
    at: u64,
    name: &'a [u8],
    facts: Facts,
    /// Whether something changed since it was listed.
    is_stale: bool,
}

/// What a folder is shown to.
pub(super) struct ReplyContext {
    /// Who has what is nobody's.
    pub mounter: (u32, u32),
    /// Whether the kernel knows nonsense when it is told some.
    pub validates_attrs: bool,
}

/// A piece of a folder that is on its way to the kernel.
pub(super) trait DirReply: Send + 'static {
    /// Adds an entry; true when it has no room.
    fn push(&mut self, tree: &Tree, context: &ReplyContext, entry: &DirEntry<'_>) -> bool;
    fn finish(self);
    fn fail(self, error: Errno);
}

/// Answers with what is in a folder from a place on.
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

/// What is in an open folder. Who reads it from its beginning reads what is there now; who goes
/// on, what was there then: places are counted from it.
async fn listing(tree: &Tree, open: &OpenFolder, from: u64) -> Result<FolderSnapshot, TreeError> {
    let kept = || open.listing.lock().unwrap_or_else(PoisonError::into_inner);
    if let (Some(listed), true) = (kept().clone(), from > 0) {
        return Ok(listed);
    }
    let changes = tree.changes();
    let listed = (changes, tree.list(open.number, &open.path).await?);
    *kept() = Some(listed.clone());
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
        // The kernel knows itself, and takes no notice of these two.
        let (own, shown) = match at {
            0 | 1 => (folder, nodes.shown_ino(folder)),
            _ => nodes.record_lookup_with_ino(folder, name, facts),
        };
        // What may be old is looked at again before it is believed.
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
