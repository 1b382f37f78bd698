//! The cache on local disk: a folder of versions, bounded in bytes, of which the least
//! recently used go first. One process has it at a time. Nothing in it is trusted: see
//! `file`. A version that is in use is never removed; of one that is larger than the
//! cache the oldest blocks go.

mod file;

pub use file::{BLOCK_BYTES, CacheFile, block_extent};

use rustix::fs::{FlockOperation, flock};
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};
use verbatim_proto::message::FileInfo;
use verbatim_proto::{Code, Digest, Fault};

/// What a version is found by: server and path.
pub type Key = [u8; 16];

/// A version up to this size goes whole.
const WHOLE_BYTES_MAX: u64 = 8 * BLOCK_BYTES;

/// Of a larger one so much of the cache goes at a time: finding what is oldest takes a while.
const PUNCH_PARTS: u64 = 32;

/// Who has the cache.
const LOCK: &str = "lock";

/// The cache.
pub struct Cache {
    folder: PathBuf,
    bytes_max: u64,
    index: Mutex<Index>,
    _lock: File,
}

#[derive(Default)]
struct Index {
    /// What is there: how many bytes, and when it was used last.
    known: HashMap<Key, (u64, u64)>,
    by_use: BTreeSet<(u64, Key)>,
    open: HashMap<Key, Weak<CacheFile>>,
    bytes: u64,
    evictions: u64,
}

