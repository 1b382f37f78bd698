//! What a target takes from a file that is there: every grain of it is read and
//! hashed, and where it is what is wanted, the very bytes that were hashed are
//! written. Nothing of the old file is trusted, and it is never changed. Called by
//! the server for what clients offer.

use crate::target::Target;
use std::fs::File;
use std::os::unix::fs::FileExt;
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::{Digest, Extent, ExtentSet, Fault};

impl Target {
    /// Takes what `old` has of a range of a file of `size` bytes that is to have these digests;
    /// returns what was taken, whole grains. `may` is asked before so many bytes are written.
    pub fn take_from(
        &self,
        old: &File,
        size: u64,
        extent: Extent,
        digests: &[Digest],
        may: impl Fn(u64) -> Result<(), Fault>,
    ) -> Result<Vec<Extent>, Fault> {
        let mut taken = ExtentSet::new();
        let mut bytes = vec![0; GRAIN_BYTES as usize];
        let ends = extent.offset + extent.len;
        for (offset, digest) in (extent.offset..ends).step_by(GRAIN_BYTES as usize).zip(digests) {
            let len = GRAIN_BYTES.min(ends - offset);
            let grain = &mut bytes[..len as usize];
            // What is shorter, or cannot be read, does not have it.
            if old.read_exact_at(grain, offset).is_err()
                || Digest::of_grain(offset, size, grain) != *digest
            {
                continue;
            }
            may(len)?;
            self.write_at(grain, offset)?;
            taken.insert(Extent::new(offset, len));
        }
        for part in taken.iter() {
            let first = ((part.offset - extent.offset) / GRAIN_BYTES) as usize;
            let count = part.len.div_ceil(GRAIN_BYTES) as usize;
            self.verified(part, &digests[first..first + count])?;
        }
        Ok(taken.iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Folder;
    use std::sync::Arc;
    use verbatim_proto::{Code, WirePath};

    const GRAIN: usize = GRAIN_BYTES as usize;

    #[test]
    fn only_what_has_the_digests_is_taken_and_the_old_file_stays() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let path = WirePath::parse(b"a").expect("plain");
        // Four grains and a bit are wanted; the old one has another second grain, and ends early.
        let wanted: Vec<u8> = (0..4 * GRAIN + 99).map(|at| (at / GRAIN + 1) as u8).collect();
        let mut old = wanted[..4 * GRAIN + 50].to_vec();
        old[GRAIN + 7] ^= 1;
        std::fs::write(dir.path().join("a"), &old).expect("writes");
        let file = File::open(dir.path().join("a")).expect("opens");
        let size = wanted.len() as u64;
        let digests = Digest::of_grains(0, size, &wanted);
        let target = Target::create(&folder, &path, size, 0o644).expect("creates");
        let all = Extent::new(0, size);
        let take = |may: &dyn Fn(u64) -> Result<(), Fault>| {
            target.take_from(&file, size, all, &digests, may)
        };
        let full = |_| Err(Fault::new(Code::NoSpace, "full"));
        assert_eq!(take(&full).expect_err("it may not").code, Code::NoSpace);
        let taken = take(&|_| Ok(())).expect("takes");
        let (first, rest) =
            (Extent::new(0, GRAIN_BYTES), Extent::new(2 * GRAIN_BYTES, 2 * GRAIN_BYTES));
        assert_eq!(taken, [first, rest]);
        target.write_at(&wanted[GRAIN..2 * GRAIN], GRAIN_BYTES).expect("writes");
        target.write_at(&wanted[4 * GRAIN..], 4 * GRAIN_BYTES).expect("writes");
        assert_eq!(std::fs::read(dir.path().join("a")).expect("reads"), old);
        assert_eq!(Target::commit(&[Arc::new(target)]), vec![Ok(())]);
        assert_eq!(std::fs::read(dir.path().join("a")).expect("reads"), wanted);
    }
}
