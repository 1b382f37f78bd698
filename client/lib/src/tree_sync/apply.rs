//! Applies the steps of a mirror. With a local target, files are queued as downloads and jobs do
//! everything else (`apply_local`). With a remote target, the server creates folders and links and
//! makes changes, many per message; files are queued as uploads after their folders.

use crate::tree_sync::apply_local::{LocalOp, LocalOps};
use crate::tree_sync::delta_candidates::DeltaCandidates;
use crate::tree_sync::report::PendingChange;
use crate::tree_sync::spec::{Direction, Spec};
use std::collections::HashMap;
use std::sync::Arc;
use verbatim_engine::connection::Engine;
use verbatim_engine::connection::dir_guard::WorkItem;
use verbatim_engine::connection::ledger::ItemKey;
use verbatim_engine::local_io::delta_source::Basis;
use verbatim_engine::local_io::waker::Waker;
use verbatim_engine::model::report::SkipReason;
use verbatim_engine::transfer::Transfer;
use verbatim_engine::transfer::download::Download;
use verbatim_engine::transfer::upload::{Upload, UploadSource};
use verbatim_files::Folder;
use verbatim_proto::message::{ClientMessage, EntryKind, NewEntry};
use verbatim_proto::mirror::{Edit, MirrorRequest};
use verbatim_proto::plan::What;
use verbatim_proto::units::{BATCH_FILES_MAX, FRAME_BYTES_MAX};
use verbatim_proto::{Code, Fault, Node, WirePath};

/// Change requests in flight; the server accepts more.
const CHANGES_MAX: usize = 16;

/// Folders and links to create with one message, and the files after them.
#[derive(Default)]
struct EntryBatch {
    makes: Vec<(NewEntry, (WorkItem, String))>,
    files: Vec<(WorkItem, Upload)>,
}

/// The steps that a mirror applies, and those that wait.
pub(crate) struct Apply {
    entry_batch: EntryBatch,
    /// Changes requested from the server.
    requested: HashMap<u32, Vec<PendingChange>>,
    /// Changes not yet requested.
    changes: Vec<(Edit, PendingChange)>,
    local_ops: LocalOps,
}

impl Apply {
    pub fn new(waker: &Waker) -> Self {
        Self {
            entry_batch: EntryBatch::default(),
            requested: HashMap::new(),
            changes: Vec::new(),
            local_ops: LocalOps::new(waker),
        }
    }

    /// Steps that are not finished.
    pub fn queued(&self) -> usize {
        let requested = self.requested.values().map(Vec::len).sum::<usize>();
        let entry_batch = self.entry_batch.makes.len() + self.entry_batch.files.len();
        self.changes.len() + requested + entry_batch + self.local_ops.len()
    }

    pub fn is_idle(&self) -> bool {
        self.queued() == 0 && self.requested.is_empty() && self.local_ops.is_idle()
    }

    /// Whether the server owes answers to changes.
    pub fn awaits(&self) -> bool {
        !self.requested.is_empty()
    }

    /// Whether a job changes a local target.
    pub fn is_applying_locally(&self) -> bool {
        self.local_ops.is_busy()
    }

    /// Starts waiting steps: local ones in jobs, remote ones with messages.
    pub fn pump(&mut self, engine: &mut Engine, spec: &Spec, transfer: &mut Transfer) {
        self.send_changes(engine);
        transfer.queue_downloads(engine, self.local_ops.pump(spec));
    }

    /// Handles the answers of jobs.
    pub fn take_answers(&mut self, engine: &mut Engine, spec: &Spec, transfer: &mut Transfer) {
        let files = self.local_ops.take_answers(engine, spec);
        transfer.queue_downloads(engine, files);
    }

    /// Handles the server's answers to changes.
    pub fn changed(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        request: u32,
        answers: Vec<Result<(), Fault>>,
    ) {
        let pending = self.requested.remove(&request);
        match pending.filter(|pending| pending.len() == answers.len()) {
            Some(pending) => {
                for (pending, answer) in pending.into_iter().zip(answers) {
                    pending.finish(engine, spec, answer);
                }
            }
            None => engine.protocol_violation("a reply to edits"),
        }
    }

    /// Applies a step now.
    pub fn apply_step(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        candidates: &DeltaCandidates,
        deletes_refused: bool,
        what: What,
    ) {
        let (item, label) = (spec.item(what.path()), spec.shown(what.path()));
        // A finished file that differs is copied again: it may have been in another tree.
        if let What::Fetch { node, .. } = &what {
            engine.outcomes().ledger().forget_done(item, node.size);
        }
        if engine.outcomes().ledger().is_finished(item)
            && matches!(what, What::Fetch { .. } | What::Refuse { .. })
        {
            return;
        }
        match &what {
            What::Refuse { fault, .. } => {
                return engine.outcomes().failed(item, label, fault.clone());
            }
            What::Skip { .. } => {
                return engine.outcomes().skipped(item, label, SkipReason::Special);
            }
            // The folder in its place was not deleted.
            What::Fetch { late: true, .. } | What::Symlink { late: true, .. }
                if deletes_refused =>
            {
                let fault = Fault::new(Code::IsFolder, "a folder is in its place");
                return engine.outcomes().failed(item, label, fault);
            }
            // A hard link to a failed file fails with it.
            What::Link { to, .. } => {
                if let Some(fault) = engine.outcomes().ledger().fault_of(spec.item(to)) {
                    return engine.outcomes().failed(item, label, fault);
                }
            }
            _ => {}
        }
        match (spec.mirror.direction, spec.mirror.folder.clone()) {
            (Direction::Up, Some(folder)) => {
                let basis = basis_of(candidates, &what);
                self.apply_remotely(engine, spec, &folder, what, basis, (item, label));
            }
            (Direction::Down, Some(folder)) => {
                let basis = basis_of(candidates, &what);
                self.apply_locally(engine, spec, &folder, what, basis, (item, label));
            }
            (_, None) => {}
        }
    }

