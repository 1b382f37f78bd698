//! Applies the steps of a mirror to a local target: a job does a page of them at a time, in order,
//! so that the session's task stays free. Downloads wait for the page before them, which creates
//! their folders. Owns the waiting steps; `apply` adds them and handles the outcomes.

use crate::tree_sync::report::PendingChange;
use crate::tree_sync::spec::{AtomicTarget, Spec};
use std::sync::Arc;
use verbatim_engine::connection::Engine;
use verbatim_engine::connection::dir_guard::WorkItem;
use verbatim_engine::connection::jobs::Jobs;
use verbatim_engine::local_io::waker::Waker;
use verbatim_engine::transfer::download::Download;
use verbatim_files::stage::Stage;
use verbatim_files::{Folder, Over, Rules};
use verbatim_proto::message::EntryKind;
use verbatim_proto::plan::What;
use verbatim_proto::{Dropped, Fault, WirePath};

/// An operation at the local target.
pub(crate) enum LocalOp {
    Step(What),
    /// Removes the partial file of an interrupted copy, unless a process has it open.
    Sweep(WirePath),
}

/// Waiting operations, in order. The mirror bounds their number.
pub(crate) struct LocalOps {
    steps: Vec<(LocalOp, PendingChange)>,
    files: Vec<(WorkItem, Download)>,
    /// Downloads that wait for the running job; `None` while no job runs.
    files_after_job: Option<Vec<(WorkItem, Download)>>,
    jobs: Jobs<LocalOpResults>,
}

impl LocalOps {
    pub fn new(waker: &Waker) -> Self {
        Self { steps: Vec::new(), files: Vec::new(), files_after_job: None, jobs: Jobs::new(waker) }
    }

    pub fn push(&mut self, op: LocalOp, pending: PendingChange) {
        self.steps.push((op, pending));
    }

    pub fn push_file(&mut self, work_item: WorkItem, download: Download) {
        self.files.push((work_item, download));
    }

    pub fn len(&self) -> usize {
        self.steps.len() + self.files.len() + self.files_after_job.as_ref().map_or(0, Vec::len)
    }

    pub fn is_idle(&self) -> bool {
        self.len() == 0 && !self.is_busy()
    }

    /// Whether a job runs.
    pub fn is_busy(&self) -> bool {
        self.files_after_job.is_some()
    }

    /// Starts a job for all waiting operations, unless one runs. Returns the downloads that need
    /// not wait for a folder.
    pub fn pump(&mut self, spec: &Spec) -> Vec<(WorkItem, Download)> {
        let (Some(folder), false) = (spec.mirror.folder.clone(), self.is_busy()) else {
            return Vec::new();
        };
        let files = std::mem::take(&mut self.files);
        if self.steps.is_empty() {
            return files;
        }
        let steps = std::mem::take(&mut self.steps);
        self.files_after_job = Some(files);
        let (rules, atomic_target) = (spec.mirror.rules, spec.mirror.atomic_target.clone());
        self.jobs.run(move || {
            let mut dropped = Dropped::default();
            let stage = match &atomic_target {
                Some(AtomicTarget::Local(stage)) => Some(&**stage),
                _ => None,
            };
            let mut perform = |op| perform(&folder, &rules, stage, op).map(|lost| dropped += lost);
            let done = steps.into_iter().map(|(op, pending)| (pending, perform(op))).collect();
            LocalOpResults(done, dropped)
        });
        Vec::new()
    }

    /// Handles the answer of the job, if it has arrived. Returns the downloads that waited for it.
    pub fn take_answers(&mut self, engine: &mut Engine, spec: &Spec) -> Vec<(WorkItem, Download)> {
        let Some(LocalOpResults(answers, dropped)) = self.jobs.next_answer() else {
            return Vec::new();
        };
        engine.outcomes().ledger().summary.dropped += dropped;
        for (pending, answer) in answers {
            pending.finish(engine, spec, answer);
        }
        self.files_after_job.take().unwrap_or_default()
    }
}

/// The outcomes of a page, with the metadata that could not be stored.
struct LocalOpResults(Vec<(PendingChange, Result<(), Fault>)>, Dropped);

/// Does one operation. Copies a file first if it is shared with another tree. Returns the metadata
/// that could not be stored.
fn perform(
    folder: &Arc<Folder>,
    rules: &Rules,
    stage: Option<&Stage>,
    op: LocalOp,
) -> Result<Dropped, Fault> {
    let what = match op {
        LocalOp::Step(what) => what,
        LocalOp::Sweep(path) => {
            let swept = match stage {
                Some(stage) => stage.revert(folder, &path, &path),
                None => folder.sweep(&path),
            };
            if let Err(fault) = swept {
                tracing::debug!(path = %path, cause = %fault, "leftover stays");
            }
            return Ok(Dropped::default());
        }
    };
    match what {
        What::MakeFolder { node, replace: true } => folder.force_folder(&node.path, 0o700, true)?,
        What::MakeFolder { node, .. } => folder.make_folder(&node.path, 0o700, true)?,
        What::OpenUp { path } => {
            // If this fails, creating its entries reports why.
            let _ = folder.open_up(&path);
        }
        What::Symlink { node, .. } => {
            if let EntryKind::Symlink { target } = &node.kind {
                let keep = Some((&node.meta, rules));
                return folder.make_symlink(&node.path, target, keep, Over::Anything);
            }
        }
        What::Describe { node } | What::Finish { node } => {
            if stage.is_some() && node.kind == EntryKind::File {
                folder.own(&node.path, &|_| Ok(()))?;
            }
            return folder.describe_any(&node.path, &node.meta, rules);
        }
        What::Link { path, to, .. } => folder.link(&path, &to)?,
        What::Delete { path, is_folder } => folder.remove(&path, is_folder)?,
        What::Fetch { .. } | What::Revert { .. } | What::Skip { .. } | What::Refuse { .. } => {}
    }
    Ok(Dropped::default())
}
