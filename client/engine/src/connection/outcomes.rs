//! The outcome of each file: counted in the ledger, which knows the reports of earlier sessions,
//! and queued here until the observer takes it. So no transfer waits for the observer. If the
//! observer does not want per-file reports, none are built.

use crate::connection::ledger::{ItemKey, Ledger};
use crate::local_io::counters::Stats;
use crate::model::report::{
    Altered, Failure, FileDone, Observer, Planned, Progress, SkipReason, Skipped, Summary,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use verbatim_files::Over;
use verbatim_proto::message::REPLACE_NOTHING_VERSION;
use verbatim_proto::{Code, Fault};

/// The outcomes of a session: its ledger, its progress, and the reports queued for the observer.
pub struct Outcomes {
    /// The record of the copy across its sessions.
    ledger: Ledger,
    progress: Progress,
    reports: VecDeque<Report>,
    /// Whether each file and each change is reported.
    per_file: bool,
    /// Bytes in partial files when this session opened them.
    already_present_bytes: u64,
    over: Over,
    version: usize,
    stats: Arc<Stats>,
}

enum Report {
    Done(FileDone),
    Failed(Failure),
    Skipped(Skipped),
    Planned(Planned),
    Altered(Altered),
}

impl Outcomes {
    /// The outcomes of a session with this server, at this protocol version.
    pub(crate) fn new(peer: &str, version: usize, stats: Arc<Stats>) -> Self {
        Self {
            ledger: Ledger::new(peer),
            progress: Progress::default(),
            reports: VecDeque::new(),
            per_file: true,
            already_present_bytes: 0,
            over: Over::Anything,
            version,
            stats,
        }
    }

    /// Sets what a commit may overwrite from now on.
    pub(crate) fn set_overwrite(&mut self, over: Over) {
        self.over = over;
    }

    /// Sets whether each file and change is reported, or only failures and skipped files.
    pub fn report_files(&mut self, per_file: bool) {
        self.per_file = per_file;
    }

    /// The ledger of the copy, which the next session continues.
    #[inline]
    pub fn ledger(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// Files and bytes, finished and known, of this session and earlier ones.
    #[inline]
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Counts one more file to move.
    pub(crate) fn expect(&mut self, bytes: u64) {
        self.progress.files_known += 1;
        self.progress.expect(bytes);
    }

    /// Replaces the expected size of a file.
    pub(crate) fn replace_expected(&mut self, before: u64, bytes: u64) {
        self.progress.bytes_known = self.progress.bytes_known.saturating_sub(before);
        self.progress.expect(bytes);
    }

    /// Adds to the expected size of a stream.
    pub(crate) fn expect_more(&mut self, bytes: u64) {
        self.progress.expect(bytes);
    }

    /// Continues the ledger of earlier sessions.
    pub fn continue_ledger(&mut self, ledger: Ledger) {
        let Summary { files, bytes, .. } = ledger.summary;
        self.progress = Progress {
            files,
            files_known: files,
            bytes,
            bytes_known: bytes,
            ..Progress::default()
        };
        self.ledger = ledger;
    }

    /// Takes the ledger for the next session and leaves an empty one.
    pub fn take_ledger(&mut self, peer: &str) -> Ledger {
        std::mem::replace(&mut self.ledger, Ledger::new(peer))
    }

    /// Bytes in partial files when this session opened them.
    pub fn already_present_bytes(&self) -> u64 {
        self.already_present_bytes
    }

    /// Counts and logs bytes of a partial file. They count as resumed only if no earlier session of
    /// this copy wrote them.
    pub(crate) fn note_resumed(&mut self, item: ItemKey, path: &str, bytes: u64) {
        tracing::info!(path, bytes, "copy resumed");
        self.stats.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.already_present_bytes += bytes;
        if !self.ledger.was_started(item) {
            self.ledger.summary.resumed_bytes += bytes;
        }
    }

    /// Counts a file that has its final name.
    pub(crate) fn done(&mut self, item: ItemKey, bytes: u64, done: impl FnOnce() -> FileDone) {
        self.ledger.done(item, bytes);
        self.progress.files += 1;
        if self.per_file {
            self.reports.push_back(Report::Done(done()));
        }
    }

    /// Counts a complete file that could not be renamed. If the policy replaces nothing and a
    /// target has appeared since, the file is skipped, as if the target had existed before.
    pub(crate) fn commit_refused(&mut self, item: ItemKey, path: String, fault: Fault) {
        match fault.code == Code::Exists && self.over == Over::Nothing {
            true => self.skipped(item, path, SkipReason::Exists),
            false => self.failed(item, path, fault),
        }
    }

    /// Does the same for a commit at the server. An older server cannot be told to replace nothing,
    /// so its refusal is a failure.
    pub(crate) fn remote_commit_refused(&mut self, item: ItemKey, path: String, fault: Fault) {
        match self.version >= REPLACE_NOTHING_VERSION {
            true => self.commit_refused(item, path, fault),
            false => self.failed(item, path, fault),
        }
    }

    /// Counts a failure and queues its report, unless the item is finished.
    pub fn failed(&mut self, item: ItemKey, path: String, fault: Fault) {
        let failure = self.ledger.failed(item, path, fault);
        self.reports.extend(failure.map(Report::Failed));
    }

    /// Counts a skipped item and queues its report, unless the item is finished.
    pub fn skipped(&mut self, item: ItemKey, path: String, reason: SkipReason) {
        if self.ledger.skipped(item) {
            self.reports.push_back(Report::Skipped(Skipped { path, reason }));
        }
    }

    pub(crate) fn planned(&mut self, item: ItemKey, planned: Planned) {
        if self.ledger.planned(item, &planned) {
            self.reports.push_back(Report::Planned(planned));
        }
    }

    /// Queues the report of a mirror's change, if per-file reports are wanted.
    pub fn altered(&mut self, altered: impl FnOnce() -> Altered) {
        if self.per_file {
            self.reports.push_back(Report::Altered(altered()));
        }
    }

    /// Hands all queued reports to the observer, in order.
    pub fn report(&mut self, observer: &mut dyn Observer) {
        while let Some(report) = self.reports.pop_front() {
            match report {
                Report::Done(done) => observer.file_done(&done),
                Report::Failed(failure) => observer.failed(&failure),
                Report::Skipped(skipped) => observer.skipped(&skipped),
                Report::Planned(planned) => observer.planned(&planned),
                Report::Altered(altered) => observer.altered(&altered),
            }
        }
    }
}
