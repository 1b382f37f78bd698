//! Spots: ranges of temporary files that a client writes to where they stay.
//!
//! Nobody may write to a byte once it is verified, so a range is claimed when its
//! spot is asked for, given up only when the spot is, and looked at only when the
//! driver has taken the spot back. A spot that is being made keeps its link from
//! being called dead, so that none is made behind a fence.

use super::{Use, WriteServer, protocol};
use crate::batch::unexpected;
use crate::holes::is_whole;
use crate::message::WriteReply;
use crate::message::{FileId, LinkId, Piece, Region, Spot, SpotReply, SpotRequest, Tag};
use crate::write::types::{ServerEffect, SlotId};
use crate::{Code, Extent, Fault};

/// The spot that a grant is for.
pub(super) struct Held {
    file: FileId,
    extent: Extent,
    /// The driver has made it.
    made: bool,
}

impl WriteServer {
    /// The driver can register ranges of these files, which are being created.
    pub fn takes_spots(&mut self, files: Vec<FileId>) {
        for id in &files {
            if let Some(file) = self.files.get_mut(id) {
                file.takes_spots = true;
            }
        }
        self.effects.push_back(ServerEffect::Send(WriteReply::Spots(SpotReply::Taken(files))));
    }

    /// The driver registered a range of a file, or could not.
    pub fn spot_made(&mut self, tag: Tag, answer: Result<Region, Fault>) {
        let used = self.uses.get_mut(&tag).expect("a spot that is being made keeps its grant");
        let link = used.link;
        match &answer {
            Ok(_) => used.spot.as_mut().expect("it was asked for").made = true,
            Err(_) => self.leave_spot(tag),
        }
        let made = SpotReply::Made(vec![(tag, answer)]);
        self.effects.push_back(ServerEffect::Send(WriteReply::Spots(made)));
        self.settle(link);
        self.discard_idle();
    }

    pub(super) fn spots(&mut self, request: SpotRequest) -> Result<(), Fault> {
        match request {
            SpotRequest::Ask(spots) => spots.into_iter().try_for_each(|spot| self.ask(spot)),
            SpotRequest::Return(tags) => tags.into_iter().try_for_each(|tag| self.give_back(tag)),
        }
    }

    fn ask(&mut self, spot: Spot) -> Result<(), Fault> {
        let Spot { tag, file: id, extent } = spot;
        let Some(used) = self.granted(tag)? else { return Ok(()) };
        let (link, slot) = (used.link, used.slot);
        if used.spot.is_some() || used.sent.is_some() || used.notified {
            return Err(protocol("client asked for a spot with a grant it has used"));
        }
        let room = self.slots.get(&slot).map_or(0, |slot| u64::from(slot.bytes));
        let file = self.files.get_mut(&id).filter(|file| file.open && !file.discarded);
        let file = file.filter(|file| file.takes_spots);
        let file = file.ok_or_else(|| unexpected("spot", id))?;
        if extent.len > room || !is_whole(extent, file.info.size) {
            return Err(protocol("client asked for a spot that is no chunk of its file"));
        }
        if !file.unclaimed.take(extent) {
            return Err(unexpected("spot where it sent data", id));
        }
        if file.unclaimed.range_count() > crate::units::RANGES_MAX {
            return Err(Fault::new(Code::Limit, "client sends a file in too many fragments"));
        }
        file.absorbing += 1;
        let used = self.uses.get_mut(&tag).expect("it was just there");
        used.spot = Some(Held { file: id, extent, made: false });
        self.effects.push_back(ServerEffect::MakeSpot { link, spot });
        Ok(())
    }

    fn give_back(&mut self, tag: Tag) -> Result<(), Fault> {
        let Some(used) = self.granted(tag)? else { return Ok(()) };
        let made = used.spot.as_ref().is_some_and(|spot| spot.made);
        // It may be notified: of what went into the slot since, which was quicker than this.
        if !made || used.sent.is_some() {
            return Err(protocol("client returned a spot that it has not, or has used"));
        }
        self.effects.push_back(ServerEffect::EndSpot(tag));
        self.leave_spot(tag);
        self.discard_idle();
        Ok(())
    }

    /// The grant of a tag; none where its link was fenced while this was on the way.
    fn granted(&self, tag: Tag) -> Result<Option<&Use>, Fault> {
        match self.uses.get(&tag) {
            None if tag.0 >= self.next_tag => {
                Err(protocol("client named a tag it was not granted"))
            }
            used => Ok(used),
        }
    }

    /// Lets the grant be for its slot again, and the range for whoever sends it.
    fn leave_spot(&mut self, tag: Tag) {
        let used = self.uses.get_mut(&tag).expect("the caller found it");
        let spot = used.spot.take().expect("the caller found it");
        if let Some(file) = self.files.get_mut(&spot.file) {
            file.absorbing -= 1;
            file.unclaimed.insert(spot.extent);
        }
    }

    /// Takes back the spots of a dead link.
    pub(super) fn end_spots(&mut self, link: LinkId) {
        let on_link = |(tag, used): (&Tag, &Use)| {
            (used.link == link && used.spot.is_some()).then_some((*tag, used.sent.is_some()))
        };
        let held: Vec<(Tag, bool)> = self.uses.iter().filter_map(on_link).collect();
        for (tag, sent) in held {
            self.effects.push_back(ServerEffect::EndSpot(tag));
            // What was sent is given up piece by piece, with all else of the link.
            if !sent {
                self.leave_spot(tag);
            }
        }
    }
}

impl Use {
    /// A grant that nothing was done with.
    pub(super) fn new(slot: SlotId, link: LinkId) -> Self {
        Self { slot, link, spot: None, sent: None, notified: false, absorbing: false }
    }

    /// Whether it is for a spot that the driver is making.
    pub(super) fn awaits_spot(&self) -> bool {
        self.spot.as_ref().is_some_and(|spot| !spot.made)
    }

    /// Whether what the client says it sent went to a spot; it must be what that is for.
    pub(super) fn is_of_spot(&self, pieces: &[Piece]) -> Result<bool, Fault> {
        let Some(spot) = &self.spot else { return Ok(false) };
        let fits = spot.made
            && matches!(pieces, [one] if (one.file, one.extent) == (spot.file, spot.extent));
        fits.then_some(true).ok_or_else(|| protocol("client sent something else than its spot"))
    }
}
