//! Does the steps of a mirror. On the way down the target is on this machine:
//! files are queued as downloads, all else is done by jobs (`deeds`). On the way
//! up the server makes folders and links and does changes, many in one message,
//! and files are queued as uploads behind their folders.

use crate::engine::ledger::Item;
use crate::local_io::delta_source::Basis;
use crate::model::report::{Altered, SkipReason};
use crate::session::dispatch::Core;
use crate::transfer::dir_metadata::Mark;
use crate::transfer::download::Download;
use crate::transfer::upload::{Upload, UploadSource};
use crate::tree_sync::apply_local::Deed;
use crate::tree_sync::spec::Way;
use crate::tree_sync::{CHANGES_MAX, Mirroring};
use std::sync::Arc;
use verbatim_files::Folder;
use verbatim_proto::message::{ClientMessage, EntryKind, NewEntry};
use verbatim_proto::mirror::{Edit, MirrorRequest};
use verbatim_proto::plan::{Step, What, Why};
use verbatim_proto::units::{BATCH_FILES_MAX, FRAME_BYTES_MAX};
use verbatim_proto::{Code, Fault, Node, WirePath};

/// Things to make, and files behind them, gathered for one message.
#[derive(Default)]
pub(crate) struct Gathered {
    makes: Vec<(NewEntry, (Mark, String))>,
    files: Vec<(Mark, Upload)>,
}

