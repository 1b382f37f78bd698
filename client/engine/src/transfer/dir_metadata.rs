//! Sets the metadata of folders whose contents are complete: a job sets that of local folders, the
//! server that of remote ones. `dir_guard` decides when a folder is due; inner folders come first.

use crate::connection::Engine;
use crate::connection::dir_guard::{DirGuard, DirGuards, DirLocation, DirMetaJob, WorkItem};
use crate::connection::jobs::Jobs;
use crate::connection::ledger::ItemKey;
use crate::local_io::waker::Waker;
use crate::transfer::remote_mkdir::MkdirEntry;
use std::sync::Arc;
use verbatim_files::Rules;
use verbatim_proto::message::{EntryKind, NewEntry};
use verbatim_proto::units::BATCH_FILES_MAX;
use verbatim_proto::{Dropped, Fault, Meta};

/// The outcomes of a batch of folders, with the metadata that could not be stored.
type DirMetaResults = Vec<(ItemKey, String, Result<Dropped, Fault>)>;

/// Folders whose metadata is deferred until their contents are complete.
pub(crate) struct DirMetadata {
    guards: DirGuards,
    /// Whether a job sets metadata now; one at a time, to keep the order of folders.
    setting: bool,
    jobs: Jobs<DirMetaResults>,
}

impl DirMetadata {
    pub fn new(waker: &Waker) -> Self {
        Self { guards: DirGuards::default(), setting: false, jobs: Jobs::new(waker) }
    }

    /// Defers the metadata of a folder until the returned guard is dropped.
    pub fn guard(
        &self,
        place: DirLocation,
        work_item: WorkItem,
        label: String,
        meta: Meta,
    ) -> Arc<DirGuard> {
        self.guards.guard(place, work_item, label, meta)
    }

    pub fn is_idle(&mut self) -> bool {
        !self.setting && self.guards.is_idle()
    }

    /// Whether a job sets metadata on this machine now.
    pub fn is_setting(&self) -> bool {
        self.setting
    }

    /// How many folders wait for their metadata to be set.
    pub fn queued(&self) -> usize {
        self.guards.queued()
    }

    /// Starts a job that sets the metadata of local folders.
    pub fn pump_local(&mut self) {
        if self.setting {
            return;
        }
        let batch = self.guards.take_local(BATCH_FILES_MAX);
        if !batch.is_empty() {
            self.setting = true;
            self.jobs.run(move || describe_all(batch));
        }
    }

    /// The next remote folders whose metadata the server is to set.
    pub fn next_remote(&mut self) -> Option<Vec<MkdirEntry>> {
        let batch = self.guards.take_remote(BATCH_FILES_MAX);
        (!batch.is_empty()).then(|| batch.into_iter().filter_map(make_of).collect())
    }

    /// Handles the answers of jobs.
    pub fn take_answers(&mut self, engine: &mut Engine) {
        while let Some(answers) = self.jobs.next_answer() {
            self.setting = false;
            for (item, label, answer) in answers {
                match answer {
                    Ok(dropped) => {
                        engine.outcomes().ledger().made(item);
                        engine.outcomes().ledger().summary.dropped += dropped;
                    }
                    Err(fault) => engine.outcomes().failed(item, label, fault),
                }
            }
        }
    }

    /// Notes complete folders without metadata as unfinished. The next session scans them again;
    /// their contents are finished, so they are due at once.
    pub fn suspend(&mut self, engine: &mut Engine) {
        let mut guards = std::mem::take(&mut self.guards);
        let due = guards.take_local(usize::MAX).into_iter().chain(guards.take_remote(usize::MAX));
        for due in due {
            engine.outcomes().ledger().note_unfinished(due.item, due.label, false);
        }
        self.setting = false;
    }
}

/// The request that sets the metadata of a remote folder.
fn make_of(due: DirMetaJob) -> Option<MkdirEntry> {
    let DirLocation::Remote(path) = due.place else { return None };
    let (kind, meta) = (EntryKind::Folder, Some(Box::new(due.meta)));
    let entry = NewEntry { path, kind, force: false, mode: 0o700, meta, unfinished: false };
    Some((entry, (WorkItem::unguarded(due.item), due.label)))
}

fn describe_all(batch: Vec<DirMetaJob>) -> DirMetaResults {
    let rules = Rules::of_user();
    let set = |DirMetaJob { item, place, label, meta }| match place {
        DirLocation::Local(folder, path) => (item, label, folder.describe(&path, &meta, &rules)),
        DirLocation::Remote(_) => (item, label, Ok(Dropped::default())),
    };
    batch.into_iter().map(set).collect()
}
