//! Digest cache: a file is hashed once, and its digests survive a restart. Owns one redb
//! database and the one thread that writes to it. Its size is bounded; the oldest entries are
//! evicted first. It never returns a digest other than the stored one, and a locked, corrupt or
//! failing database is never an outage: it logs a warning and caches in memory. `window_digests`
//! reads it before hashing and writes to it after; it alone decides which identities are old
//! enough to be cached.

use crate::exports::digest_store::{self, Change, Store, catch_panic};
use redb::Durability;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tracing::warn;
use verbatim_files::Identity;
use verbatim_proto::Digest;
use verbatim_proto::units::{GRAIN_BYTES, WINDOW_BYTES};

/// Remembers the grain digests of windows of files, by the file's full identity.
pub struct DigestCache {
    shared: Arc<CacheState>,
    /// `None` when the cache is off.
    writer: Option<(SyncSender<Command>, JoinHandle<()>)>,
}

/// What the cache did since it was opened, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Windows that were found.
    pub hits: u64,
    /// Windows that were hashed, because they were not found or not intact.
    pub misses: u64,
    /// Windows stored now.
    pub entries: u64,
    /// What the windows stored now take on disk, nearly.
    pub bytes: u64,
    /// Windows that were not stored, because the queue was full or the database failed.
    pub dropped: u64,
}

/// Where the cache keeps what it learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheHome {
    /// In its file: a restart keeps it.
    File,
    /// In memory: a restart forgets it.
    Memory,
    /// Nowhere: the cache is off.
    Nowhere,
}

impl DigestCache {
    /// Opens the cache in folder `dir`, bounded to `size_bytes`; it falls back to one in
    /// memory and never fails. A size of zero turns it off.
    pub fn open(dir: &Path, size_bytes: u64) -> Self {
        if size_bytes == 0 {
            return Self::disabled();
        }
        Self::start(Store::open(dir, size_bytes))
    }

    /// Makes a cache that stores nothing and finds nothing.
    pub fn disabled() -> Self {
        Self { shared: Arc::default(), writer: None }
    }

    /// Finds the digests of a window; anything that goes wrong is a miss.
    pub fn get(&self, key: &Identity, window: u64) -> Option<Vec<Digest>> {
        self.writer.as_ref()?;
        let found = self.shared.with_store(|store| store.read(key, window)).flatten()?;
        self.count_hit();
        Some(found)
    }

    /// Counts a window whose digests were found: here, or at hand without looking here, which for
    /// whoever watches is a hit like others.
    pub fn count_hit(&self) {
        self.shared.hits.fetch_add(1, Relaxed);
    }

    /// Counts a window that had to be hashed: whoever did not find it here may still have been
    /// told by somebody who was at it.
    pub fn count_miss(&self) {
        if self.writer.is_some() {
            self.shared.misses.fetch_add(1, Relaxed);
        }
    }

