//! A slot that is granted under a tag, until its chunk is judged or its link is fenced. Where the
//! client asked for it, the grant is for a spot: a range of a temporary file that is written to
//! where it stays.
//!
//! Nobody may write to a byte once it is verified, so a range is claimed when its
//! spot is asked for, given up only when the spot is, and looked at only when the
//! driver has taken the spot back. A spot that is being made keeps its link from
//! being called dead, so that none is made behind a fence.

use super::files::Files;
use crate::batch::unexpected;
use crate::holes::is_whole;
use crate::message::{FileId, LinkId, Piece, Spot, Tag};
use crate::units::PACK_FILES_MAX;
use crate::write::types::{Absorb, ServerEffect, SlotId};
use crate::{Code, Extent, Fault};
use std::collections::VecDeque;

/// The spot that a grant is for.
struct ClaimedSpot {
    file: FileId,
    extent: Extent,
    /// The driver has made it.
    made: bool,
}

impl ClaimedSpot {
    /// Leaves the range to the next chunk that is sent of it.
    fn unclaim(self, files: &mut Files) {
        if let Some(file) = files.get_mut(self.file) {
            file.end_claim();
            file.unclaim(self.extent);
        }
    }
}

/// A grant that is neither judged nor void.
pub(super) struct Granted {
    slot: SlotId,
    link: LinkId,
    spot: Option<ClaimedSpot>,
    sent: Option<Vec<Piece>>,
    notified: bool,
    absorbing: bool,
}

impl Granted {
    pub fn new(slot: SlotId, link: LinkId) -> Self {
        Self { slot, link, spot: None, sent: None, notified: false, absorbing: false }
    }

    pub fn slot(&self) -> SlotId {
        self.slot
    }

    pub fn link(&self) -> LinkId {
        self.link
    }

    pub fn is_sent(&self) -> bool {
        self.sent.is_some()
    }

    /// Whether the driver stores its chunk, or makes its spot.
    pub fn is_busy(&self) -> bool {
        self.absorbing || self.awaits_spot()
    }

    fn awaits_spot(&self) -> bool {
        self.spot.as_ref().is_some_and(|spot| !spot.made)
    }

    /// A link notifies the chunk: false where the link is another one, or the notification came
    /// before, or the spot is not made.
    pub fn notify(&mut self, link: LinkId) -> bool {
        let may = self.link == link && !self.notified && !self.awaits_spot();
        self.notified |= may;
        may
    }

    /// Checks the pieces that the client sent under this grant; whether they went to the spot.
    pub fn check_sent(&self, pieces: &[Piece], room: u64) -> Result<bool, Fault> {
        let total = pieces.iter().try_fold(0_u64, |sum, piece| sum.checked_add(piece.extent.len));
        if self.sent.is_some() || pieces.is_empty() || pieces.len() > PACK_FILES_MAX {
            return Err(protocol("client sent a tag twice, or no or too many pieces"));
        }
        if total.is_none_or(|total| total > room) {
            return Err(protocol("client sent more than its slot holds"));
        }
        let Some(spot) = &self.spot else { return Ok(false) };
        let fits = spot.made
            && matches!(pieces, [one] if (one.file, one.extent) == (spot.file, spot.extent));
        fits.then_some(true).ok_or_else(|| protocol("client sent something else than its spot"))
    }

    /// Keeps the pieces that the client sent, after `check_sent`.
    pub fn set_sent(&mut self, pieces: Vec<Piece>) {
        self.sent = Some(pieces);
    }

    /// The pieces that the client sent, when the driver has judged them.
    pub fn into_sent(self) -> Option<Vec<Piece>> {
        self.sent
    }

    /// Has the driver store a chunk that is sent and notified, or expect one that is only sent.
    pub fn hand_over(&mut self, tag: Tag) -> Option<ServerEffect> {
        let pieces = self.sent.clone()?;
        let in_place = self.spot.is_some();
        let absorb = Absorb { tag, link: self.link, slot: self.slot, pieces, in_place };
        if self.notified {
            self.absorbing = true;
            return Some(ServerEffect::Absorb(absorb));
        }
        (!in_place).then_some(ServerEffect::Expect(absorb))
    }

    /// Claims the range of a spot and has the driver make it.
    pub fn ask_spot(
        &mut self,
        spot: Spot,
        room: u64,
        files: &mut Files,
    ) -> Result<ServerEffect, Fault> {
        let Spot { file: id, extent, .. } = spot;
        if self.spot.is_some() || self.sent.is_some() || self.notified {
            return Err(protocol("client asked for a spot with a grant it has used"));
        }
        let file = files.wanted(id, "spot")?;
        if !file.takes_spots() {
            return Err(unexpected("spot", id));
        }
        if extent.len > room || !is_whole(extent, file.size()) {
            return Err(protocol("client asked for a spot that is no chunk of its file"));
        }
        file.claim(id, extent, "spot where it sent data")?;
        self.spot = Some(ClaimedSpot { file: id, extent, made: false });
        Ok(ServerEffect::MakeSpot { link: self.link, spot })
    }

    /// The driver made the spot, or could not: then the grant is for its slot again.
    pub fn spot_made(&mut self, made: bool, files: &mut Files) {
        let mut spot = self.spot.take().expect("it was asked for");
        if made {
            spot.made = true;
            self.spot = Some(spot);
        } else {
            spot.unclaim(files);
        }
    }

    /// The client gives the spot back: the grant is for its slot again.
    pub fn return_spot(&mut self, files: &mut Files) -> Result<(), Fault> {
        // It may be notified: of what went into the slot since, which was quicker than this.
        match self.spot.take_if(|spot| spot.made && self.sent.is_none()) {
            Some(spot) => spot.unclaim(files),
            None => return Err(protocol("client returned a spot that it has not, or has used")),
        }
        Ok(())
    }

    /// The link is dead: the driver takes the spot back, and the client may send the pieces again.
    pub fn void(self, tag: Tag, files: &mut Files, effects: &mut VecDeque<ServerEffect>) {
        if self.spot.is_some() {
            effects.push_back(ServerEffect::EndSpot(tag));
        }
        match (self.sent, self.spot) {
            (Some(pieces), _) => {
                for piece in pieces {
                    if let Some(file) = files.get_mut(piece.file) {
                        file.end_claim();
                        file.unclaim(piece.extent);
                    }
                }
            }
            (None, Some(spot)) => spot.unclaim(files),
            (None, None) => {}
        }
    }
}

pub(super) fn protocol(text: &str) -> Fault {
    Fault::new(Code::Protocol, text)
}
