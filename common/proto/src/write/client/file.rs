//! One file that is sent: the ranges that are unsent, the holes that are not named, the number of
//! pieces in flight, and the next step towards its end. Knows no links, grants or tags.
//!
//! A file with a basis offers its unsent ranges and sends those that were refused; one without
//! sends all that is unsent.

use super::basis::Basis;
use crate::batch::unexpected;
use crate::digest::{Digest, RootBuilder};
use crate::holes::{Search, Survey, is_whole};
use crate::message::{FileId, FileInfo, Piece};
use crate::offer::{Offer, Taken};
use crate::units::{CHUNK_ATTEMPTS_MAX, FILE_ATTEMPTS_MAX, GRAIN_BYTES, WINDOW_BYTES};
use crate::write::types::ClientEffect;
use crate::{Code, Extent, ExtentSet, Fault, Kept, WirePath};
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Creating,
    Sending,
    Checking,
    Committing,
    Restarting,
}

/// The next step when nothing of a file is in flight.
pub(super) enum Due {
    /// The file has failed: give it up.
    GiveUp,
    /// Hash a range that the server had before.
    Hash(Extent),
    /// All is stored, and the file has this digest: look at its source again.
    CheckSource(Digest),
}

/// The file.
pub(super) struct File {
    path: WirePath,
    size: u64,
    stage: Stage,
    unsent: ExtentSet,
    /// The holes it begins with, until the server has said what it has.
    survey: Option<Survey>,
    search: Search,
    /// Whether a list of its holes is not answered.
    naming: bool,
    /// Parts of that list that are not hashed.
    holes_left: usize,
    unhashed: ExtentSet,
    hashing: bool,
    /// A file of the server that may have some of it.
    basis: Option<Basis>,
    /// Pieces of this file in flight, parts of its holes, and questions about them.
    pending: usize,
    root: RootBuilder,
    bad: BTreeMap<u64, u8>,
    attempts: u8,
    /// An earlier run had sent some of it.
    resumed: bool,
    /// Its source is read once, so that somebody keeps its bytes.
    stream: bool,
    /// That source has not ended.
    streaming: bool,
    /// Its chunks may be written to where they stay.
    takes_spots: bool,
    doom: Option<Fault>,
}

impl File {
    /// A file that the server is asked to create, with the holes it begins with.
    pub fn new(path: WirePath, info: FileInfo, survey: Survey) -> Self {
        let mut root = RootBuilder::new(info.size);
        if info.size == 0 {
            root.insert(0, Digest::of(b""));
        }
        Self {
            path,
            size: info.size,
            stage: Stage::Creating,
            unsent: ExtentSet::whole(info.size),
            survey: Some(survey),
            search: Search::default(),
            naming: false,
            holes_left: 0,
            unhashed: ExtentSet::new(),
            hashing: false,
            basis: None,
            pending: 0,
            root,
            bad: BTreeMap::new(),
            attempts: 1,
            resumed: false,
            stream: false,
            streaming: false,
            takes_spots: false,
            doom: None,
        }
    }

    /// An empty file that grows. It has no holes, and is not begun again.
    pub fn new_stream(path: WirePath, info: FileInfo) -> Self {
        let root = RootBuilder::open();
        let file = Self::new(path, info, Survey::dense(info.size));
        let unsent = ExtentSet::new();
        let attempts = FILE_ATTEMPTS_MAX;
        Self { unsent, root, attempts, stream: true, streaming: true, ..file }
    }

    /// Goes on with the attempts of an earlier try of the same file.
    pub fn count_attempts(&mut self, earlier: &Self) {
        self.attempts = earlier.attempts;
    }

    pub fn is_restarting(&self) -> bool {
        self.stage == Stage::Restarting
    }

    pub fn is_creating(&self) -> bool {
        self.stage == Stage::Creating
    }

    pub fn is_committing(&self) -> bool {
        self.stage == Stage::Committing
    }

