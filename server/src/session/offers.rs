//! What clients offer of files that they send: a job takes what a file of an
//! export has of it into the temporary file. The client may read that file
//! anyway, so it learns nothing by asking. At most `OFFERS_MAX` of a session.

use super::writing::Landed;
use super::{Event, Session};
use crate::exports::client_view::Reach;
use crate::exports::open::open_source;
use verbatim_proto::message::Offer;
use verbatim_proto::{Extent, Fault};

impl Session {
    pub(super) fn take_offer(&mut self, offer: Offer) {
        let (landed, size) = self.writing.landing(offer.piece.file);
        let reach = self.client.reach.clone();
        self.jobs.run(move || {
            let answer = take(&reach, &landed, size, &offer);
            // The target must not outlive the answer: a discard removes it.
            drop(landed);
            Event::Taken(Box::new(offer), answer)
        });
    }
}

fn take(
    reach: &Reach,
    landed: &Landed,
    size: u64,
    Offer { basis, piece }: &Offer,
) -> Result<Vec<Extent>, Fault> {
    let (export, path) = reach.resolve(basis)?;
    let old = open_source(&export, &path)?;
    let may = |bytes| landed.may(bytes);
    landed.target.take_from(old.file(), size, piece.extent, &piece.digests, may)
}
