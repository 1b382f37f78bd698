//! Eviction: finds the least recently used versions and removes them. A version's last
//! use is the mtime of its file, so that all mounts agree and a later one knows it. A
//! scan on demand keeps a bounded list of the oldest. A version in use has a lock on
//! its file and is never evicted.

use super::blocks::BLOCK_BYTES;
use super::file::CacheFile;
use super::{Cache, Key};
use rustix::fs::{FlockOperation, flock};
use std::collections::BinaryHeap;
use std::fs::{self, File, FileTimes};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

/// A version up to this size is evicted whole.
const WHOLE_BYTES_MAX: u64 = 8 * BLOCK_BYTES;

/// A larger version loses this share of the cache at a time, because a scan takes a while.
const PUNCH_PARTS: u64 = 32;

/// The most candidates from one scan.
const OLDEST_MAX: usize = 1 << 16;

/// The pause after a scan that found nothing to evict.
const RESCAN_AFTER: Duration = Duration::from_millis(200);

/// The age at which a temporary file is left from a dead process: a live one renames it at once.
const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(60);

/// The last use, the key, and whether the file holds names instead of a version.
type Candidate = (SystemTime, Key, bool);

/// The least recently used files of the last scan, the oldest last.
#[derive(Default)]
pub(super) struct EvictionQueue {
    known: Vec<Candidate>,
    scanned_at: Option<Instant>,
}

/// Sets the last use of a version. An error only changes the order of eviction.
pub(super) fn touch(data: &File) {
    let _ = data.set_times(FileTimes::new().set_modified(SystemTime::now()));
}

impl Cache {
    /// Counts the bytes in the cache, unless a mount has since boot. Reads every file's metadata.
    pub fn count(&self) {
        if self.shared.needs_count {
            let (_, bytes) = self.scan(0);
            self.shared.set_counted(bytes);
        }
    }

    /// Reserves this many bytes, and evicts others until they fit. Punches the oldest blocks of
    /// `file` itself as the last resort.
    pub(super) fn make_room(&self, file: Option<&CacheFile>, len: u64) -> bool {
        loop {
            if self.shared.reserve(len, self.limit_bytes()) {
                return true;
            }
            if self.evict_oldest(len) {
                continue;
            }
            // A scan must not run between the punch and its deduction.
            let _scanning = self.eviction_queue.lock().unwrap_or_else(PoisonError::into_inner);
            // Other mounts may be reading the file, so punching needs exclusive use.
            let (Some(file), Some(_exclusive)) = (file, self.shared.try_exclusive()) else {
                return false;
            };
            match file.punch() {
                None => return false,
                Some(punched) => self.shared.adjust(-(punched as i64)),
            }
        }
    }

    /// Evicts the least recently used version. False if all versions are in use.
    pub(super) fn evict_oldest(&self, len: u64) -> bool {
        let mut eviction_queue = self.eviction_queue.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..2 {
            while let Some(candidate) = eviction_queue.known.pop() {
                let (used, key, is_names) = candidate;
                let evicted = match is_names {
                    true => self.evict_names(&key, used),
                    false => self.evict(&key, used, len),
                };
                let Some(more) = evicted else { continue };
                eviction_queue.known.extend(more.then_some(candidate));
                return true;
            }
            if eviction_queue.scanned_at.is_some_and(|at| at.elapsed() < RESCAN_AFTER) {
                return false;
            }
            let settled = self.shared.settled();
            let (known, bytes) = self.scan(OLDEST_MAX);
            eviction_queue.known = known;
            eviction_queue.scanned_at = Some(Instant::now());
            // This also corrects errors that dead processes left in the count.
            self.shared.correct(bytes, settled);
        }
        false
    }

