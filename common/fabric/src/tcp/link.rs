//! One TCP connection as a link. Both ends run the same code: each may submit
//! operations and each answers the other's.
//!
//! Buffers: an own operation's buffer lives in `reads` or `writes` from submit
//! until its answer, one that data arrives in in `incoming`; `out` refers to it by
//! ticket. What the peer reads is sent straight from registered memory; what it writes
//! is received straight into its slot. `abort` empties all of it.
//!
//! Turns: a poll sends at most `TURN_BYTES`. A peer that takes data as fast as it is
//! sent never fills its socket, and would keep the worker from all other links.

use super::body::Body;
use super::frame::{HEADER_BYTES, Header, Kind};
use super::reads::Reads;
use super::wire::{Wire, broken};
use crate::domain::{Access, SoftDomain};
use crate::error::FabricError;
use crate::link::{Completion, Full, Limits, Link, Op, Ticket, Wake};
use crate::memory::{Buffer, Memory, SharedSlot};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

/// Operations in flight on one link, and answers waiting on it.
const DEPTH_MAX: usize = 64;

/// The largest operation: the largest chunk.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Received in one system call, so that it is still in cache when it is used.
const STEP_BYTES: usize = 256 << 10;

/// Sent in one poll, before the other links of its worker have their turn: a grain.
const TURN_BYTES: usize = 256 << 10;

/// A TCP connection as a link.
pub struct TcpLink {
    wire: Wire,
    domain: Arc<SoftDomain>,
    out: VecDeque<Outgoing>,
    incoming: Incoming,
    reads: Reads,
    writes: HashMap<u64, Buffer>,
    /// What may still be sent in this turn.
    turn_left: usize,
    dead: bool,
}

/// A frame on its way out: its header, then its body.
struct Outgoing {
    header: [u8; HEADER_BYTES],
    body: Body,
    sent: usize,
    len: usize,
}

impl Outgoing {
    /// It cannot be sent. Where that may be for want of a file that can be read, the rest of its
    /// body is zeros: the length was promised, and the digests tell. That keeps the link for other
    /// files; a socket that is broken says so again.
    fn give_up(&mut self, error: Errno) -> Result<(), FabricError> {
        match &self.body {
            Body::Own(_) | Body::Registered(..) if self.sent >= HEADER_BYTES => {
                tracing::debug!(%error, "the rest of a message is zeros");
                self.body = Body::Zeros(error);
                Ok(())
            }
            Body::Zeros(cause) => Err(broken(*cause)),
            _ => Err(broken(error)),
        }
    }
}

/// What the next bytes from the socket are.
enum Incoming {
    Header {
        bytes: [u8; HEADER_BYTES],
        got: usize,
    },
    /// The answer to an own read.
    Data {
        ticket: u64,
        buffer: Buffer,
        got: usize,
    },
    /// A write of the peer.
    Upload {
        header: Header,
        slot: SharedSlot,
        /// Where in the slot it begins.
        at: usize,
        got: usize,
    },
}

const BETWEEN_FRAMES: Incoming = Incoming::Header { bytes: [0; HEADER_BYTES], got: 0 };

impl TcpLink {
    /// Makes a link of a connected socket; the peer may name the memory of `domain`.
    pub fn new(stream: TcpStream, domain: Arc<SoftDomain>) -> Result<Self, FabricError> {
        Self::over(Wire::Plain(stream), domain)
    }

    /// Makes a link inside a TLS session whose handshake is done.
    pub fn sealed(
        stream: TcpStream,
        tls: rustls::Connection,
        domain: Arc<SoftDomain>,
    ) -> Result<Self, FabricError> {
        Self::over(Wire::sealed(stream, tls), domain)
    }

    fn over(wire: Wire, domain: Arc<SoftDomain>) -> Result<Self, FabricError> {
        let stream = wire.stream();
        stream
            .set_nonblocking(true)
            .and_then(|()| stream.set_nodelay(true))
            .map_err(|e| FabricError::system("cannot set up a data connection", e))?;
        Ok(Self {
            wire,
            domain,
            out: VecDeque::new(),
            incoming: BETWEEN_FRAMES,
            reads: Reads::default(),
            writes: HashMap::new(),
            turn_left: TURN_BYTES,
            dead: false,
        })
    }

    fn queue(&mut self, header: Header, body: Body) {
        let len = if matches!(body, Body::None) { 0 } else { header.len as usize };
        self.out.push_back(Outgoing { header: header.encode(), body, sent: 0, len });
    }

