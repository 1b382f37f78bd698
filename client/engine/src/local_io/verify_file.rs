//! Compares a local file with the server's (`--verify`): a worker hashes its grains and compares
//! them with the digests of a lease. Reads only.

use crate::local_io::counters::Stats;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use verbatim_files::Source;
use verbatim_files::hash::hash_extent;
use verbatim_proto::message::Piece;
use verbatim_proto::read::{Outcome, PieceOutcome};
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::{Code, Fault};

/// The local file of one piece of a chunk, and the size of the file on the server.
pub(crate) struct ComparedFile {
    pub source: Arc<Source>,
    pub size: u64,
}

/// Compares the pieces of a chunk, each with its file; a piece without one was abandoned meanwhile.
pub(crate) fn compare(
    pieces: &[Piece],
    compared_files: &[Option<ComparedFile>],
    stats: &Stats,
) -> Outcome {
    let compare_one = |(piece, compared_file): (&Piece, &Option<ComparedFile>)| match compared_file
    {
        Some(compared_file) => compared_file.compare(piece, stats),
        None => PieceOutcome::Failed(Fault::new(Code::Interrupted, "it was given up")),
    };
    Outcome::Landed(pieces.iter().zip(compared_files).map(compare_one).collect())
}

impl ComparedFile {
    fn compare(&self, piece: &Piece, stats: &Stats) -> PieceOutcome {
        let (source, extent) = (&self.source, piece.extent);
        let begin = Instant::now();
        let digests = match hash_extent(source.file(), self.size, extent) {
            Ok(digests) => digests,
            Err(error) => return PieceOutcome::Failed(source.read_fault(&error)),
        };
        stats.add(Duration::ZERO, begin.elapsed());
        source.hand_out(extent, &digests);
        let mut grains = digests.iter().zip(&piece.digests);
        if let Some(grain) = grains.position(|(here, there)| here != there) {
            let offset = extent.offset + grain as u64 * GRAIN_BYTES;
            let text = format!("it differs in the 256 KiB at byte {offset}");
            return PieceOutcome::Failed(Fault::new(Code::Mismatch, text));
        }
        stats.bytes.fetch_add(extent.len, Ordering::Relaxed);
        PieceOutcome::Verified
    }
}
