//! What of a file need not move because the file it replaces has it: before a
//! chunk is fetched, the same range of the old file is read and hashed, and where
//! it matches the digests of the lease, which came over TLS, it is written to the
//! new file instead. What was hashed is what is written, so nothing of the old
//! file is trusted. Called by workers.

use crate::ends::Goal;
use crate::stats::Stats;
use crate::worker::Landing;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::Instant;
use verbatim_proto::Digest;
use verbatim_proto::message::Piece;
use verbatim_proto::read::{Outcome, PieceOutcome};
use verbatim_proto::units::GRAIN_BYTES;

/// Files from this size on are compared with what they replace.
pub(crate) const BASIS_BYTES_MIN: u64 = 1 << 20;

/// Takes a chunk from the file it replaces; none where that has something else. Only a chunk of
/// one file can be.
pub(crate) fn take(pieces: &[Piece], landings: &[Landing], stats: &Stats) -> Option<Outcome> {
    let ([piece], [landing]) = (pieces, landings) else { return None };
    let Goal::File(sink) = &landing.goal else { return None };
    let old = sink.basis()?;
    let begin = Instant::now();
    let mut bytes = vec![0; piece.extent.len as usize];
    old.read_exact_at(&mut bytes, piece.extent.offset).ok()?;
    let read = begin.elapsed();
    let starts = (piece.extent.offset..).step_by(GRAIN_BYTES as usize);
    let mut grains = starts.zip(bytes.chunks(GRAIN_BYTES as usize).zip(&piece.digests));
    // One that differs is enough: all of the chunk is fetched then.
    let same = grains
        .all(|(offset, (grain, digest))| Digest::of_grain(offset, landing.size, grain) == *digest);
    stats.add(read, begin.elapsed() - read);
    if !same || piece.digests.len() != bytes.len().div_ceil(GRAIN_BYTES as usize) {
        return None;
    }
    let outcome = match write(piece, sink, &bytes) {
        Ok(()) => {
            stats.bytes.fetch_add(piece.extent.len, Ordering::Relaxed);
            PieceOutcome::Verified
        }
        Err(fault) => PieceOutcome::Failed(fault),
    };
    Some(Outcome::Landed(vec![outcome]))
}

fn write(
    piece: &Piece,
    sink: &crate::sink::Sink,
    bytes: &[u8],
) -> Result<(), verbatim_proto::Fault> {
    let target = sink.target()?;
    let starts = (piece.extent.offset..).step_by(GRAIN_BYTES as usize);
    for (offset, grain) in starts.zip(bytes.chunks(GRAIN_BYTES as usize)) {
        target.write_at(grain, offset)?;
    }
    target.verified(piece.extent, &piece.digests)
}
