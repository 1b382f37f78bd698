//! What a worker has of one link: the buffers that chunks come into and go from,
//! and what it has not told the session yet.

use crate::connection::event::WorkerEvent;
use verbatim_fabric::Buffer;
use verbatim_fabric::slots::{MakeBuffer, SlotPool};
use verbatim_proto::message::LinkId;
use verbatim_proto::units::ANSWERS_TOGETHER;

/// What a worker has of one link.
pub(crate) struct Pools {
    pub id: LinkId,
    /// How many chunks are on their way.
    pub fetching: usize,
    /// What became of others meanwhile, to be told with the next.
    pub held: Vec<WorkerEvent>,
    pub reads: SlotPool,
    pub writes: Vec<Buffer>,
    pub make: MakeBuffer,
    pub chunk_bytes: usize,
}

impl Pools {
    pub fn new(id: LinkId, reads: SlotPool, make: MakeBuffer, chunk_bytes: usize) -> Self {
        let (held, writes) = (Vec::new(), Vec::new());
        Self { id, fetching: 0, held, reads, writes, make, chunk_bytes }
    }

    /// Takes back a buffer that was written from; it keeps no file open.
    pub fn written(&mut self, mut buffer: Buffer) {
        buffer.set_len(0);
        self.writes.push(buffer);
    }

    /// A fetch ended; returns what is to be told now. Only what may wait, and what the end of
    /// another fetch is sure to follow, is kept.
    pub fn fetched(&mut self, event: WorkerEvent, may_wait: bool) -> Vec<WorkerEvent> {
        self.fetching -= 1;
        self.held.push(event);
        let keep = may_wait && self.fetching > 0 && self.held.len() < ANSWERS_TOGETHER;
        if keep { Vec::new() } else { std::mem::take(&mut self.held) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_proto::read::Outcome;

    #[test]
    fn a_fetch_is_told_of_with_the_next_one_that_is_on_its_way() {
        let slot_of = |event: WorkerEvent| match event {
            WorkerEvent::Fetched { slot, .. } => slot,
            _ => panic!("nothing else is told"),
        };
        let fetching = |count| {
            let (id, reads) = (LinkId { index: 0, epoch: 0 }, SlotPool::new(0, 0, Buffer::new));
            Pools { fetching: count, ..Pools::new(id, reads, Buffer::new, 0) }
        };
        let ends = |pools: &mut Pools, slot, may_wait| -> Vec<u16> {
            let (link, outcome) = (pools.id, Outcome::LinkLost);
            let event = WorkerEvent::Fetched { link, slot, outcome, spared_bytes: 0 };
            pools.fetched(event, may_wait).into_iter().map(slot_of).collect()
        };
        let mut pools = fetching(3);
        assert_eq!(ends(&mut pools, 0, true), [0; 0], "two are on their way");
        assert_eq!(ends(&mut pools, 1, true), [0, 1]);
        assert_eq!(ends(&mut pools, 2, true), [2], "nothing follows");
        let mut pools = fetching(3);
        assert_eq!(ends(&mut pools, 0, true), [0; 0]);
        assert_eq!(ends(&mut pools, 1, false), [0, 1]);
        assert_eq!(ends(&mut fetching(3), 0, false), [0], "it may not wait");
    }
}
