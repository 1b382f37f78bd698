//! One cached version of a file: a sparse file of blocks and a journal of the stored
//! ones. Blocks of zeros are holes (`sparse`). Records of an earlier run or another
//! mount are claims: such a block is hashed before its first use. Every block that a
//! reader gets was verified by this process.

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

/// A cached version.
pub struct CacheFile {
    /// Its size.
    pub size: u64,
    /// Its mtime at the source.
    pub mtime_ns: i64,
    /// Its version number.
    pub version: u64,
    /// Fetches of its blocks.
    pub in_flight: InFlight,
    pub(super) key: super::Key,
    pub(super) data: File,
    journal: Mutex<BlockJournal>,
    state: Mutex<BlockMap>,
    /// Shared while a block is read, exclusive while one is punched.
    reading: RwLock<()>,
    /// Handles with passthrough: while there are any, no block is punched.
    pins: AtomicU32,
    /// Whether a newer version has replaced it in the cache.
    pub(super) replaced: AtomicBool,
    /// Whether the cache accepted the last blocks.
    storable: AtomicBool,
    /// Whether it has files in the cache.
    has_storage: bool,
}

impl CacheFile {
    /// Creates a version without blocks in two empty files.
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

    /// Creates a version without files in the cache, which stores nothing.
    pub fn uncached(key: super::Key, info: &FileInfo, version: u64) -> io::Result<Self> {
        use rustix::fs::{MemfdFlags, memfd_create};
        let empty = || memfd_create("unplaced", MemfdFlags::CLOEXEC).map(File::from);
        let mut file = Self::create(key, info, version, empty()?, empty()?)?;
        file.has_storage = false;
        (*file.storable.get_mut(), *file.replaced.get_mut()) = (false, true);
        Ok(file)
    }

    /// Loads a version and its journal. `None` if the journal is unusable; an error if it cannot be
    /// read now.
    pub fn load(key: super::Key, data: File, journal: File) -> io::Result<Option<Self>> {
        let mut records = Vec::new();
        let journal = BlockJournal::load(journal, &key, |block, at| records.push((block, at)))?;
        let fits = |journal: &BlockJournal| journal.version().filter(|it| it.0 <= FILE_BYTES_MAX);
        let Some((journal, of)) = journal.and_then(|it| fits(&it).map(|of| (it, of))) else {
            return Ok(None);
        };
        let mut state = BlockMap::new(of.0);
        for (block, at) in records {
            state.claim(block, at);
        }
        Ok(Some(Self::of(key, of, data, journal, state)))
    }

    /// Truncates or extends the data to the size of the version. False if that fails or another
    /// mount uses the file. Needs the lock on names and a shared lock on the data.
    pub fn truncate_to_size(&self) -> bool {
        if self.data.metadata().is_ok_and(|meta| meta.len() == self.size) {
            return true;
        }
        let is_alone = flock(&self.data, FlockOperation::NonBlockingLockExclusive).is_ok();
        let is_fit = is_alone && self.data.set_len(self.size).is_ok();
        flock(&self.data, FlockOperation::NonBlockingLockShared).is_ok() && is_fit
    }

    /// Compacts the journal. Needs exclusive use.
    pub fn compact_journal(&self, journal: &Path) {
        let mut state = self.state();
        let claims = std::mem::take(&mut state.claims);
        let rewritten = self.journal().compact(journal, state.order.iter().copied(), &claims);
        // If that fails the old journal stays.
        state.claims = rewritten.unwrap_or(claims);
    }

    /// Whether compaction pays off.
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

    /// The blocks that overlap a range.
    pub fn block_range(&self, offset: u64, len: u64) -> RangeInclusive<u32> {
        let last = (offset + len.max(1) - 1) / BLOCK_BYTES;
        (offset / BLOCK_BYTES) as u32..=last as u32
    }

    /// Whether a block is stored and verified.
    pub fn has(&self, block: u32) -> bool {
        self.state().blocks.get(block as usize) == Some(&BlockState::Present)
    }

    /// The blocks of a range that must be fetched. Hashes claimed blocks, which takes a while.
    pub fn absent(&self, blocks: RangeInclusive<u32>) -> Vec<u32> {
        let absent: Vec<u32> = blocks.filter(|&block| !self.verify_block(block)).collect();
        if absent.is_empty() {
            return absent;
        }
        // Another mount may have stored some of them.
        let mut new_claims = Vec::new();
        self.journal().read_new(|block, at| new_claims.push((block, at)));
        let mut state = self.state();
        for (block, at) in new_claims {
            state.claim(block, at);
        }
        drop(state);
        absent.into_iter().filter(|&block| !self.verify_block(block)).collect()
    }

