//! What the other side has of a file before anything moves: what an earlier
//! session left in its temporary file, and what another file there has in common
//! with it, which is offered instead of sent.

use super::content::{digests_of, grains, value_of};
use super::{GARBAGE, World, fault, path_of};
use verbatim_proto::message::Offer;
use verbatim_proto::units::{GRAIN_BYTES, OFFERS_MAX, grain_count};
use verbatim_proto::{Code, Digest, Extent, ExtentSet, FileId, RootBuilder, read};

/// A file that has nothing in common with any.
const OTHER: FileId = FileId(u32::MAX);

impl World {
    /// Offers of which something was taken.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// What an earlier session left of a file, for about half of the files.
    pub(super) fn earlier(&mut self, id: FileId) -> Option<read::Have> {
        let size = self.files[&id].size;
        if size < GRAIN_BYTES || self.roll(2) == 0 {
            return None;
        }
        let file = self.model(id);
        let (mut extents, mut root) = (ExtentSet::new(), RootBuilder::new(size));
        for grain in 0..grain_count(size) {
            let value = value_of(id, grain, file.version);
            let verified = grain % 3 == 0;
            file.landed.insert(grain, if verified { value } else { GARBAGE });
            if verified {
                let offset = grain * GRAIN_BYTES;
                extents.insert(Extent::new(offset, GRAIN_BYTES.min(size - offset)));
                root.insert(grain, value);
            }
        }
        let mtime_ns = i64::from(file.version);
        self.resumed += 1;
        let version = Some(mtime_ns as u64);
        Some(read::Have { size, mtime_ns, version, extents, root })
    }

    /// Half of the files are compared with one of the server: a quarter with what they replace, a
    /// quarter with another.
    pub(super) fn offer_from(&mut self, id: FileId) {
        match id.0 % 4 {
            1 => self.write_client.compare_with(id, vec![path_of(id)], false),
            3 => self.write_client.compare_with(id, vec![path_of(OTHER), path_of(id)], true),
            _ => {}
        }
    }

    pub(super) fn offer_hashed(&mut self, id: FileId, extent: Extent) {
        let answer = match self.chance(self.faults.refuse_ppm / 20) {
            true => Err(fault(Code::Io)),
            false => Ok(digests_of(id, extent, self.files[&id].version)),
        };
        self.write_client.offer_hashed(id, extent, answer, self.now);
    }

    /// The basis has three of four grains of the first version, the other file nothing.
    pub(super) fn take_offer(&mut self, offer: &Offer) {
        self.offers_are_few();
        let piece = &offer.piece;
        if self.chance(self.faults.refuse_ppm) {
            return self.write_server.taken(offer, Err(fault(Code::NotFound)));
        }
        let id = piece.file;
        let useless = offer.basis == path_of(OTHER) || id.0 % 12 == 3;
        let has = |grain: u64| !useless && !grain.is_multiple_of(4);
        let size = self.files[&id].size;
        let mut taken = ExtentSet::new();
        for (grain, digest) in grains(piece.extent).zip(&piece.digests) {
            if !has(grain) || *digest != value_of(id, grain, 0) {
                continue;
            }
            let before = self.model(id).landed.insert(grain, *digest);
            assert!(before.is_none_or(|before| before == GARBAGE), "taken twice");
            let offset = grain * GRAIN_BYTES;
            taken.insert(Extent::new(offset, GRAIN_BYTES.min(size - offset)));
        }
        self.taken += u64::from(!taken.is_empty());
        self.write_server.taken(offer, Ok(taken.iter().collect()));
    }

    /// What was taken is what was offered of the first version.
    pub(super) fn check_taken(&mut self, id: FileId, extent: Extent, digests: &[Digest]) {
        assert_eq!(digests, digests_of(id, extent, 0), "something else was taken");
    }

    /// No more offers are under way than may be.
    fn offers_are_few(&self) {
        let is_offer = |event: &&super::Event| matches!(event, super::Event::Taken(_));
        let offers = self.queue.values().filter(is_offer);
        assert!(offers.count() < OFFERS_MAX, "more offers than may be");
    }
}
