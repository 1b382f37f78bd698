//! What a session tells whoever started it, in the order it happened: kept here
//! until it is handed over, so that nothing that runs waits for who listens. Counts
//! it in the books, which know what was told before. What of every single file would
//! be told is not made up where nobody hears of it.

use crate::engine::ledger::Item;
use crate::model::report::{Altered, Failure, FileDone, Observer, Planned, SkipReason, Skipped};
use crate::session::dispatch::Core;
use std::collections::VecDeque;
use verbatim_files::Over;
use verbatim_proto::message::REPLACE_NOTHING_VERSION;
use verbatim_proto::{Code, Fault};

/// What waits to be told.
pub(crate) struct Reports {
    waiting: VecDeque<Report>,
    /// Whether every single file and change is told.
    pub of_files: bool,
}

impl Default for Reports {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), of_files: true }
    }
}

enum Report {
    Done(FileDone),
    Failed(Failure),
    Skipped(Skipped),
    Planned(Planned),
    Altered(Altered),
}

impl Reports {
    /// A mirror changes something, as `altered` says.
    pub fn alters(&mut self, altered: impl FnOnce() -> Altered) {
        if self.of_files {
            self.waiting.push_back(Report::Altered(altered()));
        }
    }
}

impl Core {
    /// A file is where it goes.
    pub(crate) fn done(&mut self, item: Item, bytes: u64, done: impl FnOnce() -> FileDone) {
        self.ledger.done(item, bytes);
        self.progress.files += 1;
        if self.reports.of_files {
            self.reports.waiting.push_back(Report::Done(done()));
        }
    }

    /// Something that is whole did not get its name. What came first at a target that is not to be
    /// replaced is left alone, as if it had been there when the copy began.
    pub(crate) fn not_placed(&mut self, item: Item, path: String, fault: Fault) {
        match fault.code == Code::Exists && self.rules.over() == Over::Nothing {
            true => self.skipped(item, path, SkipReason::Exists),
            false => self.failed(item, path, fault),
        }
    }

    /// The same at the server, which may say so only where it was asked to replace nothing.
    pub(crate) fn not_placed_there(&mut self, item: Item, path: String, fault: Fault) {
        match self.version >= REPLACE_NOTHING_VERSION {
            true => self.not_placed(item, path, fault),
            false => self.failed(item, path, fault),
        }
    }

    pub(crate) fn failed(&mut self, item: Item, path: String, fault: Fault) {
        let failure = self.ledger.failed(item, path, fault);
        self.reports.waiting.extend(failure.map(Report::Failed));
    }

    pub(crate) fn skipped(&mut self, item: Item, path: String, reason: SkipReason) {
        if self.ledger.skipped(item) {
            self.reports.waiting.push_back(Report::Skipped(Skipped { path, reason }));
        }
    }

    pub(crate) fn planned(&mut self, item: Item, planned: Planned) {
        if self.ledger.planned(item, &planned) {
            self.reports.waiting.push_back(Report::Planned(planned));
        }
    }

    /// Tells what waits.
    pub(crate) fn report(&mut self, observer: &mut dyn Observer) {
        while let Some(report) = self.reports.waiting.pop_front() {
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
