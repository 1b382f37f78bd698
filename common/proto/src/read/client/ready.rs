//! Chunks of leased windows that wait for a slot, and which of them a link is given next.
//! A chunk that was in flight on a dead link waits before all others.

use super::Chunk;
use super::ordered::Order;
use crate::LinkId;
use crate::turns::Turns;
use std::collections::VecDeque;

/// The chunks.
#[derive(Default)]
pub(super) struct Ready {
    chunks: VecDeque<Chunk>,
}

impl Ready {
    pub fn push_first(&mut self, chunk: Chunk) {
        self.chunks.push_front(chunk);
    }

    pub fn push_last(&mut self, chunk: Chunk) {
        self.chunks.push_back(chunk);
    }

    pub fn extend(&mut self, chunks: Vec<Chunk>) {
        self.chunks.extend(chunks);
    }

    /// Removes the chunks without a piece of a wanted file, and returns them.
    pub fn take_unwanted(&mut self, is_unwanted: impl Fn(&Chunk) -> bool) -> Vec<Chunk> {
        let (unwanted, ready): (Vec<_>, Vec<_>) = self.chunks.drain(..).partition(is_unwanted);
        self.chunks = ready.into();
        unwanted
    }

    /// The next chunk for a link to fetch: of a file in order the first, if it is near enough.
    pub fn next(&mut self, link: LinkId, turns: &Turns, order: Option<&Order>) -> Option<Chunk> {
        let Some(order) = order else {
            let files = self.chunks.iter().map(|chunk| chunk.pieces[0].file);
            return self.chunks.remove(turns.choose(link, files));
        };
        let start = |chunk: &Chunk| chunk.pieces[0].extent.offset;
        let first = (0..self.chunks.len()).min_by_key(|&index| start(&self.chunks[index]))?;
        let near = order.is_near(start(&self.chunks[first]));
        if near { self.chunks.remove(first) } else { None }
    }
}