    /// Sends until the socket is full, nothing is left or the turn is over.
    fn push_out(&mut self) -> Result<(), FabricError> {
        while let Some(next) = self.out.front_mut() {
            if self.turn_left == 0 {
                return Ok(());
            }
            let total = HEADER_BYTES + next.len;
            let sent = if next.sent < HEADER_BYTES {
                self.wire.send(&next.header[next.sent..], next.len > 0)
            } else {
                let at = next.sent - HEADER_BYTES;
                let end = next.len.min(at.saturating_add(self.turn_left));
                next.body.send(&mut self.wire, &self.writes, at, end)
            };
            match sent {
                Ok(sent) => {
                    next.sent += sent;
                    self.turn_left = self.turn_left.saturating_sub(sent);
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => next.give_up(error)?,
            }
            if next.sent == total {
                self.out.pop_front();
            }
        }
        self.wire.flush().map_err(broken)
    }

    /// Receives until an operation completes or the socket is empty. True when one completed.
    fn pull_in(&mut self, completions: &mut Vec<Completion>) -> Result<bool, FabricError> {
        loop {
            let received = match &mut self.incoming {
                Incoming::Header { bytes, got } => self.wire.receive(&mut bytes[*got..]),
                Incoming::Data { buffer, got, .. } => {
                    let end = buffer.len().min(*got + STEP_BYTES);
                    self.wire.receive(&mut buffer[*got..end])
                }
                Incoming::Upload { header, slot, at, got } => {
                    let step = (header.len as usize - *got).min(STEP_BYTES);
                    slot.fill_with(*at + *got, step, |bytes| self.wire.receive(bytes))
                }
            };
            let Some(received) = received? else { return Ok(false) };
            if self.advance(received, completions)? {
                return Ok(true);
            }
        }
    }

    /// Counts received bytes; acts on what they complete. True when a completion was added.
    fn advance(&mut self, n: usize, done: &mut Vec<Completion>) -> Result<bool, FabricError> {
        match &mut self.incoming {
            Incoming::Header { bytes, got } => {
                *got += n;
                if *got == HEADER_BYTES {
                    let header = Header::decode(bytes)?;
                    self.incoming = BETWEEN_FRAMES;
                    return self.begin(header, done);
                }
            }
            Incoming::Data { buffer, got, .. } => {
                *got += n;
                if *got == buffer.len() {
                    done.extend(self.end_data(Ok(())));
                    return Ok(true);
                }
            }
            Incoming::Upload { header, got, .. } => {
                *got += n;
                if *got == header.len as usize {
                    let header = *header;
                    self.incoming = BETWEEN_FRAMES;
                    self.queue(Header::answer(Kind::Done, header.ticket, 0), Body::None);
                    if header.kind == Kind::WriteNotify {
                        done.push(Completion::Notified { tag: header.tag });
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Ends the read whose data arrives, if one's does.
    fn end_data(&mut self, result: Result<(), FabricError>) -> Option<Completion> {
        match std::mem::replace(&mut self.incoming, BETWEEN_FRAMES) {
            Incoming::Data { ticket, buffer, .. } => {
                Some(Completion::Done { ticket: Ticket(ticket), buffer, result })
            }
            _ => None,
        }
    }

    /// Acts on a header.
    fn begin(&mut self, header: Header, done: &mut Vec<Completion>) -> Result<bool, FabricError> {
        let Header { kind, ticket, .. } = header;
        match kind {
            Kind::Read | Kind::Write | Kind::WriteNotify => self.answer(header).map(|()| false),
            Kind::Data => {
                let is_asked = self.reads.bytes_of(ticket) == Some(header.len as usize);
                let buffer = if is_asked { self.reads.remove(ticket) } else { None };
                let nobody = || FabricError::Protocol("data that nobody asked for".into());
                let buffer = buffer.ok_or_else(nobody)?;
                self.incoming = Incoming::Data { ticket, buffer, got: 0 };
                Ok(false)
            }
            Kind::Done => {
                // What is still being sent cannot have arrived, and its buffer is in use.
                let sending =
                    |next: &Outgoing| matches!(next.body, Body::Own(own) if own == ticket);
                let buffer = match self.out.iter().any(sending) {
                    true => None,
                    false => self.writes.remove(&ticket),
                };
                let buffer = buffer
                    .ok_or_else(|| FabricError::Protocol("acknowledgement of nothing".into()))?;
                done.push(Completion::Done { ticket: Ticket(ticket), buffer, result: Ok(()) });
                Ok(true)
            }
            Kind::Refused => {
                let error = FabricError::Access("the peer refused it".into());
                let buffer = self.reads.remove(ticket).or_else(|| self.writes.remove(&ticket));
                done.extend(buffer.map(|buffer| Completion::Done {
                    ticket: Ticket(ticket),
                    buffer,
                    result: Err(error.clone()),
                }));
                Err(error)
            }
        }
    }

    /// Begins to serve an operation of the peer, or refuses it and ends the link.
    fn answer(&mut self, header: Header) -> Result<(), FabricError> {
        let Header { kind, len, ticket, key, address, .. } = header;
        let access = if kind == Kind::Read { Access::Read } else { Access::Write };
        if self.out.len() >= 2 * DEPTH_MAX {
            return Err(FabricError::Protocol(format!("more than {DEPTH_MAX} operations")));
        }
        if len == 0 || len as usize > MESSAGE_BYTES_MAX {
            return Err(FabricError::Protocol(format!("operation of {len} bytes")));
        }
        match self.domain.find(key, address, len as usize, access) {
            Ok((Memory::Upload(slot), offset)) => {
                self.incoming = Incoming::Upload { header, slot, at: offset as usize, got: 0 };
                Ok(())
            }
            Ok((memory, offset)) => {
                let data = Header::answer(Kind::Data, ticket, len);
                self.queue(data, Body::Registered(memory, offset));
                Ok(())
            }
            Err(error) => {
                // The link ends here either way; the peer is told if the socket takes it, behind
                // what is sent in part. There is no other turn for it.
                self.out.retain(|next| next.sent > 0);
                self.queue(Header::answer(Kind::Refused, ticket, 0), Body::None);
                self.turn_left = TURN_BYTES;
                let _ = self.push_out();
                Err(error)
            }
        }
    }
}

impl Link for TcpLink {
    fn submit(&mut self, ticket: Ticket, op: Op) -> Result<(), Full> {
        let arriving = usize::from(matches!(self.incoming, Incoming::Data { .. }));
        if self.reads.len() + arriving + self.writes.len() >= DEPTH_MAX || self.dead {
            return Err(Full(op));
        }
        let (kind, range, tag, buffer) = match op {
            Op::Read { from, into } => (Kind::Read, from, 0, into),
            Op::Write { from, to } => (Kind::Write, to, 0, from),
            Op::WriteNotify { from, to, tag } => (Kind::WriteNotify, to, tag, from),
        };
        let len = buffer.len();
        assert!(len > 0 && len <= MESSAGE_BYTES_MAX, "operation of {len} bytes");
        let header = Header {
            kind,
            len: len as u32,
            tag,
            ticket: ticket.0,
            key: range.key,
            address: range.address,
        };
        let (body, is_new) = match kind {
            Kind::Read => (Body::None, self.reads.insert(ticket.0, buffer)),
            _ => (Body::Own(ticket.0), self.writes.insert(ticket.0, buffer).is_none()),
        };
        assert!(is_new, "ticket {ticket:?} is in use");
        self.queue(header, body);
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        if self.dead {
            return Err(FabricError::Aborted);
        }
        self.turn_left = TURN_BYTES;
        self.push_out()?;
        self.pull_in(completions)?;
        // Receiving may have queued answers.
        self.push_out()
    }

    fn exchange(&mut self, used: Buffer) -> Buffer {
        self.reads.exchange(used)
    }

    fn wants_turn(&self) -> bool {
        self.turn_left == 0 && !self.out.is_empty()
    }

    fn wake(&self) -> Wake<'_> {
        let writable = !self.out.is_empty() || self.wire.wants_write();
        let at_most = self.wire.has_more().then_some(Duration::ZERO);
        Wake { fd: Some(self.wire.fd()), readable: true, writable, at_most }
    }

    fn abort(&mut self, completions: &mut Vec<Completion>) {
        self.dead = true;
        self.out.clear();
        completions.extend(self.end_data(Err(FabricError::Aborted)));
        self.wire.shutdown();
        for (ticket, buffer) in self.reads.drain().chain(self.writes.drain()) {
            let result = Err(FabricError::Aborted);
            completions.push(Completion::Done { ticket: Ticket(ticket), buffer, result });
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            depth_max: DEPTH_MAX,
            message_bytes_max: MESSAGE_BYTES_MAX,
            sends_from_file: self.wire.sends_from_file(),
            registers_buffers: false,
        }
    }

    fn transport(&self) -> &str {
        self.wire.name()
    }
}
