//! One version of one file in the cache: a sparse file of blocks, and notes of those
//! that were verified. Zeros of a block are holes too (`sparse`). What an earlier run or another mount noted is a claim: a block is
//! hashed again before it is used the first time. A block that is given to a reader was
//! verified by this run, when it arrived or when it was found.

use super::super::inflight::InFlight;
use super::block_journal::BlockJournal;
use super::blocks::{BLOCK_BYTES, BlockMap, BlockState, FILE_BYTES_MAX, block_count, block_extent};
use super::sparse::PageRuns;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use verbatim_files::hash::hash_extent;
use verbatim_proto::Digest;
use verbatim_proto::message::FileInfo;

/// A version of a file.
pub struct CacheFile {
    /// How long it is.
    pub size: u64,
    /// When its content changed at the source.
    pub mtime_ns: i64,
    /// The version it is.
    pub version: u64,
    /// Blocks that are on their way.
    pub in_flight: InFlight,
    pub(super) key: super::Key,
    pub(super) data: File,
    journal: Mutex<BlockJournal>,
    state: Mutex<BlockMap>,
    /// Held while a block is read, and alone while one is punched.
    reading: RwLock<()>,
    /// The kernel reads it past this process: nothing of it may go.
    pins: AtomicU32,
    /// Another version has taken its place in the cache.
    pub(super) replaced: AtomicBool,
    /// Whether what comes can be kept, as far as is known.
    storable: AtomicBool,
    /// Whether it has a place in the cache at all.
    has_storage: bool,
}

impl CacheFile {
    /// A version of which nothing is there yet, in two empty files.
    pub fn create(
        key: super::Key,
        info: &FileInfo,
        version: u64,
        data: File,
        journal: File,
    ) -> io::Result<Self> {
        data.set_len(info.size)?;
        let journal = BlockJournal::create(journal, info, &key)?;
        let state = BlockMap::new(info.size);
        Ok(Self::of(key, (info.size, info.mtime_ns, version), data, journal, state))
    }

    /// A version for which there is no place: nothing of it is ever kept.
    pub fn uncached(key: super::Key, info: &FileInfo, version: u64) -> io::Result<Self> {
        use rustix::fs::{MemfdFlags, memfd_create};
        let empty = || memfd_create("unplaced", MemfdFlags::CLOEXEC).map(File::from);
        let mut file = Self::create(key, info, version, empty()?, empty()?)?;
        file.has_storage = false;
        (*file.storable.get_mut(), *file.replaced.get_mut()) = (false, true);
        Ok(file)
    }

    /// What is there, with its notes in this file; `None` when it is of no use, and an error when
    /// that is not known.
    pub fn load(key: super::Key, data: File, journal: File) -> io::Result<Option<Self>> {
        let mut found = Vec::new();
        let journal = BlockJournal::load(journal, &key, |block, at| found.push((block, at)))?;
        let fits = |journal: &BlockJournal| journal.version().filter(|it| it.0 <= FILE_BYTES_MAX);
        let Some((journal, of)) = journal.and_then(|it| fits(&it).map(|of| (it, of))) else {
            return Ok(None);
        };
        let mut state = BlockMap::new(of.0);
        for (block, at) in found {
            state.claim(block, at);
        }
        Ok(Some(Self::of(key, of, data, journal, state)))
    }

    /// Makes the data as long as the version: what lies behind its end is cut. False where it
    /// cannot be, or another mount uses it. Only for who has the turn, with a lock on the data.
    pub fn truncate_to_size(&self) -> bool {
        if self.data.metadata().is_ok_and(|found| found.len() == self.size) {
            return true;
        }
        let is_alone = flock(&self.data, FlockOperation::NonBlockingLockExclusive).is_ok();
        let is_fit = is_alone && self.data.set_len(self.size).is_ok();
        flock(&self.data, FlockOperation::NonBlockingLockShared).is_ok() && is_fit
    }

    /// Writes its notes anew, if most of them are of no use any more. Only for who is alone.
    pub fn compact_journal(&self, journal: &Path) {
        let mut state = self.state();
        let claims = std::mem::take(&mut state.claims);
        let rewritten = self.journal().compact(journal, state.order.iter().copied(), &claims);
        // What cannot be written stays as it is.
        state.claims = rewritten.unwrap_or(claims);
    }

    /// Whether that is worth it.
    pub fn needs_compaction(&self) -> bool {
        self.journal().needs_compaction(self.state().order.len())
    }

