//! What outlives a session: which files of a copy are over, which were begun,
//! and the sums for the summary. A copy hands it from one session to the next,
//! so that nothing is copied, counted or told twice.
//!
//! Memory: 16 bytes of hash for each file that is over (about 35 MB for a
//! million, as the table grows). Less would do if scans could go on where they
//! were, but a scan dies with its server, and the order of a folder may change:
//! a position could skip a file in silence, a set of names cannot.

use crate::local_io::spool::Spool;
use crate::model::report::{Failure, Planned, Summary};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::time::Instant;
use verbatim_proto::message::EntryKind;
use verbatim_proto::units::OPEN_FILES_MAX;
use verbatim_proto::{Code, Digest, Fault, WirePath};

/// Unfinished files kept by name: those open and those queued when a session broke.
const LEFT_MAX: usize = 4 * OPEN_FILES_MAX;

/// Failures kept with their cause: a file that failed has no other names either.
const FAULTS_MAX: usize = 1 << 16;

/// Room for what most items are named by: every file of a tree has one made, twice.
const NAMED_BYTES: usize = 256;

/// The key of one file, folder or link of a copy in its ledger, the same in every session: 16 bytes
/// of a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Item(u128);

impl Item {
    /// The key of the entry at `path` below piece `work` of the copy. Not of its label: two names
    /// that are not UTF-8 can look alike.
    pub fn new(work: u32, path: &WirePath) -> Self {
        Self::of(b"item", work, path.as_bytes())
    }

    /// The key of the deletion of `path`.
    pub fn gone(work: u32, path: &WirePath) -> Self {
        Self::of(b"gone", work, path.as_bytes())
    }

    /// The key of the entries of a tree that no walk has reached.
    pub fn rest(work: u32) -> Self {
        Self::of(b"rest", work, b"")
    }

    fn of(what: &[u8; 4], work: u32, path: &[u8]) -> Self {
        let (work, len) = (work.to_le_bytes(), 8 + path.len());
        let mut short = [0; NAMED_BYTES];
        let Digest(bytes) = match short.get_mut(..len) {
            Some(name) => {
                name[..4].copy_from_slice(what);
                name[4..8].copy_from_slice(&work);
                name[8..].copy_from_slice(path);
                Digest::of(name)
            }
            None => Digest::of(&[what, &work[..], path].concat()),
        };
        Self(u128::from_le_bytes(bytes[..16].try_into().expect("16 of 32 bytes")))
    }
}

/// Something that was not finished when a session broke.
struct Left {
    label: String,
    begun: bool,
}

/// The record of one copy across its sessions: outcomes, unfinished files, and the sums.
pub struct Ledger {
    /// When the first session began.
    pub begin: Instant,
    /// The sums so far.
    pub summary: Summary,
    over: HashSet<Item>,
    /// Changes of a mirror that were told, and are not over.
    told: HashSet<Item>,
    /// Why some of what is over failed, `FAULTS_MAX` of them.
    faults: HashMap<Item, Fault>,
    left: HashMap<Item, Left>,
    /// What did not fit, while that is no failure yet.
    held_back: Option<Spool<HeldBack>>,
    peer: String,
}

/// Something that did not fit: what it is in the books, its name, and why.
type HeldBack = (Item, String, Fault);

impl Ledger {
    /// An empty ledger that begins now; failures name `peer`.
    pub fn new(peer: &str) -> Self {
        Self {
            begin: Instant::now(),
            summary: Summary::default(),
            over: HashSet::new(),
            told: HashSet::new(),
            faults: HashMap::new(),
            left: HashMap::new(),
            held_back: None,
            peer: peer.into(),
        }
    }

    /// Notes that a change of a mirror is reported; whether that is the first time.
    pub fn is_news(&mut self, item: Item) -> bool {
        !self.over.contains(&item) && self.told.insert(item)
    }

    /// Why an item failed. The causes of 65,536 failures are kept; past that, an item that is over
    /// counts as failed.
    pub fn fault_of(&self, item: Item) -> Option<Fault> {
        let unsure = || {
            let over = self.faults.len() >= FAULTS_MAX && self.over.contains(&item);
            let text =
                || format!("more than {FAULTS_MAX} failed, perhaps the file this is a name of");
            over.then(|| Fault::new(Code::Limit, text()))
        };
        self.faults.get(&item).cloned().or_else(unsure)
    }

