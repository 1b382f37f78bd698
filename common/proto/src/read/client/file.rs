//! One file that is read: the ranges that are not leased or not verified, the number of pieces in
//! flight, mismatches and attempts, and the next step towards its end. Knows no links or windows.

use crate::batch::unexpected;
use crate::digest::{Digest, RootBuilder};
use crate::message::{FileId, FileInfo, OpenFile};
use crate::read::types::Have;
use crate::units::{CHUNK_ATTEMPTS_BEFORE_REFRESH, CHUNK_ATTEMPTS_MAX, FILE_ATTEMPTS_MAX};
use crate::{Code, Extent, ExtentSet, Fault, Kept, WirePath};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Opening,
    Fetching,
    Closing,
}

/// The next step when nothing of a file is in flight.
pub(super) enum Due {
    /// The file is whole or has failed: ask the server to close it.
    Close,
    /// The server closed the file, with this answer.
    End(Result<Kept, Fault>),
}

/// How a range is read again whose digest does not match.
pub(super) enum Mismatch {
    /// The same chunk is read again.
    Retry,
    /// The server is asked to hash and lease the range anew.
    Refresh,
    /// The file has failed.
    Fail,
}

/// The file.
pub(super) struct File {
    path: WirePath,
    have: Option<Have>,
    size: u64,
    stage: Stage,
    /// Needed, and not leased yet.
    unleased: ExtentSet,
    unverified_bytes: u64,
    root: RootBuilder,
    /// Pieces of this file in chunks that are ready or in flight, and parts of its holes.
    pending: usize,
    /// Where digests did not match, and how often.
    bad: BTreeMap<u64, u8>,
    attempts: u8,
    part: bool,
    doom: Option<Fault>,
    /// What the server said when it was closed.
    answer: Option<Result<Kept, Fault>>,
}

impl File {
    /// A file that the server is asked to open.
    pub fn new(path: WirePath, have: Option<Have>) -> Self {
        Self {
            path,
            have,
            size: 0,
            stage: Stage::Opening,
            unleased: ExtentSet::new(),
            unverified_bytes: 0,
            root: RootBuilder::new(0),
            pending: 0,
            bad: BTreeMap::new(),
            attempts: 1,
            part: false,
            doom: None,
            answer: None,
        }
    }

    /// Has the file fail when its source changes, instead of beginning it again.
    pub fn never_restart(&mut self) {
        self.attempts = FILE_ATTEMPTS_MAX;
    }

    /// Only a part of the file is read: it ends without a digest of the whole.
    pub fn read_part(&mut self) {
        self.part = true;
    }

    /// The request to open it, which claims the ranges that are here already.
    pub fn request(&self, file: FileId) -> OpenFile {
        let have = self.have.iter().flat_map(|have| have.extents.iter()).collect();
        OpenFile { file, path: self.path.clone(), have }
    }

    pub fn is_opening(&self) -> bool {
        self.stage == Stage::Opening
    }

    /// Whether its chunks are still of use.
    pub fn is_wanted(&self) -> bool {
        self.doom.is_none() && self.stage == Stage::Fetching
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// The server opened it; returns how many bytes need not be read.
    pub fn opened(&mut self, info: &FileInfo) -> u64 {
        self.stage = Stage::Fetching;
        self.size = info.size;
        self.unleased = ExtentSet::whole(info.size);
        self.root = RootBuilder::new(info.size);
        if info.size == 0 {
            self.root.insert(0, Digest::of(b""));
        }
        match self.have.take() {
            Some(have) if have.is_exactly(info) || self.part && have.takes_any(info) => {
                have.extents.iter().for_each(|extent| assert!(self.unleased.take(extent)));
                self.root = have.root;
            }
            Some(_) => {
                let text = format!("{} changed since it was copied in part", self.path);
                self.doom = Some(Fault::new(Code::Changed, text));
            }
            None => {}
        }
        self.unverified_bytes = self.unleased.bytes();
        info.size - self.unverified_bytes
    }

    /// Takes a range that the server leases. `what` names the server's message in the fault if part
    /// of the range was leased before.
    pub fn lease(&mut self, id: FileId, extent: Extent, what: &str) -> Result<(), Fault> {
        match self.unleased.take(extent) {
            true => Ok(()),
            false => Err(unexpected(what, id)),
        }
    }

    /// Counts pieces, or parts of holes, that are ready or in flight.
    pub fn add_pending(&mut self, count: usize) {
        self.pending += count;
    }

    /// A piece, or a part of a hole, is done with.
    pub fn end_pending(&mut self) {
        self.pending -= 1;
    }

    /// A range is in the target and matches.
    pub fn verified(&mut self, extent: Extent, digests: &[Digest]) {
        self.bad.remove(&extent.offset);
        self.unverified_bytes -= extent.len;
        self.root.insert_run(extent.offset, digests);
    }

    /// A range does not match.
    pub fn mismatched(&mut self, extent: Extent) -> Mismatch {
        let tries = self.bad.entry(extent.offset).or_default();
        *tries += 1;
        let tries = *tries;
        if tries >= CHUNK_ATTEMPTS_MAX {
            let text =
                format!("digest does not match at byte {} after {tries} tries", extent.offset);
            self.doom = Some(Fault::new(Code::Mismatch, text));
            Mismatch::Fail
        } else if tries >= CHUNK_ATTEMPTS_BEFORE_REFRESH {
            self.unleased.insert(extent);
            Mismatch::Refresh
        } else {
            Mismatch::Retry
        }
    }

    /// Gives the file up; the first fault is reported.
    pub fn fail(&mut self, fault: Fault) {
        self.doom.get_or_insert(fault);
    }

    /// The server closed the file; false where the client did not ask for that.
    pub fn closed(&mut self, answer: Result<Kept, Fault>) -> bool {
        let asked = self.stage == Stage::Closing && self.answer.is_none();
        if asked {
            self.answer = Some(answer);
        }
        asked
    }

    /// The next step, if there is one. A window may be lent while the close is on the way, with
    /// other files in it that are still wanted: so the answer waits until nothing of the file is in
    /// flight.
    pub fn due(&mut self) -> Option<Due> {
        if self.pending > 0 {
            return None;
        }
        let whole = self.unverified_bytes == 0 || self.doom.is_some();
        if self.stage == Stage::Fetching && whole {
            self.stage = Stage::Closing;
            return Some(Due::Close);
        }
        self.answer.take().map(Due::End)
    }

    /// The result of a closed file: its digest, none of a part, and its metadata, or the fault.
    pub fn result(&mut self, answer: Result<Kept, Fault>) -> Result<(Option<Digest>, Kept), Fault> {
        if let Some(doom) = self.doom.take() {
            return Err(doom);
        }
        let meta = answer?;
        let root = self.root.finish();
        assert!(root.is_some() || self.part, "every grain was verified");
        Ok((root, meta))
    }

    /// Begins the file again if its source changed and an attempt is left.
    pub fn restart(&mut self, fault: &Fault) -> bool {
        let again = fault.code == Code::Changed && self.attempts < FILE_ATTEMPTS_MAX;
        if again {
            self.attempts += 1;
            self.stage = Stage::Opening;
            self.bad.clear();
        }
        again
    }
}
