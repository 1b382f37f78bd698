//! Ranges that a file of the server may have: claimed like chunks while the driver
//! looks, and free to be sent again where it found something else.

use super::files::Files;
use crate::batch::unexpected;
use crate::offer::Offer;
use crate::read::check_piece;
use crate::units::{GRAIN_BYTES, OFFERS_MAX, WINDOW_BYTES};
use crate::{Code, Extent, ExtentSet, Fault};

/// The offers that the driver looks at.
#[derive(Default)]
pub(super) struct Offers {
    count: usize,
}

impl Offers {
    /// Claims a range that the client offers.
    pub fn begin(&mut self, offer: &Offer, files: &mut Files) -> Result<(), Fault> {
        let piece = &offer.piece;
        if self.count == OFFERS_MAX || piece.extent.len > WINDOW_BYTES {
            let text = format!("client offered more than {OFFERS_MAX} ranges, or too long a one");
            return Err(Fault::new(Code::Limit, text));
        }
        let file = files.wanted(piece.file, "offer")?;
        if file.is_streaming() {
            return Err(unexpected("offer", piece.file));
        }
        check_piece(piece, file.size())?;
        file.claim(piece.file, piece.extent, "offer of what it sent before")?;
        self.count += 1;
        Ok(())
    }

    /// The driver stored these ranges of an offer; the client sends the rest.
    pub fn end(&mut self, offer: &Offer, taken: &[Extent], files: &mut Files) {
        let piece = &offer.piece;
        self.count -= 1;
        let file = files.get_mut(piece.file).expect("an offer keeps its file");
        file.end_claim();
        let mut rest: ExtentSet = [piece.extent].into_iter().collect();
        for &extent in taken {
            assert!(rest.take(extent), "the driver takes what was offered, once");
            let first = ((extent.offset - piece.extent.offset) / GRAIN_BYTES) as usize;
            let count = extent.len.div_ceil(GRAIN_BYTES) as usize;
            file.store(extent, &piece.digests[first..first + count]);
        }
        rest.iter().for_each(|extent| file.unclaim(extent));
    }
}