    /// Whether more of it may be sent.
    pub fn is_wanted(&self) -> bool {
        self.stage == Stage::Sending && self.doom.is_none()
    }

    pub fn is_doomed(&self) -> bool {
        self.doom.is_some()
    }

    /// Whether it is a stream: the driver keeps its bytes until they are stored.
    pub fn is_stream(&self) -> bool {
        self.stream
    }

    /// Whether it waits for nothing but its source.
    pub fn awaits_source(&self) -> bool {
        let sent = self.stage == Stage::Sending && self.pending == 0 && self.unsent.is_empty();
        self.streaming && sent && self.doom.is_none()
    }

    pub fn takes_spots(&self) -> bool {
        self.takes_spots
    }

    pub fn set_takes_spots(&mut self, takes: bool) {
        self.takes_spots = takes;
    }

    /// Gives the file up; the first fault is reported.
    pub fn fail(&mut self, fault: Fault) {
        self.doom.get_or_insert(fault);
        if self.stage == Stage::Restarting {
            self.stage = Stage::Sending;
        }
    }

    /// The server created the file, and has these ranges of it.
    pub fn created(&mut self, id: FileId, have: Vec<Extent>) -> Result<(), Fault> {
        self.stage = Stage::Sending;
        self.resumed = !have.is_empty();
        for extent in have {
            if !is_whole(extent, self.size) || !self.unsent.take(extent) {
                return Err(unexpected("extent that is not of the file", id));
            }
            self.unhashed.insert(extent);
        }
        let survey = self.survey.take().expect("a file is created once");
        self.search.answer(survey, self.size, &mut self.unsent);
        Ok(())
    }

    /// More of a stream was read.
    pub fn grew(&mut self, extent: Extent) {
        self.unsent.insert(extent);
    }

    /// The source of a stream has ended, and this is its size.
    pub fn ended(&mut self, size: u64) {
        self.streaming = false;
        self.size = size;
        self.root.close(size);
        if size == 0 {
            self.root.insert(0, Digest::of(b""));
        }
    }

    /// The first range that is to be sent or offered, as far as holes are told from data.
    fn next_unsent(&self) -> Option<Extent> {
        let first = self.unsent.iter().next()?;
        let len = self.search.until().saturating_sub(first.offset).min(first.len);
        (len > 0).then_some(Extent::new(first.offset, len))
    }

    /// The first range that is to be sent; none while it must not be.
    pub fn next_to_send(&self) -> Option<Extent> {
        // A file that was begun again may still be queued from its first try.
        if !self.is_wanted() {
            return None;
        }
        match self.offering() {
            Some(basis) => basis.first_refused(),
            None => self.next_unsent(),
        }
    }

    /// Takes a range that is being sent.
    pub fn begin_piece(&mut self, extent: Extent) {
        assert!(self.sendable().take(extent), "the extent was just listed");
        self.pending += 1;
    }

    /// A range that was in flight is to be sent again.
    pub fn requeue(&mut self, extent: Extent) {
        self.pending -= 1;
        self.sendable().insert(extent);
    }

    /// The server stored a range that was in flight.
    pub fn stored(&mut self, extent: Extent, digests: &[Digest]) {
        self.pending -= 1;
        self.bad.remove(&extent.offset);
        self.root.insert_run(extent.offset, digests);
    }

    /// The server found a range different: after `CHUNK_ATTEMPTS_MAX` times the file fails.
    pub fn mismatched(&mut self, extent: Extent) {
        let tries = self.bad.entry(extent.offset).or_default();
        *tries += 1;
        if *tries >= CHUNK_ATTEMPTS_MAX {
            let text = format!(
                "{}: digest does not match at byte {} after {tries} tries",
                self.path, extent.offset
            );
            self.doom.get_or_insert(Fault::new(Code::Mismatch, text));
        }
    }

