//! Ranges that a file of the server may have: claimed like chunks while the driver
//! looks, and free to be sent again where it found something else.

use super::WriteServer;
use crate::batch::unexpected;
use crate::message::WriteReply;
use crate::offer::{Offer, Taken};
use crate::read::check_piece;
use crate::units::{GRAIN_BYTES, OFFERS_MAX, RANGES_MAX, WINDOW_BYTES};
use crate::write::types::ServerEffect;
use crate::{Code, Extent, ExtentSet, Fault};

impl WriteServer {
    /// The driver took what it has of an offer: these ranges of it, whole grains, are in the
    /// temporary file and have the digests that were offered.
    pub fn taken(&mut self, offer: &Offer, answer: Result<Vec<Extent>, Fault>) {
        let piece = &offer.piece;
        self.offers -= 1;
        let file = self.files.get_mut(&piece.file).expect("an offer keeps its file");
        file.absorbing -= 1;
        let mut rest: ExtentSet = [piece.extent].into_iter().collect();
        for &extent in answer.iter().flatten() {
            assert!(rest.take(extent), "the driver takes what was offered, once");
            let first = ((extent.offset - piece.extent.offset) / GRAIN_BYTES) as usize;
            let count = extent.len.div_ceil(GRAIN_BYTES) as usize;
            file.unstored_bytes -= extent.len;
            file.root.insert_run(extent.offset, &piece.digests[first..first + count]);
        }
        rest.iter().for_each(|extent| file.unclaimed.insert(extent));
        let (file, extent) = (piece.file, piece.extent);
        self.effects.push_back(ServerEffect::Send(WriteReply::Taken(Taken {
            file,
            extent,
            answer,
        })));
        self.discard_idle();
    }

    pub(super) fn offer(&mut self, offer: Offer) -> Result<(), Fault> {
        let piece = &offer.piece;
        if self.offers == OFFERS_MAX || piece.extent.len > WINDOW_BYTES {
            let text = format!("client offered more than {OFFERS_MAX} ranges, or too long a one");
            return Err(Fault::new(Code::Limit, text));
        }
        let file = self.files.get_mut(&piece.file);
        let file = file.filter(|file| file.open && !file.discarded && !file.streaming);
        let file = file.ok_or_else(|| unexpected("offer", piece.file))?;
        check_piece(piece, file.info.size)?;
        if !file.unclaimed.take(piece.extent) {
            return Err(unexpected("offer of what it sent before", piece.file));
        }
        if file.unclaimed.range_count() > RANGES_MAX {
            return Err(Fault::new(Code::Limit, "client sends a file in too many fragments"));
        }
        file.absorbing += 1;
        self.offers += 1;
        self.effects.push_back(ServerEffect::Take(offer));
        Ok(())
    }
}
