//! The cache on local disk: versions of files, bounded in bytes, with eviction of the
//! least recently used (`eviction`). Several mounts may share it (`shared_state`): a
//! user of a version locks its file, and other processes neither remove nor punch a
//! locked file. Nothing in it is trusted (`file`). Only open versions take memory.

mod block_journal;
mod blocks;
mod eviction;
mod file;
mod folder;
mod names;
mod safe_open;
mod shared_state;
mod sparse;
mod verified;

pub use blocks::{BLOCK_BYTES, FILE_BYTES_MAX, block_extent};
pub use file::CacheFile;
pub use folder::CacheError;

use eviction::EvictionQueue;
use rustix::fs::{FlockOperation, flock};
use safe_open::SafeOpener;
use shared_state::{MOUNTS_MAX, NameLock, SharedState};
use sparse::PageRuns;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use verbatim_proto::message::FileInfo;
use verbatim_proto::{Code, Digest, Fault};
use verified::VerifiedVersions;

/// The key of a version: a hash of server and path.
pub type Key = [u8; 16];

/// How long a full disk limits the size of the cache.
const DISK_FULL_FOR: Duration = Duration::from_secs(5);

/// How often a store is tried on a full disk, after an eviction each time.
const DISK_FULL_TRIES: usize = 3;

/// The unit in which disks allocate space.
const PAGE_BYTES: u64 = 4096;

/// The cache of one mount.
pub struct Cache {
    folder: PathBuf,
    opener: SafeOpener,
    bytes_max: u64,
    /// The bytes that fitted when the disk was full, and when that was.
    disk_full: Mutex<Option<(u64, Instant)>>,
    shared: SharedState,
    open: Mutex<OpenVersions>,
    eviction_queue: Mutex<EvictionQueue>,
    evictions: AtomicU64,
    verified: VerifiedVersions,
}

/// The versions that this process has open.
#[derive(Default)]
struct OpenVersions {
    files: HashMap<Key, Weak<CacheFile>>,
    /// The size at which dropped versions are removed from the table.
    sweep_at: usize,
}

impl Cache {
    /// Opens or creates a cache in a folder that only this user may write to. Reads no versions:
    /// there may be a million.
    pub fn open(folder: &Path, bytes_max: u64) -> Result<Self, CacheError> {
        let folder = &folder::create_or_check(folder)?;
        let cannot = |e: &io::Error| {
            Fault::from_io(format!("cannot use {} as a cache", folder.display()), e)
        };
        // Checked before joining, so that no mount of this boot was using it yet.
        let is_empty = is_empty(folder);
        let opener = SafeOpener::probe(folder);
        let Some(mut shared) = SharedState::join(folder, opener).map_err(|e| cannot(&e))? else {
            let text = format!("{MOUNTS_MAX} mounts use the cache {} already", folder.display());
            return Err(CacheError::Full(Fault::new(Code::Limit, text)));
        };
        // An empty cache needs no scan: blocks stored from here on are counted as they come.
        if shared.needs_count && is_empty {
            shared.set_counted(0);
            shared.needs_count = false;
        }
        Ok(Self {
            folder: folder.to_owned(),
            opener,
            bytes_max,
            disk_full: Mutex::default(),
            shared,
            open: Mutex::default(),
            eviction_queue: Mutex::default(),
            evictions: AtomicU64::new(0),
            verified: VerifiedVersions::default(),
        })
    }

    fn files(&self) -> MutexGuard<'_, OpenVersions> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes stored, their limit, and the number of evictions.
    pub fn usage(&self) -> (u64, u64, u64) {
        (self.shared.bytes(), self.limit_bytes(), self.evictions.load(Ordering::Relaxed))
    }

    /// The limit in bytes: the configured one, or what a full disk holds.
    fn limit_bytes(&self) -> u64 {
        let disk_full = *self.disk_full.lock().unwrap_or_else(PoisonError::into_inner);
        let lately = disk_full.filter(|(_, since)| since.elapsed() < DISK_FULL_FOR);
        lately.map_or(self.bytes_max, |(bytes, _)| bytes.min(self.bytes_max))
    }