    /// Whether a range did not match before.
    pub fn has_mismatched(&self, extent: Extent) -> bool {
        self.bad.contains_key(&extent.offset)
    }

    fn sendable(&mut self) -> &mut ExtentSet {
        match &mut self.basis {
            Some(basis) if basis.is_asked() => basis.refused(),
            _ => &mut self.unsent,
        }
    }

    /// The next step, if there is one.
    pub fn due(&mut self) -> Option<Due> {
        if self.stage != Stage::Sending || self.pending > 0 || self.hashing {
            return None;
        }
        if self.doom.is_some() {
            return Some(Due::GiveUp);
        }
        if let Some(extent) = self.unhashed.take_first(WINDOW_BYTES) {
            self.hashing = true;
            return Some(Due::Hash(extent));
        }
        let all_sent = self.unsent.is_empty() && self.next_to_send().is_none();
        if !all_sent || !self.search.is_over(self.size) || self.streaming {
            return None;
        }
        self.stage = Stage::Checking;
        Some(Due::CheckSource(self.root.finish().expect("every grain was stored or hashed")))
    }

    /// The driver hashed a range that the server already had.
    pub fn hashed(&mut self, extent: Extent, answer: Result<Vec<Digest>, Fault>) {
        self.hashing = false;
        match answer {
            Ok(digests) => self.root.insert_run(extent.offset, &digests),
            Err(fault) => self.doom = Some(fault),
        }
    }

    /// The driver compared the source with its earlier state: the metadata to commit it with.
    pub fn source_checked(&mut self, answer: Result<Kept, Fault>) -> Option<Kept> {
        match answer {
            Ok(meta) => {
                self.stage = Stage::Committing;
                Some(meta)
            }
            Err(fault) => {
                self.doom = Some(fault);
                self.stage = Stage::Sending;
                None
            }
        }
    }

    /// The fault of a failed file; none where its source changed and it is begun again.
    pub fn give_up(&mut self) -> Option<Fault> {
        let fault = self.doom.take().expect("only doomed files are given up");
        match fault.code == Code::Changed && self.restart() {
            true => None,
            false => Some(fault),
        }
    }

    /// The server answered the commit: the file's digest, or none where it is begun again.
    pub fn committed(&mut self, answer: &Result<(), Fault>) -> Option<Digest> {
        let mismatch = answer.as_ref().is_err_and(|fault| fault.code == Code::Mismatch);
        // What an earlier run sent was of another version, whatever its time stamps said.
        if mismatch && self.resumed && self.restart() {
            return None;
        }
        Some(self.root.finish().expect("every grain was stored"))
    }

    fn restart(&mut self) -> bool {
        let again = self.attempts < FILE_ATTEMPTS_MAX;
        if again {
            self.attempts += 1;
            self.stage = Stage::Restarting;
        }
        again
    }
}

/// Its holes.
impl File {
    /// Whether the next list of holes may be named: the last one is answered and hashed.
    pub fn may_name_holes(&self) -> bool {
        !self.naming && self.holes_left == 0
    }

    /// The next list of holes to name.
    pub fn name_holes(&mut self) -> Option<Vec<Extent>> {
        let extents = self.search.next_list()?;
        self.naming = true;
        self.holes_left = extents.len();
        self.pending += 1 + extents.len();
        Some(extents)
    }

    /// The server answered the list: false where the client had named none.
    pub fn holes_answered(&mut self) -> bool {
        let named = std::mem::take(&mut self.naming);
        self.pending -= usize::from(named);
        named
    }

    /// A hole was cut: one part of the list became two.
    pub fn add_hole(&mut self) {
        self.pending += 1;
        self.holes_left += 1;
    }

    /// A part of the list is hashed, or need not be.
    pub fn end_hole(&mut self) {
        self.pending -= 1;
        self.holes_left -= 1;
    }

    /// Zeros were hashed as a range of it.
    pub fn zeros_hashed(&mut self, extent: Extent, digests: &[Digest]) {
        self.end_hole();
        self.root.insert_run(extent.offset, digests);
    }

