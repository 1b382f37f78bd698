//! A worker's state of one link: its read slots, its write buffers, and the events that wait to be
//! sent together.

use crate::connection::event::WorkerEvent;
use verbatim_fabric::Buffer;
use verbatim_fabric::slots::{MakeBuffer, SlotPool};
use verbatim_proto::message::LinkId;
use verbatim_proto::units::ANSWERS_TOGETHER;

/// A worker's buffers and deferred events of one link.
pub(crate) struct LinkBuffers {
    pub id: LinkId,
    /// Chunks in flight to this side.
    pub fetches_in_flight: usize,
    /// Outcomes of completed reads, sent with the next one.
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

    /// Takes back a write buffer, and drops the file that it sends from.
    pub fn recycle_write_buffer(&mut self, mut buffer: Buffer) {
        buffer.set_len(0);
        self.writes.push(buffer);
    }

    /// Notes a completed read. Returns the events to send now: they wait only if another read is
    /// sure to follow.
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
    fn a_completed_read_is_reported_with_the_next_one_in_flight() {
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