    /// Queues the digests of a window to be stored, and returns at once. What the queue has
    /// no room for, and what is longer than a window, is dropped and counted.
    pub fn put(&self, key: &Identity, window: u64, digests: &[Digest]) {
        let Some((queue, _)) = &self.writer else { return };
        let put = || Change::Put { key: *key, window, digests: digests.to_vec() };
        let command = |change| Command { change: Some(change), done: None };
        if digests.len() > DIGESTS_MAX || queue.try_send(command(put())).is_err() {
            self.shared.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Removes all windows of an identity, queued ones included, and waits until it is done.
    pub fn forget(&self, key: &Identity) {
        self.run_and_wait(Some(Change::Forget { key: *key }));
    }

    /// Waits until everything queued so far is stored and safe from a power cut.
    pub fn flush(&self) {
        self.run_and_wait(None);
    }

    /// Stores what is queued and closes the database; dropping the cache does the same.
    pub fn close(self) {
        drop(self);
    }

    /// Counts what the cache did and what it holds.
    pub fn stats(&self) -> CacheStats {
        let shared = &self.shared;
        CacheStats {
            hits: shared.hits.load(Relaxed),
            misses: shared.misses.load(Relaxed),
            entries: shared.entries.load(Relaxed),
            bytes: shared.bytes.load(Relaxed),
            dropped: shared.dropped.load(Relaxed),
        }
    }

    /// Says where the cache keeps what it learns.
    pub fn home(&self) -> CacheHome {
        match &*self.shared.store.read().unwrap_or_else(PoisonError::into_inner) {
            Some(Store { path: Some(_), .. }) => CacheHome::File,
            Some(_) => CacheHome::Memory,
            None => CacheHome::Nowhere,
        }
    }

    fn start(store: Option<Store>) -> Self {
        let shared = Arc::new(CacheState { store: RwLock::new(store), ..CacheState::default() });
        // The bound may be smaller than last time.
        shared.apply(&[], Durability::Immediate);
        let (queue, commands) = sync_channel(QUEUE_MAX);
        let writer = std::thread::Builder::new().name("digest-cache".into()).spawn({
            let shared = Arc::clone(&shared);
            move || Writer { shared, commands, is_dirty: false, synced: Instant::now() }.run()
        });
        match writer {
            Ok(thread) => Self { shared, writer: Some((queue, thread)) },
            Err(cause) => {
                warn!(%cause, "cannot start the digest cache's thread; going without");
                Self::disabled()
            }
        }
    }

    fn run_and_wait(&self, change: Option<Change>) {
        let Some((queue, _)) = &self.writer else { return };
        let (done, answer) = sync_channel(1);
        if queue.send(Command { change, done: Some(done) }).is_ok() {
            let _ = answer.recv();
        }
    }
}

impl Drop for DigestCache {
    fn drop(&mut self) {
        if let Some((queue, thread)) = self.writer.take() {
            drop(queue);
            let _ = thread.join();
        }
        let store = self.shared.store.write().unwrap_or_else(PoisonError::into_inner).take();
        let _ = catch_panic(|| {
            drop(store);
            Ok(())
        });
    }
}

/// What callers and the writer thread have in common.
#[derive(Default)]
struct CacheState {
    store: RwLock<Option<Store>>,
    hits: AtomicU64,
    misses: AtomicU64,
    entries: AtomicU64,
    bytes: AtomicU64,
    dropped: AtomicU64,
}

impl CacheState {
    /// Runs `work` on the store. A store that fails, or panics, is retired.
    fn with_store<T>(&self, work: impl FnOnce(&Store) -> Result<T, redb::Error>) -> Option<T> {
        let (error, failed) = {
            let store = self.store.read().unwrap_or_else(PoisonError::into_inner);
            let store = store.as_ref()?;
            match catch_panic(|| work(store)) {
                Ok(value) => return Some(value),
                Err(error) => (error, store.path.clone()),
            }
        };
        self.retire(failed, &error);
        None
    }

    /// Puts a cache in memory in the place of a store that failed, and none in the place of
    /// that one. A corrupt file is moved aside, so that the next start has a fresh one.
    fn retire(&self, failed: Option<PathBuf>, cause: &redb::Error) {
        let mut slot = self.store.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread that met the same failure may have been here first.
        let Some(old) = slot.take_if(|store| store.path == failed) else { return };
        let size_bytes = old.size_bytes;
        let _ = catch_panic(|| {
            drop(old);
            Ok(())
        });
        self.entries.store(0, Relaxed);
        self.bytes.store(0, Relaxed);
        match failed {
            Some(path) => {
                warn!(path = %path.display(), %cause, "digest cache failed; using one in memory");
                digest_store::move_aside(&path, cause);
                *slot = Store::in_memory(size_bytes);
            }
            None => warn!(%cause, "digest cache in memory failed; going without"),
        }
    }

    /// Makes changes in one transaction, and says whether they were made.
    fn apply(&self, changes: &[Change], durability: Durability) -> bool {
        let Some(totals) = self.with_store(|store| store.write(changes, durability)) else {
            return false;
        };
        self.entries.store(totals.entries, Relaxed);
        self.bytes.store(totals.bytes, Relaxed);
        true
    }
}

/// What a caller asks of the writer thread.
struct Command {
    /// `None` asks for what came before to reach the disk.
    change: Option<Change>,
    /// Whom to tell; whoever waits gets no company in the batch after him.
    done: Option<SyncSender<()>>,
}

/// The one thread that writes: it gathers changes, because a commit for each window would
/// cost more than hashing a small file.
struct Writer {
    shared: Arc<CacheState>,
    commands: Receiver<Command>,
    /// Whether there are commits that a power cut would undo.
    is_dirty: bool,
    synced: Instant,
}

/// Changes for one transaction.
#[derive(Default)]
struct Batch {
    changes: Vec<Change>,
    done: Option<SyncSender<()>>,
    is_flush: bool,
    is_last: bool,
}

impl Writer {
    fn run(mut self) {
        loop {
            let batch = self.gather();
            self.commit(&batch);
            if let Some(done) = batch.done {
                let _ = done.send(());
            }
            if batch.is_last {
                return;
            }
        }
    }

    /// Takes the next changes. None means that earlier ones are due to reach the disk.
    fn gather(&self) -> Batch {
        let mut batch = Batch::default();
        let mut until =
            if self.is_dirty { self.synced + SYNC_EVERY } else { Instant::now() + IDLE };
        while batch.changes.len() < BATCH_MAX && batch.done.is_none() {
            match self.commands.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(command) => {
                    if batch.changes.is_empty() {
                        until = Instant::now() + BATCH_WAIT;
                    }
                    batch.is_flush = command.change.is_none();
                    batch.changes.extend(command.change);
                    batch.done = command.done;
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => {
                    batch.is_last = true;
                    break;
                }
            }
        }
        batch
    }

    fn commit(&mut self, batch: &Batch) {
        self.is_dirty |= !batch.changes.is_empty();
        if !self.is_dirty {
            return;
        }
        let must_sync = batch.is_flush || batch.is_last || self.synced.elapsed() >= SYNC_EVERY;
        let durability = if must_sync { Durability::Immediate } else { Durability::None };
        if !self.shared.apply(&batch.changes, durability) {
            self.shared.dropped.fetch_add(batch.changes.len() as u64, Relaxed);
        }
        if must_sync {
            self.is_dirty = false;
            self.synced = Instant::now();
        }
    }
}

/// Changes that wait for the writer thread; more are dropped.
const QUEUE_MAX: usize = 4096;

/// Changes in one transaction.
const BATCH_MAX: usize = 64;

/// How long a change waits for company.
const BATCH_WAIT: Duration = Duration::from_millis(200);

/// How much a power cut may undo.
const SYNC_EVERY: Duration = Duration::from_secs(5);

/// How long the writer sleeps when nothing is due.
const IDLE: Duration = Duration::from_secs(3600);

/// Digests of one window.
const DIGESTS_MAX: usize = (WINDOW_BYTES / GRAIN_BYTES) as usize;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::digest_store::{CORRUPT_NAME, FILE_NAME, MEMORY_BYTES_MAX};
    use std::sync::{LazyLock, Mutex};
    use tempfile::TempDir;
    use tracing::field::{Field, Visit};
    use tracing::span;

    const KEY: Identity =
        Identity { file_system: 1, inode: 2, born_ns: 3, size: 4, mtime_ns: 5, ctime_ns: 6 };
    const SIZE_BYTES: u64 = 8 << 20;

    fn key(inode: u64) -> Identity {
        Identity { inode, ..KEY }
    }

    fn digests(number: u64, count: usize) -> Vec<Digest> {
        (0..count).map(|index| Digest::of(format!("{number}/{index}").as_bytes())).collect()
    }

    /// A closed cache with files 0..300, each with three windows; in memory where there is a
    /// folder for that. Tests that damage it open it by the hundred, and each flush of each would
    /// wait for a disk, of which they ask nothing.
    fn filled() -> TempDir {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| TempDir::new()).unwrap();
        let cache = DigestCache::open(dir.path(), SIZE_BYTES);
        for file in 0..300 {
            (0..3).for_each(|window| cache.put(&key(file), window, &digests(file + window, 2)));
        }
        cache.flush();
        assert_eq!(cache.stats().entries, 900);
        cache.close();
        dir
    }

