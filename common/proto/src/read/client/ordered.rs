//! A file that is read in order, for somebody who takes it byte by byte: chunks
//! are fetched from the front, and only so far behind what was taken, so that
//! what must be kept meanwhile is bounded. Such a file cannot be begun again; another
//! machine can go on with the same version of it.

use super::{Chunk, ReadClient};
use crate::read::types::Have;
use crate::units::{FILE_ATTEMPTS_MAX, ORDERED_AHEAD_BYTES};
use crate::{Extent, ExtentSet, FileId, LinkId, WirePath};
use std::time::Duration;

/// How far the file is.
#[derive(Default)]
pub(super) struct Order {
    taken: u64,
    /// Verified, and not taken.
    came: ExtentSet,
}

impl ReadClient {
    /// Adds a file that is read in order, from the beginning or from where another session was:
    /// with what that verified, and how much of it was taken. It must be the only file of this
    /// machine.
    ///
    /// # Panics
    /// When there is another one: a bug of the driver.
    pub fn open_ordered(
        &mut self,
        file: FileId,
        path: WirePath,
        begun: Option<(Have, u64)>,
        now: Duration,
    ) {
        assert!(self.is_idle(), "a file in order is alone");
        let (have, taken) = begun.unzip();
        let mut order = Order { taken: taken.unwrap_or(0), ..Order::default() };
        if let Some(have) = &have {
            order.came = have.extents.clone();
            order.came.take_common(Extent::new(0, order.taken));
        }
        self.open(file, path, have, now);
        self.order = Some(order);
        if let Some(state) = self.files.get_mut(&file) {
            state.attempts = FILE_ATTEMPTS_MAX;
        }
    }

    /// All bytes before `offset` were taken.
    pub fn taken(&mut self, offset: u64, now: Duration) {
        self.touch(now);
        if let Some(order) = &mut self.order {
            order.came.take_common(Extent::new(0, offset));
            order.taken = order.taken.max(offset);
        }
    }

    pub(super) fn came(&mut self, extent: Extent) {
        if let Some(order) = &mut self.order {
            order.came.insert(extent);
        }
    }

    /// Whether the next bytes are there, and it is not the server that is waited for.
    pub fn awaits_taker(&self) -> bool {
        let next = |order: &Order| order.came.contains(Extent::new(order.taken, 1));
        self.order.as_ref().is_some_and(next)
    }

    /// The next chunk for a link to fetch: of a file in order the first, if it is near enough.
    pub(super) fn next_ready(&mut self, link: LinkId) -> Option<Chunk> {
        let Some(order) = &self.order else {
            let files = self.ready.iter().map(|chunk| chunk.pieces[0].file);
            return self.ready.remove(self.slots.turns.choose(link, files));
        };
        let start = |chunk: &Chunk| chunk.pieces[0].extent.offset;
        let first = (0..self.ready.len()).min_by_key(|&index| start(&self.ready[index]))?;
        let near = start(&self.ready[first]) < order.taken + ORDERED_AHEAD_BYTES;
        if near { self.ready.remove(first) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOW, effects, machine, say};
    use super::*;
    use crate::message::{FileInfo, Lease, Piece, ReadReply, ReadRequest, Region, WindowId};
    use crate::read::{ClientEffect, Outcome, PieceOutcome};
    use crate::units::GRAIN_BYTES;
    use crate::{Code, Digest, RootBuilder};

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
