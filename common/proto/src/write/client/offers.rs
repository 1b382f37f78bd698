//! What the server may have of a file that is sent: every range is hashed and
//! offered before it is sent, and only what the server does not take is. A file
//! with a basis sends what was refused; one without sends all that is unsent.

use super::{File, Stage, WriteClient};
use crate::batch::unexpected;
use crate::holes::is_whole;
use crate::message::{Piece, WriteRequest};
use crate::offer::{Offer, Taken};
use crate::units::{GRAIN_BYTES, OFFERS_MAX, WINDOW_BYTES};
use crate::write::types::ClientEffect;
use crate::{Digest, Extent, ExtentSet, Fault, FileId, WirePath};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Separate ranges of a file that were refused and are not sent, before more of it is offered.
const REFUSED_RANGES_MAX: usize = 64;

/// Files of the server that may have something in common with one that is sent.
pub(super) struct Basis {
    /// The one that is asked, and those to ask when it is of no use. None are left when all are.
    paths: VecDeque<WirePath>,
    /// They are other files, which may have nothing in common with this one.
    guess: bool,
    /// The one that is asked has something of it.
    proven: bool,
    /// What it does not have, and is not sent.
    refused: ExtentSet,
    /// Ranges that are hashed to be offered, or were offered.
    under_way: usize,
    /// What was offered and not answered.
    offered: BTreeMap<u64, (Extent, Vec<Digest>)>,
}

impl WriteClient {
    /// Says that one of these files of the server may have some of what was just created. A guess
    /// that has nothing of the first range it is asked for is given up for the next.
    pub fn compare_with(&mut self, id: FileId, paths: Vec<WirePath>, guess: bool) {
        if let Some(file) = self.files.get_mut(&id) {
            let (refused, offered) = (ExtentSet::new(), BTreeMap::new());
            let (paths, proven, under_way) = (paths.into(), !guess, 0);
            file.basis = Some(Basis { paths, guess, proven, refused, under_way, offered });
        }
    }

    /// A range was hashed, to be offered.
    pub fn offer_hashed(
        &mut self,
        id: FileId,
        extent: Extent,
        answer: Result<Vec<Digest>, Fault>,
        now: Duration,
    ) {
        self.touch(now);
        let file = self.files.get_mut(&id).expect("a range that is hashed keeps its file");
        let basis = file.basis.as_mut().expect("only files with a basis are offered");
        let (digests, path) = match (answer, basis.paths.front()) {
            (Ok(digests), Some(path)) if file.doom.is_none() => (digests, path.clone()),
            (other, _) => {
                basis.under_way -= 1;
                self.offers -= 1;
                self.requeue(vec![(id, extent)]);
                return other.map_or_else(|fault| self.fail(id, fault), drop);
            }
        };
        basis.offered.insert(extent.offset, (extent, digests.clone()));
        let piece = Piece { file: id, extent, digests };
        let offer = WriteRequest::Offer(Offer { basis: path, piece });
        self.effects.push_back(ClientEffect::Send(offer));
    }

    pub(super) fn taken(&mut self, taken: Taken) -> Result<(), Fault> {
        let Taken { file: id, extent, answer } = taken;
        let asked = || unexpected("answer to an offer", id);
        let file = self.files.get_mut(&id).ok_or_else(asked)?;
        let basis = file.basis.as_mut().ok_or_else(asked)?;
        let offered = basis.offered.remove(&extent.offset);
        let (_, digests) = offered.filter(|(whole, _)| *whole == extent).ok_or_else(asked)?;
        let mut rest: ExtentSet = [extent].into_iter().collect();
        for &part in answer.iter().flatten() {
            if !is_whole(part, file.size) || !rest.take(part) {
                return Err(asked());
            }
            let first = ((part.offset - extent.offset) / GRAIN_BYTES) as usize;
            let count = part.len.div_ceil(GRAIN_BYTES) as usize;
            let digests = digests.get(first..first + count).ok_or_else(asked)?;
            file.root.insert_run(part.offset, digests);
            let (file, extent, digests) = (id, part, digests.to_vec());
            self.effects.push_back(ClientEffect::Taken { file, extent, digests });
        }
        basis.under_way -= 1;
        basis.proven |= rest.bytes() < extent.len;
        let useless = answer.is_err() || !basis.proven;
        let next = useless.then(|| file.next_basis());
        match next {
            // Another one is asked for the same.
            Some(true) => file.unsent.insert(extent),
            _ => rest.iter().for_each(|extent| file.give_back(extent)),
        }
        file.pending -= 1;
        self.offers -= 1;
        if !self.queue.contains(&id) {
            self.queue.push_back(id);
        }
        Ok(())
    }

    /// Has ranges hashed that are to be offered.
    pub(super) fn offer_ranges(&mut self, touched: &[FileId]) {
        let mut waiting = Vec::new();
        for &id in touched {
            let Some(file) = self.files.look_at(id) else { continue };
            if file.stage != Stage::Sending || file.doom.is_some() {
                continue;
            }
            while let Some(extent) = file.next_to_offer() {
                if self.offers == OFFERS_MAX {
                    // Nothing of this file will tell when another one's is answered.
                    waiting.push(id);
                    break;
                }
                assert!(file.unsent.take(extent), "the extent was just listed");
                file.pending += 1;
                file.basis.as_mut().expect("it was just asked for").under_way += 1;
                self.offers += 1;
                self.effects.push_back(ClientEffect::HashOffer { file: id, extent });
            }
        }
        waiting.into_iter().for_each(|id| self.files.touch(id));
    }
}

impl File {
    fn offering(&self) -> Option<&Basis> {
        self.basis.as_ref().filter(|basis| !basis.paths.is_empty())
    }

    fn next_to_offer(&self) -> Option<Extent> {
        let basis = self.offering()?;
        // Of a guess it is first heard whether it is one.
        let one_by_one = !basis.proven && basis.under_way > 0;
        if one_by_one || basis.refused.range_count() >= REFUSED_RANGES_MAX {
            return None;
        }
        let next = self.next_unsent()?;
        let len = next.len.min(WINDOW_BYTES - next.offset % WINDOW_BYTES);
        Some(Extent::new(next.offset, len))
    }

    /// The first range that is to be sent.
    pub(super) fn next_to_send(&self) -> Option<Extent> {
        match self.offering() {
            Some(basis) => basis.refused.iter().next(),
            None => self.next_unsent(),
        }
    }

    /// Takes a range that is being sent.
    pub(super) fn claim(&mut self, extent: Extent) -> bool {
        self.sendable().take(extent)
    }

    /// A range is to be sent, or sent again.
    pub(super) fn give_back(&mut self, extent: Extent) {
        self.sendable().insert(extent);
    }

    /// Whether nothing is left to be sent or offered.
    pub(super) fn is_all_sent(&self) -> bool {
        self.unsent.is_empty() && self.next_to_send().is_none()
    }

    fn sendable(&mut self) -> &mut ExtentSet {
        match &mut self.basis {
            Some(basis) if !basis.paths.is_empty() => &mut basis.refused,
            _ => &mut self.unsent,
        }
    }

    /// The file that is asked is of no use: asks the next one, if there is one.
    fn next_basis(&mut self) -> bool {
        let Some(basis) = &mut self.basis else { return false };
        basis.paths.pop_front();
        basis.proven = !basis.guess;
        if basis.paths.is_empty() {
            std::mem::take(&mut basis.refused).iter().for_each(|extent| self.unsent.insert(extent));
            return false;
        }
        true
    }
}
