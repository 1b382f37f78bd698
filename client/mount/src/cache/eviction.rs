//! Room in the cache: which versions were used longest ago, and how they go. When a
//! version was used last is the time of its file, so that all mounts agree and the next
//! one knows; what is oldest is looked for when room is needed, and a bounded list of it
//! kept. What somebody uses has a lock on it, and stays.

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

/// A version up to this size goes whole.
const WHOLE_BYTES_MAX: u64 = 8 * BLOCK_BYTES;

/// Of a larger one so much of the cache goes at a time: finding what is oldest takes a while.
const PUNCH_PARTS: u64 = 32;

/// How many are known as the oldest at a time.
const OLDEST_MAX: usize = 1 << 16;

/// How long it is not looked again where nothing could go.
const RESCAN_AFTER: Duration = Duration::from_millis(200);

/// How old a file is that is written aside and takes its name at once, when whoever wrote it is
/// gone.
const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(60);

/// When something was used, its key, and whether it is names and not a version.
type Candidate = (SystemTime, Key, bool);

/// What was used longest ago, as it was found; the oldest last.
#[derive(Default)]
pub(super) struct EvictionQueue {
    known: Vec<Candidate>,
    scanned_at: Option<Instant>,
}

/// Notes that a version is used now. Where that cannot be noted, another order is no harm.
pub(super) fn touch(data: &File) {
    let _ = data.set_times(FileTimes::new().set_modified(SystemTime::now()));
}

impl Cache {
    /// Counts what is there, if nobody in this boot has. Takes as long as there are files.
    pub fn count(&self) {
        if self.shared.needs_count {
            let (_, bytes) = self.scan(0);
            self.shared.set_counted(bytes);
        }
    }

    /// Counts so many bytes as taken, after others have gone for them.
    pub(super) fn make_room(&self, file: Option<&CacheFile>, len: u64) -> bool {
        loop {
            if self.shared.reserve(len, self.limit_bytes()) {
                return true;
            }
            if self.evict_oldest(len) {
                continue;
            }
            // Whoever looks what is there must not do so between the hole and its count.
            let _scanning = self.eviction_queue.lock().unwrap_or_else(PoisonError::into_inner);
            // What others may read can only be punched by whoever is alone.
            let (Some(file), Some(_exclusive)) = (file, self.shared.try_exclusive()) else {
                return false;
            };
            match file.punch() {
                None => return false,
                Some(punched) => self.shared.adjust(-(punched as i64)),
            }
        }
    }

    /// Has the version go that was used longest ago; false when all that are there are in use.
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
            // What was counted wrong, by whoever died, is right from here on.
            self.shared.correct(bytes, settled);
        }
        false
    }

    /// What was used longest ago, the oldest last, and how many bytes all takes. What a process
    /// that died has left aside goes.
    fn scan(&self, most: usize) -> (Vec<Candidate>, u64) {
        let (mut heap, mut bytes) = (BinaryHeap::new(), 0);
        for number in 0..=u8::MAX {
            // A part that is not there, or cannot be read, holds nothing.
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
                // Notes go with their version.
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

    /// Has a version go that is void, unless somebody uses it.
    pub fn discard(&self, key: &Key) {
        let path = self.path(key, "data");
        // Mostly there is none.
        if !path.try_exists().unwrap_or(false) {
            return;
        }
        let Ok(names_lock) = self.shared.lock_names() else { return };
        let Ok(Some(data)) = self.opener.open_to_read(&path) else { return };
        if flock(&data, FlockOperation::NonBlockingLockExclusive).is_ok() {
            self.shared.adjust(-(self.remove(key, &names_lock) as i64));
        }
    }

    /// Has names go that nobody asked for since.
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

    /// Makes room of a version that nobody uses, and has not since: all of a small one, the
    /// oldest blocks of a large one, which may be most of the cache. Says whether more is left;
    /// none when it stays.
    fn evict(&self, key: &Key, used: SystemTime, len: u64) -> Option<bool> {
        let names_lock = self.shared.lock_names().ok()?;
        let path = self.path(key, "data");
        let found = fs::symlink_metadata(&path).ok()?;
        if found.modified().ok()? != used {
            return None;
        }
        let mut data = self.open_data(key).ok()?;
        if let Some(data) = &data {
            // Whoever uses it, here or in another process, has a lock.
            flock(data, FlockOperation::NonBlockingLockExclusive).ok()?;
        }
        // One that cannot be looked at just now stays.
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
            // It keeps its place among the others.
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

/// What a file of ours holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CacheFileKind {
    Data,
    Journal,
    Names,
    /// What is to take the place of notes or names.
    Temporary,
}

/// The key that a name of ours stands for, and what the file holds.
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
