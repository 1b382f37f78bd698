//! Does the steps of a mirror. On the way down the target is on this machine:
//! files are queued as downloads, all else is done at once. On the way up the
//! server makes folders and links and does changes, many in one message, and
//! files are queued as uploads behind their folders.

use super::{CHANGES_MAX, Mirroring, Way};
use crate::report::{Altered, SkipReason};
use crate::session::core::Report;
use crate::session::endings::Mark;
use crate::session::ledger::Item;
use crate::session::{Core, Download, Upload, UploadSource};
use std::sync::Arc;
use verbatim_files::Folder;
use verbatim_proto::message::{ClientMessage, EntryKind, NewEntry};
use verbatim_proto::mirror::{Edit, MirrorRequest};
use verbatim_proto::plan::{Step, What, Why};
use verbatim_proto::units::{BATCH_FILES_MAX, FRAME_BYTES_MAX};
use verbatim_proto::{Code, Fault, Node, WirePath};

/// Things to make, and files behind them, gathered for one message.
#[derive(Default)]
pub(in crate::session) struct Gathered {
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

impl Core {
    /// Tells of a step, and counts it.
    pub(super) fn tell_step(&mut self, mirror: &Mirroring, step: &Step) {
        let (action, bytes) = match &step.what {
            What::MakeFolder { .. } => ("folder", 0),
            What::Fetch { node, .. } => ("copy", node.size),
            What::Link { .. } => ("link", 0),
            What::Symlink { .. } => ("symlink", 0),
            What::Describe { .. } | What::Finish { .. } => ("metadata", 0),
            What::Delete { .. } => ("delete", 0),
            What::OpenUp { .. } | What::Skip { .. } | What::Refuse { .. } => return,
        };
        let root = step.what.path().is_root() && mirror.is_export();
        if step.why.is_empty() || root {
            return;
        }
        let summary = &mut self.ledger.summary;
        summary.changes += 1;
        summary.deletes += u64::from(action == "delete");
        let differs = step.why.content || step.why.size;
        summary.differs |= differs && matches!(step.what, What::Fetch { there: true, .. });
        let (path, why) = (step.what.path().to_string(), step.why.words());
        self.reports.push_back(Report::Altered(Altered { action, path, why, bytes }));
    }

    /// Does a step now.
    pub(super) fn do_step(&mut self, mirror: &mut Mirroring, what: What) {
        let (item, label) = (mirror.item(what.path()), mirror.of.shown(what.path()));
        if self.ledger.is_over(item) && matches!(what, What::Fetch { .. } | What::Refuse { .. }) {
            return;
        }
        let what = match what {
            What::Refuse { fault, .. } => return self.failed(item, label, fault),
            What::Skip { .. } => return self.skipped(item, label, SkipReason::Special),
            // What was in its place is still there.
            What::Fetch { late: true, .. } | What::Symlink { late: true, .. } if mirror.refused => {
                let fault = Fault::new(Code::IsFolder, "a folder is in its place");
                return self.failed(item, label, fault);
            }
            what @ What::Delete { .. } => {
                let step = Step { what, why: Why::GONE };
                self.tell_step(mirror, &step);
                step.what
            }
            what => what,
        };
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
        let rules = mirror.of.rules;
        let done = match what {
            What::Fetch { node, .. } => return self.fetch_node(mirror, folder, *node, item, label),
            What::MakeFolder { node, replace: true } => {
                folder.force_folder(&node.path, 0o700, true)
            }
            What::MakeFolder { node, .. } => folder.make_folder(&node.path, 0o700, true),
            What::OpenUp { path } => {
                // Where it cannot be, what is made in it says why.
                let _ = folder.open_up(&path);
                Ok(())
            }
            What::Symlink { node, .. } => match &node.kind {
                EntryKind::Symlink { target } => {
                    let keep = Some((&node.meta, &rules));
                    folder.make_symlink(&node.path, target, keep).map(drop)
                }
                _ => Ok(()),
            },
            What::Describe { node } | What::Finish { node } => {
                let shared = node.kind == EntryKind::File && mirror.of.aside.is_some();
                let own = if shared { folder.own(&node.path) } else { Ok(()) };
                own.and_then(|()| folder.describe_any(&node.path, &node.meta, &rules)).map(drop)
            }
            What::Link { path, to, .. } => folder.link(&path, &to),
            What::Delete { path, is_folder } => kept_if_full(folder.remove(&path, is_folder)),
            What::Skip { .. } | What::Refuse { .. } => Ok(()),
        };
        if let Err(fault) = done {
            self.failed(item, label, fault);
        }
    }

