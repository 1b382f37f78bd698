//! The verbs link: operations as one-sided work requests of one queue pair.
//!
//! Who owns a buffer: from `submit` the link, in `in_flight`, in the order of
//! posting, which is the order of completing. An operation is cut into pieces of
//! one chain, of which only the last is signalled; in the good case its completion
//! returns the buffer. A failed request of any piece tells the cause, the rest of
//! the queue is flushed piece by piece, and the buffer comes back with its last
//! piece: only then is the device done with it. What never completes comes back
//! when the queue pair is gone, which ends the device's use as well; where even
//! that fails the buffer is left to the device for good, and counted.

use super::choose::Place;
use super::context::Footing;
use super::endpoint::Options;
use super::ffi::{self, Plain as _};
use super::queue::{POLL_BATCH, Queue};
use super::region::{Counters, count_leaks, local_key};
use super::status;
use crate::error::FabricError;
use crate::link::{Completion, Full, Limits, Link, Op, RemoteRange, Ticket, Wake};
use crate::memory::Buffer;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes of one operation: the largest chunk.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// How long an abort waits for what is in flight to be flushed.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// How often a link that never sleeps looks for events of the device.
const EVENTS_EVERY: Duration = Duration::from_millis(100);

/// The number of every receive; requests have smaller ones.
pub(super) const RECEIVE: u64 = 1 << 63;

/// A connected queue pair.
///
/// A buffer in flight is the link's; nobody can look at it:
/// ```compile_fail,E0382
/// use verbatim_fabric::{Buffer, Link, Op, RemoteRange, Ticket, verbs::VerbsLink};
/// fn peek(link: &mut VerbsLink, from: RemoteRange, into: Buffer) -> u8 {
///     link.submit(Ticket(1), Op::Read { from, into }).expect("room");
///     into[0]
/// }
/// ```
/// nor can a link be driven from two threads:
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<verbatim_fabric::verbs::VerbsLink>();
/// ```
pub struct VerbsLink {
    queue: Queue,
    in_flight: VecDeque<Flight>,
    /// Of the newest operation.
    serial: u64,
    /// Requests posted and not yet known to be done.
    requests: usize,
    /// Operations that failed before they were posted.
    unposted: Vec<Completion>,
    /// The first failure. The link is dead from then on.
    failed: Option<FabricError>,
    /// Whether that failure was only a flush, which tells no cause.
    flushed: bool,
    dead: bool,
    /// An event was asked for and has not come.
    armed: bool,
    /// A completion was seen since, so the event may be there.
    seen_since_armed: bool,
    /// The driver slept since the last poll.
    slept: Cell<bool>,
    events_looked: Instant,
    /// What was known of the device when it was last asked for trouble.
    happened: u64,
    footing: Footing,
    depth_max: usize,
    piece_bytes: usize,
    busy_poll: bool,
    transport: String,
}

/// An operation in flight.
struct Flight {
    serial: u64,
    ticket: Ticket,
    buffer: Buffer,
    /// Requests it was posted as.
    pieces: usize,
    name: &'static str,
}

impl VerbsLink {
    pub(super) fn new(
        queue: Queue,
        place: &Place,
        options: &Options,
        footing: Footing,
        happened: u64,
    ) -> Self {
        let piece_bytes = options.piece_bytes.min(place.message_bytes_max).max(1) as usize;
        Self {
            queue,
            in_flight: VecDeque::new(),
            serial: 0,
            requests: 0,
            unposted: Vec::new(),
            failed: None,
            flushed: false,
            dead: false,
            armed: false,
            seen_since_armed: false,
            slept: Cell::new(false),
            events_looked: Instant::now(),
            happened,
            footing,
            depth_max: options.depth_max.max(1),
            piece_bytes,
            busy_poll: options.busy_poll,
            transport: format!("verbs {}/{}", place.device, place.port),
        }
    }

    /// Requests posted by this link's domain.
    pub fn counters(&self) -> &Counters {
        &self.queue.pd().counters
    }

