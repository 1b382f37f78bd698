//! Operations in flight on one queue pair, in the order of posting, which is the
//! order of completing. Holds their buffers, and lets go of one only with the
//! completion of its last request: before it the device may still use it.

use crate::link::Ticket;
use crate::memory::Buffer;
use std::collections::VecDeque;

/// The operations in flight.
#[derive(Debug, Default)]
pub(super) struct Flights {
    flights: VecDeque<Flight>,
    /// Of the newest operation.
    serial: u64,
    /// Requests posted and not yet known to be done.
    requests: usize,
}

/// An operation in flight.
#[derive(Debug)]
pub(super) struct Flight {
    serial: u64,
    pub ticket: Ticket,
    pub buffer: Buffer,
    /// Requests it was posted as.
    pub pieces: usize,
    /// What people call it.
    pub name: &'static str,
}

impl Flights {
    pub fn len(&self) -> usize {
        self.flights.len()
    }

    pub fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Requests that take up room in the queue.
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// A number for the operation that is posted next.
    pub fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Keeps what was just posted under the newest number, as this many requests.
    pub fn push(&mut self, ticket: Ticket, buffer: Buffer, pieces: usize, name: &'static str) {
        self.requests += pieces;
        let serial = self.serial;
        self.flights.push_back(Flight { serial, ticket, buffer, pieces, name });
    }

    /// What a completed request belongs to: the oldest operation, or to none that can be.
    pub fn name_of(&self, serial: u64) -> Option<&'static str> {
        self.flights.front().filter(|front| front.serial == serial).map(|front| front.name)
    }

    /// The oldest operation, when this was its last request.
    pub fn landed(&mut self, serial: u64, piece: usize) -> Option<Flight> {
        let front = self.flights.front()?;
        if front.serial != serial || piece + 1 != front.pieces {
            return None;
        }
        self.requests -= front.pieces;
        self.flights.pop_front()
    }

    /// Everything, for when the queue pair is gone.
    pub fn take_all(&mut self) -> Vec<Flight> {
        self.requests = 0;
        self.flights.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer() -> Buffer {
        Buffer::new(1).expect("buffer")
    }

    #[test]
    fn a_buffer_comes_back_with_the_last_request_of_the_oldest_operation() {
        let mut flights = Flights::default();
        let first = flights.next_serial();
        flights.push(Ticket(10), buffer(), 3, "READ");
        let second = flights.next_serial();
        flights.push(Ticket(20), buffer(), 1, "WRITE");
        assert_eq!((flights.len(), flights.requests()), (2, 4));
        assert!(flights.landed(first, 0).is_none(), "a failed piece is not the end");
        assert!(flights.landed(second, 0).is_none(), "not before the one ahead of it");
        assert_eq!(flights.name_of(first), Some("READ"));
        assert_eq!(flights.name_of(second), None, "a completion was lost");
        assert_eq!(flights.landed(first, 2).expect("the last").ticket, Ticket(10));
        assert_eq!((flights.len(), flights.requests()), (1, 1));
        assert_eq!(flights.landed(second, 0).expect("the last").ticket, Ticket(20));
        assert!(flights.landed(second, 0).is_none(), "and once");
    }

    #[test]
    fn what_is_left_comes_back_together() {
        let mut flights = Flights::default();
        flights.next_serial();
        flights.push(Ticket(1), buffer(), 2, "READ");
        assert_eq!(flights.take_all().len(), 1);
        assert!(flights.is_empty() && flights.requests() == 0);
    }
}
