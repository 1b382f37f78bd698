//! A file that is read in order, for somebody who takes it byte by byte: chunks
//! are fetched from the front, and only so far behind what was taken, so that
//! what must be kept meanwhile is bounded. Such a file cannot be begun again.

use super::{Chunk, ReadClient};
use crate::units::{FILE_ATTEMPTS_MAX, ORDERED_AHEAD_BYTES};
use crate::{Extent, ExtentSet, FileId, LinkId, WirePath};
use std::time::Duration;

/// How far the file is.
#[derive(Default)]
pub(super) struct Order {
    taken: u64,
    /// Verified, and not taken.
    came: ExtentSet,
}

impl ReadClient {
    /// Adds a file that is read in order. It must be the only file of this machine.
    ///
    /// # Panics
    /// When there is another one: a bug of the driver.
    pub fn open_ordered(&mut self, file: FileId, path: WirePath, now: Duration) {
        assert!(self.is_idle(), "a file in order is alone");
        self.open(file, path, None, now);
        self.order = Some(Order::default());
        if let Some(state) = self.files.get_mut(&file) {
            state.attempts = FILE_ATTEMPTS_MAX;
        }
    }

    /// All bytes before `offset` were taken.
    pub fn taken(&mut self, offset: u64, now: Duration) {
        self.touch(now);
        if let Some(order) = &mut self.order {
            order.came.take_common(Extent::new(0, offset));
            order.taken = order.taken.max(offset);
        }
    }

    pub(super) fn came(&mut self, extent: Extent) {
        if let Some(order) = &mut self.order {
            order.came.insert(extent);
        }
    }

    /// Whether the next bytes are there, and it is not the server that is waited for.
    pub(super) fn awaits_taker(&self) -> bool {
        let next = |order: &Order| order.came.contains(Extent::new(order.taken, 1));
        self.order.as_ref().is_some_and(next)
    }

    /// The next chunk for a link to fetch: of a file in order the first, if it is near enough.
    pub(super) fn next_ready(&mut self, link: LinkId) -> Option<Chunk> {
        let Some(order) = &self.order else {
            let files = self.ready.iter().map(|chunk| chunk.pieces[0].file);
            return self.ready.remove(self.slots.turns.choose(link, files));
        };
        let start = |chunk: &Chunk| chunk.pieces[0].extent.offset;
        let first = (0..self.ready.len()).min_by_key(|&index| start(&self.ready[index]))?;
        let near = start(&self.ready[first]) < order.taken + ORDERED_AHEAD_BYTES;
        if near { self.ready.remove(first) } else { None }
    }
}
