//! Verifies uploaded chunks against their digests and writes them to their files. Each worker
//! thread has one store; it knows neither links nor sessions.
//!
//! The worker locks a slot while it hashes and writes: so it writes what it hashed, whatever the
//! client sends meanwhile. A direct range is deregistered before it is hashed.

use crate::exports::quota::{self, Quota};
use crate::observe::session_stats::SessionStats;
use crate::rdma::registrations::{Offered, SessionDomain};
use std::sync::Arc;
use std::time::Instant;
use verbatim_fabric::{FabricError, MappedSpot, Memory, SharedSlot};
use verbatim_files::Target;
use verbatim_files::checked::{self, Unfit};
use verbatim_proto::message::{Piece, Spot, Tag, Verdict};
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::{Code, Digest, Fault};
use verbatim_serve::link_worker::{Stored, Uploads};
use verbatim_telemetry::labels::Transport;

/// Verifies and stores the chunks of one worker thread.
#[derive(Default)]
pub(crate) struct ChunkStore {
    /// Receives one grain of a direct range, to be hashed.
    scratch: Vec<u8>,
}

/// An uploaded chunk.
pub(crate) struct Chunk {
    pub location: ChunkLocation,
    pub pieces: Vec<PieceTarget>,
    pub view: Arc<SessionStats>,
    pub transport: Transport,
}

/// The memory that a chunk was written to.
pub(crate) enum ChunkLocation {
    /// In a slot: the store copies it to its files.
    InSlot(SharedSlot),
    /// In its file, in a direct range that is deregistered first.
    InFile(DirectRange),
}

/// A request to register a range of a file for direct writes.
pub(crate) struct DirectRangeRequest {
    pub spot: Spot,
    pub rail: u16,
    pub target: Arc<Target>,
    /// The domain to register it in.
    pub domain: Arc<SessionDomain>,
}

/// A piece of a chunk, and the file it belongs to.
pub(crate) struct PieceTarget {
    pub piece: Piece,
    pub target: Option<Arc<Target>>,
    pub quota: Option<Arc<Quota>>,
    pub size: u64,
}

impl PieceTarget {
    /// The file of the piece, if it is open; takes the bytes from the quota.
    fn target(&self) -> Result<&Target, Fault> {
        let target = self.target.as_deref();
        let target = target.ok_or_else(|| Fault::new(Code::Protocol, "no such file is open"))?;
        quota::take(self.quota.as_ref(), self.piece.extent.len)?;
        Ok(target)
    }
}

/// A registered range of a file.
pub(crate) struct DirectRange {
    domain: Arc<SessionDomain>,
    number: u64,
}

impl DirectRange {
    /// The range with this registration.
    pub fn new(domain: &Arc<SessionDomain>, number: u64) -> Self {
        Self { domain: domain.clone(), number }
    }

    /// Deregisters it; returns whether no device can write to it any more.
    pub fn take_back(&self) -> bool {
        self.domain.take_back(self.number)
    }
}

/// What a worker reports of direct writes.
pub(crate) enum DirectWriteEvent {
    /// A range of a file was registered. Or the error.
    Registered(Tag, Result<Offered, Fault>),
    /// A device did not release memory: only the end of all queue pairs revokes it.
    Stuck,
}

impl Uploads for ChunkStore {
    type Chunk = Chunk;
    type Task = DirectRangeRequest;
    type Report = DirectWriteEvent;

    fn store(&mut self, chunk: Chunk) -> Result<Stored, DirectWriteEvent> {
        let Chunk { location, pieces, view, transport } = chunk;
        let begin = Instant::now();
        let verdicts = match &location {
            ChunkLocation::InSlot(slot) => {
                let verdicts = store_all(slot, &pieces);
                slot.give_back();
                verdicts
            }
            ChunkLocation::InFile(range) if range.take_back() => {
                pieces.iter().map(|piece_target| self.look(piece_target)).collect()
            }
            ChunkLocation::InFile(_) => return Err(DirectWriteEvent::Stuck),
        };
        let sizes = pieces.iter().map(|of| (of.piece.file, of.piece.extent.len));
        let bytes = sizes.clone().map(|(_, len)| len).sum();
        view.stored(transport, sizes, &verdicts, begin.elapsed());
        Ok(Stored { bytes, verdicts })
    }

