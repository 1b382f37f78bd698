//! The digests of windows, hashed once however many clients request them: the first request
//! hashes, concurrent ones wait for it, and later ones find the digests in a bounded table in
//! front of the digest cache. Owns the cache. It never answers for an identity that may hide a
//! later write. Called by jobs of sessions, which may block.

use crate::exports::digest_cache::DigestCache;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use verbatim_files::{Identity, Source};
use verbatim_proto::units::{GRAIN_BYTES, WINDOW_BYTES};
use verbatim_proto::{Digest, Extent, Fault};

/// Windows whose digests stay in memory: the cache stores them with a delay.
const KNOWN_WINDOWS_MAX: usize = 1024;

/// The longest wait for another session's hashing; then it is done here as well.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// A window of a file, by the file's identity.
type Key = (Identity, u64);

/// Returns the digests of windows, from memory, from the cache, or by hashing.
pub(crate) struct WindowDigests {
    cache: DigestCache,
    table: Mutex<DigestTable>,
    ended: Condvar,
}

#[derive(Default)]
struct DigestTable {
    windows: HashMap<Key, WindowEntry>,
    /// Those that are known, the oldest first.
    known: VecDeque<Key>,
    turns: u64,
}

enum WindowEntry {
    /// Somebody is at it, by the number of his turn: who waited in vain takes another.
    InProgress(u64),
    Known(Arc<[Digest]>),
}

impl WindowDigests {
    /// The cache, for whoever asks what is in it.
    pub fn cache(&self) -> &DigestCache {
        &self.cache
    }

    /// Asks this cache first.
    pub fn new(cache: DigestCache) -> Self {
        Self { cache, table: Mutex::default(), ended: Condvar::new() }
    }

    /// The digests of a range that lies in one window of the file. Ranges that are whole cells of
    /// a grid of `cell` bytes make known all of their window; of others only they are hashed.
    /// `fresh` trusts nothing that was known before.
    pub fn digests(
        &self,
        source: &Source,
        extent: Extent,
        cell: u64,
        fresh: bool,
    ) -> Result<Vec<Digest>, Fault> {
        let identity = source.identity();
        let end = extent.offset + extent.len;
        let whole_cells = extent.offset.is_multiple_of(cell)
            && (end.is_multiple_of(cell) || end == identity.size);
        if fresh || source.is_racy() {
            return source.hash(extent);
        }
        let window = extent.offset / WINDOW_BYTES;
        let known = match whole_cells {
            true => self.window(source, window)?,
            false => match self.find(identity, window) {
                Some(digests) => digests,
                None => {
                    self.cache.count_miss();
                    return source.hash(extent);
                }
            },
        };
        let first = ((extent.offset % WINDOW_BYTES) / GRAIN_BYTES) as usize;
        // An empty file has one grain, with nothing in it.
        let count = match identity.size {
            0 => 1,
            _ => extent.len.div_ceil(GRAIN_BYTES) as usize,
        };
        Ok(known[first..first + count].to_vec())
    }

    /// Drops the digests of a file.
    pub fn forget(&self, identity: &Identity) {
        let mut table = self.table();
        table.known.retain(|(known, _)| known != identity);
        table.windows.retain(|(known, _), entry| {
            known != identity || matches!(entry, WindowEntry::InProgress(_))
        });
        drop(table);
        self.cache.forget(identity);
    }

    /// All digests of a window: known, waited for, or hashed here.
    fn window(&self, source: &Source, window: u64) -> Result<Arc<[Digest]>, Fault> {
        let identity = source.identity();
        // Most are known, and who knows needs no turn.
        if let Some(digests) = self.find(identity, window) {
            return Ok(digests);
        }
        let turn = match self.wait((*identity, window)) {
            WaitResult::Known(digests) => {
                tracing::debug!(inode = identity.inode, window, "digests from the cache");
                return Ok(digests);
            }
            WaitResult::MustHash(turn) => turn,
        };
        tracing::debug!(inode = identity.inode, window, "window hashed");
        self.cache.count_miss();
        let offset = window * WINDOW_BYTES;
        let digests = source.hash(Extent::new(offset, WINDOW_BYTES.min(identity.size - offset)))?;
        // Only what did not change while it was hashed is worth keeping.
        if identity.now(source.file()).is_ok_and(|now| now == *identity) {
            self.cache.put(identity, window, &digests);
            return Ok(turn.publish(digests.into()));
        }
        Ok(digests.into())
    }