    /// Moves the queue pair to the error state, as a failing device does.
    pub fn fail(&mut self) {
        let mut attr = ffi::QpAttr::zeroed();
        attr.qp_state = ffi::IBV_QPS_ERR;
        // One that cannot be moved is destroyed by `abort`.
        let _ = self.queue.modify(&mut attr, ffi::IBV_QP_STATE);
    }

    fn send_room(&self) -> usize {
        self.queue.depths.sends as usize
    }

    /// Posts an operation that fits. Whatever happens, its buffer is in flight or in `unposted`.
    fn post(&mut self, ticket: Ticket, parts: Parts) {
        let Parts { opcode, range, tag, mut buffer, name } = parts;
        if opcode != ffi::IBV_WR_RDMA_READ {
            buffer.fill();
        }
        let inline = opcode != ffi::IBV_WR_RDMA_READ
            && buffer.len() <= self.queue.depths.inline_bytes as usize;
        let key = if inline { Ok(0) } else { local_key(&mut buffer, self.queue.pd()) };
        let rkey = u32::try_from(range.key)
            .map_err(|_| FabricError::Access("the key is not of a device".into()));
        let (lkey, rkey) = match key.and_then(|lkey| Ok((lkey, rkey?))) {
            Ok(keys) => keys,
            Err(error) => return self.refuse(ticket, buffer, error),
        };
        self.serial += 1;
        let shape = Shape { opcode, rkey, lkey, tag, inline, address: range.address };
        let (_, address, _) = buffer.registered_and_memory();
        let (mut pieces, mut chain) =
            cut(address as u64, buffer.len(), self.piece_bytes, &shape, self.serial);
        for (wr, piece) in chain.iter_mut().zip(&mut pieces) {
            wr.sg_list = piece;
        }
        // SAFETY: the buffer is kept in `in_flight`, where nobody looks at it, until its last
        // request completed or the queue pair was destroyed; its registration is kept in it.
        let posted = unsafe { self.queue.post_sends(&mut chain) };
        let count = posted.as_ref().map_or_else(|error| error.posted, |()| chain.len());
        let counters = self.counters();
        let counter = match opcode {
            ffi::IBV_WR_RDMA_READ => &counters.reads,
            _ => &counters.writes,
        };
        counter.fetch_add(count as u64, Ordering::Relaxed);
        let error = posted.err().map(|error| {
            let hint = "the link is made anew; if it happens again see dmesg";
            let what = format!("cannot post a {name} over {}", self.transport);
            FabricError::device(what, error.cause.to_string(), hint)
        });
        match (count, error) {
            (0, Some(error)) => self.refuse(ticket, buffer, error),
            (pieces, error) => {
                self.requests += pieces;
                let serial = self.serial;
                self.in_flight.push_back(Flight { serial, ticket, buffer, pieces, name });
                self.failed = self.failed.take().or(error);
            }
        }
    }

    /// Gives back an operation that no device ever saw; the link ends with it.
    fn refuse(&mut self, ticket: Ticket, buffer: Buffer, error: FabricError) {
        self.unposted.push(Completion::Done { ticket, buffer, result: Err(error.clone()) });
        self.failed = self.failed.take().or(Some(error));
    }

    /// Takes a batch off the completion queue; how many there were.
    fn reap(&mut self, completions: &mut Vec<Completion>) -> usize {
        let mut batch = [ffi::Wc::zeroed(); POLL_BATCH];
        let count = match self.queue.poll(&mut batch) {
            Ok(count) => count,
            Err(error) => {
                let what = format!("cannot poll {}", self.transport);
                self.fail_with(FabricError::device(what, error.to_string(), "see dmesg"));
                return 0;
            }
        };
        let mut received = 0;
        for wc in &batch[..count] {
            if wc.wr_id == RECEIVE {
                received += usize::from(self.receive(wc, completions));
            } else {
                self.complete(wc, completions);
            }
        }
        if received > 0 && !self.dead {
            // Before the driver can grant again what this receive is for.
            if let Err(error) = self.queue.post_receives(received, RECEIVE) {
                let what = format!("cannot post receives over {}", self.transport);
                self.fail_with(FabricError::device(what, error.to_string(), "see dmesg"));
            }
        }
        count
    }

