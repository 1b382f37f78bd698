//! Uploaded chunks: checks them against their digests and stores them in their files. Each worker
//! thread has one store; it knows neither links nor sessions.
//!
//! The slot of a chunk is held while it is hashed and written: what is written is what was
//! hashed, whatever the client sends. One that lies in its file is hashed when no device
//! can write to it any more.

use crate::exports::quota::{self, Quota};
use crate::observe::session_stats::View;
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

/// Checks and stores the chunks of one worker thread.
#[derive(Default)]
pub(crate) struct ChunkStore {
    /// Where a grain is read to that lies in its file.
    scratch: Vec<u8>,
}

/// A chunk of a client.
pub(crate) struct Chunk {
    pub lies: Lies,
    pub pieces: Vec<Landing>,
    pub view: Arc<View>,
    pub transport: Transport,
}

/// Where a chunk lies that is to be checked.
pub(crate) enum Lies {
    /// In a slot: it is copied to its files.
    InSlot(SharedSlot),
    /// In its file, at a spot that is taken back first.
    InFile(Taking),
}

/// A range of a file that is to be written to by a device.
pub(crate) struct SpotWish {
    pub spot: Spot,
    pub rail: u16,
    pub target: Arc<Target>,
    /// Where it is registered.
    pub domain: Arc<SessionDomain>,
}

/// A piece of a chunk, and where it goes.
pub(crate) struct Landing {
    pub piece: Piece,
    pub target: Option<Arc<Target>>,
    pub quota: Option<Arc<Quota>>,
    pub size: u64,
}

impl Landing {
    /// The file it goes to, where it may; takes its bytes from the quota.
    fn target(&self) -> Result<&Target, Fault> {
        let target = self.target.as_deref();
        let target = target.ok_or_else(|| Fault::new(Code::Protocol, "no such file is open"))?;
        quota::take(self.quota.as_ref(), self.piece.extent.len)?;
        Ok(target)
    }
}

/// A spot that is to be taken back before it is looked at.
pub(crate) struct Taking {
    domain: Arc<SessionDomain>,
    number: u64,
}

impl Taking {
    /// The spot of this number in a domain.
    pub fn new(domain: &Arc<SessionDomain>, number: u64) -> Self {
        Self { domain: domain.clone(), number }
    }

    /// Takes it back; whether nobody can write to it any more.
    pub fn take_back(&self) -> bool {
        self.domain.take_back(self.number)
    }
}

/// What a worker reports of a direct write.
pub(crate) enum SpotEvent {
    /// A range of a file can be written to, or cannot.
    Made(Tag, Result<Offered, Fault>),
    /// A device keeps memory that it must not: only the end of all queue pairs helps.
    Stuck,
}

impl Uploads for ChunkStore {
    type Chunk = Chunk;
    type Task = SpotWish;
    type Report = SpotEvent;

    fn store(&mut self, chunk: Chunk) -> Result<Stored, SpotEvent> {
        let Chunk { lies, pieces, view, transport } = chunk;
        let begin = Instant::now();
        let verdicts = match &lies {
            Lies::InSlot(slot) => {
                let verdicts = store_all(slot, &pieces);
                slot.give_back();
                verdicts
            }
            Lies::InFile(taking) if taking.take_back() => {
                pieces.iter().map(|landing| self.look(landing)).collect()
            }
            Lies::InFile(_) => return Err(SpotEvent::Stuck),
        };
        let sizes = pieces.iter().map(|of| (of.piece.file, of.piece.extent.len));
        let bytes = sizes.clone().map(|(_, len)| len).sum();
        view.stored(transport, sizes, &verdicts, begin.elapsed());
        Ok(Stored { bytes, verdicts })
    }

    fn run(&mut self, wish: SpotWish) -> SpotEvent {
        SpotEvent::Made(wish.spot.tag, make_spot(&wish))
    }
}

impl ChunkStore {
    /// Checks a piece that lies in its file, where nobody can write any more.
    fn look(&mut self, landing: &Landing) -> Verdict {
        let target = match landing.target() {
            Ok(target) => target,
            Err(fault) => return Verdict::Failed(fault),
        };
        let extent = landing.piece.extent;
        self.scratch.resize(GRAIN_BYTES as usize, 0);
        let starts = (0..extent.len).step_by(GRAIN_BYTES as usize);
        for (done, digest) in starts.zip(&landing.piece.digests) {
            let grain = &mut self.scratch[..(extent.len - done).min(GRAIN_BYTES) as usize];
            let offset = extent.offset + done;
            if let Err(fault) = target.read_landed(grain, offset) {
                return Verdict::Failed(fault);
            }
            if Digest::of_grain(offset, landing.size, grain) != *digest {
                return Verdict::Mismatch;
            }
        }
        let noted = target.verified(extent, &landing.piece.digests);
        noted.map_or_else(Verdict::Failed, |()| Verdict::Stored)
    }
}

/// Checks and stores the pieces of a slot, one behind the other.
fn store_all(slot: &SharedSlot, pieces: &[Landing]) -> Vec<Verdict> {
    let mut at = 0;
    let mut verdicts = Vec::with_capacity(pieces.len());
    for landing in pieces {
        verdicts.push(store(slot, at, landing));
        at += landing.piece.extent.len as usize;
    }
    verdicts
}

/// Hashes, compares and writes one piece that begins at `at` of the slot.
fn store(slot: &SharedSlot, at: usize, landing: &Landing) -> Verdict {
    let target = match landing.target() {
        Ok(target) => target,
        Err(fault) => return Verdict::Failed(fault),
    };
    let Piece { extent, digests, .. } = &landing.piece;
    // All of it at once: what is checked is what is written.
    let written = slot.with(at, extent.len as usize, |bytes| {
        checked::write(target, bytes, (extent.offset, landing.size), digests)
    });
    match written {
        Ok(_) => Verdict::Stored,
        Err(Unfit::Mismatch) => Verdict::Mismatch,
        Err(Unfit::Failed(fault)) => Verdict::Failed(fault),
    }
}

/// Registers a range of a file for writes of a device.
fn make_spot(wish: &SpotWish) -> Result<Offered, Fault> {
    let SpotWish { spot, rail, target, domain } = wish;
    let len = spot.extent.len;
    let fault = |error: FabricError| Fault::new(Code::Limit, error.with_hint());
    let pin = domain.pin_slot(Some(*rail), len);
    let pin = pin.ok_or_else(|| Fault::new(Code::Limit, "no more may be pinned now"))?;
    let mapped = MappedSpot::new(target.file(), spot.extent.offset, len as usize);
    let mut mapped = mapped.map_err(fault)?;
    if !target.is_in_memory() {
        // Found out now, a full disk costs a slot; in the midst of a write it costs the link.
        target.make_room(spot.extent)?;
        mapped = mapped.on_demand();
    }
    let memory = Memory::Spot(mapped);
    domain.offer_on(Some(*rail), memory, pin).map_err(fault)
}
