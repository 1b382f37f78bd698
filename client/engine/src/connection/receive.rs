//! Verifies a received chunk and writes it to its target, a grain at a time while it is in cache. A
//! grain with a wrong digest is never written. Called by `worker`.

use crate::local_io::counters::Stats;
use crate::local_io::download_file::DownloadFile;
use crate::local_io::endpoint::DataSink;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use verbatim_fabric::Buffer;
use verbatim_files::checked::{self, Spent, Unfit};
use verbatim_proto::Fault;
use verbatim_proto::message::Piece;
use verbatim_proto::read::{Outcome, PieceOutcome};
use verbatim_proto::units::GRAIN_BYTES;

/// The target of one piece of a chunk, and the size of its file.
pub(crate) struct ChunkTarget {
    pub sink: DataSink,
    pub size: u64,
}

/// Verifies and writes the pieces of a received chunk. A target in memory may keep the buffer of a
/// chunk with one piece, and then puts another one in its place.
pub(crate) fn verify_and_write(
    buffer: &mut Buffer,
    pieces: &[Piece],
    targets: &[ChunkTarget],
    stats: &Stats,
) -> Vec<PieceOutcome> {
    if let ([piece], [target]) = (pieces, targets)
        && piece.extent.len == buffer.len() as u64
    {
        return vec![outcome(write_whole_chunk(buffer, piece, target, stats))];
    }
    let mut rest: &[u8] = buffer;
    let mut outcomes = Vec::with_capacity(pieces.len());
    for (piece, target) in pieces.iter().zip(targets) {
        let (bytes, behind) = rest.split_at(piece.extent.len as usize);
        rest = behind;
        outcomes.push(outcome(write_piece(bytes, piece, target, stats)));
    }
    outcomes
}

fn outcome(landed: Result<(), Unfit>) -> PieceOutcome {
    match landed {
        Ok(()) => PieceOutcome::Verified,
        Err(Unfit::Mismatch) => PieceOutcome::Mismatch,
        Err(Unfit::Failed(fault)) => PieceOutcome::Failed(fault),
    }
}

/// Writes a piece that fills its chunk.
fn write_whole_chunk(
    buffer: &mut Buffer,
    piece: &Piece,
    target: &ChunkTarget,
    stats: &Stats,
) -> Result<(), Unfit> {
    let offset = piece.extent.offset;
    match &target.sink {
        DataSink::File(_) => write_piece(buffer, piece, target, stats)?,
        DataSink::Pipe(stdout) => {
            verify(buffer, piece, target.size, stats)?;
            stdout.put_buffer(offset, buffer, &piece.digests);
        }
        DataSink::Part(part) => {
            verify(buffer, piece, target.size, stats)?;
            part.put_buffer(offset, buffer, &piece.digests);
        }
    }
    Ok(())
}

fn write_piece(
    bytes: &[u8],
    piece: &Piece,
    target: &ChunkTarget,
    stats: &Stats,
) -> Result<(), Unfit> {
    let at = (piece.extent.offset, target.size);
    // A pipe gets only verified pieces: it cannot take bytes back.
    match &target.sink {
        DataSink::File(local_file) => {
            let target = local_file.target().map_err(Unfit::Failed)?;
            note(checked::write(&target, bytes, at, &piece.digests)?, piece, stats);
        }
        DataSink::Pipe(stdout) => {
            verify(bytes, piece, target.size, stats)?;
            stdout.put(at.0, bytes, &piece.digests);
        }
        DataSink::Part(part) => {
            verify(bytes, piece, target.size, stats)?;
            part.put(at.0, bytes, &piece.digests);
        }
    }
    Ok(())
}

/// Verifies the digests of a piece.
fn verify(bytes: &[u8], piece: &Piece, size: u64, stats: &Stats) -> Result<(), Unfit> {
    let at = (piece.extent.offset, size);
    note(checked::check(bytes, at, &piece.digests, |_| Ok(()))?, piece, stats);
    Ok(())
}

fn note(spent: Spent, piece: &Piece, stats: &Stats) {
    stats.add(spent.disk, spent.hash);
    stats.moved(piece.extent.len);
}

/// Copies a chunk from a basis file; `None` if the basis differs. Only a chunk of one file can have
/// a basis.
pub(crate) fn copy_from_basis(
    pieces: &[Piece],
    targets: &[ChunkTarget],
    stats: &Stats,
) -> Option<Outcome> {
    let ([piece], [target]) = (pieces, targets) else { return None };
    let DataSink::File(local_file) = &target.sink else { return None };
    if !local_file.has_basis_files() {
        return None;
    }
    let begin = Instant::now();
    let bytes = local_file.matching_bytes(piece, target.size)?;
    stats.add(Duration::ZERO, begin.elapsed());
    let outcome = match write_basis(piece, local_file, &bytes) {
        Ok(()) => {
            stats.bytes.fetch_add(piece.extent.len, Ordering::Relaxed);
            PieceOutcome::Verified
        }
        Err(fault) => PieceOutcome::Failed(fault),
    };
    Some(Outcome::Landed(vec![outcome]))
}

fn write_basis(piece: &Piece, local_file: &DownloadFile, bytes: &[u8]) -> Result<(), Fault> {
    let target = local_file.target()?;
    let starts = (piece.extent.offset..).step_by(GRAIN_BYTES as usize);
    for (offset, grain) in starts.zip(bytes.chunks(GRAIN_BYTES as usize)) {
        target.write_at(grain, offset)?;
    }
    target.verified(piece.extent, &piece.digests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_io::range_buffer::{Priority, RangeBuffer};
    use std::sync::Arc;
    use verbatim_proto::message::FileId;
    use verbatim_proto::read::Part;
    use verbatim_proto::{Digest, Extent};

    const SIZE: usize = 1 << 20;

    #[test]
    fn a_verified_chunk_keeps_its_buffer_and_a_mismatch_does_not() {
        let extent = Extent::new(0, SIZE as u64);
        let part = Part { size: extent.len, version: None, want: extent };
        let part = Arc::new(RangeBuffer::new(part, Priority::default(), &Arc::default()));
        let targets = [ChunkTarget { sink: DataSink::Part(part.clone()), size: extent.len }];
        let mut buffer = Buffer::new(SIZE).expect("there is memory");
        buffer[..].fill(7);
        let digests = Digest::of_grains(0, extent.len, &buffer);
        let pieces = [Piece { file: FileId(1), extent, digests }];
        let stats = Stats::default();
        buffer[SIZE - 1] = 8;
        let outcomes = verify_and_write(&mut buffer, &pieces, &targets, &stats);
        assert_eq!(outcomes, [PieceOutcome::Mismatch]);
        assert_eq!(buffer[SIZE - 1], 8, "the slot keeps its buffer");
        buffer[SIZE - 1] = 7;
        let came = buffer.as_ptr();
        let outcomes = verify_and_write(&mut buffer, &pieces, &targets, &stats);
        assert_eq!(outcomes, [PieceOutcome::Verified]);
        assert!(buffer.as_ptr() != came && buffer.capacity() == SIZE, "it has another one");
        // The next chunk arrives in the slot.
        buffer[..].fill(9);
        let landed = part.take().expect("all of it landed");
        let bytes = landed.at(0, SIZE).expect("in one piece");
        assert!(bytes.as_ptr() == came && bytes.iter().all(|byte| *byte == 7));
    }
}