    /// Limits the cache to its present size, because the disk is full.
    fn note_disk_full(&self) {
        let bytes = self.shared.bytes();
        let mut disk_full = self.disk_full.lock().unwrap_or_else(PoisonError::into_inner);
        *disk_full = Some((bytes, Instant::now()));
    }

    fn path(&self, key: &Key, kind: &str) -> PathBuf {
        let name: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(&name[..2]).join(format!("{name}.{kind}"))
    }

    /// The cached version of a key.
    pub fn find(&self, key: &Key) -> Option<Arc<CacheFile>> {
        let mut open = self.files();
        if let Some(file) = open.get(key) {
            return Some(file);
        }
        // A first open usually finds nothing.
        let data = self.path(key, "data");
        data.try_exists().ok().filter(|there| *there)?;
        let names_lock = self.shared.lock_names().ok()?;
        let file = Arc::new(self.load(key, &names_lock).ok()??);
        drop(names_lock);
        open.put(&file);
        drop(open);
        self.touch(&file);
        Some(file)
    }

    /// Opens a version and locks it against eviction. `None` if there is none or it is unusable; an
    /// error if that is unknown, as with too many open files.
    fn load(&self, key: &Key, _: &NameLock<'_>) -> io::Result<Option<CacheFile>> {
        let Some(data) = self.open_data(key)? else { return Ok(None) };
        let Some(journal_file) = self.open_journal(key)? else { return Ok(None) };
        flock(&data, FlockOperation::NonBlockingLockShared)?;
        let found = CacheFile::load(*key, data, journal_file)?;
        // Passthrough reads up to the end of the data file.
        let Some(file) = found.filter(CacheFile::truncate_to_size) else { return Ok(None) };
        let journal = self.path(key, "journal");
        if self.verified.contains(&file) {
            file.mark_verified();
        }
        if file.needs_compaction()
            && let Some(_exclusive) = self.shared.try_exclusive()
        {
            let before = file.journal_bytes();
            file.compact_journal(&journal);
            self.shared.adjust(file.journal_bytes() as i64 - before as i64);
        }
        Ok(Some(file))
    }

    fn open_data(&self, key: &Key) -> io::Result<Option<File>> {
        self.opener.open(&self.path(key, "data"), OpenOptions::new().read(true).write(true))
    }

    fn open_journal(&self, key: &Key) -> io::Result<Option<File>> {
        self.opener.open(&self.path(key, "journal"), OpenOptions::new().read(true).append(true))
    }

    /// Creates a version, which replaces an older one. Runs `first` on it before other readers can
    /// find it.
    pub fn create<T>(
        &self,
        key: &Key,
        info: &FileInfo,
        version: u64,
        first: impl FnOnce(&CacheFile) -> T,
    ) -> io::Result<(Arc<CacheFile>, T)> {
        if info.size > FILE_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut open = self.files();
        if let Some(file) = open.get(key) {
            if (file.version, file.size) == (version, info.size) {
                let result = first(&file);
                return Ok((file, result));
            }
            file.replaced.store(true, Ordering::Relaxed);
        }
        let file = match self.find_or_create(key, info, version) {
            Ok(file) => file,
            // Readers still get the blocks, over the network.
            Err(error) => {
                let folder = self.folder.display();
                tracing::warn!(cache = %folder, cause = %error, "the cache takes nothing");
                self.note_disk_full();
                CacheFile::uncached(*key, info, version)?
            }
        };
        let file = Arc::new(file);
        let result = first(&file);
        open.put(&file);
        Ok((file, result))
    }