    /// The digests of a window without hashing: from memory or from the cache.
    fn find(&self, identity: &Identity, window: u64) -> Option<Arc<[Digest]>> {
        let in_memory = match self.table().windows.get(&(*identity, window)) {
            Some(WindowEntry::Known(digests)) => Some(digests.clone()),
            _ => None,
        };
        let known = match in_memory {
            Some(digests) => {
                self.cache.count_hit();
                digests
            }
            None => self.cache.get(identity, window)?.into(),
        };
        tracing::debug!(inode = identity.inode, window, "digests from the cache");
        Some(known)
    }

    /// Waits while somebody else is at a window; then it is known, or this one's turn.
    fn wait(&self, key: Key) -> WaitResult<'_> {
        self.wait_until(key, Instant::now() + WAIT_MAX)
    }

    fn wait_until(&self, key: Key, until: Instant) -> WaitResult<'_> {
        let mut table = self.table();
        loop {
            match table.windows.get(&key) {
                Some(WindowEntry::Known(digests)) => {
                    self.cache.count_hit();
                    return WaitResult::Known(digests.clone());
                }
                Some(WindowEntry::InProgress(_)) if Instant::now() < until => {
                    let left = until.saturating_duration_since(Instant::now());
                    let waited = self.ended.wait_timeout(table, left);
                    table = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                Some(WindowEntry::InProgress(_)) | None => {
                    table.turns += 1;
                    let number = table.turns;
                    table.windows.insert(key, WindowEntry::InProgress(number));
                    return WaitResult::MustHash(HashTurn { digests: self, key, number });
                }
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, DigestTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a wait ended.
enum WaitResult<'h> {
    Known(Arc<[Digest]>),
    MustHash(HashTurn<'h>),
}

/// The right to hash a window. Dropping it wakes the waiting jobs.
struct HashTurn<'h> {
    digests: &'h WindowDigests,
    key: Key,
    number: u64,
}

impl HashTurn<'_> {
    /// Makes the digests known.
    fn publish(self, digests: Arc<[Digest]>) -> Arc<[Digest]> {
        let mut table = self.digests.table();
        let before = table.windows.insert(self.key, WindowEntry::Known(digests.clone()));
        // Two jobs hash the same window if the first took too long.
        if !matches!(before, Some(WindowEntry::Known(_))) {
            table.known.push_back(self.key);
        }
        if table.known.len() > KNOWN_WINDOWS_MAX
            && let Some(oldest) = table.known.pop_front()
        {
            table.windows.remove(&oldest);
        }
        digests
    }
}

impl Drop for HashTurn<'_> {
    fn drop(&mut self) {
        let mut table = self.digests.table();
        // A failed turn is freed for the next job, unless that has begun already.
        let entry = table.windows.get(&self.key);
        if matches!(entry, Some(WindowEntry::InProgress(of)) if *of == self.number) {
            table.windows.remove(&self.key);
        }
        drop(table);
        self.digests.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::LazyLock;

    /// A file of two windows and a bit, old enough to be trusted; one for all tests.
    fn settled() -> Source {
        static FILE: LazyLock<File> = LazyLock::new(|| {
            let file = tempfile::tempfile().expect("a file");
            let bytes: Vec<u8> = (0..SIZE).map(|at| (at / 777) as u8).collect();
            file.write_all_at(&bytes, 0).expect("writes");
            file
        });
        trusted(&FILE)
    }

    /// A file, once it is old enough.
    fn trusted(file: &File) -> Source {
        let source =
            || Source::new(file.try_clone().expect("a descriptor"), "big").expect("a source");
        let until = Instant::now() + Duration::from_secs(10);
        while source().is_racy() {
            assert!(Instant::now() < until, "it never settles");
            std::thread::sleep(Duration::from_millis(50));
        }
        source()
    }

    #[test]
    fn an_empty_file_has_the_digest_of_nothing() {
        let source = trusted(&tempfile::tempfile().expect("a file"));
        let digests = WindowDigests::new(DigestCache::disabled());
        for _ in 0..2 {
            let told = digests.digests(&source, Extent::new(0, 0), WINDOW_BYTES, false);
            assert_eq!(told.expect("hashes"), [Digest::of(b"")]);
        }
    }

    const SIZE: u64 = 2 * WINDOW_BYTES + 3 * GRAIN_BYTES + 5;

    #[test]
    fn a_window_is_hashed_by_one_and_known_to_all_in_cells_of_any_size() {
        let source = settled();
        let digests = WindowDigests::new(DigestCache::disabled());
        let cell = 2 * GRAIN_BYTES;
        let turn = match digests.wait((*source.identity(), 0)) {
            WaitResult::MustHash(turn) => turn,
            WaitResult::Known(_) => panic!("nothing is known yet"),
        };
        std::thread::scope(|scope| {
            let ask = |at: u64| digests.digests(&source, Extent::new(at, cell), cell, false);
            let waiting: Vec<_> = (0..8).map(|at| scope.spawn(move || ask(at * cell))).collect();
            // What they are told is what the one who hashes says: a mark that no bytes have.
            let marks: Vec<Digest> = (0..64).map(|grain| Digest([grain; 32])).collect();
            turn.publish(marks.into());
            for (at, answer) in waiting.into_iter().enumerate() {
                let grain = (2 * at) as u8;
                let expected = [Digest([grain; 32]), Digest([grain + 1; 32])];
                assert_eq!(answer.join().expect("ends").expect("known"), expected);
            }
        });
        let fresh = digests.digests(&source, Extent::new(0, cell), cell, true).expect("hashes");
        assert_eq!(fresh, source.hash(Extent::new(0, cell)).expect("hashes"));
        digests.forget(source.identity());
        let anew = digests.digests(&source, Extent::new(0, cell), cell, false).expect("hashes");
        assert_eq!(anew, fresh, "what was forgotten is not told again");
    }

    #[test]
    fn who_finds_a_window_in_the_cache_takes_no_turn_and_a_miss_is_who_hashes() {
        let (source, folder) = (settled(), tempfile::tempdir().expect("a folder"));
        let digests = WindowDigests::new(DigestCache::open(folder.path(), 1 << 20));
        let ask = |window: u64| {
            let extent = Extent::new(window * WINDOW_BYTES, WINDOW_BYTES);
            digests.digests(&source, extent, WINDOW_BYTES, false).expect("known or hashed")
        };
        let marks: Vec<Digest> = (0..64).map(|grain| Digest([grain; 32])).collect();
        digests.cache().put(source.identity(), 0, &marks);
        digests.cache().flush();
        assert_eq!(ask(0), marks);
        assert_eq!(digests.table().turns, 0, "nobody else would have had to wait");
        assert_eq!(ask(1), ask(1));
        let (stats, turns) = (digests.cache().stats(), digests.table().turns);
        assert_eq!((stats.hits, stats.misses, turns), (2, 1, 1));
    }

    #[test]
    fn cells_of_a_window_have_the_digests_of_the_file() {
        let source = settled();
        let digests = WindowDigests::new(DigestCache::disabled());
        for (cell, offset, len) in [
            (WINDOW_BYTES, WINDOW_BYTES, WINDOW_BYTES),
            (GRAIN_BYTES, WINDOW_BYTES + GRAIN_BYTES, GRAIN_BYTES),
            (1 << 20, 2 * WINDOW_BYTES, 3 * GRAIN_BYTES + 5),
            (WINDOW_BYTES, 5 * GRAIN_BYTES, 2 * GRAIN_BYTES),
        ] {
            let extent = Extent::new(offset, len);
            let told = digests.digests(&source, extent, cell, false).expect("hashes");
            assert_eq!(told, source.hash(extent).expect("hashes"), "cell {cell} at {offset}");
        }
        let known = digests.table().windows.len();
        assert_eq!(known, 2, "a part that is no cell makes nothing known");
    }

    #[test]
    fn one_who_takes_too_long_neither_ends_nor_doubles_the_turn_of_the_next() {
        let digests = WindowDigests::new(DigestCache::disabled());
        let key = (*settled().identity(), 0);
        let turn = |until| match digests.wait_until(key, until) {
            WaitResult::MustHash(turn) => turn,
            WaitResult::Known(_) => panic!("nothing is known yet"),
        };
        let now = Instant::now();
        let (slow, slower, next) = (turn(now), turn(now), turn(now));
        drop(slow);
        let entry = |table: &DigestTable| {
            matches!(table.windows.get(&key), Some(WindowEntry::InProgress(_)))
        };
        assert!(entry(&digests.table()), "the next one is still at it");
        next.publish(Arc::from([]));
        slower.publish(Arc::from([]));
        let table = digests.table();
        assert_eq!((table.windows.len(), table.known.len()), (1, 1), "known once");
    }

    #[test]
    fn one_who_fails_leaves_the_turn_to_the_next() {
        let source = settled();
        let digests = WindowDigests::new(DigestCache::disabled());
        let key = (*source.identity(), 0);
        let WaitResult::MustHash(turn) = digests.wait(key) else { panic!("nothing is known yet") };
        std::thread::scope(|scope| {
            let next = scope.spawn(|| matches!(digests.wait(key), WaitResult::MustHash(_)));
            drop(turn);
            assert!(next.join().expect("ends"), "the next one waits for ever or knows too much");
        });
        assert!(digests.table().windows.is_empty(), "a turn that failed left something behind");
    }
}
