//! Which blocks of a version are there: verified, only claimed, or not, and in which
//! order they came. Pure; the caller holds the lock. Used by `file` and `block_journal`.

use std::collections::{HashMap, VecDeque};
use std::ops::RangeInclusive;
use verbatim_proto::Extent;

/// The unit of the cache.
pub const BLOCK_BYTES: u64 = 1 << 20;

/// The largest file: what is known of its blocks takes 64 MiB of memory. Who makes a hole of more
/// costs a reader an error, and nobody the daemon.
pub const FILE_BYTES_MAX: u64 = 64 << 40;

/// What is known of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockState {
    Absent,
    /// Noted by an earlier run, and not looked at yet.
    Claimed,
    Present,
}

/// All that is known of the blocks of a version.
pub(super) struct BlockMap {
    pub blocks: Vec<BlockState>,
    /// Where the notes of claimed blocks are.
    pub claims: HashMap<u32, u64>,
    /// Blocks in the order in which they came.
    pub order: VecDeque<u32>,
    pub not_present: usize,
}

impl BlockMap {
    /// Nothing of a file of this size, which is `FILE_BYTES_MAX` at most.
    pub fn new(size: u64) -> Self {
        assert!(size <= FILE_BYTES_MAX, "a larger file was refused before");
        let blocks = vec![BlockState::Absent; block_count(size)];
        let not_present = blocks.len();
        Self { blocks, claims: HashMap::new(), order: VecDeque::new(), not_present }
    }

    /// The blocks of a range that nobody has noted.
    pub fn absent(&self, range: RangeInclusive<u32>) -> impl Iterator<Item = u32> {
        let (first, last) = (*range.start() as usize, *range.end() as usize);
        let within = self.blocks.iter().enumerate().skip(first).take_while(move |it| it.0 <= last);
        within.filter(|(_, block)| **block == BlockState::Absent).map(|(at, _)| at as u32)
    }

    /// A block was noted there. A later note is of bytes that were written later.
    pub fn claim(&mut self, block: u32, at: u64) {
        match self.blocks[block as usize] {
            BlockState::Present => return,
            BlockState::Absent => self.order.push_back(block),
            BlockState::Claimed => {}
        }
        self.blocks[block as usize] = BlockState::Claimed;
        self.claims.insert(block, at);
    }

    /// A block was written, and is verified.
    pub fn mark_present(&mut self, block: u32) {
        let was = std::mem::replace(&mut self.blocks[block as usize], BlockState::Present);
        if was == BlockState::Present {
            return;
        }
        self.not_present -= 1;
        // One that was claimed has its place.
        if self.claims.remove(&block).is_none() {
            self.order.push_back(block);
        }
    }
}

/// How many blocks a file has.
pub(super) fn block_count(size: u64) -> usize {
    size.div_ceil(BLOCK_BYTES) as usize
}

/// Where a block is.
pub fn block_extent(block: u32, size: u64) -> Extent {
    let offset = u64::from(block) * BLOCK_BYTES;
    Extent::new(offset, BLOCK_BYTES.min(size - offset))
}
