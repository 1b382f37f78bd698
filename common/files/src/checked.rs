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
    let (mut watch, mut good) = (Stopwatch::default(), 0);
    for (grain, digest) in bytes.chunks(GRAIN_BYTES as usize).zip(digests) {
        if watch.hash(offset + good as u64, size, grain) != *digest {
            return Err(Unfit::Mismatch);
        }
        good += grain.len();
        verified(good).map_err(Unfit::Failed)?;
    }
    Ok(watch.spent())
}

/// Tells hashing from all else that is done with bytes. Only the first grain is timed, as the
/// others take as long for a byte: reading a clock is a system call on some machines.
#[derive(Default)]
pub struct Stopwatch {
    begin: Option<Instant>,
    /// The bytes of the first grain, and what hashing them took.
    first: Option<(u32, Duration)>,
    bytes: u64,
}

impl Stopwatch {
    /// One that runs; another begins with its first grain.
    pub fn running() -> Self {
        Self { begin: Some(Instant::now()), ..Self::default() }
    }

    /// Hashes a grain.
    pub fn hash(&mut self, offset: u64, size: u64, grain: &[u8]) -> Digest {
        self.bytes += grain.len() as u64;
        if self.first.is_some() {
            return Digest::of_grain(offset, size, grain);
        }
        let begin = Instant::now();
        let digest = Digest::of_grain(offset, size, grain);
        self.first = Some((grain.len() as u32, begin.elapsed()));
        self.begin.get_or_insert(begin);
        digest
    }

    /// What the time went into so far.
    pub fn spent(&self) -> Spent {
        let all = self.begin.map_or(Duration::ZERO, |begin| begin.elapsed());
        Spent::of(all, self.bytes, self.first)
    }
}

impl Spent {
    /// Tells what of this time went into hashing so many bytes, of which the first took as long.
    fn of(all: Duration, bytes: u64, first: Option<(u32, Duration)>) -> Self {
        let hash = first.map_or(Duration::ZERO, |(of_first, took)| {
            took.mul_f64(bytes as f64 / f64::from(of_first.max(1)))
        });
        Self { hash: hash.min(all), disk: all.saturating_sub(hash) }
    }
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
    fn what_is_not_hashing_is_told_apart_from_it() {
        let ms = Duration::from_millis;
        let of = |all, bytes, first| {
            let Spent { hash, disk } = Spent::of(all, bytes, first);
            (hash, disk)
        };
        let first = Some((GRAIN_BYTES as u32, ms(2)));
        assert_eq!(of(ms(20), 4 * GRAIN_BYTES, first), (ms(8), ms(12)));
        assert_eq!(of(ms(20), GRAIN_BYTES / 2, Some((1 << 17, ms(2)))), (ms(2), ms(18)));
        assert_eq!(of(ms(5), 4 * GRAIN_BYTES, first), (ms(5), ms(0)), "the first was held up");
        assert_eq!(of(ms(5), 0, None), (ms(0), ms(5)), "nothing was hashed");
        assert_eq!(of(ms(5), 0, Some((0, ms(1)))), (ms(0), ms(5)), "an empty file");
    }

    #[test]
    fn a_stopwatch_hashes_every_grain_and_times_one() {
        let (_dir, _target, bytes, digests) = world();
        let mut watch = Stopwatch::running();
        let grains = bytes.chunks(GRAIN).zip((0..).step_by(GRAIN));
        let hashed: Vec<_> =
            grains.map(|(grain, at)| watch.hash(at, bytes.len() as u64, grain)).collect();
        assert_eq!(hashed, digests);
        assert_eq!(watch.bytes, bytes.len() as u64);
        assert_eq!(watch.first.map(|(bytes, _)| bytes), Some(GRAIN_BYTES as u32));
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
