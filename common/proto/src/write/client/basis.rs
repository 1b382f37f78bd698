//! Files of the server that may have something in common with a file that is sent: which of them
//! is asked, which ranges are offered, and which were refused and are sent.

use crate::{Digest, Extent, ExtentSet, WirePath};
use std::collections::{BTreeMap, VecDeque};

/// Separate ranges of a file that were refused and are not sent, before more of it is offered.
const REFUSED_RANGES_MAX: usize = 64;

/// The files.
pub(super) struct Basis {
    /// The one that is asked, and those to ask when it is of no use. None are left when all are.
    paths: VecDeque<WirePath>,
    /// They are other files, which may have nothing in common with this one.
    guess: bool,
    /// The one that is asked has something of it.
    proven: bool,
    /// Ranges that it does not have, and that are not sent.
    refused: ExtentSet,
    /// Ranges that are hashed to be offered, or were offered.
    under_way: usize,
    /// Ranges that were offered and not answered.
    offered: BTreeMap<u64, (Extent, Vec<Digest>)>,
}

impl Basis {
    pub fn new(paths: VecDeque<WirePath>, guess: bool) -> Self {
        let (refused, offered) = (ExtentSet::new(), BTreeMap::new());
        Self { paths, guess, proven: !guess, refused, under_way: 0, offered }
    }

    /// Whether one of them is asked: ranges are offered before they are sent.
    pub fn is_asked(&self) -> bool {
        !self.paths.is_empty()
    }

    /// The file that is asked.
    pub fn path(&self) -> Option<WirePath> {
        self.paths.front().cloned()
    }

    /// Whether another range may be offered now.
    pub fn may_offer(&self) -> bool {
        // Of a guess it is first heard whether it is one.
        let one_by_one = !self.proven && self.under_way > 0;
        !one_by_one && self.refused.range_count() < REFUSED_RANGES_MAX
    }

    /// A range is being hashed, to be offered.
    pub fn begin(&mut self) {
        self.under_way += 1;
    }

    /// A range is answered, or is not offered after all.
    pub fn end(&mut self) {
        self.under_way -= 1;
    }

    /// A range was offered.
    pub fn offered(&mut self, extent: Extent, digests: Vec<Digest>) {
        self.offered.insert(extent.offset, (extent, digests));
    }

    /// The server answers for a range: its digests, if just that was offered.
    pub fn answered(&mut self, extent: Extent) -> Option<Vec<Digest>> {
        let (whole, digests) = self.offered.remove(&extent.offset)?;
        (whole == extent).then_some(digests)
    }

    /// The file that is asked had something of a range, or not; whether it ever had.
    pub fn prove(&mut self, has_some: bool) -> bool {
        self.proven |= has_some;
        self.proven
    }

    /// Ranges that were refused and are to be sent.
    pub fn refused(&mut self) -> &mut ExtentSet {
        &mut self.refused
    }

    pub fn first_refused(&self) -> Option<Extent> {
        self.refused.iter().next()
    }

    /// The file that is asked is of no use: asks the next one. If none is left, the refused ranges
    /// become unsent like the rest.
    pub fn ask_next(&mut self, unsent: &mut ExtentSet) -> bool {
        self.paths.pop_front();
        self.proven = !self.guess;
        if self.paths.is_empty() {
            std::mem::take(&mut self.refused).iter().for_each(|extent| unsent.insert(extent));
        }
        self.is_asked()
    }
}
