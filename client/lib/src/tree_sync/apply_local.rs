//! Steps of a mirror whose target is on this machine: a job does a page of them
//! at a time, in order, so that the session hears its server and its user
//! meanwhile. Files wait for the page before them, which makes their folders.
//! Owns what waits; `apply` adds to it and takes what became of it.

use crate::tree_sync::report::Asked;
use crate::tree_sync::spec::{Aside, Spec};
use std::sync::Arc;
use verbatim_engine::connection::Engine;
use verbatim_engine::connection::dir_guard::Mark;
use verbatim_engine::connection::jobs::Jobs;
use verbatim_engine::local_io::waker::Waker;
use verbatim_engine::transfer::download::Download;
use verbatim_files::stage::Stage;
use verbatim_files::{Folder, Over, Rules};
use verbatim_proto::message::EntryKind;
use verbatim_proto::plan::What;
use verbatim_proto::{Dropped, Fault, WirePath};

/// Something to do at the target.
pub(crate) enum Deed {
    Step(What),
    /// Remove what an interrupted copy left, unless somebody is at it.
    Sweep(WirePath),
}

/// What waits to be done, in order. No more is added than a mirror may have to do at a time.
pub(crate) struct Deeds {
    steps: Vec<(Deed, Asked)>,
    files: Vec<(Mark, Download)>,
    /// The files behind what a job is doing; none while there is no job.
    behind: Option<Vec<(Mark, Download)>>,
    jobs: Jobs<DeedsDone>,
}

impl Deeds {
    pub fn new(waker: &Waker) -> Self {
        Self { steps: Vec::new(), files: Vec::new(), behind: None, jobs: Jobs::new(waker) }
    }

    pub fn push(&mut self, deed: Deed, asked: Asked) {
        self.steps.push((deed, asked));
    }

    pub fn push_file(&mut self, mark: Mark, download: Download) {
        self.files.push((mark, download));
    }

    pub fn len(&self) -> usize {
        self.steps.len() + self.files.len() + self.behind.as_ref().map_or(0, Vec::len)
    }

    pub fn is_idle(&self) -> bool {
        self.len() == 0 && !self.is_busy()
    }

    /// Whether a job is at it.
    pub fn is_busy(&self) -> bool {
        self.behind.is_some()
    }

    /// Has all that waits done, unless a job is at what was before it. Returns the files that
    /// wait for no folder.
    pub fn pump(&mut self, spec: &Spec) -> Vec<(Mark, Download)> {
        let (Some(folder), false) = (spec.of.folder.clone(), self.is_busy()) else {
            return Vec::new();
        };
        let files = std::mem::take(&mut self.files);
        if self.steps.is_empty() {
            return files;
        }
        let steps = std::mem::take(&mut self.steps);
        self.behind = Some(files);
        let (rules, aside) = (spec.of.rules, spec.of.aside.clone());
        self.jobs.run(move || {
            let mut dropped = Dropped::default();
            let stage = match &aside {
                Some(Aside::Here(stage)) => Some(&**stage),
                _ => None,
            };
            let mut perform =
                |deed| perform(&folder, &rules, stage, deed).map(|lost| dropped += lost);
            let done = steps.into_iter().map(|(deed, asked)| (asked, perform(deed))).collect();
            DeedsDone(done, dropped)
        });
        Vec::new()
    }

    /// Takes the answer of the job, if it is there. Returns the files behind its page, which may
    /// come now.
    pub fn take_answers(&mut self, engine: &mut Engine, spec: &Spec) -> Vec<(Mark, Download)> {
        let Some(DeedsDone(answers, dropped)) = self.jobs.next_answer() else { return Vec::new() };
        engine.outcomes().ledger().summary.dropped += dropped;
        for (asked, answer) in answers {
            asked.answered(engine, spec, answer);
        }
        self.behind.take().unwrap_or_default()
    }
}

/// What became of a page, and what of metadata was not kept.
struct DeedsDone(Vec<(Asked, Result<(), Fault>)>, Dropped);

/// Does one of them; what may be shared with another tree is made its own before it changes.
/// Says what of metadata was not kept.
fn perform(
    folder: &Arc<Folder>,
    rules: &Rules,
    stage: Option<&Stage>,
    deed: Deed,
) -> Result<Dropped, Fault> {
    let what = match deed {
        Deed::Step(what) => what,
        Deed::Sweep(path) => {
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
            // Where it cannot be, what is made in it says why.
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
