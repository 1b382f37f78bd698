//! What is known of a thing in a tree: what it is, how large, when it changed, whose it
//! is, and which other names lead to it. Small and copied: a million of them are kept.
//! Pure; made of what the server says.

use std::num::NonZeroU64;
use verbatim_proto::Ties;
use verbatim_proto::message::{Entry, EntryKind};

/// What a thing in a folder is.
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

/// What is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// What it is.
    pub kind: Kind,
    /// The permission bits.
    pub mode: u16,
    /// How many bytes a file has, or the target of a link.
    pub size: u64,
    /// When its content changed, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// How many names it has.
    pub names: u32,
    /// Whose it is, and which file.
    pub tied: OwnerAndInode,
}

/// Whose something is, and which file a name of several leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnerAndInode {
    /// The file, the same for all of its names and in every run.
    pub file: Option<NonZeroU64>,
    /// The version that it has; none while a later write could hide.
    pub version: Option<NonZeroU64>,
    /// The number of the owner.
    pub uid: u32,
    /// The number of the group.
    pub gid: u32,
}

/// What the server says of something that was looked at.
#[derive(Clone, Debug)]
pub struct StatInfo {
    /// What it is.
    pub entry: Entry,
    /// Whose it is, where the server tells that.
    pub ties: Option<Ties>,
}

/// The number of nobody, by the rules of chown.
const NOBODY: u32 = u32::MAX;

impl Facts {
    /// What the server says of an entry.
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

    /// Something of which little is known.
    pub fn unknown(kind: Kind, mode: u16, size: u64, mtime_ns: i64) -> Self {
        Self { kind, mode, size, mtime_ns, names: usual_names(kind), tied: OwnerAndInode::of(None) }
    }

    /// Whose it is, if that is known.
    pub fn owner(&self) -> Option<(u32, u32)> {
        (self.tied.uid != NOBODY).then_some((self.tied.uid, self.tied.gid))
    }

    /// The same, of a file that has no other name.
    pub fn alone(mut self) -> Self {
        if self.tied.file.is_some() {
            (self.tied.file, self.tied.version, self.names) = (None, None, 1);
        }
        self
    }

    /// Whether a version that something has now may be this.
    pub fn may_be(&self, version: u64) -> bool {
        self.tied.version.is_none_or(|told| told.get() == version)
    }

    /// The file that several names lead to, if its version is known.
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
    /// What is known of it.
    pub fn facts(&self) -> Facts {
        Facts::of(&self.entry, self.ties.as_ref())
    }
}

/// A folder is in the one above it, and in itself.
fn usual_names(kind: Kind) -> u32 {
    if kind == Kind::Folder { 2 } else { 1 }
}
