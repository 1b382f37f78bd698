//! One simulated link as the network sees it: two ends, what each has in flight,
//! what each has yet to poll, and the copying itself. It never looks at a clock
//! and never schedules; `net` decides when an operation arrives and calls here.
//!
//! Who owns a buffer: from `submit` it is in `flights`, from arrival or death in
//! `ready`, from `poll` or `abort` the driver's again. A dead link has no flights
//! and no domains, so nothing of it can touch memory.

use super::SimCounts;
use super::faults::{Fate, Faults, Rng};
use crate::domain::{Access, SoftDomain};
use crate::error::FabricError;
use crate::link::{Completion, Limits, Op, RemoteRange, Ticket};
use crate::memory::{Buffer, Memory, Part};
use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Notifications an end may leave unpolled before its link dies, as an overrun queue would.
pub(super) const NOTIFIED_MAX: usize = 4096;

/// Both ends of a link and the wire between them.
pub(super) struct LinkState {
    pub faults: Faults,
    pub limits: Limits,
    pub ends: [End; 2],
    /// The rail it runs on with others; absent when it has a wire of its own.
    pub rail: Option<u16>,
    /// Until when its own wire is busy, by the side that the data comes from.
    pub busy_ps: [u128; 2],
    /// How many handles are alive.
    pub holders: u8,
    /// Second notifications on their way; as bounded as first ones.
    pub again_count: usize,
    bytes: u64,
}

/// One end of a link.
pub(super) struct End {
    /// The memory here that the far end may name; absent before the end is taken and after
    /// the link died.
    pub domain: Option<Arc<SoftDomain>>,
    pub rng: Rng,
    /// Operations submitted here, by their number in the order of submission.
    pub flights: BTreeMap<u64, Flight>,
    /// When the last operation that keeps the order arrives.
    pub in_order_ns: u64,
    /// Why the link died, as this end sees it.
    pub ended: Option<FabricError>,
    ready: VecDeque<Completion>,
    notified_count: usize,
    /// The newest operation that arrived, to tell who was overtaken.
    arrived_max: u64,
}

/// An operation in flight.
pub(super) struct Flight {
    pub ticket: Ticket,
    pub op: Op,
    pub fate: Fate,
}

/// What the schedule has to do after an arrival.
pub(super) enum After {
    /// Nothing.
    Nothing,
    /// Let the far end be notified a second time.
    NotifyAgain { tag: u32, after_ns: u64 },
    /// End the link for both sides.
    Die(FabricError),
}

impl LinkState {
    /// A living link; `seed` and `number` decide its luck.
    pub fn new(seed: u64, number: u64, faults: Faults, limits: Limits) -> Self {
        let ends = [0, 1].map(|side| End::new(Rng::new(seed, number, side)));
        Self {
            faults,
            limits,
            ends,
            rail: None,
            busy_ps: [0; 2],
            holders: 0,
            again_count: 0,
            bytes: 0,
        }
    }

    /// Whether the link ended, for whatever reason.
    pub fn is_dead(&self) -> bool {
        self.ends[0].ended.is_some()
    }

    /// Does an operation of `side` that arrives now.
    pub fn arrive(&mut self, side: usize, seq: u64, counts: &mut SimCounts) -> After {
        let end = &mut self.ends[side];
        let Some(Flight { ticket, op, fate }) = end.flights.remove(&seq) else {
            return After::Nothing;
        };
        if seq < end.arrived_max {
            counts.reordered += 1;
        }
        end.arrived_max = end.arrived_max.max(seq);
        if fate.dies {
            counts.deaths += 1;
            end.done(ticket, op.into_buffer(), Err(FabricError::Closed));
            return After::Die(FabricError::Closed);
        }
        let tag = match op {
            Op::WriteNotify { tag, .. } => Some(tag),
            Op::Read { .. } | Op::Write { .. } => None,
        };
        let room = self.faults.die_after_bytes.map_or(u64::MAX, |max| max - self.bytes);
        let moved = move_data(op, self.ends[1 - side].domain.as_deref(), room, fate.flip_bit);
        self.bytes += moved.bytes;
        counts.bytes += moved.bytes;
        counts.corrupted += u64::from(moved.corrupted);
        let result = moved.result;
        // The data is in place: only now may the far end hear of it.
        let notified = match tag {
            Some(tag) if result.is_ok() => self.ends[1 - side].notify(tag),
            _ => Ok(()),
        };
        self.ends[side].done(ticket, moved.buffer, result.clone());
        let worn_out = self.faults.die_after_bytes == Some(self.bytes);
        counts.deaths += u64::from(worn_out);
        match result.and(notified) {
            Err(cause) => After::Die(cause),
            Ok(()) if worn_out => After::Die(FabricError::Closed),
            Ok(()) => match (tag, fate.again_ns) {
                (Some(tag), Some(after_ns)) if self.again_count < NOTIFIED_MAX => {
                    self.again_count += 1;
                    After::NotifyAgain { tag, after_ns }
                }
                _ => After::Nothing,
            },
        }
    }

    /// Ends the link: flushes what both ends have in flight and lets go of their memory.
    /// Each side gets its own cause; a link that is dead keeps the first.
    pub fn die(&mut self, causes: [FabricError; 2]) {
        for (end, cause) in self.ends.iter_mut().zip(causes) {
            end.ended.get_or_insert(cause);
            end.domain = None;
            for flight in std::mem::take(&mut end.flights).into_values() {
                end.done(flight.ticket, flight.op.into_buffer(), Err(FabricError::Aborted));
            }
        }
    }
}