    fn apply_locally(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        folder: &Arc<Folder>,
        what: What,
        basis: Option<Basis>,
        (item, label): (ItemKey, String),
    ) {
        if let What::Fetch { node, .. } = what {
            let remote = match spec.mirror.remote.join(&node.path).checked() {
                Ok(remote) => remote,
                Err(fault) => return engine.outcomes().failed(item, label, fault),
            };
            let (folder, size, mtime_ns) = (folder.clone(), node.size, node.meta.mtime_ns);
            let local = node.path;
            let download = Download { remote, folder, local, size, mtime_ns, label, basis };
            return self.local_ops.push_file(WorkItem::unguarded(item), download);
        }
        let gone = match &what {
            What::Delete { path, is_folder } => Some((path.clone(), *is_folder)),
            _ => None,
        };
        self.local_ops.push(LocalOp::Step(what), PendingChange { item, label, gone });
    }

    fn apply_remotely(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        folder: &Arc<Folder>,
        what: What,
        basis: Option<Basis>,
        (item, label): (ItemKey, String),
    ) {
        let below = |path: &WirePath| spec.mirror.remote.join(path).checked();
        let path = match below(what.path()) {
            Ok(path) => path,
            Err(fault) => return engine.outcomes().failed(item, label, fault),
        };
        let mut gone = None;
        let change = match what {
            What::Fetch { node, .. } => {
                let basis = basis.map(|Basis { paths, fuzzy }| {
                    let paths = paths.iter().filter_map(|path| below(path).ok()).collect();
                    Basis { paths, fuzzy }
                });
                let source = UploadSource::Below(folder.clone(), node.path);
                let (remote, size, mtime_ns) = (path, node.size, node.meta.mtime_ns);
                let upload = Upload { source, remote, size, mtime_ns, label, basis };
                return self.entry_batch.files.push((WorkItem::unguarded(item), upload));
            }
            What::MakeFolder { replace, .. } => {
                return self.add_entry(new_folder(path, replace), item, label);
            }
            What::OpenUp { .. } => return self.add_entry(new_folder(path, false), item, label),
            What::Symlink { node, .. } => {
                let Node { kind, meta, .. } = *node;
                let (force, mode, unfinished) = (false, meta.mode, false);
                let meta = Some(Box::new(meta));
                let entry = NewEntry { path, kind, force, mode, meta, unfinished };
                return self.add_entry(entry, item, label);
            }
            What::Describe { node } | What::Finish { node } => {
                let Node { kind, meta, .. } = *node;
                let (atomic_target, meta) = (spec.mirror.atomic_target.is_some(), Box::new(meta));
                match kind {
                    EntryKind::File if atomic_target => Edit::Own { path, meta },
                    _ => Edit::Describe { path, meta },
                }
            }
            What::Link { to, .. } => match below(&to) {
                Ok(to) => Edit::Link { path, to },
                Err(fault) => return engine.outcomes().failed(item, label, fault),
            },
            What::Delete { path: below, is_folder } => {
                gone = Some((below, is_folder));
                Edit::Remove { path, is_folder }
            }
            What::Revert { .. } | What::Skip { .. } | What::Refuse { .. } => return,
        };
        self.changes.push((change, PendingChange { item, label, gone }));
    }

    fn add_entry(&mut self, entry: NewEntry, item: ItemKey, label: String) {
        self.entry_batch.makes.push((entry, (WorkItem::unguarded(item), label)));
    }

    /// Requests the collected folders and links, then queues the files after them.
    pub fn flush_makes(&mut self, engine: &mut Engine, transfer: &mut Transfer) {
        let EntryBatch { makes, files } = std::mem::take(&mut self.entry_batch);
        if !makes.is_empty() || !files.is_empty() {
            transfer.make(engine, makes, files);
        }
    }

    /// Removes the partial file of an interrupted copy, unless a process has it open.
    pub fn sweep_leftover(&mut self, spec: &Spec, path: WirePath) {
        let (item, label) = (spec.item(&path), spec.shown(&path));
        let pending = PendingChange { item, label, gone: None };
        if spec.mirror.direction == Direction::Down {
            self.local_ops.push(LocalOp::Sweep(path), pending);
        } else if let Ok(path) = spec.mirror.remote.join(&path).checked() {
            self.changes.push((Edit::Sweep { path }, pending));
        }
    }

    /// Requests waiting changes, within the bounds.
    fn send_changes(&mut self, engine: &mut Engine) {
        while self.requested.len() < CHANGES_MAX && !self.changes.is_empty() {
            let mut bytes = 0;
            let fits = |(change, _): &&(Edit, PendingChange)| {
                bytes += change.weight();
                bytes < FRAME_BYTES_MAX / 2
            };
            let count = self.changes.iter().take(BATCH_FILES_MAX).take_while(fits).count();
            let batch = self.changes.drain(..count.max(1));
            let (edits, labels) = batch.unzip();
            let request = engine.request();
            self.requested.insert(request, labels);
            let change = MirrorRequest::Edit { request, edits };
            engine.send(ClientMessage::Mirror(change));
        }
    }
}

/// The basis for the copy of a file.
fn basis_of(candidates: &DeltaCandidates, what: &What) -> Option<Basis> {
    match what {
        What::Fetch { node, there, .. } => candidates.basis(node, *there),
        _ => None,
    }
}

/// A folder for the server to create, private until it gets its metadata.
fn new_folder(path: WirePath, force: bool) -> NewEntry {
    let kind = EntryKind::Folder;
    NewEntry { path, kind, force, mode: 0o700, meta: None, unfinished: true }
}
