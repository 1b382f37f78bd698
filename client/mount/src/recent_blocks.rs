//! What came last stays in memory for a while, so that who reads it in pieces need not
//! wait for the cache file, and gets it at all where the cache could not keep it. Bounded
//! in bytes: what nobody has open or the cache has goes first, the oldest before the rest.
//! Used by `block_fetch`.

use super::cache::CacheFile;
use super::inflight::BlockFetch;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The most that stays.
const RECENT_BYTES_MAX: u64 = 32 << 20;

/// The most parts that stay, however small.
const RECENT_FETCHES_MAX: usize = 256;

/// A part that stays.
struct RecentFetch {
    file: Weak<CacheFile>,
    flight: BlockFetch,
    bytes: u64,
    kept: bool,
}

/// What stays.
#[derive(Default)]
pub(crate) struct RecentBlocks(Mutex<VecDeque<RecentFetch>>);

impl RecentBlocks {
    fn list(&self) -> MutexGuard<'_, VecDeque<RecentFetch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A flight of so many bytes came, which are in the cache if they were `kept`.
    pub fn add(&self, file: &Arc<CacheFile>, flight: BlockFetch, bytes: u64, kept: bool) {
        let mut list = self.list();
        list.push_back(RecentFetch { file: Arc::downgrade(file), flight, bytes, kept });
        let mut sum: u64 = list.iter().map(|it| it.bytes).sum();
        while sum > RECENT_BYTES_MAX || list.len() > RECENT_FETCHES_MAX {
            let spared = |it: &RecentFetch| it.kept || it.file.strong_count() == 0;
            let oldest = list.iter().position(spared).unwrap_or(0);
            let Some(gone) = list.remove(oldest) else { return };
            sum -= gone.bytes;
            gone.go();
        }
    }

    /// A file was closed: what the cache has of it need not stay.
    pub fn closed(&self, file: &Arc<CacheFile>) {
        let is_kept = |it: &RecentFetch| it.kept && it.file.as_ptr() == Arc::as_ptr(file);
        let mut list = self.list();
        let (gone, stays) = list.drain(..).partition(is_kept);
        *list = stays;
        let gone: VecDeque<RecentFetch> = gone;
        gone.into_iter().for_each(RecentFetch::go);
    }
}

impl RecentFetch {
    fn go(self) {
        if let Some(file) = self.file.upgrade() {
            file.flights.forget(&self.flight);
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
        Arc::new(CacheFile::unplaced([0; 16], &info, 9).expect("it is in memory"))
    }

    fn add(hot: &RecentBlocks, file: &Arc<CacheFile>, block: u32, kept: bool) {
        let flight = file.flights.join(&[block], 4, false).0.pop().expect("it is new");
        file.flights.end(&flight, Ok(Arc::default()));
        hot.add(file, flight, RECENT_BYTES_MAX / 4, kept);
    }

    fn here(file: &CacheFile) -> Vec<u32> {
        (0..20).filter(|block| file.flights.at_hand(*block).is_some()).collect()
    }

    #[test]
    fn the_oldest_goes_first_but_not_before_what_the_cache_has() {
        let (hot, file) = (RecentBlocks::default(), file());
        (0..6).for_each(|block| add(&hot, &file, block, true));
        assert_eq!(here(&file), [2, 3, 4, 5]);
        add(&hot, &file, 6, false);
        (7..12).for_each(|block| add(&hot, &file, block, true));
        assert_eq!(here(&file), [6, 9, 10, 11], "nobody else has it");
        (12..17).for_each(|block| add(&hot, &file, block, false));
        assert_eq!(here(&file), [13, 14, 15, 16]);
    }

    #[test]
    fn a_file_that_is_closed_leaves_what_only_memory_has() {
        let (hot, one, two) = (RecentBlocks::default(), file(), file());
        add(&hot, &one, 1, true);
        add(&hot, &one, 2, false);
        add(&hot, &two, 3, true);
        hot.closed(&one);
        assert_eq!((here(&one), here(&two)), (vec![2], vec![3]));
        drop(one);
        (4..8).for_each(|block| add(&hot, &two, block, true));
        assert_eq!(here(&two), [4, 5, 6, 7]);
    }
}
