//! Partial files that last: found again by name, held by one process at a time,
//! believed without hashing only as far as they were flushed in this boot and mount. Called by
//! `target`.
//!
//! A partial file is used only when it is a plain file of this user with one
//! name, and locked. One that is not is left alone, and a fresh one is made.

use crate::hash::hash_extent;
use crate::journal::{self, Reach};
use crate::naming::{TEMPORARY_SUFFIX, hidden_name};
use crate::opened::OpenFolder;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::fs::{flock, openat, statx, unlinkat};
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
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

/// Opens, or makes, a partial file and its journal to begin with. `None` when they cannot be
/// had for this process alone.
pub(crate) fn begin(folder: &OpenFolder, names: &Names, mode: u32) -> Option<(File, File)> {
    let flags = OFlags::RDWR | OFlags::CREATE;
    let part = open_held(folder, &names.part, flags, mode)?;
    let journal = open_held(folder, &names.journal, flags | OFlags::APPEND, 0o600)?;
    Some((part, journal))
}

/// Finds a partial file, its journal, and what of it is verified: what was flushed in this boot
/// and mount, or is in memory alone, and of the rest what still hashes so, which is flushed and the
/// journal remembers.
pub(crate) fn find(folder: &OpenFolder, names: &Names) -> Option<(File, File, Have)> {
    let part = open_held(folder, &names.part, OFlags::RDWR, 0)?;
    let journal = open_held(folder, &names.journal, OFlags::RDWR | OFlags::APPEND, 0)?;
    let length = part.metadata().ok()?.len();
    let Reach { head, flushed, good } = journal::reach(&journal)?;
    if head.size != length {
        return None;
    }
    let believed = match head.is_of_this_stay(&journal) {
        true if folder.is_in_memory() => good,
        true => flushed,
        false => 0,
    };
    if believed < good && part.sync_data().is_err() {
        // What the page cache has now is not on the disk, and nobody is told that again.
        remove(folder, &names.journal);
        remove(folder, &names.part);
        return None;
    }
    let mut extents = ExtentSet::new();
    let mut root = RootBuilder::new(length);
    let mut kept: Vec<Range<u64>> = Vec::new();
    journal::read_placed(&journal, |_, extent, digests, at| {
        let there = || hash_extent(&part, length, extent).is_ok_and(|now| now == digests);
        let few = extents.range_count() < RANGES_MAX;
        if few && !extents.intersects(extent) && (at < believed || there()) {
            extents.insert(extent);
            root.insert_run(extent.offset, &digests);
            let end = at + journal::record_bytes(digests.len()) as u64;
            match kept.last_mut() {
                Some(last) if last.end == at => last.end = end,
                _ => kept.push(at..end),
            }
        }
    })?;
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
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = openat(folder, OsStr::from_bytes(&names.part), flags, Mode::empty());
    let lock = fd.map(|fd| flock(&fd, FlockOperation::NonBlockingLockShared));
    lock == Ok(Err(rustix::io::Errno::WOULDBLOCK))
}

/// Opens a file of ours and locks it; `None` when it is not ours alone.
pub(crate) fn open_held(
    folder: &OpenFolder,
    name: &[u8],
    flags: OFlags,
    mode: u32,
) -> Option<File> {
    let name = OsStr::from_bytes(name);
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = openat(folder, name, flags, Mode::from_raw_mode(mode & 0o777 | 0o200)).ok()?;
    flock(&fd, FlockOperation::NonBlockingLockExclusive).ok()?;
    let file = File::from(fd);
    let held = file.metadata().ok()?;
    // Whoever had it before may have renamed it while we waited for nothing: is it still there?
    let named = statx(folder, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS).ok()?;
    let ours = held.is_file()
        && held.uid() == rustix::process::geteuid().as_raw()
        && held.nlink() == 1
        && held.ino() == named.stx_ino;
    ours.then_some(file)
}
