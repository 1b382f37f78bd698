//! What a worker does with a chunk that comes: looks whether each grain is what it must
//! be, and puts it where it goes while it is in cache, before the rest of the chunk is
//! here where the link tells. Nothing that does not match goes anywhere. Called by `worker`.

use crate::ends::Goal;
use crate::stats::Stats;
use crate::worker::Landing;
use std::time::Instant;
use verbatim_fabric::Buffer;
use verbatim_proto::Digest;
use verbatim_proto::message::Piece;
use verbatim_proto::read::PieceOutcome;
use verbatim_proto::units::GRAIN_BYTES;

/// How far a chunk has come: its pieces in order, and of the next one its grains.
#[derive(Debug, Default)]
pub(crate) struct Landfall {
    /// How the pieces that are over ended.
    outcomes: Vec<PieceOutcome>,
    /// Where in the chunk the next piece begins.
    at: usize,
    /// How much of that has landed.
    done: u64,
    /// Why the rest of it is not looked at.
    failed: Option<PieceOutcome>,
}

impl Landfall {
    /// More of the chunk is here: verifies and writes what of it is whole. Nothing is told before
    /// all of the chunk is here: what landed of one that is cut off lands again.
    pub fn go_on(&mut self, bytes: &[u8], pieces: &[Piece], landings: &[Landing], stats: &Stats) {
        while let Some(piece) = pieces.get(self.outcomes.len()) {
            let landing = &landings[self.outcomes.len()];
            self.land_grains(bytes, piece, landing, stats);
            let Some(whole) = bytes.get(self.at..self.at + piece.extent.len as usize) else {
                return;
            };
            let outcome = self.failed.take().unwrap_or_else(|| end_piece(whole, piece, landing));
            self.outcomes.push(outcome);
            self.at += whole.len();
            self.done = 0;
        }
    }

    /// All of the chunk is here. One that is all of a part keeps its buffer, and another one is in
    /// its place then.
    pub fn end(
        mut self,
        buffer: &mut Buffer,
        pieces: &[Piece],
        landings: &[Landing],
        stats: &Stats,
    ) -> Vec<PieceOutcome> {
        if let ([piece], [landing @ Landing { goal: Goal::Part(part), .. }]) = (pieces, landings)
            && piece.extent.len == buffer.len() as u64
        {
            self.land_grains(buffer, piece, landing, stats);
            let outcome = self.failed.unwrap_or_else(|| {
                part.put_buffer(piece.extent.offset, buffer, &piece.digests);
                PieceOutcome::Verified
            });
            return vec![outcome];
        }
        self.go_on(buffer, pieces, landings, stats);
        self.outcomes
    }

    /// Looks whether the grains of the next piece that are here are what they must be, and writes
    /// each that is.
    fn land_grains(&mut self, bytes: &[u8], piece: &Piece, landing: &Landing, stats: &Stats) {
        let mut target = None;
        while self.failed.is_none() && self.done < piece.extent.len {
            let len = GRAIN_BYTES.min(piece.extent.len - self.done) as usize;
            let begin = self.at + self.done as usize;
            let Some(grain) = bytes.get(begin..begin + len) else { return };
            if let Goal::File(sink) = &landing.goal
                && target.is_none()
            {
                match sink.target() {
                    Ok(made) => target = Some(made),
                    Err(fault) => self.failed = Some(PieceOutcome::Failed(fault)),
                }
                continue;
            }
            let (offset, index) = (piece.extent.offset + self.done, self.done / GRAIN_BYTES);
            let begin = Instant::now();
            if Digest::of_grain(offset, landing.size, grain) != piece.digests[index as usize] {
                self.failed = Some(PieceOutcome::Mismatch);
                return;
            }
            let hashed = begin.elapsed();
            if let Some(Err(fault)) = target.as_ref().map(|target| target.write_at(grain, offset)) {
                self.failed = Some(PieceOutcome::Failed(fault));
                return;
            }
            stats.add(begin.elapsed() - hashed, hashed);
            self.done += len as u64;
            if self.done == piece.extent.len {
                stats.moved(piece.extent.len);
            }
        }
    }
}

