//! Walks local trees that are uploaded: jobs read one page at a time, of one tree at a time, while
//! entries of earlier pages are sent. The entries go to `select`.

use crate::connection::Engine;
use crate::connection::dir_guard::{DirLocation, DirStack, WorkItem};
use crate::connection::jobs::Jobs;
use crate::connection::label::label_of;
use crate::connection::ledger::ItemKey;
use crate::local_io::waker::Waker;
use crate::model::copy_policy::CopyPolicy;
use crate::model::report::SkipReason;
use crate::transfer::dir_metadata::DirMetadata;
use crate::transfer::remote_scan::QUEUE_LOW;
use crate::transfer::select::Candidate;
use crate::transfer::upload::{Upload, UploadSource};
use std::collections::VecDeque;
use std::sync::Arc;
use verbatim_files::walk::Describe;
use verbatim_files::{Folder, Walk};
use verbatim_proto::message::{Entry, EntryKind, NewEntry};
use verbatim_proto::units::{FRAME_BYTES_MAX, PAGE_ENTRIES_MAX};
use verbatim_proto::{Fault, WirePath};

/// A local folder to upload.
#[derive(Clone)]
pub struct LocalTree {
    /// The folder.
    pub folder: Arc<Folder>,
    /// The target path, export first.
    pub remote: WirePath,
    /// The source, as the user would name it.
    pub label: String,
}

/// A local tree, and the number of its piece of work.
#[derive(Clone)]
struct NumberedTree {
    number: u32,
    tree: Arc<LocalTree>,
}

/// A local tree, the state of its walk, and the guards of the folders it is in.
struct TreeWalk {
    of: NumberedTree,
    walk: Option<Box<Walk>>,
    dir_stack: DirStack,
}

/// The walks of a session's local trees.
pub(crate) struct LocalWalks {
    /// Walks between two pages, and those not started.
    resting: VecDeque<TreeWalk>,
    /// The tree that a job walks now.
    walked: Option<NumberedTree>,
    jobs: Jobs<LocalPage>,
}

/// A page of a walk.
struct LocalPage {
    walking: TreeWalk,
    entries: Vec<Entry>,
    faults: Vec<(WirePath, Fault)>,
}

impl LocalWalks {
    pub fn new(waker: &Waker) -> Self {
        Self { resting: VecDeque::new(), walked: None, jobs: Jobs::new(waker) }
    }

    pub fn is_idle(&self) -> bool {
        self.resting.is_empty() && self.walked.is_none()
    }

    /// Adds a tree. Returns its root as the first candidate.
    pub fn add(&mut self, engine: &Engine, number: u32, tree: LocalTree) -> Candidate {
        let work_item = WorkItem::unguarded(ItemKey::new(number, &WirePath::root()));
        let entry = new_folder(engine, tree.remote.clone(), 0o755);
        let label = tree.label.clone();
        let of = NumberedTree { number, tree: Arc::new(tree) };
        self.resting.push_back(TreeWalk { of, walk: None, dir_stack: DirStack::default() });
        Candidate::Entry { work_item, entry, mtime_ns: 0, label }
    }

    /// Starts a job for the next page if few files are queued.
    pub fn pump(&mut self, engine: &Engine, queued: usize) {
        if queued < QUEUE_LOW
            && self.walked.is_none()
            && let Some(walking) = self.resting.pop_front()
        {
            self.walked = Some(walking.of.clone());
            let (policy, describe) = (engine.policy().clone(), engine.options().preserve);
            self.jobs.run(move || walk_page(walking, &policy, describe));
        }
    }

    /// The candidates of a finished page, if there is one.
    pub fn next_candidates(
        &mut self,
        engine: &mut Engine,
        dirs: &DirMetadata,
    ) -> Option<Vec<Candidate>> {
        let page = self.jobs.next_answer()?;
        self.walked = None;
        let LocalPage { mut walking, entries, faults } = page;
        let NumberedTree { number, tree } = walking.of.clone();
        for (path, fault) in faults {
            engine.outcomes().failed(
                ItemKey::new(number, &path),
                label_of(&tree.label, &path),
                fault,
            );
        }
        let mut candidates = Vec::new();
        for entry in entries {
            let label = label_of(&tree.label, &entry.path);
            match tree.remote.join(&entry.path).checked() {
                Ok(remote) => {
                    candidates.extend(candidate_of(
                        engine,
                        dirs,
                        &mut walking,
                        entry,
                        remote,
                        label,
                    ));
                }
                Err(fault) => {
                    engine.outcomes().failed(ItemKey::new(number, &entry.path), label, fault)
                }
            }
        }
        if walking.walk.is_some() {
            self.resting.push_back(walking);
        } else {
            engine.outcomes().ledger().scan_finished(number);
        }
        Some(candidates)
    }

