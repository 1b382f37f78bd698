//! Applies the policy of an upload to each entry: send, skip, report or compare. Asks the server to
//! stat the targets, many paths per request.

use crate::connection::Engine;
use crate::connection::dir_guard::WorkItem;
use crate::connection::ledger::ItemKey;
use crate::model::copy_policy::Task;
use crate::model::location::format_remote;
use crate::model::report::Planned;
use crate::transfer::remote_mkdir::MkdirEntry;
use crate::transfer::select_local::{compare_kinds, existing};
use crate::transfer::upload::Upload;
use crate::transfer::verify::Comparison;
use std::collections::{HashMap, VecDeque};
use verbatim_proto::message::{ClientMessage, Entry, EntryKind, NewEntry};
use verbatim_proto::units::{FRAME_BYTES_MAX, LOOK_PATHS_MAX};
use verbatim_proto::{Code, Fault, Look, WirePath};

/// Stat requests in flight.
const STAT_REQUESTS_MAX: usize = 16;

/// An entry that the policy may select for the upload.
pub(crate) enum Candidate {
    File(WorkItem, Upload),
    /// A folder or a link.
    Entry {
        work_item: WorkItem,
        entry: NewEntry,
        mtime_ns: i64,
        label: String,
    },
}

/// Candidates that wait for the stats of their targets.
#[derive(Default)]
pub(crate) struct Selector {
    waiting: VecDeque<Candidate>,
    requests: HashMap<u32, Vec<Candidate>>,
}

/// The selected candidates: files to compare, entries to create, files to send.
#[derive(Default)]
pub(crate) struct Accepted {
    pub compares: Vec<Comparison>,
    pub makes: Vec<MkdirEntry>,
    pub files: Vec<(WorkItem, Upload)>,
}

impl Selector {
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.requests.is_empty()
    }

    /// Whether the server owes stats.
    pub fn awaits(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Whether this request is a stat of candidates' targets.
    pub fn awaits_stat(&self, request: u32) -> bool {
        self.requests.contains_key(&request)
    }

    pub fn queued(&self) -> usize {
        self.waiting.len() + self.requests.values().map(Vec::len).sum::<usize>()
    }

    /// Accepts candidates, skips them, or queues a stat of their targets, by the policy.
    pub fn select(&mut self, engine: &mut Engine, mut candidates: Vec<Candidate>) -> Accepted {
        let verify = engine.policy().task == Task::Verify;
        let must_stat_target = engine.policy().must_stat_target();
        let mut accepted = Accepted::default();
        // Existing folders do no harm; any other item is handled once.
        let ledger = engine.outcomes().ledger();
        candidates
            .retain(|candidate| candidate.is_folder() || !ledger.is_finished(candidate.item()));
        for candidate in candidates {
            match candidate {
                Candidate::File(work_item, upload) if verify => {
                    accepted.compares.push(compare_of(work_item.item, upload));
                }
                // An existing folder is fine under every policy.
                candidate if verify || must_stat_target && !candidate.is_folder() => {
                    self.waiting.push_back(candidate);
                }
                candidate => accept(engine, candidate, &mut accepted),
            }
        }
        accepted
    }

    /// Sends stat requests for the queued candidates.
    pub fn pump(&mut self, engine: &mut Engine) {
        while self.requests.len() < STAT_REQUESTS_MAX {
            let Some(first) = self.waiting.front() else { return };
            // Follow links for folders only: a folder may be behind a link, a link is compared as
            // such.
            let follow = first.is_folder();
            let (mut candidates, mut bytes) = (Vec::new(), 0);
            while let Some(candidate) = self.waiting.pop_front_if(|candidate| {
                bytes += candidate.target().as_bytes().len();
                candidate.is_folder() == follow
                    && candidates.len() < LOOK_PATHS_MAX
                    && (candidates.is_empty() || bytes <= FRAME_BYTES_MAX / 2)
            }) {
                candidates.push(candidate);
            }
            let paths = candidates.iter().map(|candidate| candidate.target().clone()).collect();
            let request = engine.request();
            engine.send(ClientMessage::Stat { request, look: Look { follow, paths } });
            self.requests.insert(request, candidates);
        }
    }

    /// Handles the stats of one request.
    pub fn stated(
        &mut self,
        engine: &mut Engine,
        request: u32,
        answers: Vec<Result<Entry, Fault>>,
    ) -> Accepted {
        let mut accepted = Accepted::default();
        let candidates = self.requests.remove(&request).unwrap_or_default();
        if candidates.len() != answers.len() {
            engine.fail_session(Fault::new(Code::Protocol, "the server looked at other paths"));
            return accepted;
        }
        for (candidate, answer) in candidates.into_iter().zip(answers) {
            match choose(engine, &candidate, answer) {
                Ok(true) => accept(engine, candidate, &mut accepted),
                Ok(false) => {}
                Err(fault) => {
                    engine.outcomes().failed(candidate.item(), candidate.into_label(), fault)
                }
            }
        }
        accepted
    }

    /// Notes the waiting candidates as unfinished.
    pub fn suspend(&mut self, engine: &mut Engine) {
        let requests = std::mem::take(&mut self.requests).into_values().flatten();
        for candidate in requests.chain(std::mem::take(&mut self.waiting)) {
            engine.outcomes().ledger().note_unfinished(
                candidate.item(),
                candidate.into_label(),
                false,
            );
        }
    }
}

