//! The buffers of reads that are asked for. Data arrives for one read at a time, so all
//! of it goes through one buffer as long as the others have the same capacity: that one
//! is in cache, and those that wait take no memory until something is written to them. A
//! read ends with a buffer like its own, not always its own. Called by `link`.

use crate::memory::Buffer;
use std::collections::{HashMap, VecDeque};

/// Reads that wait for their data, and their buffers.
#[derive(Default)]
pub(super) struct Reads {
    asked: HashMap<u64, Asked>,
    /// The one that was used last is at the back. Of every capacity there are as many as reads
    /// that brought one.
    buffers: VecDeque<Buffer>,
}

/// A read that was asked for.
struct Asked {
    len: usize,
    capacity: usize,
}

impl Reads {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.asked.len()
    }

    /// Takes the buffer of a read; false where there is one of that ticket.
    pub fn insert(&mut self, ticket: u64, buffer: Buffer) -> bool {
        let asked = Asked { len: buffer.len(), capacity: buffer.capacity() };
        self.buffers.push_front(buffer);
        self.asked.insert(ticket, asked).is_none()
    }

    /// How many bytes a read asked for, if there is one of that ticket.
    pub fn bytes_of(&self, ticket: u64) -> Option<usize> {
        self.asked.get(&ticket).map(|asked| asked.len)
    }

    /// Ends a wait, and hands out the buffer for the data.
    pub fn remove(&mut self, ticket: u64) -> Option<Buffer> {
        let Asked { len, capacity } = self.asked.remove(&ticket)?;
        let at = self.buffers.iter().rposition(|buffer| buffer.capacity() == capacity)?;
        let mut buffer = self.buffers.remove(at)?;
        buffer.set_len(len);
        Some(buffer)
    }

    /// Takes a buffer that was just used for what comes next, and hands out the one of its
    /// capacity that was used longest ago: itself where there is no other.
    pub fn exchange(&mut self, used: Buffer) -> Buffer {
        match self.buffers.iter().position(|buffer| buffer.capacity() == used.capacity()) {
            Some(at) => {
                self.buffers.push_back(used);
                self.buffers.remove(at).expect("it was just found")
            }
            None => used,
        }
    }

    /// Ends all waits, each with a buffer.
    pub fn drain(&mut self) -> impl Iterator<Item = (u64, Buffer)> {
        let tickets: Vec<u64> = self.asked.keys().copied().collect();
        tickets.into_iter().filter_map(|ticket| Some((ticket, self.remove(ticket)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(capacity: usize, len: usize) -> Buffer {
        let mut buffer = Buffer::new(capacity).expect("there is memory");
        buffer.set_len(len);
        buffer
    }

    #[test]
    fn all_data_goes_through_one_buffer_while_others_wait() {
        let mut reads = Reads::default();
        assert!((0..3).all(|ticket| reads.insert(ticket, buffer(4096, 4096))));
        let mut used = reads.remove(0).expect("asked for");
        let address = used.as_ptr();
        for ticket in 1..20 {
            let other = reads.exchange(used);
            assert_ne!(other.as_ptr(), address, "there are others");
            assert!(reads.insert(ticket + 2, other));
            used = reads.remove(ticket).expect("asked for");
            assert_eq!(used.as_ptr(), address, "read {ticket} has another");
        }
        reads.drain().for_each(drop);
        assert_eq!(reads.exchange(used).as_ptr(), address, "there is no other");
    }

    #[test]
    fn one_that_was_used_is_used_again_when_nothing_was_asked_for_meanwhile() {
        let mut reads = Reads::default();
        let (used, fresh) = (buffer(4096, 4096), buffer(4096, 4096));
        let address = used.as_ptr();
        assert!(reads.insert(1, used) && reads.insert(2, fresh));
        assert_eq!(reads.remove(1).expect("asked for").as_ptr(), address, "the first is warm");
    }

    #[test]
    fn every_read_ends_with_as_many_bytes_as_it_asked_for_and_a_buffer_like_its_own() {
        let mut reads = Reads::default();
        let asked = [(1, 8192, 10), (2, 4096, 4096), (3, 8192, 8192), (4, 4096, 7)];
        for (ticket, capacity, len) in asked {
            assert!(reads.insert(ticket, buffer(capacity, len)));
            assert_eq!(reads.bytes_of(ticket), Some(len));
        }
        assert!(reads.remove(5).is_none() && reads.bytes_of(5).is_none());
        let spare = reads.exchange(buffer(8192, 8192));
        assert_eq!(spare.capacity(), 8192);
        assert_eq!(reads.exchange(buffer(64, 64)).capacity(), 64, "there is none like it");
        let first = reads.remove(1).map(|buffer| (1, buffer));
        let mut ended: Vec<_> = first.into_iter().chain(reads.drain()).collect();
        ended.sort_by_key(|(ticket, _)| *ticket);
        let told = ended.iter().map(|(ticket, buffer)| (*ticket, buffer.capacity(), buffer.len()));
        assert_eq!(told.collect::<Vec<_>>(), asked);
        assert_eq!((reads.len(), reads.buffers.len()), (0, 0));
    }

    #[test]
    fn a_ticket_in_use_is_found_out() {
        let mut reads = Reads::default();
        assert!(reads.insert(1, buffer(64, 64)));
        assert!(!reads.insert(1, buffer(64, 64)));
    }
}
