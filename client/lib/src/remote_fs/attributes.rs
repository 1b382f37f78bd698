//! Attributes of an entry of a remote tree: kind, size, times, owner, hard links. Small and `Copy`,
//! because a mount keeps a million of them. Pure.

use std::num::NonZeroU64;
use verbatim_proto::Ties;
use verbatim_proto::message::{Entry, EntryKind};

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Symlink,
    /// A fifo, socket or device.
    Special,
}

/// The attributes of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The kind.
    pub kind: Kind,
    /// The permission bits.
    pub mode: u16,
    /// The size of a file, or the length of a link's target.
    pub size: u64,
    /// The modification time, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// The number of hard links.
    pub names: u32,
    /// The owner, and the identity of the inode.
    pub tied: OwnerAndInode,
}

/// The owner of an entry, and the identity of an inode with several names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnerAndInode {
    /// The inode, the same for all of its names and in every run.
    pub file: Option<NonZeroU64>,
    /// The version of the inode; `None` while a later write might not change it.
    pub version: Option<NonZeroU64>,
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
}

/// The stat of an entry.
#[derive(Clone, Debug)]
pub struct StatInfo {
    /// The entry.
    pub entry: Entry,
    /// The owner and the hard links, if the server sends them.
    pub ties: Option<Ties>,
}

/// The id of no user, as in chown(2).
const NOBODY: u32 = u32::MAX;

impl Facts {
    /// The attributes of an entry.
    pub fn of(entry: &Entry, ties: Option<&Ties>) -> Self {
        let (kind, size) = match &entry.kind {
            EntryKind::File => (Kind::File, entry.size),
            EntryKind::Folder => (Kind::Folder, 4096),
            EntryKind::Symlink { target } => (Kind::Symlink, target.len() as u64),
            EntryKind::Special => (Kind::Special, 0),
        };
        let names = ties.map_or(usual_names(kind), |ties| ties.names);
        let (mode, mtime_ns) = ((entry.mode & 0o7777) as u16, entry.mtime_ns);
        Self { kind, mode, size, mtime_ns, names, tied: OwnerAndInode::of(ties) }
    }

    /// Attributes without owner and hard links.
    pub fn unknown(kind: Kind, mode: u16, size: u64, mtime_ns: i64) -> Self {
        Self { kind, mode, size, mtime_ns, names: usual_names(kind), tied: OwnerAndInode::of(None) }
    }

    /// The user and group ids, if known.
    pub fn owner(&self) -> Option<(u32, u32)> {
        (self.tied.uid != NOBODY).then_some((self.tied.uid, self.tied.gid))
    }

    /// The same attributes, as of an inode with one name.
    pub fn alone(mut self) -> Self {
        if self.tied.file.is_some() {
            (self.tied.file, self.tied.version, self.names) = (None, None, 1);
        }
        self
    }

    /// Whether these attributes may belong to this version.
    pub fn may_be(&self, version: u64) -> bool {
        self.tied.version.is_none_or(|told| told.get() == version)
    }

    /// The inode, if it has several names and a known version.
    pub fn shared(&self) -> Option<NonZeroU64> {
        self.tied.version.and(self.tied.file)
    }
}

impl OwnerAndInode {
    fn of(ties: Option<&Ties>) -> Self {
        let (uid, gid) = ties.map_or((NOBODY, NOBODY), |ties| (ties.uid, ties.gid));
        let named = ties.and_then(|ties| ties.twin);
        let file = named.and_then(|named| NonZeroU64::new(named.file));
        let version = named.and_then(|named| NonZeroU64::new(named.version?));
        Self { file, version, uid, gid }
    }
}

impl StatInfo {
    /// The attributes of the entry.
    pub fn facts(&self) -> Facts {
        Facts::of(&self.entry, self.ties.as_ref())
    }
}

/// A folder has two links: its name, and its own `.`.
fn usual_names(kind: Kind) -> u32 {
    if kind == Kind::Folder { 2 } else { 1 }
}