    /// Looks all of `filled` up: a miss is fine, a wrong digest is not. Counts the hits.
    fn hits_of(cache: &DigestCache) -> usize {
        static RIGHT: LazyLock<Vec<Vec<Digest>>> =
            LazyLock::new(|| (0..302).map(|number| digests(number, 2)).collect());
        let windows = (0..300).flat_map(|file| (0..3).map(move |window| (file, window)));
        let found = windows.filter(|&(file, window)| {
            let found = cache.get(&key(file), window);
            assert!(found.iter().all(|found| *found == RIGHT[(file + window) as usize]));
            found.is_some()
        });
        found.count()
    }

    /// Uses a cache whose file was damaged in every way there is.
    fn exercise(dir: &Path) -> usize {
        let cache = DigestCache::open(dir, SIZE_BYTES);
        let hits = hits_of(&cache);
        cache.put(&key(7), 0, &digests(7, 2));
        cache.put(&key(1000), 0, &digests(1000, 2));
        cache.forget(&key(8));
        cache.flush();
        assert_eq!(cache.get(&key(8), 0), None);
        assert_eq!(cache.get(&key(1000), 0), Some(digests(1000, 2)), "it still learns");
        hits_of(&cache);
        cache.close();
        hits_of(&DigestCache::open(dir, SIZE_BYTES));
        hits
    }

