//! Holes of files: found with SEEK_DATA and SEEK_HOLE, never by reading. Cut
//! inwards to whole grains, a bounded number at a time. What a file system does
//! not tell is data: a hole that is not seen costs time, never a byte.
//!
//! The digests of zeros differ from place to place, because BLAKE3 mixes the
//! offset into every block; so a hole's share of a root must be computed, and
//! can only be spread over threads. Its zeros come out of one grain in cache.

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use verbatim_proto::units::{GRAIN_BYTES, HOLES_MAX};
use verbatim_proto::{Digest, Extent, Survey};

/// Seeks one look may take: data in many fragments has few holes of a whole grain.
const SEEKS_MAX: usize = 1024;

/// A grain of zeros.
pub(crate) static ZEROS: [u8; GRAIN_BYTES as usize] = [0; GRAIN_BYTES as usize];

/// Looks for holes of a file of `size` bytes from `from` on.
pub fn find_holes(file: &File, size: u64, from: u64) -> Survey {
    search(size, from, |to| seek(file, to))
}

/// The digests of zeros as the grains of `extent`, in a file of `size` bytes.
pub fn hash_zeros(size: u64, extent: Extent) -> Vec<Digest> {
    let end = extent.offset + extent.len;
    let starts = (extent.offset..end).step_by(GRAIN_BYTES as usize);
    let grain = |start: u64| &ZEROS[..(end - start).min(GRAIN_BYTES) as usize];
    starts.map(|start| Digest::of_grain(start, size, grain(start))).collect()
}

/// Looks for holes with `seek`, which says where data and holes begin.
fn search(size: u64, from: u64, seek: impl Fn(SeekFrom) -> Result<u64, Errno>) -> Survey {
    if size <= GRAIN_BYTES {
        return Survey::dense(size);
    }
    let mut survey = Survey { holes: Vec::new(), until: from };
    let mut at = from;
    for _ in 0..SEEKS_MAX / 2 {
        let data = match seek(SeekFrom::Data(at)) {
            // One that lies, or a file that grew, must not lead behind the end.
            Ok(data) => data.clamp(at, size),
            // Nothing but a hole up to the end.
            Err(Errno::NXIO) => size,
            Err(_) => return Survey { until: size, ..survey },
        };
        survey.holes.extend(whole_grains(at, data, size));
        at = match data < size {
            true => seek(SeekFrom::Hole(data)).map_or(size, |hole| hole.clamp(data + 1, size)),
            false => size,
        };
        if at == size || survey.holes.len() == HOLES_MAX {
            break;
        }
    }
    // The grain in which data ends is data.
    survey.until = at.next_multiple_of(GRAIN_BYTES).min(size);
    survey
}