    /// Takes a completed receive; whether it brought an immediate.
    fn receive(&mut self, wc: &ffi::Wc, completions: &mut Vec<Completion>) -> bool {
        if wc.status != ffi::IBV_WC_SUCCESS {
            self.fail_of(wc, "link");
            return false;
        }
        if wc.opcode != ffi::IBV_WC_RECV_RDMA_WITH_IMM {
            self.fail_with(FabricError::Protocol("a message that is no notification".into()));
            return false;
        }
        self.counters().notifications.fetch_add(1, Ordering::Relaxed);
        completions.push(Completion::Notified { tag: u32::from_be(wc.imm_data) });
        true
    }

    /// Takes a completed request: the last of its operation, or one that failed.
    fn complete(&mut self, wc: &ffi::Wc, completions: &mut Vec<Completion>) {
        let (serial, piece) = (wc.wr_id >> PIECE_BITS, (wc.wr_id & PIECE_MASK) as usize);
        let Some(front) = self.in_flight.front().filter(|front| front.serial == serial) else {
            // In order, so a completion of another was lost: nothing here can be trusted.
            return self.fail_with(FabricError::device(
                format!("link over {}", self.transport),
                "a completion was lost",
                "update the driver; the link is made anew",
            ));
        };
        let (name, last) = (front.name, piece + 1 == front.pieces);
        let failed = wc.status != ffi::IBV_WC_SUCCESS;
        if failed {
            self.fail_of(wc, name);
        }
        if last && let Some(flight) = self.in_flight.pop_front() {
            self.requests -= flight.pieces;
            let Flight { ticket, buffer, .. } = flight;
            // An earlier piece may have failed and this one have been flushed.
            let result = match self.failed.clone() {
                Some(error) if failed => Err(error),
                _ => Ok(()),
            };
            completions.push(Completion::Done { ticket, buffer, result });
        }
    }

    fn fail_of(&mut self, wc: &ffi::Wc, name: &str) {
        let first = self.failed.is_none();
        let what = format!("{name} over {}", self.transport);
        self.fail_with(status::error_of(wc.status, wc.vendor_err, &what));
        self.flushed |= first && wc.status == ffi::IBV_WC_WR_FLUSH_ERR;
    }

    /// Asks the device what happened, when it says that something did, or when a flush says
    /// only that something must have.
    fn ask_device(&mut self) {
        let context = self.queue.pd().context().clone();
        if self.flushed {
            context.take_events();
        }
        let happened = context.happened();
        if happened == self.happened {
            return;
        }
        self.happened = happened;
        if let Some(error) = context.trouble(&self.footing) {
            if self.flushed {
                (self.failed, self.flushed) = (None, false);
            }
            self.fail_with(error);
        }
    }

    fn fail_with(&mut self, error: FabricError) {
        self.failed = self.failed.take().or(Some(error));
    }

    /// Nothing completed: looks what woke us, and arms the queue so that something can.
    fn before_sleep(&mut self, completions: &mut Vec<Completion>) {
        let slept = self.slept.replace(false);
        if self.busy_poll {
            if self.events_looked.elapsed() >= EVENTS_EVERY {
                self.events_looked = Instant::now();
                self.queue.pd().context().take_events();
            }
            return;
        }
        if slept {
            self.queue.pd().context().take_events();
        }
        if (slept || self.seen_since_armed) && self.queue.take_wakes() {
            self.armed = false;
        }
        if !self.armed {
            if let Err(error) = self.queue.arm() {
                let what = format!("cannot wait on {}", self.transport);
                return self.fail_with(FabricError::device(what, error.to_string(), "see dmesg"));
            }
            self.armed = true;
            // What completed before it was armed makes no event.
            self.seen_since_armed = self.reap(completions) > 0;
        }
    }