    fn of(
        key: super::Key,
        (size, mtime_ns, version): (u64, i64, u64),
        data: File,
        journal: BlockJournal,
        state: BlockMap,
    ) -> Self {
        Self {
            size,
            mtime_ns,
            version,
            in_flight: InFlight::default(),
            key,
            data,
            journal: Mutex::new(journal),
            state: Mutex::new(state),
            reading: RwLock::default(),
            pins: AtomicU32::new(0),
            replaced: AtomicBool::new(false),
            storable: AtomicBool::new(true),
            has_storage: true,
        }
    }

    fn journal(&self) -> MutexGuard<'_, BlockJournal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, BlockMap> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The blocks that a range of bytes is in.
    pub fn block_range(&self, offset: u64, len: u64) -> RangeInclusive<u32> {
        let last = (offset + len.max(1) - 1) / BLOCK_BYTES;
        (offset / BLOCK_BYTES) as u32..=last as u32
    }

    /// Whether a block is there and verified.
    pub fn has(&self, block: u32) -> bool {
        self.state().blocks.get(block as usize) == Some(&BlockState::Present)
    }

    /// Which of these blocks must be fetched. Claimed ones are hashed now: this takes a while.
    pub fn absent(&self, blocks: RangeInclusive<u32>) -> Vec<u32> {
        let absent: Vec<u32> = blocks.filter(|&block| !self.verify_block(block)).collect();
        if absent.is_empty() {
            return absent;
        }
        // Another mount may have brought some of them.
        let mut new_claims = Vec::new();
        self.journal().read_new(|block, at| new_claims.push((block, at)));
        let mut state = self.state();
        for (block, at) in new_claims {
            state.claim(block, at);
        }
        drop(state);
        absent.into_iter().filter(|&block| !self.verify_block(block)).collect()
    }

    /// Which of these blocks nobody has noted. Looks at nothing.
    pub fn unclaimed(&self, blocks: RangeInclusive<u32>) -> Vec<u32> {
        self.state().absent(blocks).collect()
    }

    /// How many bytes they are.
    pub fn missing_bytes(&self, blocks: RangeInclusive<u32>) -> u64 {
        let state = self.state();
        state.absent(blocks).map(|block| block_extent(block, self.size).len).sum()
    }

    /// Whether a block is there and verified; looks at it if that was only claimed.
    fn verify_block(&self, block: u32) -> bool {
        let at = {
            let state = self.state();
            match state.blocks.get(block as usize) {
                Some(BlockState::Present) => return true,
                Some(BlockState::Claimed) => state.claims.get(&block).copied(),
                _ => return false,
            }
        };
        let _reading = self.reading.read().unwrap_or_else(PoisonError::into_inner);
        let there = at.is_some_and(|at| self.matches_journal(block, at));
        let mut state = self.state();
        // Another reader may have looked at it meanwhile.
        if state.blocks[block as usize] == BlockState::Claimed {
            state.claims.remove(&block);
            if there {
                state.blocks[block as usize] = BlockState::Present;
                state.not_present -= 1;
            } else {
                state.blocks[block as usize] = BlockState::Absent;
                state.order.retain(|it| *it != block);
            }
        }
        state.blocks[block as usize] == BlockState::Present
    }

    fn matches_journal(&self, block: u32, at: u64) -> bool {
        let recorded = self.journal().digests_at(block, at);
        let Some(digests) = recorded else { return false };
        let now = hash_extent(&self.data, self.size, block_extent(block, self.size));
        now.is_ok_and(|now| now == digests)
    }

    /// Reads a range if all of it is there and verified; `None` otherwise.
    pub fn read(&self, offset: u64, len: usize) -> Option<io::Result<Vec<u8>>> {
        let mut bytes = vec![0; len];
        Some(self.read_into(offset, &mut bytes)?.map(|()| bytes))
    }

    /// The same, into memory that is there.
    pub fn read_into(&self, offset: u64, bytes: &mut [u8]) -> Option<io::Result<()>> {
        let _reading = self.reading.read().unwrap_or_else(PoisonError::into_inner);
        let blocks = self.block_range(offset, bytes.len() as u64);
        let is_present = |state: &BlockMap| {
            blocks.clone().all(|it| state.blocks.get(it as usize) == Some(&BlockState::Present))
        };
        if !is_present(&self.state()) {
            return None;
        }
        Some(self.data.read_exact_at(bytes, offset))
    }