    /// Whether an item is done, skipped, or has failed for good.
    pub fn is_over(&self, item: Item) -> bool {
        self.over.contains(&item)
    }

    /// How many items are done, skipped, or have failed for good.
    pub fn over_count(&self) -> u64 {
        self.over.len() as u64
    }

    /// Whether an earlier session of this copy had begun it.
    pub(crate) fn was_begun(&self, item: Item) -> bool {
        self.left.get(&item).is_some_and(|left| left.begun)
    }

    /// A file is done.
    pub(crate) fn done(&mut self, item: Item, bytes: u64) {
        self.left.remove(&item);
        self.told.remove(&item);
        if self.over.insert(item) {
            self.summary.files += 1;
            self.summary.bytes += bytes;
        }
    }

    /// Forgets that a file is done: the tree it was in is gone, so it is copied and counted again.
    pub fn again(&mut self, item: Item, bytes: u64) {
        if self.fault_of(item).is_none() && self.over.remove(&item) {
            self.summary.files = self.summary.files.saturating_sub(1);
            self.summary.bytes = self.summary.bytes.saturating_sub(bytes);
        }
    }

    /// Keeps items that fail for lack of space apart from now on, because deletes may free some.
    pub fn hold_back(&mut self) {
        self.held_back = Some(Spool::default());
    }

    /// How many items are kept apart for lack of space.
    pub fn held_back(&self) -> u64 {
        self.held_back.as_ref().map_or(0, Spool::count)
    }

    /// Leaves the items kept apart for lack of space to the next session.
    pub fn leave_held_back(&mut self) {
        let Some(mut held_back) = self.held_back.take() else { return };
        while let Ok(page) = held_back.take_first()
            && !page.is_empty()
        {
            page.into_iter().for_each(|(item, label, _)| self.leave(item, label, true));
        }
    }

    /// Returns the items kept apart for lack of space. From now on such an item has failed.
    pub fn release_held_back(&mut self) -> Option<Spool<HeldBack>> {
        self.held_back.take()
    }

    /// Something failed for good; says how to tell it, if it was not told before.
    pub(crate) fn failed(&mut self, item: Item, path: String, fault: Fault) -> Option<Failure> {
        if let Some(held_back) = &mut self.held_back
            && fault.code == Code::NoSpace
            && !self.over.contains(&item)
            && held_back.push(&(item, path.clone(), fault.clone())).is_ok()
        {
            self.left.remove(&item);
            return None;
        }
        self.left.remove(&item);
        self.told.remove(&item);
        if !self.over.insert(item) {
            return None;
        }
        if self.faults.len() < FAULTS_MAX {
            self.faults.insert(item, fault.clone());
        }
        self.summary.failed += 1;
        self.summary.mismatch |= fault.code == Code::Mismatch;
        Some(Failure { path, peer: self.peer.clone(), fault })
    }

    /// Something is left alone; says whether this is news.
    pub(crate) fn skipped(&mut self, item: Item) -> bool {
        self.left.remove(&item);
        let news = self.over.insert(item);
        self.summary.skipped += u64::from(news);
        news
    }

    /// Something would be copied; says whether this is news.
    pub(crate) fn planned(&mut self, item: Item, planned: &Planned) -> bool {
        self.left.remove(&item);
        let news = self.over.insert(item);
        if news {
            self.summary.files += u64::from(planned.kind == EntryKind::File);
            self.summary.bytes = self.summary.bytes.saturating_add(planned.bytes);
        }
        news
    }

    /// Notes an item that is unfinished at the end of its session; `begun` if data was written.
    pub fn leave(&mut self, item: Item, label: String, begun: bool) {
        if self.over.contains(&item) {
            return;
        }
        let full = self.left.len() >= LEFT_MAX;
        if let Some(left) = self.left.get_mut(&item) {
            left.begun |= begun;
        } else if !full {
            self.left.insert(item, Left { label, begun });
        }
    }

