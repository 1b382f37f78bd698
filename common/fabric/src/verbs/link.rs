//! The verbs link: operations as one-sided work requests of one queue pair.
//!
//! Who owns a buffer: from `submit` the link, in `flights`. An operation is cut
//! into pieces of one chain, of which only the last is signalled; in the good case
//! its completion returns the buffer. A failed request of any piece tells the
//! cause, the rest of the queue is flushed piece by piece, and the buffer comes
//! back with its last piece: only then is the device done with it. What never
//! completes comes back when the queue pair is gone, which ends the device's use
//! as well; where even that fails the buffer is the device's for good, and counted.

use super::context::Footing;
use super::counters::Counters;
use super::ffi::{self, Plain as _};
use super::flights::{Flight, Flights};
use super::options::Options;
use super::queue::{POLL_BATCH, Queue};
use super::region::count_leaks;
use super::registration::local_key;
use super::request::{Parts, RECEIVE, Shape, cut, op_len, serial_and_piece};
use super::status;
use crate::error::FabricError;
use crate::link::{Completion, Full, Limits, Link, Op, Ticket, Wake};
use crate::memory::Buffer;
use crate::ports::Place;
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes of one operation: the largest chunk.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// How long an abort waits for what is in flight to be flushed.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// How often a link that never sleeps looks for events of the device.
const EVENTS_EVERY: Duration = Duration::from_millis(100);

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
    in_flight: Flights,
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

impl VerbsLink {
    pub(super) fn new(
        queue: Queue,
        place: &Place,
        options: &Options,
        footing: Footing,
        happened: u64,
    ) -> Self {
        let piece_bytes = options.piece_bytes.max(1) as usize;
        Self {
            queue,
            in_flight: Flights::default(),
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
        let serial = self.in_flight.next_serial();
        let shape = Shape { opcode, rkey, lkey, tag, inline, address: range.address };
        let (_, address, _) = buffer.registered_and_memory();
        let (mut pieces, mut chain) =
            cut(address as u64, buffer.len(), self.piece_bytes, &shape, serial);
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
                self.in_flight.push(ticket, buffer, pieces, name);
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
        let (serial, piece) = serial_and_piece(wc.wr_id);
        let Some(name) = self.in_flight.name_of(serial) else {
            // In order, so a completion of another was lost: nothing here can be trusted.
            return self.fail_with(FabricError::device(
                format!("link over {}", self.transport),
                "a completion was lost",
                "update the driver; the link is made anew",
            ));
        };
        let failed = wc.status != ffi::IBV_WC_SUCCESS;
        if failed {
            self.fail_of(wc, name);
        }
        if let Some(Flight { ticket, buffer, pieces, .. }) = self.in_flight.landed(serial, piece) {
            // An earlier piece may have failed and this one have been flushed.
            let result = match self.failed.clone() {
                Some(error) if failed => Err(error),
                _ => Ok(()),
            };
            self.counters().done(name, pieces * usize::from(!failed));
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
            && self.in_flight.requests() + pieces <= self.send_room();
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
        for Flight { ticket, buffer, .. } in self.in_flight.take_all() {
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
    }

    fn limits(&self) -> Limits {
        let fits = self.send_room().saturating_mul(self.piece_bytes);
        let message_bytes_max = MESSAGE_BYTES_MAX.min(fits);
        let depth_max = self.depth_max.min(self.send_room());
        Limits { depth_max, message_bytes_max, sends_from_file: false, registers_buffers: true }
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