    /// Finds or creates the files of a version: another mount may have created them.
    fn find_or_create(&self, key: &Key, info: &FileInfo, version: u64) -> io::Result<CacheFile> {
        loop {
            let names_lock = self.shared.lock_names()?;
            // A version that may be intact is not removed.
            let found = self.load(key, &names_lock)?;
            if let Some(file) = found.filter(|it| (it.version, it.size) == (version, info.size)) {
                return Ok(file);
            }
            self.shared.adjust(-(self.remove(key, &names_lock) as i64));
            let created = self.create_files(key, info, version, &names_lock);
            match &created {
                Ok(file) => self.shared.adjust(file.journal_bytes() as i64),
                Err(_) => drop(self.remove(key, &names_lock)),
            }
            drop(names_lock);
            match created {
                // Each eviction removes a file, so this ends.
                Err(error) if is_full(&error) && self.evict_oldest(0) => {}
                created => return created,
            }
        }
    }

    fn create_files(
        &self,
        key: &Key,
        info: &FileInfo,
        version: u64,
        _: &NameLock<'_>,
    ) -> io::Result<CacheFile> {
        let data = self.path(key, "data");
        let part = data.parent().expect("cache files are in subfolders");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(part)?;
        let mut new = OpenOptions::new();
        new.read(true).create_new(true).mode(0o600);
        let data = new.clone().write(true).open(data)?;
        flock(&data, FlockOperation::NonBlockingLockShared)?;
        let journal = new.append(true).open(self.path(key, "journal"))?;
        CacheFile::create(*key, info, version, data, journal)
    }

    /// Unlinks the files of a version; returns the bytes that are freed when its last user closes
    /// them.
    fn remove(&self, key: &Key, _: &NameLock<'_>) -> u64 {
        let (data, journal) = (self.path(key, "data"), self.path(key, "journal"));
        let disk_bytes = |path| fs::symlink_metadata(path).map_or(0, |found| found.blocks() * 512);
        let bytes = disk_bytes(&data) + disk_bytes(&journal);
        // The journal first: data without a journal is never used. A missing file is fine.
        let _ = fs::remove_file(journal);
        let _ = fs::remove_file(data);
        bytes
    }

    /// Stores a verified block, if it fits or others can be evicted. Pages of zeros take no space.
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
        // The last reader of a replaced version frees its space, so it is not counted.
        let counts = !file.replaced.load(Ordering::Relaxed);
        let runs = PageRuns::scan(bytes);
        let len = runs.data_bytes();
        for _ in 0..DISK_FULL_TRIES {
            // A hole takes only its journal record, so no block of the same file is punched for it.
            if counts && !self.make_room((len > 0).then_some(file), len) {
                break;
            }
            let stored = file.store(block, &runs, digests);
            match stored {
                Ok(Some(more)) if counts && more > 0 => self.shared.adjust(more as i64),
                Ok(Some(_)) => {}
                _ if counts => self.shared.adjust(-(len as i64)),
                _ => {}
            }
            if counts {
                self.shared.settle(len);
            }
            match stored {
                Err(error) if counts && is_full(&error) => self.note_disk_full(),
                stored => return stored.map(drop),
            }
        }
        Err(io::ErrorKind::StorageFull.into())
    }

    /// Marks a version as used now, for eviction.
    pub fn touch(&self, file: &CacheFile) {
        eviction::touch(&file.data);
        // With the mtime just set.
        self.verified.record(file);
    }
}

impl OpenVersions {
    fn get(&self, key: &Key) -> Option<Arc<CacheFile>> {
        self.files.get(key).and_then(Weak::upgrade)
    }

    fn put(&mut self, file: &Arc<CacheFile>) {
        if self.files.len() >= self.sweep_at {
            self.files.retain(|_, file| file.strong_count() > 0);
            self.sweep_at = (2 * self.files.len()).max(SWEEP_MIN);
        }
        self.files.insert(file.key, Arc::downgrade(file));
    }
}

/// Whether the cache holds nothing: all versions are in subfolders.
fn is_empty(folder: &Path) -> bool {
    let is_folder = |entry: io::Result<fs::DirEntry>| entry.is_ok_and(|it| it.path().is_dir());
    fs::read_dir(folder).is_ok_and(|entries| !entries.into_iter().any(is_folder))
}

/// Whether the disk or the user's quota is full.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Open versions up to which the table is not swept.
const SWEEP_MIN: usize = 1024;

#[cfg(test)]
mod tests;