    /// A folder or link is made, or has its metadata.
    pub(crate) fn made(&mut self, item: Item) {
        self.left.remove(&item);
    }

    /// Notes that the walk of tree `work` is complete.
    pub fn looked_at(&mut self, work: u32) {
        self.left.remove(&Item::rest(work));
    }

    /// Fails all unfinished items with `fault`, because no session follows. Returns them by name, each
    /// once.
    pub fn give_up(&mut self, fault: &Fault) -> Vec<Failure> {
        let mut left: Vec<_> = std::mem::take(&mut self.left).into_iter().collect();
        left.sort_by(|(_, a), (_, b)| a.label.cmp(&b.label));
        let failures = left.into_iter();
        failures.filter_map(|(item, left)| self.failed(item, left.label, fault.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &[u8]) -> WirePath {
        WirePath::parse(text).expect("plain")
    }

    #[test]
    fn names_that_look_alike_are_different_items() {
        let (a, b) = (path(b"x\xff"), path(b"x\xfe"));
        assert_eq!(a.to_string(), b.to_string(), "both are shown with a replacement");
        assert_ne!(Item::new(0, &a), Item::new(0, &b));
        assert_ne!(Item::new(0, &a), Item::new(1, &a), "another source of the same command");
        assert_ne!(Item::new(0, &WirePath::root()), Item::rest(0));
    }

    #[test]
    fn nothing_is_counted_or_told_twice() {
        let mut ledger = Ledger::new("host:1");
        let (a, b) = (Item::new(0, &path(b"a")), Item::new(0, &path(b"b")));
        let fault = Fault::new(Code::NotFound, "gone");
        ledger.done(a, 5);
        ledger.done(a, 5);
        assert!(ledger.failed(a, "a".into(), fault.clone()).is_none());
        assert!(ledger.failed(b, "b".into(), fault.clone()).is_some());
        assert!(ledger.failed(b, "b".into(), fault).is_none());
        let Summary { files, failed, bytes, .. } = ledger.summary;
        assert_eq!((files, failed, bytes), (1, 1, 5));
        ledger.again(a, 5);
        ledger.again(b, 5);
        assert!(!ledger.is_over(a) && ledger.is_over(b), "what failed is not tried again");
        ledger.done(a, 5);
        assert_eq!((ledger.summary.files, ledger.summary.bytes), (1, 5));
    }

    #[test]
    fn a_change_is_told_once_and_what_failed_is_known_by_its_cause() {
        let mut ledger = Ledger::new("host:1");
        let items = [b"a", b"b"].map(|name| Item::new(0, &path(name)));
        assert!(ledger.is_news(items[0]) && !ledger.is_news(items[0]));
        ledger.done(items[0], 1);
        assert!(!ledger.is_news(items[0]), "it is over");
        assert!(ledger.is_news(Item::gone(0, &path(b"a"))), "that it is gone is other news");
        assert_eq!(ledger.fault_of(items[0]), None);
        let fault = Fault::new(Code::Denied, "no");
        ledger.failed(items[1], "b".into(), fault.clone());
        assert_eq!(ledger.fault_of(items[1]), Some(fault));
    }

    #[test]
    fn what_is_left_fails_once_and_only_if_no_session_finished_it() {
        let mut ledger = Ledger::new("host:1");
        let items = [b"a", b"b", b"c"].map(|name| Item::new(0, &path(name)));
        ledger.leave(items[2], "c".into(), false);
        ledger.leave(items[0], "a".into(), true);
        ledger.leave(items[1], "b".into(), true);
        ledger.leave(items[0], "a".into(), false);
        assert!(ledger.was_begun(items[0]) && !ledger.was_begun(items[2]));
        ledger.done(items[1], 1);
        ledger.leave(items[1], "b".into(), true);
        let fault = Fault::new(Code::LinkLost, "lost");
        let told: Vec<_> = ledger.give_up(&fault).into_iter().map(|f| f.path).collect();
        assert_eq!(told, ["a", "c"]);
        assert!(ledger.give_up(&fault).is_empty());
    }
}
