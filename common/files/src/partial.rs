//! Partial files that last: found again by name, held by one process at a time,
//! believed only as far as their journal, the boot and the mount allow. Called by `target`.
//!
//! A partial file is used only when it is a plain file of this user with one
//! name, and locked. One that is not is left alone, and a fresh one is made.

use crate::hash::hash_extent;
use crate::journal;
use crate::naming::{TEMPORARY_SUFFIX, hidden_name};
use crate::opened::OpenFolder;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, StatxFlags, flock, openat, statx};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Seek;
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

/// Finds a partial file, its journal, and what of it is verified: after another boot, or in
/// another mount, by hashing all of it, which the journal remembers.
pub(crate) fn find(folder: &OpenFolder, names: &Names) -> Option<(File, File, Have)> {
    let part = open_held(folder, &names.part, OFlags::RDWR, 0)?;
    let mut journal = open_held(folder, &names.journal, OFlags::RDWR | OFlags::APPEND, 0)?;
    let length = part.metadata().ok()?.len();
    let mut extents = ExtentSet::new();
    let mut root = RootBuilder::new(length);
    // Asked once a journal, not once a record.
    let mut trusted = None;
    let mut kept: Vec<Range<u64>> = Vec::new();
    let (head, good) = journal::read_placed(&journal, |head, extent, digests, at| {
        let trusted = *trusted.get_or_insert_with(|| head.is_of_this_stay(&journal));
        let there = || hash_extent(&part, head.size, extent).is_ok_and(|now| now == digests);
        let few = extents.range_count() < RANGES_MAX;
        if few && head.size == length && !extents.intersects(extent) && (trusted || there()) {
            extents.insert(extent);
            root.insert_run(extent.offset, &digests);
            let end = at + journal::record_bytes(digests.len()) as u64;
            match kept.last_mut() {
                Some(last) if last.end == at => last.end = end,
                _ => kept.push(at..end),
            }
        }
    })?;
    if head.size != length {
        return None;
    }
    let head = match trusted.unwrap_or_else(|| head.is_of_this_stay(&journal)) {
        false => journal::renew(&journal, head, &kept).ok()?,
        true => {
            // Go on behind the last good record; what is cut there would hide all that follows.
            journal.set_len(good).ok()?;
            head
        }
    };
    journal.rewind().ok()?;
    let journal::Head { size, mtime_ns, version, .. } = head;
    let have = Have { size, mtime_ns, version, extents, root };
    Some((part, journal, have))
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
