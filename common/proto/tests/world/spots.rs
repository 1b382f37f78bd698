//! Spots of the world's server: ranges of temporary files that writes land in. A
//! write may come late, after its link died at the client; it must never find a
//! range that is verified, nor one that two may write to.

use super::content::{digests_of, grains};
use super::{Event, GARBAGE, World, fault};
use std::collections::HashMap;
use verbatim_proto::message::{FileId, LinkId, Piece, Region, Spot, Tag, Verdict};
use verbatim_proto::write::Absorb;
use verbatim_proto::{Code, Extent};

/// Spots that are registered, by their tag, and the version that landed there; a corrupted one
/// is none.
#[derive(Default)]
pub struct Spots {
    live: HashMap<Tag, (Spot, Option<u32>)>,
    made: u64,
    refused: u64,
    ended: u64,
    late: u64,
}

/// Keys of spots are those from here on.
const KEYS: u64 = 1 << 32;

impl Spots {
    /// How many were made, refused, taken back unused, and written to late.
    pub fn counts(&self) -> [u64; 4] {
        [self.made, self.refused, self.ended, self.late]
    }
}

impl World {
    /// Half of the files take spots.
    pub fn takes_spots(&self, id: FileId) -> bool {
        id.0.is_multiple_of(2) && self.files[&id].grown.is_none()
    }

    pub fn make_spot(&mut self, spot: Spot) {
        let refused = self.chance(self.faults.refuse_ppm);
        self.later(10, Event::SpotMade(spot, refused));
    }

    pub fn spot_made(&mut self, spot: Spot, refused: bool) {
        if refused {
            self.spots.refused += 1;
            return self.write_server.spot_made(spot.tag, Err(fault(Code::Limit)));
        }
        let Spot { file, extent, .. } = spot;
        let end = |extent: &Extent| extent.offset + extent.len;
        let meets = |(other, _): &(Spot, _)| {
            let of = &other.extent;
            other.file == file && of.offset < end(&extent) && extent.offset < end(of)
        };
        assert!(!self.spots.live.values().any(meets), "two spots of one range");
        self.spots.live.insert(spot.tag, (spot, None));
        self.spots.made += 1;
        let region = Region { key: KEYS + u64::from(spot.tag.0), base: 0 };
        self.write_server.spot_made(spot.tag, Ok(region));
    }

    /// A write of a chunk arrives, unless its link is dead at the server.
    pub fn land(&mut self, tag: Tag, link: LinkId, late: bool) {
        let content = self.slot_content.get(&tag);
        let Some(&[(file, extent, version, corrupt)]) = content.map(Vec::as_slice) else { return };
        if self.dead_on_server.contains(&link) || !self.in_spot.contains(&tag) {
            return;
        }
        let Some((spot, landed)) = self.spots.live.get_mut(&tag) else {
            // Only what came behind the fence of its link finds nothing.
            return assert!(late, "a write found its spot taken back");
        };
        assert_eq!((spot.file, spot.extent), (file, extent), "a write landed beside its spot");
        *landed = Some(version).filter(|_| !corrupt);
        self.spots.late += u64::from(late);
        let model = self.model(file);
        for grain in grains(extent) {
            let before = model.landed.insert(grain, GARBAGE);
            assert!(before.is_none_or(|it| it == GARBAGE), "a write landed on verified bytes");
        }
    }

    pub fn end_spot(&mut self, tag: Tag) {
        assert!(self.spots.live.remove(&tag).is_some(), "a spot is taken back twice");
        self.spots.ended += 1;
    }

    /// The server looks at what landed in a spot, which nobody can write to any more.
    pub fn look_at_spot(&mut self, absorb: &Absorb) -> Verdict {
        let (spot, landed) = self.spots.live.remove(&absorb.tag).expect("it has a spot");
        let [Piece { file, extent, digests }] = &absorb.pieces[..] else { panic!("one piece") };
        assert_eq!((spot.file, spot.extent), (*file, *extent), "the wrong spot is judged");
        let landed = landed.map(|version| digests_of(*file, *extent, version));
        if landed.as_ref() != Some(digests) {
            return Verdict::Mismatch;
        }
        self.model(*file).landed.extend(grains(*extent).zip(digests.iter().copied()));
        Verdict::Stored
    }

    /// Nobody may write to a file that takes its name.
    pub fn check_no_spot(&self, id: FileId) {
        let of_file = |(spot, _): &(Spot, _)| spot.file == id;
        assert!(!self.spots.live.values().any(of_file), "a file with a spot is committed");
    }

    pub fn is_spot(region: Region) -> bool {
        region.key >= KEYS
    }
}