    /// The absent blocks of a range; reads neither the journal nor the data.
    pub fn unclaimed(&self, blocks: RangeInclusive<u32>) -> Vec<u32> {
        self.state().absent(blocks).collect()
    }

    /// The bytes of the absent blocks.
    pub fn missing_bytes(&self, blocks: RangeInclusive<u32>) -> u64 {
        let state = self.state();
        state.absent(blocks).map(|block| block_extent(block, self.size).len).sum()
    }

    /// Whether a block is stored and verified; hashes a claimed one.
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
        let is_valid = at.is_some_and(|at| self.matches_journal(block, at));
        let mut state = self.state();
        // Another reader may have verified it meanwhile.
        if state.blocks[block as usize] == BlockState::Claimed {
            state.claims.remove(&block);
            if is_valid {
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

    /// Reads a range if all its blocks are verified; `None` otherwise.
    pub fn read(&self, offset: u64, len: usize) -> Option<io::Result<Vec<u8>>> {
        let mut bytes = vec![0; len];
        Some(self.read_into(offset, &mut bytes)?.map(|()| bytes))
    }

    /// Like `read`, into a buffer of the caller.
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

    /// Stores a verified block. Returns the disk space taken beyond its data, by the journal and by
    /// zeros that could not be holes; `None` if it was stored already. A block that cannot be
    /// stored is fetched again when needed.
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
        // Waits for a punch to finish.
        let _reading = self.reading.read().unwrap_or_else(PoisonError::into_inner);
        if self.state().blocks[block as usize] == BlockState::Present {
            return Ok(None);
        }
        let zero_bytes = pages.write(&self.data, extent.offset)?;
        let recorded = self.journal().append(extent, digests)?;
        self.state().mark_present(block);
        Ok(Some(recorded + zero_bytes))
    }

    /// The disk space of the journal.
    pub(super) fn journal_bytes(&self) -> u64 {
        self.journal().disk_bytes()
    }

    /// Whether the cache accepts blocks; if not, read-ahead is pointless.
    pub fn is_storable(&self) -> bool {
        self.storable.load(Ordering::Relaxed)
    }

    /// Records whether the last blocks were stored.
    pub fn set_storable(&self, stored: bool) {
        self.storable.store(stored && self.has_storage, Ordering::Relaxed);
    }

    /// Whether this process verified all blocks.
    pub(super) fn is_fully_verified(&self) -> bool {
        self.has_storage && self.state().not_present == 0
    }

    /// Marks all claimed blocks as verified: this process verified them, and the file is untouched
    /// since.
    pub(super) fn mark_verified(&self) {
        let mut state = self.state();
        if !state.blocks.contains(&BlockState::Absent) {
            state.blocks.fill(BlockState::Present);
            state.not_present = 0;
            state.claims.clear();
        }
    }

    /// Whether all blocks are stored; hashes claimed ones.
    pub fn is_complete(&self) -> bool {
        let absent = |state: &BlockMap| state.blocks.contains(&BlockState::Absent);
        if absent(&self.state()) {
            return false;
        }
        let last = block_count(self.size) as u32;
        (0..last).all(|block| self.verify_block(block)) && self.state().not_present == 0
    }

    /// The file with the data.
    pub fn data(&self) -> &File {
        &self.data
    }

    /// Pins all blocks for passthrough, until `unpin`. False if a block is missing.
    pub fn pin(&self) -> bool {
        if !self.has_storage {
            return false;
        }
        let reading = self.reading.read().unwrap_or_else(PoisonError::into_inner);
        // Pinned before the check and not during a punch: blocks that the check finds stay.
        self.pins.fetch_add(1, Ordering::AcqRel);
        drop(reading);
        let is_complete = self.is_complete();
        if !is_complete {
            self.unpin();
        }
        is_complete
    }

    /// Pins without hashing, because an open waits: false also if blocks are only claimed.
    pub fn pin_if_verified(&self) -> bool {
        self.is_fully_verified() && self.pin()
    }

    /// Ends one pin.
    pub fn unpin(&self) {
        self.pins.fetch_sub(1, Ordering::AcqRel);
    }

    /// Punches the block that was stored first. Returns the freed bytes, zero for a hole; `None` if
    /// no block may be punched.
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
        // Later readers must fetch it again.
        self.in_flight.remove_block(block);
        let extent = block_extent(block, self.size);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let disk_bytes = || self.data.metadata().map_or(0, |meta| meta.blocks() * 512);
        let before = disk_bytes();
        fallocate(&self.data, hole, extent.offset, extent.len).ok()?;
        Some(before.saturating_sub(disk_bytes()))
    }
}