    /// Polls until nothing is in flight, or for as long as an abort may take.
    fn drain(&mut self, completions: &mut Vec<Completion>) {
        let begin = Instant::now();
        let mut pause = Duration::from_micros(20);
        let mut notified = Vec::new();
        while !self.in_flight.is_empty() && begin.elapsed() < DRAIN_MAX {
            if self.reap(&mut notified) == 0 {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(5));
            }
        }
        // What the peer said last is void with the link.
        let own = |done: &Completion| matches!(done, Completion::Done { .. });
        completions.extend(notified.into_iter().filter(own));
    }
}

impl Link for VerbsLink {
    fn submit(&mut self, ticket: Ticket, op: Op) -> Result<(), Full> {
        let pieces = op_len(&op).div_ceil(self.piece_bytes);
        let room = self.in_flight.len() + self.unposted.len() < self.depth_max
            && self.requests + pieces <= self.send_room();
        if self.dead || self.failed.is_some() || !room {
            return Err(Full(op));
        }
        let parts = Parts::from(op);
        let (len, max) = (parts.buffer.len(), self.limits().message_bytes_max);
        assert!(len > 0 && len <= max, "operation of {len} bytes");
        self.post(ticket, parts);
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        if self.dead {
            return Err(FabricError::Aborted);
        }
        completions.append(&mut self.unposted);
        if self.reap(completions) > 0 {
            self.seen_since_armed = true;
        } else {
            self.before_sleep(completions);
        }
        self.ask_device();
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn wake(&self) -> Wake<'_> {
        self.slept.set(true);
        let at_most = self.busy_poll.then_some(Duration::ZERO);
        Wake { fd: Some(self.queue.fd()), readable: true, writable: false, at_most }
    }

    fn abort(&mut self, completions: &mut Vec<Completion>) {
        if self.dead {
            return;
        }
        self.dead = true;
        completions.append(&mut self.unposted);
        self.fail();
        self.drain(completions);
        // Only this ends what the peer does to our memory.
        let gone = self.queue.destroy();
        for flight in self.in_flight.drain(..) {
            let Flight { ticket, buffer, .. } = flight;
            let result = Err(FabricError::Aborted);
            if gone {
                completions.push(Completion::Done { ticket, buffer, result });
                continue;
            }
            count_leaks(1);
            let capacity = buffer.capacity();
            std::mem::forget(buffer);
            // The driver gets another in its place, so that its slots stay whole.
            if let Ok(buffer) = Buffer::new(capacity) {
                completions.push(Completion::Done { ticket, buffer, result });
            }
        }
        self.requests = 0;
    }

    fn limits(&self) -> Limits {
        let fits = self.send_room().saturating_mul(self.piece_bytes);
        let message_bytes_max = MESSAGE_BYTES_MAX.min(fits);
        Limits { depth_max: self.depth_max.min(self.send_room()), message_bytes_max }
    }

    fn transport(&self) -> &str {
        &self.transport
    }
}

impl Drop for VerbsLink {
    fn drop(&mut self) {
        self.abort(&mut Vec::new());
    }
}

/// An operation taken apart.
struct Parts {
    opcode: u32,
    range: RemoteRange,
    tag: u32,
    buffer: Buffer,
    name: &'static str,
}

impl From<Op> for Parts {
    fn from(op: Op) -> Self {
        let (opcode, range, tag, buffer, name) = match op {
            Op::Read { from, into } => (ffi::IBV_WR_RDMA_READ, from, 0, into, "READ"),
            Op::Write { from, to } => (ffi::IBV_WR_RDMA_WRITE, to, 0, from, "WRITE"),
            Op::WriteNotify { from, to, tag } => {
                (ffi::IBV_WR_RDMA_WRITE_WITH_IMM, to, tag, from, "WRITE")
            }
        };
        Self { opcode, range, tag, buffer, name }
    }
}