    fn run(&mut self, request: DirectRangeRequest) -> DirectWriteEvent {
        DirectWriteEvent::Registered(request.spot.tag, register_direct_range(&request))
    }
}

impl ChunkStore {
    /// Verifies a piece in its file, after its range was deregistered.
    fn look(&mut self, piece_target: &PieceTarget) -> Verdict {
        let target = match piece_target.target() {
            Ok(target) => target,
            Err(fault) => return Verdict::Failed(fault),
        };
        let extent = piece_target.piece.extent;
        self.scratch.resize(GRAIN_BYTES as usize, 0);
        let starts = (0..extent.len).step_by(GRAIN_BYTES as usize);
        for (done, digest) in starts.zip(&piece_target.piece.digests) {
            let grain = &mut self.scratch[..(extent.len - done).min(GRAIN_BYTES) as usize];
            let offset = extent.offset + done;
            if let Err(fault) = target.read_landed(grain, offset) {
                return Verdict::Failed(fault);
            }
            if Digest::of_grain(offset, piece_target.size, grain) != *digest {
                return Verdict::Mismatch;
            }
        }
        let noted = target.verified(extent, &piece_target.piece.digests);
        noted.map_or_else(Verdict::Failed, |()| Verdict::Stored)
    }
}

/// Verifies and stores the pieces of a slot, which lie one after the other.
fn store_all(slot: &SharedSlot, pieces: &[PieceTarget]) -> Vec<Verdict> {
    let mut at = 0;
    let mut verdicts = Vec::with_capacity(pieces.len());
    for piece_target in pieces {
        verdicts.push(store(slot, at, piece_target));
        at += piece_target.piece.extent.len as usize;
    }
    verdicts
}

/// Hashes, compares and writes one piece that begins at `at` of the slot.
fn store(slot: &SharedSlot, at: usize, piece_target: &PieceTarget) -> Verdict {
    let target = match piece_target.target() {
        Ok(target) => target,
        Err(fault) => return Verdict::Failed(fault),
    };
    let Piece { extent, digests, .. } = &piece_target.piece;
    // Under one lock: the bytes that are verified are the bytes that are written.
    let written = slot.with(at, extent.len as usize, |bytes| {
        checked::write(target, bytes, (extent.offset, piece_target.size), digests)
    });
    match written {
        Ok(_) => Verdict::Stored,
        Err(Unfit::Mismatch) => Verdict::Mismatch,
        Err(Unfit::Failed(fault)) => Verdict::Failed(fault),
    }
}

/// Registers a range of a file for writes of a device.
fn register_direct_range(request: &DirectRangeRequest) -> Result<Offered, Fault> {
    let DirectRangeRequest { spot, rail, target, domain } = request;
    let len = spot.extent.len;
    let fault = |error: FabricError| Fault::new(Code::Limit, error.with_hint());
    let pin = domain.pin_slot(Some(*rail), len);
    let pin = pin.ok_or_else(|| Fault::new(Code::Limit, "no more may be pinned now"))?;
    let mapped = MappedSpot::new(target.file(), spot.extent.offset, len as usize);
    let mut mapped = mapped.map_err(fault)?;
    if !target.is_in_memory() {
        // Here a full disk costs a slot; during the device's write it would cost the link.
        target.make_room(spot.extent)?;
        mapped = mapped.on_demand();
    }
    let memory = Memory::Spot(mapped);
    domain.offer_on(Some(*rail), memory, pin).map_err(fault)
}
