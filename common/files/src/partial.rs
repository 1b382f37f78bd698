//! Partial files that last: found again by name, held by one process at a time,
//! believed without hashing only as far as they were flushed in this boot and mount. Called by
//! `target`.
//!
//! A partial file is used only when it is a plain file of this user with one
//! name, and locked. One that is not is left alone, and a fresh one is made.

use crate::hash::hash_extent;
use crate::hold::NO_LOCKS;
use crate::journal::{self, Reach};
use crate::naming::{TEMPORARY_SUFFIX, hidden_name};
use crate::opened::OpenFolder;
use crate::regular::is_regular_or_absent;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::fs::{flock, openat, statx, unlinkat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use verbatim_proto::read::Have;
use verbatim_proto::units::RANGES_MAX;
use verbatim_proto::{Digest, ExtentSet, RootBuilder};

/// What every journal's name ends with.
pub const JOURNAL_SUFFIX: &[u8] = b".verbatim-journal";

/// The names of a partial file and its journal.
pub(crate) struct Names {
    pub part: Vec<u8>,
    pub journal: Vec<u8>,
}

impl Names {
    /// The names for one target and one key: who copies what from where.
    pub fn new(name: &[u8], key: &Digest) -> Self {
        let unique = &key.to_string()[..16];
        let part = hidden_name(name, unique, TEMPORARY_SUFFIX);
        Self { part, journal: hidden_name(name, unique, JOURNAL_SUFFIX) }
    }
}

/// How a file is locked for whoever opened it.
pub(crate) type Lock = fn(BorrowedFd<'_>) -> Result<(), Errno>;

/// By the kernel. Others are for tests.
pub(crate) const LOCK: Lock = |fd| flock(fd, FlockOperation::NonBlockingLockExclusive);

/// Why a file is not held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotHeld {
    /// It is ours, and cannot be locked: who else is at it nobody can tell.
    NoLocks,
    /// It may not be opened so.
    Denied,
    /// It is another user's, also if we made it: so some file systems have it.
    Foreign,
    /// Somebody has it, or it is not ours, or not there.
    Other,
}

/// A partial file and its journal, to begin with.
pub(crate) struct Begun {
    pub part: File,
    pub journal: File,
    /// Nobody had begun it before, with another mode.
    pub is_new: bool,
}

/// Opens, or makes, a partial file and its journal to begin with. `None` when they cannot be
/// had for this process alone; then nothing that was made for it is left.
pub(crate) fn begin(folder: &OpenFolder, names: &Names, mode: u32, lock: Lock) -> Option<Begun> {
    let (flags, make) = (OFlags::RDWR, OFlags::CREATE);
    let made = open_held(folder, &names.part, flags | make | OFlags::EXCL, mode, lock);
    let is_new = matches!(made, Ok(_) | Err(NotHeld::NoLocks | NotHeld::Foreign));
    let begun = made.or_else(|_| open_held(folder, &names.part, flags, 0, lock)).and_then(|part| {
        let journal = open_held(folder, &names.journal, flags | make | OFlags::APPEND, 0o600, lock);
        Ok(Begun { part, journal: journal?, is_new })
    });
    if is_new && begun.is_err() {
        remove(folder, &names.part);
    }
    begun.ok()
}

/// Finds a partial file, its journal, and what of it is verified: what was flushed in this boot
/// and mount, or is in memory alone, and of the rest what still hashes so, which is flushed and the
/// journal remembers. None when `over` turns true, because nobody waits for it any more. Bytes that
/// are hashed again are added to `hashed`, also those that turn out wrong.
pub(crate) fn find(
    folder: &OpenFolder,
    names: &Names,
    over: &AtomicBool,
    hashed: &AtomicU64,
) -> Option<(File, File, Have)> {
    let (flags, lock) = (OFlags::RDWR, LOCK);
    let part = open_held(folder, &names.part, flags, 0, lock).ok()?;
    let journal = open_held(folder, &names.journal, flags | OFlags::APPEND, 0, lock).ok()?;
    let length = part.metadata().ok()?.len();
    let Reach { head, flushed, mut good } = journal::reach(&journal)?;
    if head.size != length {
        return None;
    }
    let believed = match head.is_of_this_stay(&journal) {
        true if folder.is_in_memory() => good,
        true => flushed,
        false => 0,
    };
    if believed < good && part.sync_data().is_err() {
        // What the page cache has now is not on the disk, and nobody is told that again. What was
        // flushed before is there.
        if believed == 0 {
            remove(folder, &names.journal);
            remove(folder, &names.part);
            return None;
        }
        good = believed;
    }
    let mut extents = ExtentSet::new();
    let mut root = RootBuilder::new(length);
    let mut kept: Vec<Range<u64>> = Vec::new();
    journal::read_placed(&journal, |_, extent, digests, at| {
        let hashes = |now: Vec<Digest>| now == digests;
        let there = || {
            hashed.fetch_add(extent.len, Ordering::Relaxed);
            hash_extent(&part, length, extent).is_ok_and(hashes)
        };
        let few = extents.range_count() < RANGES_MAX && at < good;
        let wanted = few && !over.load(Ordering::Relaxed);
        if wanted && !extents.intersects(extent) && (at < believed || there()) {
            extents.insert(extent);
            root.insert_run(extent.offset, &digests);
            let end = at + journal::record_bytes(digests.len()) as u64;
            match kept.last_mut() {
                Some(last) if last.end == at => last.end = end,
                _ => kept.push(at..end),
            }
        }
    })?;
    if over.load(Ordering::Relaxed) {
        return None;
    }
    let head = match believed == good {
        true => {
            // Go on behind the last good record; what is cut there would hide all that follows.
            journal.set_len(good).ok()?;
            head
        }
        false => {
            let head = journal::renew(&journal, head, &kept).ok()?;
            journal::append_flushed(&journal).ok()?;
            head
        }
    };
    let journal::Head { size, mtime_ns, version, .. } = head;
    let have = Have { size, mtime_ns, version, extents, root };
    Some((part, journal, have))
}

/// Removes one of them. Somebody may have done so; there is nobody to tell.
fn remove(folder: &OpenFolder, name: &[u8]) {
    let _ = unlinkat(folder, OsStr::from_bytes(name), AtFlags::empty());
}

/// Whether there is a partial file that another process, or another session, has.
pub(crate) fn is_held(folder: &OpenFolder, names: &Names) -> bool {
    if !is_regular_or_absent(folder, OsStr::from_bytes(&names.part)) {
        return false;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = openat(folder, OsStr::from_bytes(&names.part), flags, Mode::empty());
    let lock = fd.map(|fd| flock(&fd, FlockOperation::NonBlockingLockShared));
    lock == Ok(Err(Errno::WOULDBLOCK))
}

/// Opens a file of ours and locks it, unless it is not ours alone. It must be open for writing: NFS
/// locks nothing else.
pub(crate) fn open_held(
    folder: &OpenFolder,
    name: &[u8],
    flags: OFlags,
    mode: u32,
    lock: Lock,
) -> Result<File, NotHeld> {
    let name = OsStr::from_bytes(name);
    // Others may write in the folder: a device of that name is not opened.
    if !is_regular_or_absent(folder, name) {
        return Err(NotHeld::Other);
    }
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = openat(folder, name, flags, Mode::from_raw_mode(mode & 0o777 | 0o200));
    let file = File::from(opened.map_err(|error| match error {
        Errno::ACCESS => NotHeld::Denied,
        _ => NotHeld::Other,
    })?);
    let locked = match lock(file.as_fd()) {
        Err(error) if NO_LOCKS.contains(&error) => Err(NotHeld::NoLocks),
        locked => locked.map_err(|_| NotHeld::Other),
    };
    let held = file.metadata().map_err(|_| NotHeld::Other)?;
    if held.uid() != rustix::process::geteuid().as_raw() {
        return Err(NotHeld::Foreign);
    }
    // Whoever had it before may have renamed it while we waited for nothing: is it still there?
    let named = statx(folder, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS);
    let is_there = named.is_ok_and(|named| held.ino() == named.stx_ino);
    match is_there && held.is_file() && held.nlink() == 1 {
        true => locked.map(|()| file),
        false => Err(NotHeld::Other),
    }
}
