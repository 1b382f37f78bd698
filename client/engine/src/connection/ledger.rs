//! The record of a copy across its sessions: finished items, unfinished items, and the totals for
//! the summary. Each session hands it to the next, so that nothing is copied, counted or reported
//! twice.
//!
//! Memory: a 16-byte hash for each finished item, about 35 MB for a million with the free space of
//! the table. A position in the scan would be smaller. But a scan ends with its server, and the
//! order of a folder may change, so a position could silently skip a file.

use crate::local_io::spool::Spool;
use crate::model::report::{Failure, Planned, Summary};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::time::Instant;
use verbatim_proto::message::EntryKind;
use verbatim_proto::units::OPEN_FILES_MAX;
use verbatim_proto::{Code, Digest, Fault, WirePath};

/// The most unfinished items: those open and those queued when a session broke.
const UNFINISHED_MAX: usize = 4 * OPEN_FILES_MAX;

/// The most failures whose cause is stored; hard links to a failed file fail with it.
const FAULTS_MAX: usize = 1 << 16;

/// Fits the bytes of most keys: each file of a tree gets one built twice.
const KEY_BYTES: usize = 256;

/// The key of one file, folder or link of a copy in its ledger, the same in every session: 16 bytes
/// of a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ItemKey(u128);

impl ItemKey {
    /// The key of the entry at `path` below piece `work` of the copy. Not of its label: two names
    /// that are not UTF-8 can look alike.
    pub fn new(work: u32, path: &WirePath) -> Self {
        Self::of(b"item", work, path.as_bytes())
    }

    /// The key of the deletion of `path`.
    pub fn deletion(work: u32, path: &WirePath) -> Self {
        Self::of(b"gone", work, path.as_bytes())
    }

    /// The key of the entries of a tree that no walk has reached.
    pub fn unscanned(work: u32) -> Self {
        Self::of(b"rest", work, b"")
    }