    /// Notes trees with unread pages as unfinished.
    pub fn suspend(&mut self, engine: &mut Engine) {
        let resting = self.resting.drain(..).map(|walking| walking.of);
        for NumberedTree { number, tree } in resting.chain(self.walked.take()) {
            engine.outcomes().ledger().note_unfinished(
                ItemKey::unscanned(number),
                tree.label.clone(),
                false,
            );
        }
    }
}

/// A folder that the server creates. If its metadata is preserved, it is private until that is set.
fn new_folder(engine: &Engine, path: WirePath, mode: u32) -> NewEntry {
    let (unfinished, force) = (engine.options().preserve, engine.policy().force);
    let mode = if unfinished { 0o700 } else { mode };
    NewEntry { path, kind: EntryKind::Folder, force, mode, meta: None, unfinished }
}

/// The candidate of an entry, if it can be uploaded.
fn candidate_of(
    engine: &mut Engine,
    dirs: &DirMetadata,
    walking: &mut TreeWalk,
    entry: Entry,
    remote: WirePath,
    label: String,
) -> Option<Candidate> {
    let TreeWalk { of: NumberedTree { number, tree }, dir_stack, .. } = walking;
    let item = ItemKey::new(*number, &entry.path);
    let work_item = WorkItem { item, parent: dir_stack.parent_of(&entry.path) };
    let mtime_ns = entry.mtime_ns;
    match entry.kind {
        EntryKind::File => {
            let source = UploadSource::Below(tree.folder.clone(), entry.path);
            let upload = Upload { source, remote, size: entry.size, mtime_ns, label, basis: None };
            Some(Candidate::File(work_item, upload))
        }
        EntryKind::Special => {
            engine.outcomes().skipped(item, label, SkipReason::Special);
            None
        }
        EntryKind::Symlink { .. } => {
            let Entry { kind, mode, meta, .. } = entry;
            let (force, unfinished) = (engine.policy().force, false);
            let entry = NewEntry { path: remote, kind, force, mode, meta, unfinished };
            Some(Candidate::Entry { work_item, entry, mtime_ns, label })
        }
        EntryKind::Folder => {
            let new = new_folder(engine, remote.clone(), entry.mode);
            // The root became a candidate before the walk began.
            let is_root = entry.path.is_root();
            if let Some(meta) = entry.meta {
                let place = DirLocation::Remote(remote);
                let guard = dirs.guard(place, work_item, label.clone(), *meta);
                dir_stack.push(entry.path, guard);
            }
            // It needs no guard: the server creates it before its metadata is due.
            let work_item = WorkItem::unguarded(item);
            (!is_root).then_some(Candidate::Entry { work_item, entry: new, mtime_ns, label })
        }
    }
}

fn walk_page(walking: TreeWalk, policy: &CopyPolicy, describe: bool) -> LocalPage {
    let TreeWalk { of, walk, dir_stack } = walking;
    let folder = &of.tree.folder;
    let begin = || {
        let mut walk = match policy.follow {
            true => Walk::following(folder.share(), WirePath::root(), true)?,
            false => Walk::new(folder.open_folder(&WirePath::root())?, true)?,
        };
        if describe {
            walk = walk.describing(Describe { trusted: true })?;
        }
        Ok(Box::new(walk))
    };
    let (mut entries, mut faults) = (Vec::new(), Vec::new());
    let walk = match walk.map_or_else(begin, Ok) {
        Ok(walk) => next_page(walk, policy, &mut entries, &mut faults),
        Err(fault) => {
            faults.push((WirePath::root(), fault));
            None
        }
    };
    LocalPage { walking: TreeWalk { of, walk, dir_stack }, entries, faults }
}

/// Fills a page. Returns the walk if there is more.
fn next_page(
    mut walk: Box<Walk>,
    policy: &CopyPolicy,
    entries: &mut Vec<Entry>,
    faults: &mut Vec<(WirePath, Fault)>,
) -> Option<Box<Walk>> {
    let mut bytes = 0;
    while entries.len() < PAGE_ENTRIES_MAX && bytes < FRAME_BYTES_MAX {
        match walk.next()? {
            Ok(entry) => match is_excluded(policy, &entry) {
                Ok(true) => walk.leave(),
                Ok(false) => {
                    bytes += entry.weight();
                    entries.push(entry);
                }
                Err(fault) => faults.push((entry.path, fault)),
            },
            Err(fault) => faults.push(fault),
        }
    }
    Some(walk)
}

fn is_excluded(policy: &CopyPolicy, entry: &Entry) -> Result<bool, Fault> {
    policy.exclude.excludes(&entry.path, entry.kind == EntryKind::Folder)
}
