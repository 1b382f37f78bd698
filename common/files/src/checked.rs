//! Bytes that came, on their way into a file: each grain is hashed, compared, and written
//! while it is in cache. Nothing that does not match is written. Used by whoever receives,
//! on either side.
//!
//! Few may write to a file at a time (`lanes`). Who finds no lane free checks more meanwhile,
//! and waits for one when all of it is checked.

use crate::Target;
use std::cell::Cell;
use std::time::{Duration, Instant};
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::{Digest, Extent, Fault};

/// Why bytes are not in their file.
#[derive(Debug, PartialEq, Eq)]
pub enum Unfit {
    /// They are not what they must be.
    Mismatch,
    /// They cannot be written.
    Failed(Fault),
}

/// What the time of a piece went into.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// Hashing.
    pub hash: Duration,
    /// Writing, and waiting for a lane.
    pub disk: Duration,
}

/// Checks bytes of a file of `size` bytes against the digests of their grains, from `offset` on, and
/// has `verified` told after each grain how many are good.
pub fn check(
    bytes: &[u8],
    (offset, size): (u64, u64),
    digests: &[Digest],
    mut verified: impl FnMut(usize) -> Result<(), Fault>,
) -> Result<Spent, Unfit> {
    if digests.len() != bytes.len().div_ceil(GRAIN_BYTES as usize) {
        return Err(Unfit::Mismatch);
    }
    let (mut spent, mut good) = (Spent::default(), 0);
    for (grain, digest) in bytes.chunks(GRAIN_BYTES as usize).zip(digests) {
        let begin = Instant::now();
        if Digest::of_grain(offset + good as u64, size, grain) != *digest {
            return Err(Unfit::Mismatch);
        }
        let hash = begin.elapsed();
        good += grain.len();
        verified(good).map_err(Unfit::Failed)?;
        spent.hash += hash;
        spent.disk += begin.elapsed() - hash;
    }
    Ok(spent)
}

/// Checks bytes and writes them to the file they are of, and notes there that they are verified.
pub fn write(
    target: &Target,
    bytes: &[u8],
    (offset, size): (u64, u64),
    digests: &[Digest],
) -> Result<Spent, Unfit> {
    let written = Cell::new(0);
    let catch_up = |good: usize| -> Result<(), Fault> {
        for grain in bytes[written.get()..good].chunks(GRAIN_BYTES as usize) {
            target.write_at(grain, offset + written.get() as u64)?;
            written.update(|written| written + grain.len());
        }
        Ok(())
    };
    let mut spent = check(bytes, (offset, size), digests, |good| {
        let lane = target.lanes().try_take();
        if lane.is_some() { catch_up(good) } else { Ok(()) }
    })?;
    if written.get() < bytes.len() {
        let begin = Instant::now();
        let _lane = target.lanes().take();
        catch_up(bytes.len()).map_err(Unfit::Failed)?;
        spent.disk += begin.elapsed();
    }
    let extent = Extent::new(offset, bytes.len() as u64);
    target.verified(extent, digests).map_err(Unfit::Failed)?;
    Ok(spent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Folder;
    use std::os::unix::fs::FileExt;
    use verbatim_proto::WirePath;

    const GRAIN: usize = GRAIN_BYTES as usize;

    /// A target of three grains and a bit, what goes into it, and the digests of that.
    fn world() -> (tempfile::TempDir, Target, Vec<u8>, Vec<Digest>) {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let bytes: Vec<u8> = (0..3 * GRAIN + 100).map(|at| (at / 999) as u8 | 1).collect();
        let (path, size) = (WirePath::parse(b"x").expect("a path"), bytes.len() as u64);
        let target = Target::create(&folder, &path, size, 0o644).expect("made");
        let digests = Digest::of_grains(0, size, &bytes);
        (dir, target, bytes, digests)
    }

    fn landed(target: &Target, len: usize) -> Vec<u8> {
        let mut landed = vec![0; len];
        target.file().read_exact_at(&mut landed, 0).expect("as long as it is to be");
        landed
    }

    #[test]
    fn what_matches_is_written_and_nothing_behind_what_does_not() {
        let (_dir, target, mut bytes, digests) = world();
        let size = bytes.len() as u64;
        bytes[2 * GRAIN] ^= 1;
        let unfit = write(&target, &bytes, (0, size), &digests);
        assert!(matches!(unfit, Err(Unfit::Mismatch)), "{unfit:?}");
        assert!(landed(&target, bytes.len())[2 * GRAIN..].iter().all(|byte| *byte == 0));
        bytes[2 * GRAIN] ^= 1;
        for few in [&digests[..3], &[]] {
            assert!(matches!(write(&target, &bytes, (0, size), few), Err(Unfit::Mismatch)));
        }
        write(&target, &bytes, (0, size), &digests).expect("all of it matches");
        assert!(landed(&target, bytes.len()) == bytes);
    }

    #[test]
    fn who_finds_no_lane_free_checks_all_of_it_and_then_waits() {
        let (_dir, target, bytes, digests) = world();
        let (size, mut harmed) = (bytes.len() as u64, bytes.clone());
        *harmed.last_mut().expect("not empty") ^= 1;
        let others: Vec<_> = std::iter::from_fn(|| target.lanes().try_take()).collect();
        // Without waiting for anybody, or this would never end.
        let unfit = write(&target, &harmed, (0, size), &digests);
        assert!(matches!(unfit, Err(Unfit::Mismatch)), "{unfit:?}");
        assert!(landed(&target, bytes.len()).iter().all(|byte| *byte == 0), "others write");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| write(&target, &bytes, (0, size), &digests));
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(200) {
                assert!(!writer.is_finished(), "it did not wait for a lane");
            }
            drop(others);
            writer.join().expect("does not panic").expect("all of it matches");
        });
        assert!(landed(&target, bytes.len()) == bytes);
    }
}
