//! Scans remote trees a page at a time, while entries of earlier pages are copied. The next page is
//! requested only when few files are queued, so a tree of any size needs one page of memory.
//! Folders are created before their entries and get their metadata after them.

use crate::connection::Engine;
use crate::connection::dir_guard::{DirLocation, DirStack, WorkItem};
use crate::connection::label::label_of;
use crate::connection::ledger::ItemKey;
use crate::model::copy_policy::Task;
use crate::model::report::SkipReason;
use crate::transfer::Files;
use crate::transfer::dir_metadata::DirMetadata;
use crate::transfer::download::Download;
use crate::transfer::select_local::{add_download, apply_folder, apply_link};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use verbatim_files::Folder;
use verbatim_proto::message::{ClientMessage, Entry, EntryKind};
use verbatim_proto::units::OPEN_FILES_MAX;
use verbatim_proto::{Code, Fault, Scan, WirePath};

/// The next page is requested when fewer files are queued.
pub(crate) const QUEUE_LOW: usize = OPEN_FILES_MAX / 2;

/// Scans in flight; a server permits a session twice as many.
pub const SCANS_MAX: usize = 4;

/// One page of a scan, as the server sent it.
pub struct Page {
    /// The entries found, in the order of the scan.
    pub entries: Vec<Entry>,
    /// The entries that the server could not read, with the cause.
    pub faults: Vec<(WirePath, Fault)>,
    /// Whether this is the last page.
    pub done: bool,
}

/// A remote folder to download.
#[derive(Clone)]
pub struct RemoteTree {
    /// The source path, export first.
    pub remote: WirePath,
    /// The local folder that no entry may leave.
    pub folder: Arc<Folder>,
    /// The target path below that folder.
    pub local: WirePath,
    /// The source, as the user would name it.
    pub label: String,
}

/// A remote tree, the number of its piece of work, and the guards of the folders that the scan is
/// in.
struct TreeScan {
    number: u32,
    tree: RemoteTree,
    dir_stack: DirStack,
}

/// The scans of a session's remote trees.
#[derive(Default)]
pub(crate) struct RemoteScans {
    remote: HashMap<u32, TreeScan>,
    /// Trees whose scan has not started.
    waiting: VecDeque<(u32, RemoteTree)>,
    /// Scans whose next page is not requested yet.
    ready: VecDeque<u32>,
}

impl RemoteScans {
    pub fn is_idle(&self) -> bool {
        self.remote.is_empty() && self.waiting.is_empty()
    }

    /// Whether the server owes a page.
    pub fn awaits(&self) -> bool {
        self.remote.len() > self.ready.len()
    }

    pub fn add(&mut self, number: u32, tree: RemoteTree) {
        self.waiting.push_back((number, tree));
    }

    fn begin_scan(&mut self, engine: &mut Engine, number: u32, mut tree: RemoteTree) {
        let item = ItemKey::new(number, &WirePath::root());
        let made = apply_folder(engine, item, &tree.folder, &tree.local, 0o755, &tree.label);
        // Do not follow links of the copied tree: a link out of the tree, then a file below it,
        // would let the server choose where to write.
        let own = made.and_then(|()| match engine.policy().task {
            Task::Copy => tree.folder.plain_below(&tree.local).map(Arc::new),
            Task::DryRun | Task::Verify => Ok(tree.folder.clone()),
        });
        tree.folder = match own {
            Ok(own) => own,
            Err(fault) => return engine.outcomes().failed(item, tree.label, fault),
        };
        let request = engine.request();
        let scan = Scan {
            path: tree.remote.clone(),
            recursive: true,
            follow: engine.policy().follow,
            describe: engine.options().preserve,
            exclude: engine.policy().exclude.texts().to_vec(),
        };
        engine.send(ClientMessage::Scan { request, scan });
        self.remote.insert(request, TreeScan { number, tree, dir_stack: DirStack::default() });
    }