    fn of(what: &[u8; 4], work: u32, path: &[u8]) -> Self {
        let (work, len) = (work.to_le_bytes(), 8 + path.len());
        let mut short = [0; KEY_BYTES];
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

/// An item that was unfinished when a session broke.
struct UnfinishedItem {
    label: String,
    started: bool,
}

/// The record of one copy across its sessions: outcomes, unfinished files, and the sums.
pub struct Ledger {
    /// When the first session began.
    pub begin: Instant,
    /// The totals so far.
    pub summary: Summary,
    finished: HashSet<ItemKey>,
    /// Changes of a mirror that were reported and are not finished.
    reported: HashSet<ItemKey>,
    /// Causes of failures, `FAULTS_MAX` at most.
    faults: HashMap<ItemKey, Fault>,
    unfinished: HashMap<ItemKey, UnfinishedItem>,
    /// Items that failed for lack of space, while a retry may still succeed.
    no_space: Option<Spool<NoSpaceFailure>>,
    peer: String,
}

/// An item that failed for lack of space: its key, its label, and the fault.
type NoSpaceFailure = (ItemKey, String, Fault);

impl Ledger {
    /// An empty ledger that begins now; failures name `peer`.
    pub fn new(peer: &str) -> Self {
        Self {
            begin: Instant::now(),
            summary: Summary::default(),
            finished: HashSet::new(),
            reported: HashSet::new(),
            faults: HashMap::new(),
            unfinished: HashMap::new(),
            no_space: None,
            peer: peer.into(),
        }
    }

    /// Notes that a change of a mirror is reported. Returns whether this is the first report.
    pub fn is_first_report(&mut self, item: ItemKey) -> bool {
        !self.finished.contains(&item) && self.reported.insert(item)
    }

    /// Why an item failed. Once 65,536 causes are stored, any finished item counts as failed.
    pub fn fault_of(&self, item: ItemKey) -> Option<Fault> {
        let unsure = || {
            let finished = self.faults.len() >= FAULTS_MAX && self.finished.contains(&item);
            let text =
                || format!("more than {FAULTS_MAX} failed, perhaps the file this is a name of");
            finished.then(|| Fault::new(Code::Limit, text()))
        };
        self.faults.get(&item).cloned().or_else(unsure)
    }

    /// Whether an item is done, skipped, or has failed for good.
    pub fn is_finished(&self, item: ItemKey) -> bool {
        self.finished.contains(&item)
    }

    /// How many items are done, skipped, or have failed for good.
    pub fn finished_count(&self) -> u64 {
        self.finished.len() as u64
    }

    /// Whether an earlier session of this copy had started the item.
    pub(crate) fn was_started(&self, item: ItemKey) -> bool {
        self.unfinished.get(&item).is_some_and(|unfinished| unfinished.started)
    }

    /// Counts a finished file.
    pub(crate) fn done(&mut self, item: ItemKey, bytes: u64) {
        self.unfinished.remove(&item);
        self.reported.remove(&item);
        if self.finished.insert(item) {
            self.summary.files += 1;
            self.summary.bytes += bytes;
        }
    }

    /// Forgets that a file is finished: its tree was removed, so it is copied and counted again.
    pub fn forget_done(&mut self, item: ItemKey, bytes: u64) {
        if self.fault_of(item).is_none() && self.finished.remove(&item) {
            self.summary.files = self.summary.files.saturating_sub(1);
            self.summary.bytes = self.summary.bytes.saturating_sub(bytes);
        }
    }

    /// Defers items that fail for lack of space from now on, because deletes may free some.
    pub fn defer_no_space(&mut self) {
        self.no_space = Some(Spool::default());
    }

    /// How many items are deferred for lack of space.
    pub fn no_space_count(&self) -> u64 {
        self.no_space.as_ref().map_or(0, Spool::count)
    }

    /// Notes the items deferred for lack of space as unfinished, for the next session.
    pub fn note_no_space_unfinished(&mut self) {
        let Some(mut no_space) = self.no_space.take() else { return };
        while let Ok(page) = no_space.take_front_page()
            && !page.is_empty()
        {
            page.into_iter().for_each(|(item, label, _)| self.note_unfinished(item, label, true));
        }
    }

    /// Returns the items deferred for lack of space. From now on lack of space is a failure.
    pub fn take_no_space(&mut self) -> Option<Spool<NoSpaceFailure>> {
        self.no_space.take()
    }

    /// Counts a permanent failure. Returns its report, unless the item was finished before.
    pub(crate) fn failed(&mut self, item: ItemKey, path: String, fault: Fault) -> Option<Failure> {
        if let Some(no_space) = &mut self.no_space
            && fault.code == Code::NoSpace
            && !self.finished.contains(&item)
            && no_space.push(&(item, path.clone(), fault.clone())).is_ok()
        {
            self.unfinished.remove(&item);
            return None;
        }
        self.unfinished.remove(&item);
        self.reported.remove(&item);
        if !self.finished.insert(item) {
            return None;
        }
        if self.faults.len() < FAULTS_MAX {
            self.faults.insert(item, fault.clone());
        }
        self.summary.failed += 1;
        self.summary.mismatch |= fault.code == Code::Mismatch;
        Some(Failure { path, peer: self.peer.clone(), fault })
    }

    /// Counts a skipped item. Returns whether it is to be reported.
    pub(crate) fn skipped(&mut self, item: ItemKey) -> bool {
        self.unfinished.remove(&item);
        let news = self.finished.insert(item);
        self.summary.skipped += u64::from(news);
        news
    }

    /// Counts an item that a dry run would copy. Returns whether it is to be reported.
    pub(crate) fn planned(&mut self, item: ItemKey, planned: &Planned) -> bool {
        self.unfinished.remove(&item);
        let news = self.finished.insert(item);
        if news {
            self.summary.files += u64::from(planned.kind == EntryKind::File);
            self.summary.bytes = self.summary.bytes.saturating_add(planned.bytes);
        }
        news
    }

    /// Notes an item that is unfinished at the end of its session; `started` if data was written.
    pub fn note_unfinished(&mut self, item: ItemKey, label: String, started: bool) {
        if self.finished.contains(&item) {
            return;
        }
        let full = self.unfinished.len() >= UNFINISHED_MAX;
        if let Some(unfinished) = self.unfinished.get_mut(&item) {
            unfinished.started |= started;
        } else if !full {
            self.unfinished.insert(item, UnfinishedItem { label, started });
        }
    }

    /// Notes a folder or link that was created, or that got its metadata.
    pub(crate) fn made(&mut self, item: ItemKey) {
        self.unfinished.remove(&item);
    }

    /// Notes that the scan of tree `work` is complete.
    pub fn scan_finished(&mut self, work: u32) {
        self.unfinished.remove(&ItemKey::unscanned(work));
    }

    /// Fails all unfinished items with `fault`, because no session follows. Returns the failures by
    /// label, each once.
    pub fn fail_unfinished(&mut self, fault: &Fault) -> Vec<Failure> {
        let mut unfinished: Vec<_> = std::mem::take(&mut self.unfinished).into_iter().collect();
        unfinished.sort_by(|(_, a), (_, b)| a.label.cmp(&b.label));
        let failures = unfinished.into_iter();
        failures
            .filter_map(|(item, unfinished)| self.failed(item, unfinished.label, fault.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &[u8]) -> WirePath {
        WirePath::parse(text).expect("plain")
    }

    #[test]
    fn different_names_with_equal_labels_are_different_items() {
        let (a, b) = (path(b"x\xff"), path(b"x\xfe"));
        assert_eq!(a.to_string(), b.to_string(), "both are shown with a replacement");
        assert_ne!(ItemKey::new(0, &a), ItemKey::new(0, &b));
        assert_ne!(ItemKey::new(0, &a), ItemKey::new(1, &a), "another source of the same command");
        assert_ne!(ItemKey::new(0, &WirePath::root()), ItemKey::unscanned(0));
    }

    #[test]
    fn an_item_is_counted_and_reported_once() {
        let mut ledger = Ledger::new("host:1");
        let (a, b) = (ItemKey::new(0, &path(b"a")), ItemKey::new(0, &path(b"b")));
        let fault = Fault::new(Code::NotFound, "gone");
        ledger.done(a, 5);
        ledger.done(a, 5);
        assert!(ledger.failed(a, "a".into(), fault.clone()).is_none());
        assert!(ledger.failed(b, "b".into(), fault.clone()).is_some());
        assert!(ledger.failed(b, "b".into(), fault).is_none());
        let Summary { files, failed, bytes, .. } = ledger.summary;
        assert_eq!((files, failed, bytes), (1, 1, 5));
        ledger.forget_done(a, 5);
        ledger.forget_done(b, 5);
        assert!(!ledger.is_finished(a) && ledger.is_finished(b), "what failed is not tried again");
        ledger.done(a, 5);
        assert_eq!((ledger.summary.files, ledger.summary.bytes), (1, 5));
    }

    #[test]
    fn a_change_is_reported_once_and_a_failure_keeps_its_cause() {
        let mut ledger = Ledger::new("host:1");
        let items = [b"a", b"b"].map(|name| ItemKey::new(0, &path(name)));
        assert!(ledger.is_first_report(items[0]) && !ledger.is_first_report(items[0]));
        ledger.done(items[0], 1);
        assert!(!ledger.is_first_report(items[0]), "it is over");
        assert!(
            ledger.is_first_report(ItemKey::deletion(0, &path(b"a"))),
            "that it is gone is other news"
        );
        assert_eq!(ledger.fault_of(items[0]), None);
        let fault = Fault::new(Code::Denied, "no");
        ledger.failed(items[1], "b".into(), fault.clone());
        assert_eq!(ledger.fault_of(items[1]), Some(fault));
    }

    #[test]
    fn an_unfinished_item_fails_once_unless_a_session_finished_it() {
        let mut ledger = Ledger::new("host:1");
        let items = [b"a", b"b", b"c"].map(|name| ItemKey::new(0, &path(name)));
        ledger.note_unfinished(items[2], "c".into(), false);
        ledger.note_unfinished(items[0], "a".into(), true);
        ledger.note_unfinished(items[1], "b".into(), true);
        ledger.note_unfinished(items[0], "a".into(), false);
        assert!(ledger.was_started(items[0]) && !ledger.was_started(items[2]));
        ledger.done(items[1], 1);
        ledger.note_unfinished(items[1], "b".into(), true);
        let fault = Fault::new(Code::LinkLost, "lost");
        let reported: Vec<_> = ledger.fail_unfinished(&fault).into_iter().map(|f| f.path).collect();
        assert_eq!(reported, ["a", "c"]);
        assert!(ledger.fail_unfinished(&fault).is_empty());
    }
}
