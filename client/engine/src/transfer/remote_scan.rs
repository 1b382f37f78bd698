//! Remote trees: scanned a page at a time, while what was found before is copied. A page is asked
//! for only when little is queued, so a tree of any size takes one page of memory. Folders are made
//! before what is in them, and get their metadata after it.

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

/// Files that wait before another page is asked for.
pub(crate) const QUEUE_LOW: usize = OPEN_FILES_MAX / 2;

/// The most scans at a time; a server allows a session twice as many.
pub const SCANS_MAX: usize = 4;

/// One page of a scan, as the server sent it.
pub struct Page {
    /// The entries found, in the order of the scan.
    pub entries: Vec<Entry>,
    /// The entries that the server could not read, and why.
    pub faults: Vec<(WirePath, Fault)>,
    /// Whether this is the last page.
    pub done: bool,
}

/// A remote folder to fetch.
#[derive(Clone)]
pub struct RemoteTree {
    /// The folder, export first.
    pub remote: WirePath,
    /// The folder everything stays in.
    pub folder: Arc<Folder>,
    /// Where below that folder it goes.
    pub local: WirePath,
    /// How the user would name it.
    pub label: String,
}

/// A remote tree, the number of the work it is, and the folders its scan is in.
struct TreeScan {
    number: u32,
    tree: RemoteTree,
    dir_stack: DirStack,
}

/// The remote trees of a session.
#[derive(Default)]
pub(crate) struct RemoteScans {
    remote: HashMap<u32, TreeScan>,
    /// Trees whose scan has not begun.
    waiting: VecDeque<(u32, RemoteTree)>,
    /// Scans with more pages to ask for.
    ready: VecDeque<u32>,
}

impl RemoteScans {
    pub fn is_idle(&self) -> bool {
        self.remote.is_empty() && self.waiting.is_empty()
    }

    /// Whether the server was asked for a page and has not answered.
    pub fn awaits(&self) -> bool {
        self.remote.len() > self.ready.len()
    }

    pub fn add(&mut self, number: u32, tree: RemoteTree) {
        self.waiting.push_back((number, tree));
    }

    fn begin_scan(&mut self, engine: &mut Engine, number: u32, mut tree: RemoteTree) {
        let item = ItemKey::new(number, &WirePath::root());
        let made = apply_folder(engine, item, &tree.folder, &tree.local, 0o755, &tree.label);
        // No link that comes with it is followed: one that leads beside the tree could be followed
        // by a file behind it, and the server would choose where that goes.
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

    /// Begins scans, and asks for pages while little is queued.
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

    /// A page of a remote tree is there.
    pub fn page(
        &mut self,
        engine: &mut Engine,
        files: &mut Files,
        dirs: &DirMetadata,
        request: u32,
        page: Page,
    ) {
        let Page { entries, faults, done } = page;
        // One that rests was not asked for its next page yet.
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

    /// Lets go of all trees. The next session looks at them from the beginning: what is over it
    /// leaves out, folders that are there are no harm, and they are finished then.
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

/// Does what is to be done with one entry of a remote tree.
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
            // The root was made before the scan began.
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