    /// Starts scans, and requests pages while few files are queued.
    pub fn pump(&mut self, engine: &mut Engine, queued: usize) {
        while self.remote.len() < SCANS_MAX
            && let Some((number, tree)) = self.waiting.pop_front()
        {
            self.begin_scan(engine, number, tree);
        }
        if queued < QUEUE_LOW
            && let Some(request) = self.ready.pop_front()
        {
            engine.clock().request_sent_at(Instant::now());
            engine.send(ClientMessage::ScanMore { request });
        }
    }

    /// Handles a page of a remote tree.
    pub fn page(
        &mut self,
        engine: &mut Engine,
        files: &mut Files,
        dirs: &DirMetadata,
        request: u32,
        page: Page,
    ) {
        let Page { entries, faults, done } = page;
        // The next page of a ready scan was not requested.
        let asked = !self.ready.contains(&request);
        let scan = asked.then(|| self.remote.remove(&request)).flatten();
        let Some(mut scan) = scan else {
            return engine
                .fail_session(Fault::new(Code::Protocol, "the server sent a page unasked"));
        };
        for (path, fault) in faults {
            let label = label_of(&scan.tree.label, &path);
            engine.outcomes().failed(ItemKey::new(scan.number, &path), label, fault);
        }
        for entry in entries {
            handle_entry(engine, files, dirs, &mut scan, entry);
        }
        if !done {
            self.remote.insert(request, scan);
            self.ready.push_back(request);
        } else {
            engine.outcomes().ledger().scan_finished(scan.number);
        }
    }

    /// Notes all trees as unfinished. The next session scans them from the start, skips finished
    /// items, and completes existing folders.
    pub fn suspend(&mut self, engine: &mut Engine) {
        let remote = self.remote.drain().map(|(_, scan)| (scan.number, scan.tree));
        for (number, tree) in remote.chain(self.waiting.drain(..)) {
            engine.outcomes().ledger().note_unfinished(
                ItemKey::unscanned(number),
                tree.label,
                false,
            );
        }
        self.ready.clear();
    }
}

/// Applies the policy of the copy to one entry of a remote tree.
fn handle_entry(
    engine: &mut Engine,
    files: &mut Files,
    dirs: &DirMetadata,
    scan: &mut TreeScan,
    entry: Entry,
) {
    let TreeScan { number, tree, dir_stack } = scan;
    let item = ItemKey::new(*number, &entry.path);
    let label = label_of(&tree.label, &entry.path);
    let local = tree.local.join(&entry.path);
    let work_item = WorkItem { item, parent: dir_stack.parent_of(&entry.path) };
    let taken = match entry.kind {
        EntryKind::File => match tree.remote.join(&entry.path).checked() {
            Ok(remote) => {
                let folder = tree.folder.clone();
                let (size, mtime_ns) = (entry.size, entry.mtime_ns);
                let download =
                    Download { remote, folder, local, size, mtime_ns, label, basis: None };
                return add_download(engine, files, work_item, download);
            }
            Err(fault) => Err(fault),
        },
        EntryKind::Folder => {
            // The root was created before the scan began.
            let made = match entry.path.is_root() {
                true => Ok(()),
                false => apply_folder(engine, item, &tree.folder, &local, entry.mode, &label),
            };
            if let (Ok(()), Some(meta)) = (&made, entry.meta) {
                let place = DirLocation::Local(tree.folder.clone(), local);
                let guard = dirs.guard(place, work_item, label.clone(), *meta);
                dir_stack.push(entry.path, guard);
            }
            made
        }
        EntryKind::Symlink { .. } => apply_link(engine, item, &tree.folder, &local, &entry, &label),
        EntryKind::Special => return engine.outcomes().skipped(item, label, SkipReason::Special),
    };
    if let Err(fault) = taken {
        engine.outcomes().commit_refused(item, label, fault);
    }
}