/// A piece is verified, and written where it goes to a file. A pipe takes it now that all of it
/// is verified: nothing can be taken back.
fn end_piece(bytes: &[u8], piece: &Piece, landing: &Landing) -> PieceOutcome {
    let noted = match &landing.goal {
        Goal::File(sink) => {
            sink.target().and_then(|target| target.verified(piece.extent, &piece.digests))
        }
        Goal::Pipe(outlet) => {
            outlet.put(piece.extent.offset, bytes);
            Ok(())
        }
        Goal::Part(part) => {
            part.put(piece.extent.offset, bytes, &piece.digests);
            Ok(())
        }
    };
    noted.map_or_else(PieceOutcome::Failed, |()| PieceOutcome::Verified)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::part::{Haste, PartBuffer};
    use std::sync::Arc;
    use verbatim_proto::Extent;
    use verbatim_proto::message::{FileId, FileInfo};
    use verbatim_proto::read::Part;

    const SIZE: usize = 1 << 20;

    #[test]
    fn a_chunk_of_a_part_stays_where_it_came_and_only_if_all_of_it_matches() {
        let extent = Extent::new(0, SIZE as u64);
        let part = Part { size: extent.len, version: None, want: extent };
        let part = Arc::new(PartBuffer::new(part, Haste::default(), &Arc::default()));
        let landings = [Landing { goal: Goal::Part(part.clone()), size: extent.len }];
        let mut buffer = Buffer::new(SIZE).expect("there is memory");
        buffer[..].fill(7);
        let digests = Digest::of_grains(0, extent.len, &buffer);
        let pieces = [Piece { file: FileId(1), extent, digests }];
        let stats = Stats::default();
        buffer[SIZE - 1] = 8;
        let outcomes = Landfall::default().end(&mut buffer, &pieces, &landings, &stats);
        assert_eq!(outcomes, [PieceOutcome::Mismatch]);
        assert_eq!(buffer[SIZE - 1], 8, "the slot keeps its buffer");
        buffer[SIZE - 1] = 7;
        let came = buffer.as_ptr();
        let outcomes = Landfall::default().end(&mut buffer, &pieces, &landings, &stats);
        assert_eq!(outcomes, [PieceOutcome::Verified]);
        assert!(buffer.as_ptr() != came && buffer.capacity() == SIZE, "it has another one");
        // Whatever comes into the slot next.
        buffer[..].fill(9);
        let landed = part.take().expect("all of it landed");
        let bytes = landed.at(0, SIZE).expect("in one piece");
        assert!(bytes.as_ptr() == came && bytes.iter().all(|byte| *byte == 7));
    }

    /// A sink of a file of this size in this folder.
    fn sink(folder: &std::path::Path, name: &str, size: u64) -> Landing {
        let folder = Arc::new(verbatim_files::Folder::open(folder).expect("opens"));
        let path = verbatim_proto::WirePath::parse(name.as_bytes()).expect("plain");
        let server = format!("SHA256:{}", "A".repeat(43)).parse().expect("a fingerprint");
        let sink = crate::sink::Sink::new(folder, path.clone(), server, path);
        let info = FileInfo { size, mode: 0o600, mtime_ns: 0, allocated: size, version: None };
        sink.opened(info).expect("there is room");
        Landing { goal: Goal::File(sink), size }
    }

    /// What is written of what goes there.
    fn written(landing: &Landing) -> Vec<u8> {
        let Goal::File(sink) = &landing.goal else { panic!("it goes to a file") };
        let target = sink.target().expect("it is there");
        let mut bytes = vec![0; landing.size as usize];
        target.read_landed(&mut bytes, 0).expect("reads");
        bytes
    }

    /// Three files in one chunk, the second longer than a grain; lands as it comes, in these steps.
    fn land_in_steps(steps: &[usize], break_at: Option<usize>) -> (Vec<PieceOutcome>, Vec<bool>) {
        let dir = tempfile::tempdir().expect("a folder");
        let sizes = [1000, SIZE - 5000, 4000];
        let mut bytes: Vec<u8> = (0..SIZE).map(|at| (at / 7 % 251) as u8).collect();
        let (mut pieces, mut landings, mut begin) = (Vec::new(), Vec::new(), 0);
        for (number, size) in sizes.into_iter().enumerate() {
            let (extent, of) = (Extent::new(0, size as u64), &bytes[begin..begin + size]);
            let digests = Digest::of_grains(0, extent.len, of);
            pieces.push(Piece { file: FileId(number as u32), extent, digests });
            landings.push(sink(dir.path(), &format!("{number}"), extent.len));
            begin += size;
        }
        if let Some(at) = break_at {
            bytes[at] ^= 1;
        }
        let mut buffer = Buffer::new(SIZE).expect("there is memory");
        buffer.copy_from_slice(&bytes);
        let (stats, mut landfall) = (Stats::default(), Landfall::default());
        for &step in steps {
            landfall.go_on(&bytes[..step], &pieces, &landings, &stats);
        }
        let outcomes = landfall.end(&mut buffer, &pieces, &landings, &stats);
        let mut begin = 0;
        let same = landings.iter().map(|landing| {
            let of = &bytes[begin..begin + landing.size as usize];
            begin += of.len();
            written(landing) == of
        });
        (outcomes, same.collect())
    }

    #[test]
    fn however_a_chunk_comes_it_lands_whole() {
        let all: Vec<usize> = (0..SIZE).step_by(100_001).collect();
        for steps in [&[][..], &[256 << 10, 512 << 10, 768 << 10], &[999, 1000, SIZE - 4000], &all]
        {
            let (outcomes, same) = land_in_steps(steps, None);
            assert_eq!(outcomes, vec![PieceOutcome::Verified; 3], "{steps:?}");
            assert_eq!(same, [true; 3], "{steps:?}");
        }
    }

    #[test]
    fn a_piece_that_does_not_match_does_not_land_and_those_behind_it_do() {
        let grains = [256 << 10, 512 << 10, 768 << 10];
        for at in [1000, 300 << 10, SIZE - 4001] {
            let (outcomes, same) = land_in_steps(&grains, Some(at));
            let ends = [PieceOutcome::Verified, PieceOutcome::Mismatch, PieceOutcome::Verified];
            assert_eq!(outcomes, ends, "broken at {at}");
            assert_eq!(same, [true, false, true], "what is broken at {at} is written");
        }
    }
}