    /// Where the driver must look for more holes: when all data before is sent.
    pub fn find_holes(&mut self) -> Option<u64> {
        if self.next_unsent().is_some() {
            return None;
        }
        let from = self.search.question(self.size)?;
        self.pending += 1;
        Some(from)
    }

    /// The driver looked for holes.
    pub fn holes_found(&mut self, survey: Survey) {
        self.pending -= 1;
        self.search.answer(survey, self.size, &mut self.unsent);
    }
}

/// Ranges of it that the server may have.
impl File {
    /// These files of the server may have some of it; a guess may have nothing.
    pub fn compare_with(&mut self, paths: VecDeque<WirePath>, guess: bool) {
        self.basis = Some(Basis::new(paths, guess));
    }

    fn offering(&self) -> Option<&Basis> {
        self.basis.as_ref().filter(|basis| basis.is_asked())
    }

    /// The next range to hash and offer.
    pub fn next_to_offer(&self) -> Option<Extent> {
        if !self.offering()?.may_offer() {
            return None;
        }
        let next = self.next_unsent()?;
        let len = next.len.min(WINDOW_BYTES - next.offset % WINDOW_BYTES);
        Some(Extent::new(next.offset, len))
    }

    /// Takes a range that is being hashed to be offered.
    pub fn begin_offer(&mut self, extent: Extent) {
        assert!(self.unsent.take(extent), "the extent was just listed");
        self.pending += 1;
        self.basis.as_mut().expect("it was just asked for").begin();
    }

    /// The driver hashed a range to be offered. Without an offer the caller requeues the range: the
    /// file has failed, no basis is left to ask, or the range could not be hashed.
    pub fn offer(
        &mut self,
        id: FileId,
        extent: Extent,
        answer: Result<Vec<Digest>, Fault>,
    ) -> Result<Option<Offer>, Fault> {
        let basis = self.basis.as_mut().expect("only files with a basis are offered");
        match (answer, basis.path()) {
            (Ok(digests), Some(path)) if self.doom.is_none() => {
                basis.offered(extent, digests.clone());
                Ok(Some(Offer { basis: path, piece: Piece { file: id, extent, digests } }))
            }
            (other, _) => {
                basis.end();
                other.map(|_| None)
            }
        }
    }

    /// The server took the ranges it has of an offer; the rest is sent, or the next basis is asked.
    pub fn taken(
        &mut self,
        taken: Taken,
        effects: &mut VecDeque<ClientEffect>,
    ) -> Result<(), Fault> {
        let Taken { file: id, extent, answer } = taken;
        let asked = || unexpected("answer to an offer", id);
        let basis = self.basis.as_mut().ok_or_else(asked)?;
        let digests = basis.answered(extent).ok_or_else(asked)?;
        let mut rest: ExtentSet = [extent].into_iter().collect();
        for &part in answer.iter().flatten() {
            if !is_whole(part, self.size) || !rest.take(part) {
                return Err(asked());
            }
            let first = ((part.offset - extent.offset) / GRAIN_BYTES) as usize;
            let count = part.len.div_ceil(GRAIN_BYTES) as usize;
            let digests = digests.get(first..first + count).ok_or_else(asked)?;
            self.root.insert_run(part.offset, digests);
            let (file, extent, digests) = (id, part, digests.to_vec());
            effects.push_back(ClientEffect::Taken { file, extent, digests });
        }
        basis.end();
        let useful = basis.prove(rest.bytes() < extent.len) && answer.is_ok();
        if !useful && basis.ask_next(&mut self.unsent) {
            // Another one is asked for the same.
            self.unsent.insert(extent);
        } else {
            let sendable = self.sendable();
            rest.iter().for_each(|extent| sendable.insert(extent));
        }
        self.pending -= 1;
        Ok(())
    }
}