impl Cache {
    /// Opens a cache, and looks what is in it.
    pub fn open(folder: &Path, bytes_max: u64) -> Result<Self, Fault> {
        let cannot = |e: &io::Error| {
            Fault::from_io(format!("cannot use {} as a cache", folder.display()), e)
        };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|e| cannot(&e))?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(folder.join(LOCK))
            .map_err(|e| cannot(&e))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let text = format!("another mount has the cache {}", folder.display());
            return Err(Fault::new(Code::Limit, text));
        }
        let mut index = Index::default();
        for number in 0..=u8::MAX {
            // A part that is not there, or cannot be read, holds nothing.
            let Ok(entries) = fs::read_dir(folder.join(format!("{number:02x}"))) else { continue };
            for entry in entries.flatten() {
                let Some(key) = key_of(&entry.file_name().to_string_lossy()) else { continue };
                if let Ok(found) = entry.metadata() {
                    let used = found.mtime().max(0) as u64 * 1_000_000_000;
                    index.know(key, found.blocks() * 512, used + found.mtime_nsec() as u64);
                }
            }
        }
        let index = Mutex::new(index);
        Ok(Self { folder: folder.to_owned(), bytes_max, index, _lock: lock })
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that are there, that may be, and versions that had to go.
    pub fn usage(&self) -> (u64, u64, u64) {
        let index = self.index();
        (index.bytes, self.bytes_max, index.evictions)
    }

    fn paths(&self, key: &Key) -> (PathBuf, PathBuf) {
        let name: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let part = self.folder.join(&name[..2]);
        (part.join(format!("{name}.data")), part.join(format!("{name}.journal")))
    }

    /// The version that is there of a file, if there is one.
    pub fn find(&self, key: &Key) -> Option<Arc<CacheFile>> {
        let mut index = self.index();
        index.used(key);
        if let Some(file) = index.open.get(key).and_then(Weak::upgrade) {
            return Some(file);
        }
        index.known.get(key)?;
        self.load(&mut index, key)
    }

    fn load(&self, index: &mut Index, key: &Key) -> Option<Arc<CacheFile>> {
        let (data, journal) = self.paths(key);
        let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path).ok();
        let append = |path: &Path| OpenOptions::new().read(true).append(true).open(path).ok();
        let file = CacheFile::load(*key, open(&data)?, append(&journal)?)?;
        let file = Arc::new(file);
        index.open.insert(*key, Arc::downgrade(&file));
        Some(file)
    }

    /// A new version of a file, which takes the place of what was there.
    pub fn create(&self, key: &Key, info: &FileInfo, version: u64) -> io::Result<Arc<CacheFile>> {
        let mut index = self.index();
        if let Some(file) = index.open.get(key).and_then(Weak::upgrade) {
            if file.version == version && file.size == info.size {
                return Ok(file);
            }
            file.replaced.store(true, Ordering::Relaxed);
        }
        let (data, journal) = self.paths(key);
        self.remove(&mut index, key);
        let part = data.parent().expect("it is in a part of the cache");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(part)?;
        let mut new = OpenOptions::new();
        new.read(true).create_new(true).mode(0o600);
        let data = new.clone().write(true).open(data)?;
        let journal = new.append(true).open(journal)?;
        let file = Arc::new(CacheFile::begin(*key, info, version, data, journal)?);
        index.know(*key, 0, now());
        index.open.insert(*key, Arc::downgrade(&file));
        Ok(file)
    }

    /// Keeps a verified block, if there is room or room can be made.
    pub fn store(
        &self,
        file: &CacheFile,
        block: u32,
        bytes: &[u8],
        digests: &[Digest],
    ) -> io::Result<()> {
        if file.has(block) {
            return Ok(());
        }
        let len = bytes.len() as u64;
        if !self.make_room(file, len) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let stored = file.store(block, bytes, digests);
        if !matches!(stored, Ok(true)) {
            self.count(file, -(len as i64));
        }
        stored.map(drop)
    }

    /// Counts so many bytes as taken, after others have gone for them.
    fn make_room(&self, file: &CacheFile, len: u64) -> bool {
        loop {
            let mut index = self.index();
            if index.bytes + len <= self.bytes_max {
                drop(index);
                self.count(file, len as i64);
                return true;
            }
            let in_use = |key: &Key| index.open.get(key).is_some_and(|it| it.strong_count() > 0);
            let oldest = index.by_use.iter().find(|(_, key)| !in_use(key)).map(|(_, key)| *key);
            if let Some(key) = oldest {
                self.evict(&mut index, &key, len);
                continue;
            }
            drop(index);
            let punched = file.punch();
            if punched == 0 {
                return false;
            }
            self.count(file, -(punched as i64));
        }
    }

    /// Makes room of a version that nobody uses: all of a small one, the oldest blocks of a large
    /// one, which may be most of the cache.
    fn evict(&self, index: &mut Index, key: &Key, len: u64) {
        index.evictions += 1;
        let bytes = index.known.get(key).map_or(0, |(bytes, _)| *bytes);
        let large = if bytes > WHOLE_BYTES_MAX { self.load(index, key) } else { None };
        let enough = len.max(self.bytes_max / PUNCH_PARTS);
        let mut freed = 0;
        while let Some(file) = &large
            && freed < enough
        {
            match file.punch() {
                0 => break,
                bytes => freed += bytes,
            }
        }
        match freed {
            0 => self.remove(index, key),
            freed => index.grow(key, -(freed as i64)),
        }
    }

    fn count(&self, file: &CacheFile, bytes: i64) {
        // One that was replaced is nobody's any more: its space goes with its last reader.
        if !file.replaced.load(Ordering::Relaxed) {
            self.index().grow(&file.key, bytes);
        }
    }

    /// A version was used: the others go before it.
    pub fn used(&self, file: &CacheFile) {
        if !file.replaced.load(Ordering::Relaxed) {
            self.index().used(&file.key);
            // For the next run. Where it cannot be noted, another order is no harm.
            let _ = file.data.set_times(FileTimes::new().set_modified(SystemTime::now()));
        }
    }

    fn remove(&self, index: &mut Index, key: &Key) {
        let (data, journal) = self.paths(key);
        // The journal first: without it the data says nothing. What is gone is no harm.
        let _ = fs::remove_file(journal);
        let _ = fs::remove_file(data);
        index.forget(key);
    }
}

impl Index {
    fn know(&mut self, key: Key, bytes: u64, used: u64) {
        self.forget(&key);
        self.known.insert(key, (bytes, used));
        self.by_use.insert((used, key));
        self.bytes += bytes;
    }

    fn forget(&mut self, key: &Key) {
        if let Some((bytes, used)) = self.known.remove(key) {
            self.by_use.remove(&(used, *key));
            self.bytes -= bytes;
        }
        self.open.remove(key);
    }

    fn used(&mut self, key: &Key) {
        if let Some((_, used)) = self.known.get_mut(key) {
            self.by_use.remove(&(*used, *key));
            *used = now();
            self.by_use.insert((*used, *key));
        }
    }

    fn grow(&mut self, key: &Key, bytes: i64) {
        if let Some((known, _)) = self.known.get_mut(key) {
            let grown = known.saturating_add_signed(bytes);
            self.bytes = self.bytes - *known + grown;
            *known = grown;
        }
    }
}

/// The key that a name of ours stands for; data only.
fn key_of(name: &str) -> Option<Key> {
    let hex = name.strip_suffix(".data").filter(|hex| hex.len() == 32 && hex.is_ascii())?;
    let mut key = Key::default();
    for (byte, at) in key.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
    }
    Some(key)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

#[cfg(test)]
mod tests;