    /// Keeps a verified block, and returns how much of the disk that takes beyond its data: its
    /// notes, and zeros that could not be a hole; none if it was there. One that cannot be kept is
    /// fetched again when it is wanted.
    pub(super) fn store(
        &self,
        block: u32,
        pages: &PageRuns<'_>,
        digests: &[Digest],
    ) -> io::Result<Option<u64>> {
        let extent = block_extent(block, self.size);
        assert_eq!(extent.len, pages.byte_count(), "a block is kept whole");
        if !self.has_storage {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // Whoever punches must be through with it.
        let _reading = self.reading.read().unwrap_or_else(PoisonError::into_inner);
        if self.state().blocks[block as usize] == BlockState::Present {
            return Ok(None);
        }
        let zero_bytes = pages.write(&self.data, extent.offset)?;
        let recorded = self.journal().append(extent, digests)?;
        self.state().mark_present(block);
        Ok(Some(recorded + zero_bytes))
    }

    /// How much of the disk its notes take.
    pub(super) fn journal_bytes(&self) -> u64 {
        self.journal().disk_bytes()
    }

    /// Whether what comes can be kept: where it cannot, nothing is to be brought ahead of time.
    pub fn is_storable(&self) -> bool {
        self.storable.load(Ordering::Relaxed)
    }

    /// Notes whether what came was kept.
    pub fn set_storable(&self, stored: bool) {
        self.storable.store(stored && self.has_storage, Ordering::Relaxed);
    }

    /// Whether all of it was verified by this process.
    pub(super) fn is_fully_verified(&self) -> bool {
        self.has_storage && self.state().not_present == 0
    }

    /// All that is noted was verified by this process, and nobody has touched it since.
    pub(super) fn mark_verified(&self) {
        let mut state = self.state();
        if !state.blocks.contains(&BlockState::Absent) {
            state.blocks.fill(BlockState::Present);
            state.not_present = 0;
            state.claims.clear();
        }
    }

    /// Whether all of it is there; looks at what is only claimed.
    pub fn is_complete(&self) -> bool {
        let absent = |state: &BlockMap| state.blocks.contains(&BlockState::Absent);
        if absent(&self.state()) {
            return false;
        }
        let last = block_count(self.size) as u32;
        (0..last).all(|block| self.verify_block(block)) && self.state().not_present == 0
    }

    /// The file that holds it.
    pub fn data(&self) -> &File {
        &self.data
    }

    /// Has all of it stay from now on, for the kernel to read past this process; false when not
    /// all of it is there. Ends with `unback`.
    pub fn pin(&self) -> bool {
        if !self.has_storage {
            return false;
        }
        let reading = self.reading.read().unwrap_or_else(PoisonError::into_inner);
        // Counted while nobody punches, and looked at afterwards: what is there then stays.
        self.pins.fetch_add(1, Ordering::AcqRel);
        drop(reading);
        let whole = self.is_complete();
        if !whole {
            self.unpin();
        }
        whole
    }

    /// The same for who waits for the answer: false too when some of it is only claimed, which
    /// would have to be hashed, all of a large file maybe.
    pub fn pin_if_verified(&self) -> bool {
        self.is_fully_verified() && self.pin()
    }

    /// The kernel is done with it.
    pub fn unpin(&self) {
        self.pins.fetch_sub(1, Ordering::AcqRel);
    }

    /// Gives back the space of the block that came first; returns how much that was, which is
    /// nothing where only a note of it was left. None when there is none that may go.
    pub fn punch(&self) -> Option<u64> {
        use rustix::fs::{FallocateFlags, fallocate};
        let _alone = self.reading.write().unwrap_or_else(PoisonError::into_inner);
        if self.pins.load(Ordering::Acquire) > 0 {
            return None;
        }
        let block = {
            let mut state = self.state();
            let block = state.order.pop_front()?;
            state.claims.remove(&block);
            let was = std::mem::replace(&mut state.blocks[block as usize], BlockState::Absent);
            state.not_present += usize::from(was == BlockState::Present);
            block
        };
        // Whoever wants it in the cache has to bring it.
        self.in_flight.remove_block(block);
        let extent = block_extent(block, self.size);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let taken = || self.data.metadata().map_or(0, |found| found.blocks() * 512);
        let before = taken();
        fallocate(&self.data, hole, extent.offset, extent.len).ok()?;
        Some(before.saturating_sub(taken()))
    }
}