    /// Scans the cache: the least recently used files, the oldest last, and the bytes of all.
    /// Removes temporary files of dead processes.
    fn scan(&self, most: usize) -> (Vec<Candidate>, u64) {
        let (mut heap, mut bytes) = (BinaryHeap::new(), 0);
        for number in 0..=u8::MAX {
            // A missing or unreadable folder holds nothing.
            let part = self.folder.join(format!("{number:02x}"));
            let Ok(entries) = fs::read_dir(part) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name();
                let Some((key, kind)) = key_of(Path::new(&name)) else { continue };
                let Ok(found) = entry.metadata() else { continue };
                let Ok(used) = found.modified() else { continue };
                if kind == CacheFileKind::Temporary
                    && used.elapsed().is_ok_and(|age| age > TEMPORARY_AGE_MAX)
                {
                    let _ = fs::remove_file(entry.path());
                    continue;
                }
                bytes += found.blocks() * 512;
                // A journal is removed with its version.
                let is_names = match kind {
                    CacheFileKind::Data => false,
                    CacheFileKind::Names => true,
                    CacheFileKind::Journal | CacheFileKind::Temporary => continue,
                };
                heap.push((used, key, is_names));
                if heap.len() > most {
                    heap.pop();
                }
            }
        }
        let mut known = heap.into_sorted_vec();
        known.reverse();
        (known, bytes)
    }

    /// Removes an invalid version, unless a mount uses it.
    pub fn discard(&self, key: &Key) {
        let path = self.path(key, "data");
        // Usually there is none.
        if !path.try_exists().unwrap_or(false) {
            return;
        }
        let Ok(names_lock) = self.shared.lock_names() else { return };
        let Ok(Some(data)) = self.opener.open_to_read(&path) else { return };
        if flock(&data, FlockOperation::NonBlockingLockExclusive).is_ok() {
            self.shared.adjust(-(self.remove(key, &names_lock) as i64));
        }
    }

    /// Removes names that were not used since the scan.
    fn evict_names(&self, key: &Key, used: SystemTime) -> Option<bool> {
        let path = self.path(key, "names");
        let found = fs::symlink_metadata(&path).ok()?;
        if found.modified().ok()? != used {
            return None;
        }
        fs::remove_file(&path).ok()?;
        self.shared.adjust(-((found.blocks() * 512) as i64));
        Some(false)
    }

    /// Evicts a version that was not used since the scan: a small one whole, a large one by its
    /// oldest blocks, because it may fill most of the cache. Returns whether blocks are left;
    /// `None` if it was not evicted.
    fn evict(&self, key: &Key, used: SystemTime, len: u64) -> Option<bool> {
        let names_lock = self.shared.lock_names().ok()?;
        let path = self.path(key, "data");
        let found = fs::symlink_metadata(&path).ok()?;
        if found.modified().ok()? != used {
            return None;
        }
        let mut data = self.open_data(key).ok()?;
        if let Some(data) = &data {
            // A user of the version, in any process, holds a shared lock.
            flock(data, FlockOperation::NonBlockingLockExclusive).ok()?;
        }
        // A version whose journal cannot be opened now stays.
        let notes = self.open_journal(key).ok()?;
        let is_large = found.blocks() * 512 > WHOLE_BYTES_MAX;
        let large = match notes.zip(data.take_if(|_| is_large)) {
            Some((notes, data)) => CacheFile::load(*key, data, notes).ok()?,
            None => None,
        };
        self.evictions.fetch_add(1, Ordering::Relaxed);
        let mut freed = 0;
        if let Some(file) = large {
            let enough = len.max(self.bytes_max / PUNCH_PARTS);
            while freed < enough
                && let Some(bytes) = file.punch()
            {
                freed += bytes;
            }
            // Punching changed the mtime; this restores the last use.
            let _ = file.data.set_times(FileTimes::new().set_modified(used));
        }
        let more = freed > 0;
        if !more {
            freed = self.remove(key, &names_lock);
        }
        self.shared.adjust(-(freed as i64));
        Some(more)
    }
}

/// The kind of a file in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CacheFileKind {
    Data,
    Journal,
    Names,
    /// A journal or names that are being written.
    Temporary,
}

/// Parses the name of a cache file into its key and kind.
fn key_of(name: &Path) -> Option<(Key, CacheFileKind)> {
    let (hex, kind) = name.to_str()?.split_once('.')?;
    let kind = match kind {
        "data" => CacheFileKind::Data,
        "journal" => CacheFileKind::Journal,
        "names" => CacheFileKind::Names,
        "journal-new" => CacheFileKind::Temporary,
        kind if kind.starts_with("names-") => CacheFileKind::Temporary,
        _ => return None,
    };
    if hex.len() != 32 || !hex.is_ascii() {
        return None;
    }
    let mut key = Key::default();
    for (byte, at) in key.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
    }
    Some((key, kind))
}
