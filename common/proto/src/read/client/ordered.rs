//! The order of a file that a reader takes byte by byte: chunks are fetched from the
//! front, and at most `ORDERED_AHEAD_BYTES` ahead of the reader, so that the bytes kept
//! meanwhile are bounded. Such a file cannot be begun again; another machine can go on
//! with the same version of it.

use crate::read::types::Have;
use crate::units::ORDERED_AHEAD_BYTES;
use crate::{Extent, ExtentSet};

/// How far the file is.
#[derive(Default)]
pub(super) struct Order {
    taken: u64,
    /// Verified, and not taken.
    came: ExtentSet,
}

impl Order {
    /// Goes on behind the bytes that were taken; another session verified the extents of `have`.
    pub fn new(have: Option<&Have>, taken: u64) -> Self {
        let mut came = have.map(|have| have.extents.clone()).unwrap_or_default();
        came.take_common(Extent::new(0, taken));
        Self { taken, came }
    }

    /// All bytes before `offset` were taken.
    pub fn taken(&mut self, offset: u64) {
        self.came.take_common(Extent::new(0, offset));
        self.taken = self.taken.max(offset);
    }

    /// A range is verified.
    pub fn came(&mut self, extent: Extent) {
        self.came.insert(extent);
    }

    /// Whether the next bytes are there.
    pub fn has_next(&self) -> bool {
        self.came.contains(Extent::new(self.taken, 1))
    }

    /// Whether a chunk that begins at `offset` may be fetched.
    pub fn is_near(&self, offset: u64) -> bool {
        offset < self.taken + ORDERED_AHEAD_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOW, effects, machine, say};
    use super::*;
    use crate::message::{FileInfo, Lease, Piece, ReadReply, ReadRequest, Region, WindowId};
    use crate::read::{ClientEffect, Outcome, PieceOutcome, ReadClient};
    use crate::units::GRAIN_BYTES;
    use crate::{Code, Digest, FileId, LinkId, RootBuilder, WirePath};

    const ID: FileId = FileId(1);
    const LINK: LinkId = LinkId { index: 0, epoch: 0 };
    const SIZE: u64 = 3 * GRAIN_BYTES + 7;
    const MTIME: i64 = 5;
    const VERSION: u64 = 9;

    fn content() -> Vec<u8> {
        (0..SIZE).map(|at| (at % 251) as u8).collect()
    }

    /// The digests of a range of the file.
    fn digests(extent: Extent) -> Vec<Digest> {
        let range = extent.offset as usize..(extent.offset + extent.len) as usize;
        Digest::of_grains(extent.offset, SIZE, &content()[range])
    }

    /// A machine that goes on behind the first two grains, of which one was taken; and what it
    /// then asks for.
    fn going_on() -> (ReadClient, Vec<ClientEffect>) {
        let mut machine = machine();
        machine.link_up(LINK);
        let verified = Extent::new(0, 2 * GRAIN_BYTES);
        let mut root = RootBuilder::new(SIZE);
        root.insert_run(0, &digests(verified));
        let extents = [verified].into_iter().collect();
        let (size, mtime_ns, version) = (SIZE, MTIME, Some(VERSION));
        let have = Have { size, mtime_ns, version, extents, root };
        let path = WirePath::parse(b"data/a").expect("plain");
        machine.open_ordered(ID, path, Some((have, GRAIN_BYTES)), NOW);
        let asked = effects(&mut machine);
        (machine, asked)
    }

    /// The answer to an open, of a file of this version.
    fn opened(version: Option<u64>) -> ReadReply {
        let info = FileInfo { size: SIZE, mode: 0o644, mtime_ns: MTIME, allocated: SIZE, version };
        ReadReply::Opened { files: vec![(ID, Ok(info))] }
    }

    #[test]
    fn one_that_was_begun_goes_on_behind_what_came_and_ends_with_the_digest_of_all() {
        let (mut machine, asked) = going_on();
        let [ClientEffect::Send(ReadRequest::Open { files })] = &asked[..] else {
            panic!("{asked:?}")
        };
        assert_eq!(files[0].have, [Extent::new(0, 2 * GRAIN_BYTES)]);
        assert_eq!(machine.order.as_ref().map(|order| order.taken), Some(GRAIN_BYTES));
        assert!(machine.awaits_taker(), "a grain waits to be taken");
        machine.taken(2 * GRAIN_BYTES, NOW);
        assert!(!machine.awaits_taker());
        say(&mut machine, opened(Some(VERSION)));
        let extent = Extent::new(2 * GRAIN_BYTES, SIZE - 2 * GRAIN_BYTES);
        let pieces = vec![Piece { file: ID, extent, digests: digests(extent) }];
        let region = Region { key: 1, base: 0 };
        let lease = Lease { window: WindowId(1), region, pieces };
        let told = say(&mut machine, ReadReply::Lease(lease));
        let [ClientEffect::Fetch(fetch)] = &told[..] else { panic!("{told:?}") };
        let landed = Outcome::Landed(vec![PieceOutcome::Verified]);
        machine.fetched(fetch.link, fetch.slot, landed, NOW);
        effects(&mut machine);
        let told = say(&mut machine, ReadReply::Closed { files: vec![(ID, Ok(None))] });
        let root = Some(Digest::of(&content()));
        assert_eq!(told, [ClientEffect::Finished { file: ID, root, meta: None }]);
    }

    #[test]
    fn nobody_goes_on_with_another_version_or_one_that_cannot_be_told() {
        for version in [Some(VERSION + 1), None] {
            let (mut machine, _) = going_on();
            say(&mut machine, opened(version));
            let told = say(&mut machine, ReadReply::Closed { files: vec![(ID, Ok(None))] });
            let [ClientEffect::Failed { file: ID, fault }] = &told[..] else { panic!("{told:?}") };
            assert_eq!(fault.code, Code::Changed);
        }
    }
}
