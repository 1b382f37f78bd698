//! What became of each file: counted in the ledger, which knows what earlier sessions reported,
//! and kept here in order until the observer takes it, so that nothing that runs waits for the
//! observer. A report of a single file is not made where the observer does not want it.

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

/// The outcomes of a session: its ledger, its progress, and the reports that wait for the observer.
pub struct Outcomes {
    /// What this session has in common with those before and behind it.
    ledger: Ledger,
    progress: Progress,
    reports: VecDeque<Report>,
    /// Whether every single file and change is reported.
    per_file: bool,
    /// Bytes that were in place when this session began its files.
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
    /// Of a session with this server, which speaks this version.
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

    /// Files go over these from now on.
    pub(crate) fn set_overwrite(&mut self, over: Over) {
        self.over = over;
    }

    /// Sets whether each single file and change is reported, or failures and skipped files alone.
    pub fn report_files(&mut self, per_file: bool) {
        self.per_file = per_file;
    }

    /// The record of the copy, which the next session continues.
    #[inline]
    pub fn ledger(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// Files and bytes done and known, this session and those before it.
    #[inline]
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// One more file of this size is to be moved.
    pub(crate) fn expect(&mut self, bytes: u64) {
        self.progress.files_known += 1;
        self.progress.expect(bytes);
    }

    /// A file that was to have so many bytes has so many others.
    pub(crate) fn expect_instead(&mut self, before: u64, bytes: u64) {
        self.progress.bytes_known = self.progress.bytes_known.saturating_sub(before);
        self.progress.expect(bytes);
    }

    /// A stream has so many bytes more.
    pub(crate) fn expect_more(&mut self, bytes: u64) {
        self.progress.expect(bytes);
    }

    /// Continues the record of earlier sessions of the copy.
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

    /// Takes the ledger for the next session; an empty one stays.
    pub fn take_ledger(&mut self, peer: &str) -> Ledger {
        std::mem::replace(&mut self.ledger, Ledger::new(peer))
    }

    /// Bytes that partial files had when this session opened them.
    pub fn already_present_bytes(&self) -> u64 {
        self.already_present_bytes
    }

    /// Counts and logs what was in place when a file was begun; as of an earlier run only if no
    /// earlier session of this one had begun it.
    pub(crate) fn note_resumed(&mut self, item: ItemKey, path: &str, bytes: u64) {
        tracing::info!(path, bytes, "copy resumed");
        self.stats.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.already_present_bytes += bytes;
        if !self.ledger.was_started(item) {
            self.ledger.summary.resumed_bytes += bytes;
        }
    }

    /// A file has its final name.
    pub(crate) fn done(&mut self, item: ItemKey, bytes: u64, done: impl FnOnce() -> FileDone) {
        self.ledger.done(item, bytes);
        self.progress.files += 1;
        if self.per_file {
            self.reports.push_back(Report::Done(done()));
        }
    }

    /// A file that is whole did not get its name. One that appeared at a target which is not to be
    /// replaced is left alone, as if it had been there when the copy began.
    pub(crate) fn commit_refused(&mut self, item: ItemKey, path: String, fault: Fault) {
        match fault.code == Code::Exists && self.over == Over::Nothing {
            true => self.skipped(item, path, SkipReason::Exists),
            false => self.failed(item, path, fault),
        }
    }

    /// The same at the server, which may say so only where it was asked to replace nothing.
    pub(crate) fn remote_commit_refused(&mut self, item: ItemKey, path: String, fault: Fault) {
        match self.version >= REPLACE_NOTHING_VERSION {
            true => self.commit_refused(item, path, fault),
            false => self.failed(item, path, fault),
        }
    }

    /// Counts a failure and queues its report, unless the item is over.
    pub fn failed(&mut self, item: ItemKey, path: String, fault: Fault) {
        let failure = self.ledger.failed(item, path, fault);
        self.reports.extend(failure.map(Report::Failed));
    }

    /// Counts an item that is left out and queues its report, unless the item is over.
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

    /// Queues the report of a change that a mirror makes, where single files are reported.
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
