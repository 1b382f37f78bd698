//! The cache on local disk: a folder of versions, bounded in bytes, of which the least
//! recently used go first (`eviction`). Several mounts may use it at once (`shared_state`): whoever
//! uses a version has a lock on its file, and what is locked is neither removed nor
//! punched by anybody else. Nothing in it is trusted: see `file`. Nothing of it is in
//! memory but what is open.

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

/// What a version is found by: server and path.
pub type Key = [u8; 16];

/// How long a disk that was full is taken to be no larger than it was.
const DISK_FULL_FOR: Duration = Duration::from_secs(5);

/// How often a full disk is tried after something has gone from it.
const DISK_FULL_TRIES: usize = 3;

/// What disks give space in.
const PAGE_BYTES: u64 = 4096;

/// The cache.
pub struct Cache {
    folder: PathBuf,
    opener: SafeOpener,
    bytes_max: u64,
    /// What fitted when the disk was found full, and when that was.
    disk_full: Mutex<Option<(u64, Instant)>>,
    shared: SharedState,
    open: Mutex<OpenVersions>,
    eviction_queue: Mutex<EvictionQueue>,
    evictions: AtomicU64,
    verified: VerifiedVersions,
}

/// The versions that this process uses.
#[derive(Default)]
struct OpenVersions {
    files: HashMap<Key, Weak<CacheFile>>,
    /// When those that nobody uses any more are looked for.
    sweep_at: usize,
}

impl Cache {
    /// Comes into a cache that nobody else may write to. Looks at no version in it: they may be a
    /// million files.
    pub fn open(folder: &Path, bytes_max: u64) -> Result<Self, CacheError> {
        let folder = &folder::create_or_check(folder)?;
        let cannot = |e: &io::Error| {
            Fault::from_io(format!("cannot use {} as a cache", folder.display()), e)
        };
        // Looked at before: what is uncounted then, nobody of this boot was at.
        let is_empty = is_empty(folder);
        let opener = SafeOpener::probe(folder);
        let Some(mut shared) = SharedState::join(folder, opener).map_err(|e| cannot(&e))? else {
            let text = format!("{MOUNTS_MAX} mounts use the cache {} already", folder.display());
            return Err(CacheError::Full(Fault::new(Code::Limit, text)));
        };
        // What is kept from here on is counted as it comes, and is not to be found as well.
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

    /// Bytes that are there, that may be, and versions that had to go.
    pub fn usage(&self) -> (u64, u64, u64) {
        (self.shared.bytes(), self.limit_bytes(), self.evictions.load(Ordering::Relaxed))
    }

    /// What may be there: as much as was said, or as the disk has room for.
    fn limit_bytes(&self) -> u64 {
        let disk_full = *self.disk_full.lock().unwrap_or_else(PoisonError::into_inner);
        let lately = disk_full.filter(|(_, since)| since.elapsed() < DISK_FULL_FOR);
        lately.map_or(self.bytes_max, |(bytes, _)| bytes.min(self.bytes_max))
    }

    /// The disk is full: what is there is what fits, for now.
    fn note_disk_full(&self) {
        let bytes = self.shared.bytes();
        let mut disk_full = self.disk_full.lock().unwrap_or_else(PoisonError::into_inner);
        *disk_full = Some((bytes, Instant::now()));
    }

    fn path(&self, key: &Key, kind: &str) -> PathBuf {
        let name: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(&name[..2]).join(format!("{name}.{kind}"))
    }

    /// The version that is there of a file, if there is one.
    pub fn find(&self, key: &Key) -> Option<Arc<CacheFile>> {
        let mut open = self.files();
        if let Some(file) = open.get(key) {
            return Some(file);
        }
        // Most of what is asked for is not there at first.
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

    /// Opens what is there, and locks it against whoever wants its room. `None` when nothing is
    /// that is of use; where that cannot be found out, too many files are open say, an error.
    fn load(&self, key: &Key, _: &NameLock<'_>) -> io::Result<Option<CacheFile>> {
        let Some(data) = self.open_data(key)? else { return Ok(None) };
        let Some(journal_file) = self.open_journal(key)? else { return Ok(None) };
        flock(&data, FlockOperation::NonBlockingLockShared)?;
        let found = CacheFile::load(*key, data, journal_file)?;
        // Whoever reads past this process reads to the end of the data, wherever that is.
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

    /// A new version of a file, which takes the place of what was there, and what `first` makes
    /// of it before anybody else finds it.
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
                let made = first(&file);
                return Ok((file, made));
            }
            file.replaced.store(true, Ordering::Relaxed);
        }
        let file = match self.find_or_create(key, info, version) {
            Ok(file) => file,
            // Readers get it all the same, from the network.
            Err(error) => {
                let folder = self.folder.display();
                tracing::warn!(cache = %folder, cause = %error, "the cache takes nothing");
                self.note_disk_full();
                CacheFile::uncached(*key, info, version)?
            }
        };
        let file = Arc::new(file);
        let made = first(&file);
        open.put(&file);
        Ok((file, made))
    }

    /// The files of a version: another mount may have made them.
    fn find_or_create(&self, key: &Key, info: &FileInfo, version: u64) -> io::Result<CacheFile> {
        loop {
            let names_lock = self.shared.lock_names()?;
            // What may be good is not removed.
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
                // Each time something has gone, so this ends.
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
        let part = data.parent().expect("it is in a part of the cache");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(part)?;
        let mut new = OpenOptions::new();
        new.read(true).create_new(true).mode(0o600);
        let data = new.clone().write(true).open(data)?;
        flock(&data, FlockOperation::NonBlockingLockShared)?;
        let journal = new.append(true).open(self.path(key, "journal"))?;
        CacheFile::create(*key, info, version, data, journal)
    }

    /// Takes a version's name away; returns the room that its users give back in the end.
    fn remove(&self, key: &Key, _: &NameLock<'_>) -> u64 {
        let (data, journal) = (self.path(key, "data"), self.path(key, "journal"));
        let disk_bytes = |path| fs::symlink_metadata(path).map_or(0, |found| found.blocks() * 512);
        let bytes = disk_bytes(&data) + disk_bytes(&journal);
        // The journal first: without it the data says nothing. What is gone is no harm.
        let _ = fs::remove_file(journal);
        let _ = fs::remove_file(data);
        bytes
    }

    /// Keeps a verified block, if there is room or room can be made. Pages of zeros take none.
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
        // Of one that was replaced the space goes with its last reader.
        let counts = !file.replaced.load(Ordering::Relaxed);
        let runs = PageRuns::scan(bytes);
        let len = runs.data_bytes();
        for _ in 0..DISK_FULL_TRIES {
            // For a hole, which takes nothing but its note, no block of the file itself goes.
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

    /// A version was used: the others go before it.
    pub fn touch(&self, file: &CacheFile) {
        eviction::touch(&file.data);
        // As it looks from now on.
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

/// Whether nothing was ever kept there: what is kept is in folders.
fn is_empty(folder: &Path) -> bool {
    let is_folder = |entry: io::Result<fs::DirEntry>| entry.is_ok_and(|it| it.path().is_dir());
    fs::read_dir(folder).is_ok_and(|entries| !entries.into_iter().any(is_folder))
}

/// Whether there was no room on the disk, or none for this user.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Open versions below which nobody looks for those that are not.
const SWEEP_MIN: usize = 1024;

#[cfg(test)]
mod tests;