    /// A small generator of numbers that are the same in every run.
    fn next(seed: &mut u64) -> u64 {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *seed >> 20
    }

    #[test]
    fn what_was_put_is_found_after_a_restart() {
        let dir = TempDir::new().unwrap();
        let cache = DigestCache::open(dir.path(), SIZE_BYTES);
        assert_eq!(cache.get(&KEY, 0), None);
        cache.count_miss();
        cache.put(&KEY, 0, &digests(0, 64));
        cache.put(&KEY, 1, &digests(1, 1));
        cache.flush();
        assert_eq!(cache.get(&KEY, 0), Some(digests(0, 64)));
        let before = cache.stats();
        assert_eq!((before.hits, before.misses, before.entries), (1, 1, 2));
        cache.close();

        let cache = DigestCache::open(dir.path(), SIZE_BYTES);
        assert_eq!(cache.home(), CacheHome::File);
        assert_eq!(cache.get(&KEY, 0), Some(digests(0, 64)));
        assert_eq!(cache.get(&KEY, 1), Some(digests(1, 1)));
        assert_eq!(cache.get(&KEY, 2), None);
        assert_eq!((cache.stats().entries, cache.stats().bytes), (2, before.bytes));
    }

    #[test]
    fn what_is_still_queued_is_stored_on_close() {
        let dir = TempDir::new().unwrap();
        let cache = DigestCache::open(dir.path(), SIZE_BYTES);
        (0..500).for_each(|file| cache.put(&key(file), 0, &digests(file, 1)));
        drop(cache);
        let cache = DigestCache::open(dir.path(), SIZE_BYTES);
        assert!((0..500).all(|file| cache.get(&key(file), 0) == Some(digests(file, 1))));
    }

    #[test]
    fn every_field_of_the_identity_matters() {
        let dir = TempDir::new().unwrap();
        let cache = DigestCache::open(dir.path(), SIZE_BYTES);
        cache.put(&KEY, 9, &digests(0, 1));
        cache.flush();
        let others = [
            Identity { file_system: 9, ..KEY },
            Identity { inode: 9, ..KEY },
            Identity { born_ns: -3, ..KEY },
            Identity { size: 9, ..KEY },
            Identity { mtime_ns: -5, ..KEY },
            Identity { ctime_ns: 9, ..KEY },
        ];
        assert!(others.iter().all(|other| cache.get(other, 9).is_none()));
        assert_eq!(cache.get(&KEY, 8), None);
        assert_eq!(cache.get(&KEY, 9), Some(digests(0, 1)));
    }

    #[test]
    fn a_window_that_is_put_again_replaces_the_first() {
        let dir = TempDir::new().unwrap();
        let cache = DigestCache::open(dir.path(), SIZE_BYTES);
        (0..10).for_each(|number| cache.put(&KEY, 0, &digests(number, 3)));
        cache.flush();
        assert_eq!(cache.get(&KEY, 0), Some(digests(9, 3)));
        assert_eq!(cache.stats().entries, 1);
    }

