//! What a worker has of one link: the buffers that chunks come into and go from,
//! and what it has not told the session yet.

use crate::connection::event::WorkerEvent;
use verbatim_fabric::Buffer;
use verbatim_fabric::slots::{MakeBuffer, SlotPool};
use verbatim_proto::message::LinkId;
use verbatim_proto::units::ANSWERS_TOGETHER;

/// What a worker has of one link.
pub(crate) struct LinkBuffers {
    pub id: LinkId,
    /// How many chunks are on their way.
    pub fetches_in_flight: usize,
    /// What became of others meanwhile, to be told with the next.
    pub deferred: Vec<WorkerEvent>,
    pub reads: SlotPool,
    pub writes: Vec<Buffer>,
    pub make_buffer: MakeBuffer,
    pub chunk_bytes: usize,
}

impl LinkBuffers {
    pub fn new(id: LinkId, reads: SlotPool, make_buffer: MakeBuffer, chunk_bytes: usize) -> Self {
        let (deferred, writes) = (Vec::new(), Vec::new());
        Self { id, fetches_in_flight: 0, deferred, reads, writes, make_buffer, chunk_bytes }
    }

    /// Takes back a buffer that was written from; it keeps no file open.
    pub fn recycle_write_buffer(&mut self, mut buffer: Buffer) {
        buffer.set_len(0);
        self.writes.push(buffer);
    }

    /// A fetch ended; returns what is to be told now. Only what may wait, and what the end of
    /// another fetch is sure to follow, is kept.
    pub fn fetch_ended(&mut self, event: WorkerEvent, may_wait: bool) -> Vec<WorkerEvent> {
        self.fetches_in_flight -= 1;
        self.deferred.push(event);
        let keep = may_wait && self.fetches_in_flight > 0 && self.deferred.len() < ANSWERS_TOGETHER;
        if keep { Vec::new() } else { std::mem::take(&mut self.deferred) }
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
        let fetches_in_flight = |count| {
            let (id, reads) = (LinkId { index: 0, epoch: 0 }, SlotPool::new(0, 0, Buffer::new));
            LinkBuffers { fetches_in_flight: count, ..LinkBuffers::new(id, reads, Buffer::new, 0) }
        };
        let slots_reported = |buffers: &mut LinkBuffers, slot, may_wait| -> Vec<u16> {
            let (link, outcome) = (buffers.id, Outcome::LinkLost);
            let event = WorkerEvent::Fetched { link, slot, outcome, basis_bytes: 0 };
            buffers.fetch_ended(event, may_wait).into_iter().map(slot_of).collect()
        };
        let mut buffers = fetches_in_flight(3);
        assert_eq!(slots_reported(&mut buffers, 0, true), [0; 0], "two are on their way");
        assert_eq!(slots_reported(&mut buffers, 1, true), [0, 1]);
        assert_eq!(slots_reported(&mut buffers, 2, true), [2], "nothing follows");
        let mut buffers = fetches_in_flight(3);
        assert_eq!(slots_reported(&mut buffers, 0, true), [0; 0]);
        assert_eq!(slots_reported(&mut buffers, 1, false), [0, 1]);
        assert_eq!(slots_reported(&mut fetches_in_flight(3), 0, false), [0], "it may not wait");
    }
}