/// The whole grains between two places, if there are any; the last one of a file may be short.
fn whole_grains(start: u64, end: u64, size: u64) -> Option<Extent> {
    let start = start.next_multiple_of(GRAIN_BYTES);
    let end = if end == size { end } else { end - end % GRAIN_BYTES };
    (start < end).then(|| Extent::new(start, end - start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    const GRAIN: u64 = GRAIN_BYTES;

    /// Offsets and lengths.
    type Ranges = &'static [(u64, u64)];

    fn sparse(size: u64, data: &[(u64, u64)]) -> File {
        let file = tempfile::tempfile().expect("file");
        file.set_len(size).expect("grows");
        for &(offset, len) in data {
            file.write_all_at(&vec![7; len as usize], offset).expect("writes");
        }
        file
    }

    /// All holes of a file, look by look.
    fn holes_of(file: &File, size: u64) -> Vec<(u64, u64)> {
        let mut holes = Vec::new();
        let mut until = 0;
        while until < size {
            let survey = find_holes(file, size, until);
            assert!(survey.until > until, "it does not get on");
            holes.extend(survey.holes.iter().map(|hole| (hole.offset, hole.len)));
            until = survey.until;
        }
        holes
    }

    #[test]
    fn holes_are_cut_inwards_to_whole_grains() {
        const SIZE: u64 = 20 * GRAIN + 5;
        let cases: [(Ranges, Ranges); 6] = [
            (&[], &[(0, SIZE)]),
            (&[(0, 1)], &[(GRAIN, SIZE - GRAIN)]),
            (&[(SIZE - 1, 1)], &[(0, 20 * GRAIN)]),
            (&[(5 * GRAIN + 9, 100)], &[(0, 5 * GRAIN), (6 * GRAIN, SIZE - 6 * GRAIN)]),
            (&[(0, SIZE)], &[]),
            (&[(0, 8 * GRAIN), (12 * GRAIN, 8 * GRAIN + 5)], &[(8 * GRAIN, 4 * GRAIN)]),
        ];
        for (data, holes) in cases {
            assert_eq!(holes_of(&sparse(SIZE, data), SIZE), holes, "{data:?}");
        }
    }

    #[test]
    fn more_holes_than_fit_are_found_look_by_look() {
        let count = HOLES_MAX as u64 + 40;
        let data: Vec<(u64, u64)> = (0..count).map(|i| (2 * i * GRAIN, 1)).collect();
        let size = 2 * count * GRAIN;
        let file = sparse(size, &data);
        assert_eq!(find_holes(&file, size, 0).holes.len(), HOLES_MAX);
        let expected: Vec<_> = (0..count).map(|i| ((2 * i + 1) * GRAIN, GRAIN)).collect();
        assert_eq!(holes_of(&file, size), expected);
    }

    #[test]
    fn data_in_many_fragments_is_looked_at_in_bounded_steps() {
        let size = 4096 * 4096;
        let fragments = |to: SeekFrom| match to {
            SeekFrom::Data(at) => Ok(at.next_multiple_of(8192)),
            SeekFrom::Hole(at) => Ok(at + 4096),
            _ => panic!("nothing else is asked"),
        };
        let survey = search(size, 0, fragments);
        assert_eq!(survey.holes, []);
        assert!(survey.until > 0 && survey.until < size, "{}", survey.until);
    }

    #[test]
    fn a_small_file_is_not_looked_at() {
        let survey = search(GRAIN, 0, |_| panic!("it was looked at"));
        assert_eq!(survey, Survey::dense(GRAIN));
    }

    #[test]
    fn where_the_file_system_does_not_tell_all_is_data() {
        for error in [Errno::INVAL, Errno::OPNOTSUPP, Errno::IO] {
            assert_eq!(search(9 * GRAIN, 0, |_| Err(error)), Survey::dense(9 * GRAIN));
        }
        // As the kernel answers for file systems without holes: data everywhere.
        let dense = |to: SeekFrom| match to {
            SeekFrom::Data(at) => Ok(at),
            _ => Ok(9 * GRAIN),
        };
        assert_eq!(search(9 * GRAIN, 0, dense), Survey::dense(9 * GRAIN));
        let failing = |to: SeekFrom| match to {
            SeekFrom::Data(at) => Ok(at),
            _ => Err(Errno::INVAL),
        };
        assert_eq!(search(9 * GRAIN, 0, failing), Survey::dense(9 * GRAIN));
    }

    #[test]
    fn answers_out_of_bounds_lead_nowhere() {
        let survey = search(9 * GRAIN, GRAIN, |_| Ok(0));
        assert!(survey.holes.is_empty() && survey.until > GRAIN);
        let survey = search(9 * GRAIN, 0, |_| Ok(u64::MAX));
        assert_eq!(survey.holes, [Extent::new(0, 9 * GRAIN)]);
    }

    #[test]
    fn zeros_hash_as_a_file_of_zeros_does() {
        let size = 3 * GRAIN + 5;
        let zeros = vec![0; size as usize];
        assert_eq!(hash_zeros(size, Extent::new(0, size)), Digest::of_grains(0, size, &zeros));
        let tail = hash_zeros(size, Extent::new(3 * GRAIN, 5));
        assert_eq!(tail, Digest::of_grains(3 * GRAIN, size, &zeros[..5]));
    }
}