    #[test]
    fn the_size_is_bounded_and_the_oldest_leave_first() {
        let dir = TempDir::new().unwrap();
        let size_bytes = 100_000;
        let cache = DigestCache::open(dir.path(), size_bytes);
        for file in 0..2000 {
            cache.put(&key(file), 0, &digests(file, 2));
            if file % 500 == 499 {
                cache.flush();
                assert!(cache.stats().bytes <= size_bytes, "{:?}", cache.stats());
            }
        }
        let entries = cache.stats().entries;
        assert!((300..400).contains(&entries), "{entries} entries in {size_bytes} bytes");
        let found: Vec<u64> =
            (0..2000).filter(|&file| cache.get(&key(file), 0).is_some()).collect();
        assert_eq!(found, (2000 - entries..2000).collect::<Vec<u64>>());
        cache.close();

        let cache = DigestCache::open(dir.path(), size_bytes / 2);
        assert_eq!(
            cache.stats().entries,
            (size_bytes / 2) / 300,
            "a smaller bound holds from the start"
        );
        assert!(cache.get(&key(1999), 0).is_some());
    }

    #[test]
    fn forgetting_removes_every_window_of_one_identity_only() {
        let dir = TempDir::new().unwrap();
        let cache = DigestCache::open(dir.path(), SIZE_BYTES);
        for window in [0, 1, u64::MAX] {
            (1..4).for_each(|file| cache.put(&key(file), window, &digests(file, 1)));
        }
        cache.forget(&key(2));
        for window in [0, 1, u64::MAX] {
            assert!(cache.get(&key(1), window).is_some());
            assert_eq!(cache.get(&key(2), window), None);
            assert!(cache.get(&key(3), window).is_some());
        }
        assert_eq!(cache.stats().entries, 6);
    }

    #[test]
    fn a_disabled_cache_stores_nothing_and_finds_nothing() {
        let dir = TempDir::new().unwrap();
        for cache in [DigestCache::disabled(), DigestCache::open(dir.path(), 0)] {
            cache.put(&KEY, 0, &digests(0, 1));
            cache.flush();
            cache.forget(&KEY);
            assert_eq!(cache.get(&KEY, 0), None);
            assert_eq!(cache.home(), CacheHome::Nowhere);
            assert_eq!(cache.stats(), CacheStats::default());
        }
    }

    #[test]
    fn more_digests_than_a_window_has_are_dropped_and_counted() {
        let cache = DigestCache::open(TempDir::new().unwrap().path(), SIZE_BYTES);
        cache.put(&KEY, 0, &digests(0, DIGESTS_MAX + 1));
        cache.flush();
        assert_eq!((cache.stats().dropped, cache.stats().entries), (1, 0));
    }

    #[test]
    fn a_cache_that_is_held_elsewhere_is_a_warning_and_one_in_memory() {
        let dir = TempDir::new().unwrap();
        let first = DigestCache::open(dir.path(), SIZE_BYTES);
        first.put(&KEY, 0, &digests(0, 1));
        first.flush();
        let (second, warnings) = watch(|| DigestCache::open(dir.path(), 1 << 40));
        assert_eq!(warnings, ["digest cache is held by another process; using one in memory"]);
        assert_eq!(second.home(), CacheHome::Memory);
        assert_eq!(second.get(&KEY, 0), None);
        second.put(&KEY, 0, &digests(5, 1));
        second.flush();
        assert_eq!(second.get(&KEY, 0), Some(digests(5, 1)));
        assert_eq!(first.get(&KEY, 0), Some(digests(0, 1)));
        let bound = second.shared.store.read().unwrap().as_ref().unwrap().size_bytes;
        assert_eq!(bound, MEMORY_BYTES_MAX);
        assert!(!dir.path().join(CORRUPT_NAME).exists());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_a_warning_and_one_in_memory() {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("file"), b"x").unwrap();
        let (cache, warnings) = watch(|| DigestCache::open(&dir.path().join("file"), SIZE_BYTES));
        assert_eq!(warnings, ["cannot open the digest cache; using one in memory"]);
        assert_eq!(cache.home(), CacheHome::Memory);
    }

    #[test]
    fn garbage_is_moved_aside_and_replaced() {
        let dir = TempDir::new().unwrap();
        for garbage in [b"not a database".repeat(1000), b"again".to_vec()] {
            std::fs::write(dir.path().join(FILE_NAME), &garbage).unwrap();
            let (cache, warnings) = watch(|| DigestCache::open(dir.path(), SIZE_BYTES));
            assert_eq!(warnings, ["digest cache is corrupt; starting afresh"]);
            assert_eq!(cache.home(), CacheHome::File);
            assert_eq!(std::fs::read(dir.path().join(CORRUPT_NAME)).unwrap(), garbage);
            cache.close();
            assert_eq!(exercise(dir.path()), 0);
        }
    }