    /// Has a file copied from the server.
    fn fetch_node(
        &mut self,
        mirror: &Mirroring,
        folder: &Arc<Folder>,
        node: Node,
        item: Item,
        label: String,
    ) {
        let remote = match mirror.of.remote.join(&node.path).checked() {
            Ok(remote) => remote,
            Err(fault) => return self.failed(item, label, fault),
        };
        let (folder, size, mtime_ns) = (folder.clone(), node.size, node.meta.mtime_ns);
        let download = Download { remote, folder, local: node.path, size, mtime_ns, label };
        self.queue_download(Mark::alone(item), download);
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
        let change = match what {
            What::Fetch { node, .. } => {
                let source = UploadSource::Below(folder.clone(), node.path);
                let (remote, size, mtime_ns) = (path, node.size, node.meta.mtime_ns);
                let upload = Upload { source, remote, size, mtime_ns, label };
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
                if node.kind == EntryKind::File && mirror.of.aside.is_some() {
                    let own = Edit::Own { path: path.clone() };
                    mirror.changes.push((own, (item, label.clone())));
                }
                Edit::Describe { path, meta: Box::new(node.meta) }
            }
            What::Link { to, .. } => match below(&to) {
                Ok(to) => Edit::Link { path, to },
                Err(fault) => return self.failed(item, label, fault),
            },
            What::Delete { is_folder, .. } => Edit::Remove { path, is_folder },
            What::Skip { .. } | What::Refuse { .. } => return,
        };
        mirror.changes.push((change, (item, label)));
    }

    fn gather(&mut self, entry: NewEntry, item: Item, label: String) {
        self.gathered.makes.push((entry, (Mark::alone(item), label)));
    }

    /// Has the server make what was gathered, and the files behind it sent.
    pub(super) fn flush_makes(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        let Gathered { makes, files } = std::mem::take(&mut self.gathered);
        self.make(makes, files);
    }

    /// Removes what an interrupted copy left, unless somebody is at it.
    pub(super) fn do_sweep(&mut self, mirror: &mut Mirroring, path: WirePath) {
        let (item, label) = (mirror.item(&path), mirror.of.shown(&path));
        match (mirror.of.way, &mirror.of.folder) {
            (Way::Down, Some(folder)) => {
                if let Err(fault) = folder.sweep(&path) {
                    tracing::debug!(path = label, cause = %fault, "leftover stays");
                }
            }
            _ => {
                if let Ok(path) = mirror.of.remote.join(&path).checked() {
                    mirror.changes.push((Edit::Sweep { path }, (item, label)));
                }
            }
        }
    }

    /// Asks the server for changes, as many at a time as it takes.
    pub(super) fn send_changes(&mut self, mirror: &mut Mirroring) {
        while mirror.changing.len() < CHANGES_MAX && !mirror.changes.is_empty() {
            let mut bytes = 0;
            let fits = |(change, _): &&(Edit, (Item, String))| {
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

/// A folder that holds what is left out stays, and that is no failure.
fn kept_if_full(removed: Result<(), Fault>) -> Result<(), Fault> {
    match removed {
        Err(fault) if fault.code == Code::IsFolder => Ok(()),
        removed => removed,
    }
}
