//! A file of which only some is wanted, for somebody who reads it here and there: the
//! rest is claimed as had, so that the server leases nothing else. Such a file is not
//! begun again when it changed: whoever reads it must be told, not given another one.

use crate::message::FileInfo;
use crate::read::types::Have;
use crate::{Extent, ExtentSet, RootBuilder};

/// What is wanted of a file, and of which version of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// How long the file is.
    pub size: u64,
    /// When its content changed, and its version; none takes any version of that size.
    pub version: Option<(i64, u64)>,
    /// What is wanted: whole grains.
    pub want: Extent,
}

impl Part {
    /// What it claims to have: all but what it wants.
    pub(super) fn have(&self) -> Have {
        let mut extents = ExtentSet::whole(self.size);
        extents.take_common(self.want);
        let (mtime_ns, version) = self.version.map_or((0, None), |(at, it)| (at, Some(it)));
        Have { size: self.size, mtime_ns, version, extents, root: RootBuilder::new(self.size) }
    }
}

impl Have {
    /// Whether a part that takes any version takes this one.
    pub(super) fn takes_any(&self, info: &FileInfo) -> bool {
        self.version.is_none() && self.size == info.size
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOW, effects, machine, say};
    use super::*;
    use crate::message::{Lease, LinkId, Piece, ReadReply, ReadRequest, Region, WindowId};
    use crate::read::{ClientEffect, Outcome, PieceOutcome, ReadClient};
    use crate::units::GRAIN_BYTES;
    use crate::{Code, Digest, FileId, WirePath};

    const ID: FileId = FileId(1);
    const SIZE: u64 = 4 * GRAIN_BYTES + 7;

    fn info(version: Option<u64>) -> FileInfo {
        FileInfo { size: SIZE, mode: 0o644, mtime_ns: 5, allocated: SIZE, version }
    }

    /// A machine with a link that was asked for the second grain, and what it then does.
    fn asked(version: Option<(i64, u64)>) -> (ReadClient, Vec<ClientEffect>) {
        let mut machine = machine();
        machine.link_up(LinkId { index: 0, epoch: 0 });
        let path = WirePath::parse(b"data/a").expect("plain");
        let want = Extent::new(GRAIN_BYTES, GRAIN_BYTES);
        machine.open_part(ID, path, &Part { size: SIZE, version, want }, NOW);
        let effects = effects(&mut machine);
        (machine, effects)
    }

    #[test]
    fn only_what_is_wanted_is_leased_and_it_ends_without_a_digest_of_all() {
        let (mut machine, sent) = asked(Some((5, 9)));
        let [ClientEffect::Send(ReadRequest::Open { files })] = &sent[..] else {
            panic!("{sent:?}")
        };
        let tail = Extent::new(2 * GRAIN_BYTES, SIZE - 2 * GRAIN_BYTES);
        assert_eq!(files[0].have, [Extent::new(0, GRAIN_BYTES), tail]);
        say(&mut machine, ReadReply::Opened { files: vec![(ID, Ok(info(Some(9))))] });
        let extent = Extent::new(GRAIN_BYTES, GRAIN_BYTES);
        let pieces = vec![Piece { file: ID, extent, digests: vec![Digest([1; 32])] }];
        let region = Region { key: 1, base: 0 };
        let lease = Lease { window: WindowId(1), region, pieces };
        let told = say(&mut machine, ReadReply::Lease(lease));
        let [ClientEffect::Fetch(fetch)] = &told[..] else { panic!("{told:?}") };
        let landed = Outcome::Landed(vec![PieceOutcome::Verified]);
        machine.fetched(fetch.link, fetch.slot, landed, NOW);
        effects(&mut machine);
        let told = say(&mut machine, ReadReply::Closed { files: vec![(ID, Ok(None))] });
        assert_eq!(told, [ClientEffect::Finished { file: ID, root: None, meta: None }]);
    }

    #[test]
    fn another_version_is_told_and_nothing_of_it_is_fetched() {
        for (wanted, there) in [(9, Some(8)), (9, None)] {
            let (mut machine, _) = asked(Some((5, wanted)));
            say(&mut machine, ReadReply::Opened { files: vec![(ID, Ok(info(there)))] });
            let told = say(&mut machine, ReadReply::Closed { files: vec![(ID, Ok(None))] });
            let [ClientEffect::Failed { fault, .. }] = &told[..] else { panic!("{told:?}") };
            assert_eq!(fault.code, Code::Changed);
        }
    }

    #[test]
    fn one_that_takes_any_version_takes_none_of_another_size() {
        let (mut machine, _) = asked(None);
        let told = say(&mut machine, ReadReply::Opened { files: vec![(ID, Ok(info(None)))] });
        let had = SIZE - GRAIN_BYTES;
        assert_eq!(told, [ClientEffect::Opened { file: ID, info: info(None), had }]);
        let (mut machine, _) = asked(None);
        let longer = FileInfo { size: SIZE + 1, ..info(None) };
        say(&mut machine, ReadReply::Opened { files: vec![(ID, Ok(longer))] });
        let told = say(&mut machine, ReadReply::Closed { files: vec![(ID, Ok(None))] });
        let [ClientEffect::Failed { fault, .. }] = &told[..] else { panic!("{told:?}") };
        assert_eq!(fault.code, Code::Changed);
    }
}