impl Gathered {
    pub fn len(&self) -> usize {
        self.makes.len() + self.files.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// A change that was asked for, of the server or of a job, and what to say of it.
pub(crate) struct Asked {
    pub item: Item,
    pub label: String,
    /// What is gone when it is done, and whether it is a folder.
    gone: Option<(WirePath, bool)>,
}

impl Core {
    /// Tells of a step, and counts it; once, however many sessions take it.
    pub(crate) fn tell_step(&mut self, mirror: &Mirroring, step: &Step) {
        let (action, bytes) = match &step.what {
            What::MakeFolder { .. } => ("folder", 0),
            What::Fetch { node, .. } => ("copy", node.size),
            What::Link { .. } => ("link", 0),
            What::Symlink { .. } => ("symlink", 0),
            What::Describe { .. } | What::Finish { .. } => ("metadata", 0),
            What::Delete { path, .. } => {
                let item = Item::gone(mirror.number, path);
                return self.tell_change(item, "delete", path, &Why::GONE, 0);
            }
            What::OpenUp { .. } | What::Revert { .. } | What::Skip { .. } | What::Refuse { .. } => {
                return;
            }
        };
        let path = step.what.path();
        if step.why.is_empty() || path.is_root() && mirror.is_export() {
            return;
        }
        let differs = step.why.content || step.why.size;
        self.ledger.summary.differs |=
            differs && matches!(step.what, What::Fetch { there: true, .. });
        self.tell_change(mirror.item(path), action, path, &step.why, bytes);
    }

    fn tell_change(
        &mut self,
        item: Item,
        action: &'static str,
        path: &WirePath,
        why: &Why,
        bytes: u64,
    ) {
        if !self.ledger.is_news(item) {
            return;
        }
        self.ledger.summary.changes += 1;
        self.ledger.summary.deletes += u64::from(action == "delete");
        let why = *why;
        self.reports.alters(|| Altered { action, path: path.to_string(), why, bytes });
    }

    /// What was asked for is done, or not.
    pub(crate) fn answered(&mut self, mirror: &Mirroring, asked: Asked, answer: Result<(), Fault>) {
        match (answer, asked.gone) {
            (Ok(()), None) => {}
            (Ok(()), Some((path, is_folder))) => {
                let step = Step { what: What::Delete { path, is_folder }, why: Why::GONE };
                self.tell_step(mirror, &step);
            }
            // A folder that holds what is left out stays, and that is no failure.
            (Err(fault), Some((_, true))) if fault.code == Code::IsFolder => {}
            (Err(fault), _) => self.failed(asked.item, asked.label, fault),
        }
    }

    /// Does a step now.
    pub(crate) fn do_step(&mut self, mirror: &mut Mirroring, what: What) {
        let (item, label) = (mirror.item(what.path()), mirror.of.shown(what.path()));
        // What was done, and is not equal now, is done again: it may have been in another tree.
        if let What::Fetch { node, .. } = &what {
            self.ledger.again(item, node.size);
        }
        if self.ledger.is_over(item) && matches!(what, What::Fetch { .. } | What::Refuse { .. }) {
            return;
        }
        match &what {
            What::Refuse { fault, .. } => return self.failed(item, label, fault.clone()),
            What::Skip { .. } => return self.skipped(item, label, SkipReason::Special),
            // What was in its place is still there.
            What::Fetch { late: true, .. } | What::Symlink { late: true, .. } if mirror.refused => {
                let fault = Fault::new(Code::IsFolder, "a folder is in its place");
                return self.failed(item, label, fault);
            }
            // Another name of a file that is not what it should be would not be either.
            What::Link { to, .. } => {
                if let Some(fault) = self.ledger.fault_of(mirror.item(to)) {
                    return self.failed(item, label, fault);
                }
            }
            _ => {}
        }
        match (mirror.of.way, mirror.of.folder.clone()) {
            (Way::Up, Some(folder)) => self.do_up(mirror, &folder, what, item, label),
            (Way::Down, Some(folder)) => self.do_down(mirror, &folder, what, item, label),
            (_, None) => {}
        }
    }

    fn do_down(
        &mut self,
        mirror: &mut Mirroring,
        folder: &Arc<Folder>,
        what: What,
        item: Item,
        label: String,
    ) {
        if let What::Fetch { node, there, .. } = what {
            let basis = mirror.likely.basis(&node, there);
            return self.fetch_node(mirror, folder, *node, basis, item, label);
        }
        let gone = match &what {
            What::Delete { path, is_folder } => Some((path.clone(), *is_folder)),
            _ => None,
        };
        mirror.deeds.push(Deed::Step(what), Asked { item, label, gone });
    }

    /// Has a file copied from the server.
    fn fetch_node(
        &mut self,
        mirror: &mut Mirroring,
        folder: &Arc<Folder>,
        node: Node,
        basis: Option<Basis>,
        item: Item,
        label: String,
    ) {
        let remote = match mirror.of.remote.join(&node.path).checked() {
            Ok(remote) => remote,
            Err(fault) => return self.failed(item, label, fault),
        };
        let (folder, size, mtime_ns) = (folder.clone(), node.size, node.meta.mtime_ns);
        let local = node.path;
        let download = Download { remote, folder, local, size, mtime_ns, label, basis };
        mirror.deeds.push_file(Mark::alone(item), download);
    }

    fn do_up(
        &mut self,
        mirror: &mut Mirroring,
        folder: &Arc<Folder>,
        what: What,
        item: Item,
        label: String,
    ) {
        let below = |path: &WirePath| mirror.of.remote.join(path).checked();
        let path = match below(what.path()) {
            Ok(path) => path,
            Err(fault) => return self.failed(item, label, fault),
        };
        let mut gone = None;
        let change = match what {
            What::Fetch { node, there, .. } => {
                let basis = mirror.likely.basis(&node, there).map(|Basis { paths, guess }| {
                    let paths = paths.iter().filter_map(|path| below(path).ok()).collect();
                    Basis { paths, guess }
                });
                let source = UploadSource::Below(folder.clone(), node.path);
                let (remote, size, mtime_ns) = (path, node.size, node.meta.mtime_ns);
                let upload = Upload { source, remote, size, mtime_ns, label, basis };
                return self.gathered.files.push((Mark::alone(item), upload));
            }
            What::MakeFolder { replace, .. } => {
                return self.gather(new_folder(path, replace), item, label);
            }
            What::OpenUp { .. } => return self.gather(new_folder(path, false), item, label),
            What::Symlink { node, .. } => {
                let Node { kind, meta, .. } = *node;
                let (force, mode, unfinished) = (false, meta.mode, false);
                let meta = Some(Box::new(meta));
                let entry = NewEntry { path, kind, force, mode, meta, unfinished };
                return self.gather(entry, item, label);
            }
            What::Describe { node } | What::Finish { node } => {
                let Node { kind, meta, .. } = *node;
                let (aside, meta) = (mirror.of.aside.is_some(), Box::new(meta));
                match kind {
                    EntryKind::File if aside => Edit::Own { path, meta },
                    _ => Edit::Describe { path, meta },
                }
            }
            What::Link { to, .. } => match below(&to) {
                Ok(to) => Edit::Link { path, to },
                Err(fault) => return self.failed(item, label, fault),
            },
            What::Delete { path: below, is_folder } => {
                gone = Some((below, is_folder));
                Edit::Remove { path, is_folder }
            }
            What::Revert { .. } | What::Skip { .. } | What::Refuse { .. } => return,
        };
        mirror.changes.push((change, Asked { item, label, gone }));
    }

    fn gather(&mut self, entry: NewEntry, item: Item, label: String) {
        self.gathered.makes.push((entry, (Mark::alone(item), label)));
    }

    /// Has the server make what was gathered, and the files behind it sent.
    pub(crate) fn flush_makes(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        let Gathered { makes, files } = std::mem::take(&mut self.gathered);
        self.make(makes, files);
    }

    /// Removes what an interrupted copy left, unless somebody is at it.
    pub(crate) fn do_sweep(&mut self, mirror: &mut Mirroring, path: WirePath) {
        let (item, label) = (mirror.item(&path), mirror.of.shown(&path));
        let asked = Asked { item, label, gone: None };
        if mirror.of.way == Way::Down {
            mirror.deeds.push(Deed::Sweep(path), asked);
        } else if let Ok(path) = mirror.of.remote.join(&path).checked() {
            mirror.changes.push((Edit::Sweep { path }, asked));
        }
    }

    /// Asks the server for changes, as many at a time as it takes.
    pub(crate) fn send_changes(&mut self, mirror: &mut Mirroring) {
        while mirror.changing.len() < CHANGES_MAX && !mirror.changes.is_empty() {
            let mut bytes = 0;
            let fits = |(change, _): &&(Edit, Asked)| {
                bytes += change.weight();
                bytes < FRAME_BYTES_MAX / 2
            };
            let count = mirror.changes.iter().take(BATCH_FILES_MAX).take_while(fits).count();
            let batch = mirror.changes.drain(..count.max(1));
            let (edits, labels) = batch.unzip();
            let request = self.request();
            mirror.changing.insert(request, labels);
            let change = MirrorRequest::Edit { request, edits };
            self.sending.push_back(ClientMessage::Mirror(change));
        }
    }
}

/// A folder for the server to make, open to its owner until it gets its metadata.
fn new_folder(path: WirePath, force: bool) -> NewEntry {
    let kind = EntryKind::Folder;
    NewEntry { path, kind, force, mode: 0o700, meta: None, unfinished: true }
}
