//! What the reading client may have its driver do: read what it is lent, by its
//! name, into a slot that is free, and write each range of its own files once.

use super::{Driver, Job, SLOTS};
use verbatim_proto::message::FileId;
use verbatim_proto::read::{Fetch, Zero};
use verbatim_proto::units::CHUNK_BYTES_DEFAULT;
use verbatim_proto::{Extent, ExtentSet};

impl Driver {
    /// A range that is to be written is of its file, not there, and not being written.
    fn check_range(&mut self, file: FileId, extent: Extent) {
        let range = ExtentSet::from_iter([extent]);
        let mut others = self.jobs.iter().flat_map(|job| match job {
            Job::Fetch(fetch) => {
                fetch.chunk.pieces.iter().map(|piece| (piece.file, piece.extent)).collect()
            }
            Job::Zero(zero) => vec![(zero.file, zero.extent)],
            Job::Drop(_) => Vec::new(),
        });
        let twice = others.any(|(of, other)| of == file && range.intersects(other));
        assert!(!twice, "it is being written");
        let copy = self.live(file);
        assert!(extent.fits(copy.size.expect("it was opened")), "outside its file");
        assert!(!copy.landed.intersects(extent), "it is there");
    }

    pub(super) fn check_zero(&mut self, zero: &Zero) {
        self.check_range(zero.file, zero.extent);
        let lent = self.server.lent.get(&zero.window).expect("a list that it has");
        let holes = lent.holes.as_ref().filter(|holes| holes.file == zero.file);
        let holes = ExtentSet::from_iter(holes.expect("of another file").extents.iter().copied());
        assert!(holes.contains(zero.extent), "zeros that are no hole");
    }

    /// What is fetched is lent, under the name it has on that link, and fits a slot that is free.
    pub(super) fn check(&mut self, fetch: &Fetch) {
        let Fetch { link, slot, chunk } = fetch;
        assert!(self.links.contains(link) && *slot < SLOTS, "on no link that works");
        let mut others = self.jobs.iter().filter(|job| job.is_on(*link));
        let taken = others.any(|job| matches!(job, Job::Fetch(other) if other.slot == *slot));
        assert!(!taken, "into a slot that is in use");
        let total: u64 = chunk.pieces.iter().map(|piece| piece.extent.len).sum();
        assert_eq!(total, u64::from(chunk.bytes));
        assert!(chunk.bytes <= CHUNK_BYTES_DEFAULT, "more than a slot holds");
        let mut address = chunk.address;
        for piece in &chunk.pieces {
            self.check_range(piece.file, piece.extent);
            let lent = self.server.lent.get(&chunk.window).expect("a window that it has");
            let region = match self.rail_of(*link) {
                0 => lent.region,
                rail => lent.rails[usize::from(rail) - 1],
            };
            let (start, digests) = lent.place(piece.file, piece.extent).expect("what was lent");
            assert_eq!(digests, piece.digests, "digests of something else");
            assert_eq!(chunk.key, region.key, "the name of another window");
            assert_eq!(address, region.base.wrapping_add(start), "from somewhere else");
            address = address.wrapping_add(piece.extent.len);
        }
    }
}