fn op_len(op: &Op) -> usize {
    match op {
        Op::Read { into, .. } => into.len(),
        Op::Write { from, .. } | Op::WriteNotify { from, .. } => from.len(),
    }
}

/// What all pieces of an operation have in common.
struct Shape {
    opcode: u32,
    rkey: u32,
    lkey: u32,
    tag: u32,
    inline: bool,
    address: u64,
}

/// A request's number: its operation's above, its place among the pieces below.
const PIECE_BITS: u32 = 16;
const PIECE_MASK: u64 = (1 << PIECE_BITS) - 1;

/// Cuts an operation into requests, of which the last is signalled and tells the peer.
fn cut(
    local: u64,
    len: usize,
    piece_bytes: usize,
    shape: &Shape,
    serial: u64,
) -> (Vec<ffi::Sge>, Vec<ffi::SendWr>) {
    let count = len.div_ceil(piece_bytes);
    let pieces = (0..count).map(|piece| {
        let at = piece * piece_bytes;
        let length = (len - at).min(piece_bytes) as u32;
        let sge = ffi::Sge { addr: local + at as u64, length, lkey: shape.lkey };
        let mut wr = ffi::SendWr::zeroed();
        wr.wr_id = (serial << PIECE_BITS) | piece as u64;
        wr.num_sge = 1;
        wr.opcode = shape.opcode;
        // A peer could give any address; the device refuses what is outside the region.
        wr.remote_addr = shape.address.wrapping_add(at as u64);
        wr.rkey = shape.rkey;
        if shape.inline {
            wr.send_flags |= ffi::IBV_SEND_INLINE;
        }
        if piece + 1 == count {
            wr.send_flags |= ffi::IBV_SEND_SIGNALED;
            wr.imm_data = shape.tag.to_be();
        } else if shape.opcode == ffi::IBV_WR_RDMA_WRITE_WITH_IMM {
            wr.opcode = ffi::IBV_WR_RDMA_WRITE;
        }
        (sge, wr)
    });
    pieces.unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(opcode: u32) -> Shape {
        Shape { opcode, rkey: 7, lkey: 9, tag: 0x0102_0304, inline: false, address: 1000 }
    }

    #[test]
    fn only_the_last_piece_is_signalled_and_tells_the_peer() {
        let (sges, wrs) = cut(5000, 25, 10, &shape(ffi::IBV_WR_RDMA_WRITE_WITH_IMM), 3);
        let told: Vec<_> = wrs.iter().map(|wr| (wr.opcode, wr.send_flags, wr.imm_data)).collect();
        let plain = (ffi::IBV_WR_RDMA_WRITE, 0, 0);
        let last = (
            ffi::IBV_WR_RDMA_WRITE_WITH_IMM,
            ffi::IBV_SEND_SIGNALED,
            u32::from_ne_bytes([1, 2, 3, 4]),
        );
        assert_eq!(told, [plain, plain, last]);
        let places: Vec<_> = sges.iter().map(|sge| (sge.addr, sge.length)).collect();
        assert_eq!(places, [(5000, 10), (5010, 10), (5020, 5)]);
        let remote: Vec<_> = wrs.iter().map(|wr| (wr.remote_addr, wr.rkey)).collect();
        assert_eq!(remote, [(1000, 7), (1010, 7), (1020, 7)]);
        let numbers: Vec<_> = wrs.iter().map(|wr| wr.wr_id).collect();
        assert_eq!(numbers, [3 << 16, 3 << 16 | 1, 3 << 16 | 2]);
    }

    #[test]
    fn a_read_of_one_piece_is_one_signalled_request() {
        let (sges, wrs) = cut(0, 10, 10, &shape(ffi::IBV_WR_RDMA_READ), 1);
        assert_eq!((sges.len(), wrs.len()), (1, 1));
        assert_eq!(wrs[0].opcode, ffi::IBV_WR_RDMA_READ);
        assert_eq!(wrs[0].send_flags, ffi::IBV_SEND_SIGNALED);
    }
}
