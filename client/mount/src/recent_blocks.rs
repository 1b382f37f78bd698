//! Recently received blocks, in memory: a reader that reads a part in pieces need not
//! wait for the cache file, and gets blocks that the cache refused. Bounded in bytes.
//! Blocks of closed files and blocks in the cache are removed first, the oldest before
//! others. Used by `block_fetch`.

use super::cache::CacheFile;
use super::inflight::BlockFetch;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The most bytes in memory.
const RECENT_BYTES_MAX: u64 = 32 << 20;

/// The most fetches in memory, however small.
const RECENT_FETCHES_MAX: usize = 256;

/// One finished fetch with its blocks.
struct RecentFetch {
    file: Weak<CacheFile>,
    fetch: BlockFetch,
    bytes: u64,
    cached: bool,
}

/// Finished fetches, the oldest first.
#[derive(Default)]
pub(crate) struct RecentBlocks(Mutex<VecDeque<RecentFetch>>);

impl RecentBlocks {
    fn list(&self) -> MutexGuard<'_, VecDeque<RecentFetch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a finished fetch of this many bytes; `cached` if the cache stored all of them.
    pub fn add(&self, file: &Arc<CacheFile>, fetch: BlockFetch, bytes: u64, cached: bool) {
        let mut list = self.list();
        list.push_back(RecentFetch { file: Arc::downgrade(file), fetch, bytes, cached });
        let mut sum: u64 = list.iter().map(|it| it.bytes).sum();
        while sum > RECENT_BYTES_MAX || list.len() > RECENT_FETCHES_MAX {
            let removable = |it: &RecentFetch| it.cached || it.file.strong_count() == 0;
            let oldest = list.iter().position(removable).unwrap_or(0);
            let Some(removed) = list.remove(oldest) else { return };
            sum -= removed.bytes;
            removed.remove_blocks();
        }
    }

    /// A file was closed: removes its blocks that the cache has.
    pub fn release_closed(&self, file: &Arc<CacheFile>) {
        let is_cached = |it: &RecentFetch| it.cached && it.file.as_ptr() == Arc::as_ptr(file);
        let mut list = self.list();
        let (removed, remaining) = list.drain(..).partition(is_cached);
        *list = remaining;
        let removed: VecDeque<RecentFetch> = removed;
        removed.into_iter().for_each(RecentFetch::remove_blocks);
    }
}

impl RecentFetch {
    fn remove_blocks(self) {
        if let Some(file) = self.file.upgrade() {
            file.in_flight.remove(&self.fetch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::CacheFile;
    use verbatim_proto::message::FileInfo;

    fn file() -> Arc<CacheFile> {
        let (size, mode, mtime_ns, version) = (1 << 30, 0o644, 5, Some(9));
        let info = FileInfo { size, mode, mtime_ns, allocated: size, version };
        Arc::new(CacheFile::uncached([0; 16], &info, 9).expect("it is in memory"))
    }

    fn add(recent_blocks: &RecentBlocks, file: &Arc<CacheFile>, block: u32, cached: bool) {
        let fetch = file.in_flight.join(&[block], 4, false).0.pop().expect("it is new");
        file.in_flight.finish(&fetch, Ok(Arc::default()));
        recent_blocks.add(file, fetch, RECENT_BYTES_MAX / 4, cached);
    }

    fn received_blocks(file: &CacheFile) -> Vec<u32> {
        (0..20).filter(|block| file.in_flight.received(*block).is_some()).collect()
    }

    #[test]
    fn blocks_in_the_cache_are_removed_before_blocks_only_memory_has() {
        let (recent_blocks, file) = (RecentBlocks::default(), file());
        (0..6).for_each(|block| add(&recent_blocks, &file, block, true));
        assert_eq!(received_blocks(&file), [2, 3, 4, 5]);
        add(&recent_blocks, &file, 6, false);
        (7..12).for_each(|block| add(&recent_blocks, &file, block, true));
        assert_eq!(received_blocks(&file), [6, 9, 10, 11], "nobody else has it");
        (12..17).for_each(|block| add(&recent_blocks, &file, block, false));
        assert_eq!(received_blocks(&file), [13, 14, 15, 16]);
    }

    #[test]
    fn closing_a_file_keeps_blocks_that_the_cache_lacks() {
        let (recent_blocks, one, two) = (RecentBlocks::default(), file(), file());
        add(&recent_blocks, &one, 1, true);
        add(&recent_blocks, &one, 2, false);
        add(&recent_blocks, &two, 3, true);
        recent_blocks.release_closed(&one);
        assert_eq!((received_blocks(&one), received_blocks(&two)), (vec![2], vec![3]));
        drop(one);
        (4..8).for_each(|block| add(&recent_blocks, &two, block, true));
        assert_eq!(received_blocks(&two), [4, 5, 6, 7]);
    }
}
