//! The states of a version's blocks: absent, claimed by a journal, or verified; and the
//! order in which they were stored. Pure; the caller holds the lock. Used by `file` and
//! `block_journal`.

use std::collections::{HashMap, VecDeque};
use std::ops::RangeInclusive;
use verbatim_proto::Extent;

/// The size of a block.
pub const BLOCK_BYTES: u64 = 1 << 20;

/// The largest file: its block states take 64 MiB of memory. A larger sparse file fails for its
/// reader instead of exhausting the daemon.
pub const FILE_BYTES_MAX: u64 = 64 << 40;

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockState {
    Absent,
    /// Recorded by an earlier run or another mount, and not hashed yet.
    Claimed,
    Present,
}

/// The states of all blocks of a version.
pub(super) struct BlockMap {
    pub blocks: Vec<BlockState>,
    /// The offsets of the journal records of claimed blocks.
    pub claims: HashMap<u32, u64>,
    /// Blocks in the order in which they were stored.
    pub order: VecDeque<u32>,
    pub not_present: usize,
}

impl BlockMap {
    /// All blocks absent. The size is at most `FILE_BYTES_MAX`.
    pub fn new(size: u64) -> Self {
        assert!(size <= FILE_BYTES_MAX, "a larger file was refused before");
        let blocks = vec![BlockState::Absent; block_count(size)];
        let not_present = blocks.len();
        Self { blocks, claims: HashMap::new(), order: VecDeque::new(), not_present }
    }

    /// The absent blocks of a range.
    pub fn absent(&self, range: RangeInclusive<u32>) -> impl Iterator<Item = u32> {
        let (first, last) = (*range.start() as usize, *range.end() as usize);
        let within = self.blocks.iter().enumerate().skip(first).take_while(move |it| it.0 <= last);
        within.filter(|(_, block)| **block == BlockState::Absent).map(|(at, _)| at as u32)
    }

    /// Records the claim of a journal record. A later record describes bytes written later.
    pub fn claim(&mut self, block: u32, at: u64) {
        match self.blocks[block as usize] {
            BlockState::Present => return,
            BlockState::Absent => self.order.push_back(block),
            BlockState::Claimed => {}
        }
        self.blocks[block as usize] = BlockState::Claimed;
        self.claims.insert(block, at);
    }

    /// Marks a written block as verified.
    pub fn mark_present(&mut self, block: u32) {
        let was = std::mem::replace(&mut self.blocks[block as usize], BlockState::Present);
        if was == BlockState::Present {
            return;
        }
        self.not_present -= 1;
        // A claimed block is in the order already.
        if self.claims.remove(&block).is_none() {
            self.order.push_back(block);
        }
    }
}

/// The number of blocks of a file.
pub(super) fn block_count(size: u64) -> usize {
    size.div_ceil(BLOCK_BYTES) as usize
}

/// The extent of a block.
pub fn block_extent(block: u32, size: u64) -> Extent {
    let offset = u64::from(block) * BLOCK_BYTES;
    Extent::new(offset, BLOCK_BYTES.min(size - offset))
}