impl End {
    fn new(rng: Rng) -> Self {
        Self {
            domain: None,
            rng,
            flights: BTreeMap::new(),
            in_order_ns: 0,
            ended: None,
            ready: VecDeque::new(),
            notified_count: 0,
            arrived_max: 0,
        }
    }

    /// How many operations of this end are in flight or not polled yet.
    pub fn depth(&self) -> usize {
        self.flights.len() + self.ready.len() - self.notified_count
    }

    /// Whether a poll would yield something.
    pub fn has_news(&self) -> bool {
        !self.ready.is_empty() || self.ended.is_some()
    }

    /// Queues the completion of an own operation; `depth` bounds how many.
    pub fn done(&mut self, ticket: Ticket, buffer: Buffer, result: Result<(), FabricError>) {
        self.ready.push_back(Completion::Done { ticket, buffer, result });
    }

    /// Queues a notification from the far end.
    pub fn notify(&mut self, tag: u32) -> Result<(), FabricError> {
        if self.notified_count >= NOTIFIED_MAX {
            return Err(FabricError::Limit(format!("{NOTIFIED_MAX} notifications are unpolled")));
        }
        self.notified_count += 1;
        self.ready.push_back(Completion::Notified { tag });
        Ok(())
    }

    /// Hands over what is ready, in order.
    pub fn take_ready(&mut self) -> VecDeque<Completion> {
        self.notified_count = 0;
        std::mem::take(&mut self.ready)
    }
}

/// How far an operation got.
struct Moved {
    buffer: Buffer,
    bytes: u64,
    corrupted: bool,
    result: Result<(), FabricError>,
}

/// Copies between the buffer of an operation and the memory it names, at most `room` bytes.
/// The whole range is checked first, as a device would.
fn move_data(op: Op, peer: Option<&SoftDomain>, room: u64, flip_bit: Option<u64>) -> Moved {
    let len = usize::try_from(room).unwrap_or(usize::MAX).min(op_len(&op));
    let flip_bit = flip_bit.filter(|bit| bit / 8 < len as u64);
    let torn = len < op_len(&op);
    let (buffer, copied) = match op {
        Op::Read { from, mut into } => {
            let copied = find(peer, from, into.len(), Access::Read)
                .and_then(|(memory, offset)| copy_out(&memory, offset, &mut into[..len]));
            if copied.is_ok() {
                flip(&mut into[..len], flip_bit);
            }
            (into, copied)
        }
        Op::Write { mut from, to } | Op::WriteNotify { mut from, to, .. } => {
            from.fill();
            let copied = find(peer, to, from.len(), Access::Write)
                .and_then(|(memory, offset)| copy_in(&memory, offset, &from[..len], flip_bit));
            (from, copied)
        }
    };
    let bytes = if copied.is_ok() { len as u64 } else { 0 };
    let corrupted = copied.is_ok() && flip_bit.is_some();
    let result = if torn { copied.and(Err(FabricError::Closed)) } else { copied };
    Moved { buffer, bytes, corrupted, result }
}

/// The length of an operation.
pub(super) fn op_len(op: &Op) -> usize {
    match op {
        Op::Read { into, .. } => into.len(),
        Op::Write { from, .. } | Op::WriteNotify { from, .. } => from.len(),
    }
}

fn find(
    peer: Option<&SoftDomain>,
    range: RemoteRange,
    len: usize,
    access: Access,
) -> Result<(Memory, u64), FabricError> {
    peer.ok_or_else(|| FabricError::Access("nobody has taken the far end".into()))?.find(
        range.key,
        range.address,
        len,
        access,
    )
}

fn copy_out(memory: &Memory, offset: u64, into: &mut [u8]) -> Result<(), FabricError> {
    match memory {
        Memory::File(window) => read_file(window.file(), window.offset() + offset, into),
        Memory::Staged(slot) => {
            slot.copy_out(offset as usize, into);
            Ok(())
        }
        Memory::Gathered(slot, from_files) => {
            let (mut at, end) = (offset as usize, offset as usize + into.len());
            while at < end {
                let rest = &mut into[at - offset as usize..];
                at += match from_files.part(at, end) {
                    Part::File(file, offset, len) => {
                        read_file(file, offset, &mut rest[..len])?;
                        len
                    }
                    Part::Memory(len) => {
                        slot.copy_out(at, &mut rest[..len]);
                        len
                    }
                };
            }
            Ok(())
        }
        Memory::Upload(_) | Memory::Spot(_) => {
            Err(FabricError::Access("region does not allow Read".into()))
        }
    }
}

fn copy_in(
    memory: &Memory,
    offset: u64,
    from: &[u8],
    flip_bit: Option<u64>,
) -> Result<(), FabricError> {
    let Memory::Upload(slot) = memory else {
        return Err(FabricError::Access("region does not allow Write".into()));
    };
    slot.fill_with(offset as usize, from.len(), |bytes| {
        bytes.copy_from_slice(from);
        flip(bytes, flip_bit);
    });
    Ok(())
}

/// Fills `into` from the file; what a truncated file no longer has reads as zeros.
fn read_file(file: &std::fs::File, offset: u64, into: &mut [u8]) -> Result<(), FabricError> {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(&mut into[done..], offset + done as u64) {
            Ok(0) => {
                into[done..].fill(0);
                break;
            }
            Ok(got) => done += got,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(FabricError::system("cannot read the file", e)),
        }
    }
    Ok(())
}

fn flip(bytes: &mut [u8], bit: Option<u64>) {
    if let Some(bit) = bit {
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}
