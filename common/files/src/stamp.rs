//! What a tree looks like, in one digest: the names in it, what they are, their
//! sizes, times, owners and attributes. Two walks that see the same have the same
//! one. Not in it: when something was read, and how many names a file has, which a
//! tree that shares files with this one changes. Called by `stage`, to know whether
//! somebody was at its target meanwhile.

use crate::folder::Folder;
use crate::meta::Rules;
use crate::tree::TreeWalk;
use verbatim_proto::message::EntryKind;
use verbatim_proto::{Digest, Fault, Filter, Node, WirePath};

/// Made entry by entry, in the order of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(pub Digest);

impl Default for Stamp {
    fn default() -> Self {
        Self(Digest::of(b""))
    }
}

impl Stamp {
    /// Of all that is in a folder now, and of the folder itself.
    pub fn of(folder: &Folder) -> Result<Self, Fault> {
        let mut stamp = Self::default();
        for found in walk(folder)? {
            stamp.add(&*found.map_err(|(_, fault)| fault)?);
        }
        Ok(stamp)
    }

    /// The next entry.
    pub fn add(&mut self, node: &Node) {
        let mut bytes = self.0.0.to_vec();
        let mut put = |field: &[u8]| {
            bytes.extend((field.len() as u64).to_le_bytes());
            bytes.extend(field);
        };
        put(node.path.as_bytes());
        match &node.kind {
            EntryKind::File => put(b"file"),
            EntryKind::Folder => put(b"folder"),
            EntryKind::Special => put(b"special"),
            EntryKind::Symlink { target } => {
                put(b"link");
                put(target);
            }
        }
        let meta = &node.meta;
        put(&node.size.to_le_bytes());
        put(&meta.mtime_ns.to_le_bytes());
        for number in [meta.mode, meta.uid, meta.gid] {
            put(&number.to_le_bytes());
        }
        for xattr in &meta.xattrs {
            put(&xattr.name);
            put(&xattr.value);
        }
        self.0 = Digest::of(&bytes);
    }
}

/// Walks all of a folder, as this user may.
pub(crate) fn walk(folder: &Folder) -> Result<TreeWalk, Fault> {
    let root = folder.open_folder(&WirePath::root())?;
    Ok(TreeWalk::new(root, Filter::default(), Rules::of_user().privileged_xattrs))
}