impl Candidate {
    fn target(&self) -> &WirePath {
        match self {
            Self::File(_, upload) => &upload.remote,
            Self::Entry { entry, .. } => &entry.path,
        }
    }

    fn mtime_ns(&self) -> i64 {
        match self {
            Self::File(_, upload) => upload.mtime_ns,
            Self::Entry { mtime_ns, .. } => *mtime_ns,
        }
    }

    fn is_folder(&self) -> bool {
        matches!(self, Self::Entry { entry, .. } if entry.kind == EntryKind::Folder)
    }

    fn item(&self) -> ItemKey {
        match self {
            Self::File(work_item, _) | Self::Entry { work_item, .. } => work_item.item,
        }
    }

    fn into_label(self) -> String {
        match self {
            Self::File(_, upload) => upload.label,
            Self::Entry { label, .. } => label,
        }
    }
}

fn compare_of(item: ItemKey, upload: Upload) -> Comparison {
    let Upload { source, remote, size, label, .. } = upload;
    let shown = label.clone();
    Comparison { item, remote, source, size, label, shown }
}

/// Whether the policy accepts a candidate, given the stat of its target.
fn choose(
    engine: &mut Engine,
    candidate: &Candidate,
    answer: Result<Entry, Fault>,
) -> Result<bool, Fault> {
    if engine.policy().task == Task::Verify {
        if let Candidate::Entry { entry, .. } = candidate {
            compare_kinds(&entry.kind, &answer?)?;
        }
        return Ok(false);
    }
    let there = existing(answer)?;
    let Some(reason) = engine.policy().skip(there.as_ref(), candidate.mtime_ns()) else {
        return Ok(true);
    };
    let label = match candidate {
        Candidate::File(_, upload) => &upload.label,
        Candidate::Entry { label, .. } => label,
    };
    engine.outcomes().skipped(candidate.item(), label.clone(), reason);
    Ok(false)
}

/// Adds a candidate to the accepted ones, or reports it in a dry run.
fn accept(engine: &mut Engine, candidate: Candidate, accepted: &mut Accepted) {
    if engine.policy().task == Task::DryRun {
        return plan(engine, candidate);
    }
    match candidate {
        Candidate::File(work_item, upload) => accepted.files.push((work_item, upload)),
        Candidate::Entry { work_item, entry, label, .. } => {
            accepted.makes.push((entry, (work_item, label)))
        }
    }
}

fn plan(engine: &mut Engine, candidate: Candidate) {
    let target = format_remote(&engine.options().connect.host, candidate.target());
    let (kind, bytes) = match &candidate {
        Candidate::File(_, upload) => (EntryKind::File, upload.size),
        Candidate::Entry { entry, .. } => (entry.kind.clone(), 0),
    };
    let item = candidate.item();
    let path = candidate.into_label();
    engine.outcomes().planned(item, Planned { path, target, kind, bytes });
}