    #[test]
    fn a_truncated_file_never_answers_wrongly() {
        let dir = filled();
        let bytes = std::fs::read(dir.path().join(FILE_NAME)).unwrap();
        for part in 0..16 {
            let cut = &bytes[..bytes.len() * part / 16];
            std::fs::write(dir.path().join(FILE_NAME), cut).unwrap();
            exercise(dir.path());
        }
    }

    #[test]
    fn a_flipped_bit_never_answers_wrongly() {
        let dir = filled();
        let bytes = std::fs::read(dir.path().join(FILE_NAME)).unwrap();
        let used: Vec<usize> = (0..bytes.len()).filter(|&offset| bytes[offset] != 0).collect();
        let mut seed = 20490;
        let mut fresh = 0;
        for round in 0..200 {
            // Most of a small database is empty: look where something is, and at the header.
            let offset = match round % 4 {
                0 => next(&mut seed) as usize % bytes.len(),
                1 => next(&mut seed) as usize % 320,
                _ => used[next(&mut seed) as usize % used.len()],
            };
            let bit = next(&mut seed) % 8;
            println!("seed 20490, round {round}: bit {bit} at {offset}");
            let mut flipped = bytes.clone();
            flipped[offset] ^= 1 << bit;
            std::fs::write(dir.path().join(FILE_NAME), flipped).unwrap();
            fresh += usize::from(exercise(dir.path()) == 0);
        }
        assert!(fresh > 10, "only {fresh} of 200 flips were noticed");
    }

    #[test]
    fn a_file_overwritten_while_open_never_answers_wrongly() {
        let dir = filled();
        let path = dir.path().join(FILE_NAME);
        let cache = DigestCache::open(dir.path(), SIZE_BYTES);
        cache.shared.with_store(|store| store.write(&[], Durability::Immediate));
        let len = std::fs::metadata(&path).unwrap().len() as usize;
        let noise: Vec<u8> = (0..len).map(|index| (index * 7 / 3) as u8).collect();
        std::fs::write(&path, noise).unwrap();
        hits_of(&cache);
        for file in 0..3000 {
            cache.put(&key(file), 0, &digests(file, 2));
        }
        cache.forget(&key(8));
        hits_of(&cache);
        cache.close();
        exercise(dir.path());
    }

    #[test]
    fn a_store_that_panics_is_moved_aside_and_replaced_by_one_in_memory() {
        let dir = filled();
        let cache = DigestCache::open(dir.path(), SIZE_BYTES);
        let (gone, warnings) = watch(|| {
            cache.shared.with_store(|_| -> Result<(), redb::Error> { panic!("bad page") })
        });
        assert_eq!(gone, None);
        assert_eq!(warnings, ["digest cache failed; using one in memory"]);
        assert_eq!(cache.home(), CacheHome::Memory);
        assert!(dir.path().join(CORRUPT_NAME).exists() && !dir.path().join(FILE_NAME).exists());
        assert_eq!(cache.get(&key(1), 0), None);
        cache.put(&key(1), 0, &digests(1, 2));
        cache.flush();
        assert_eq!(cache.get(&key(1), 0), Some(digests(1, 2)));
    }

    /// Runs `work` and returns the messages of the warnings it gave on this thread.
    fn watch<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
        // With one subscriber alone, a thread without it decides for all that nobody listens.
        static SECOND: LazyLock<tracing::Dispatch> =
            LazyLock::new(|| tracing::Dispatch::new(Warnings(Arc::default())));
        LazyLock::force(&SECOND);
        let warnings = Arc::new(Mutex::new(Vec::new()));
        let value = tracing::subscriber::with_default(Warnings(Arc::clone(&warnings)), work);
        let texts = warnings.lock().unwrap().clone();
        (value, texts)
    }

    struct Warnings(Arc<Mutex<Vec<String>>>);

    impl tracing::Subscriber for Warnings {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() == tracing::Level::WARN
        }

        fn event(&self, event: &tracing::Event<'_>) {
            event.record(&mut Message(&self.0));
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    struct Message<'w>(&'w Mutex<Vec<String>>);

    impl Visit for Message<'_> {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            if field.name() == "message" {
                self.0.lock().unwrap().push(format!("{value:?}"));
            }
        }
    }
}
