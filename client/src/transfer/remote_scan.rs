//! Trees: remote folders are scanned here, and local ones walked in `walking`,
//! a page at a time, while what was found before is copied. A page is asked for
//! only when little is left to do, so a tree of any size takes one page of
//! memory. Folders are made before what is in them, and finished after it by
//! `endings`.

use crate::engine::ledger::Item;
use crate::model::copy_policy::Task;
use crate::model::report::SkipReason;
use crate::session::dispatch::Core;
use crate::transfer::dir_metadata::{Endings, Mark, Nest, Place};
use crate::transfer::download::Download;
use crate::transfer::local_walk::Walks;
use crate::transfer::remote_mkdir::Making;
use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;
use verbatim_files::Folder;
use verbatim_proto::message::{ClientMessage, Entry, EntryKind};
use verbatim_proto::units::OPEN_FILES_MAX;
use verbatim_proto::{Code, Fault, Scan, WirePath};

/// Files that wait before another page is asked for.
pub(crate) const QUEUE_LOW: usize = OPEN_FILES_MAX / 2;

/// Scans at a time; a server lets a session have twice as many.
pub(crate) const SCANS_MAX: usize = 4;

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
struct Scanning {
    number: u32,
    tree: RemoteTree,
    nest: Nest,
}

type Listed = (Vec<Entry>, Vec<(WirePath, Fault)>, bool);

#[derive(Default)]
pub(crate) struct Trees {
    remote: HashMap<u32, Scanning>,
    /// Trees whose scan has not begun.
    waiting: VecDeque<(u32, RemoteTree)>,
    /// Scans with more pages to ask for.
    ready: VecDeque<u32>,
    pub walks: Walks,
    pub making: HashMap<u32, Making>,
    pub endings: Endings,
    listing: Option<u32>,
    listed: Option<Listed>,
}

impl Trees {
    /// Whether nothing is left to find or to make, but perhaps to finish.
    pub fn is_found(&self) -> bool {
        let scanned = self.remote.is_empty() && self.waiting.is_empty();
        scanned && self.walks.is_idle() && self.making.is_empty()
    }

    pub fn is_idle(&mut self) -> bool {
        self.is_found() && self.endings.is_idle()
    }

    /// Whether the server was asked for a page, or to make something, and has not answered.
    pub fn awaits(&self) -> bool {
        self.remote.len() > self.ready.len() || !self.making.is_empty()
    }

    /// The next scan is only listed.
    pub fn list(&mut self, request: u32) {
        self.listing = Some(request);
    }

    /// A page of it; the last one ends it.
    pub fn listed(&mut self) -> Option<Listed> {
        let page = self.listed.take()?;
        self.listing.take_if(|_| page.2);
        Some(page)
    }
}

impl Core {
    pub(crate) fn add_remote_tree(&mut self, number: u32, tree: RemoteTree) {
        self.trees.waiting.push_back((number, tree));
    }

    fn begin_scan(&mut self, number: u32, mut tree: RemoteTree) {
        let item = Item::new(number, &WirePath::root());
        let made = self.take_folder(item, &tree.folder, &tree.local, 0o755, &tree.label);
        // No link that comes with it is followed: one that leads beside the tree could be followed
        // by a file behind it, and the server would choose where that goes.
        let own = made.and_then(|()| match self.rules.task {
            Task::Copy => tree.folder.plain_below(&tree.local).map(Arc::new),
            Task::DryRun | Task::Verify => Ok(tree.folder.clone()),
        });
        tree.folder = match own {
            Ok(own) => own,
            Err(fault) => return self.failed(item, tree.label, fault),
        };
        let request = self.request();
        let scan = Scan {
            path: tree.remote.clone(),
            recursive: true,
            follow: self.rules.follow,
            describe: self.options.preserve,
            exclude: self.rules.exclude.texts().to_vec(),
        };
        self.sending.push_back(ClientMessage::Scan { request, scan });
        self.trees.remote.insert(request, Scanning { number, tree, nest: Nest::default() });
    }

    /// Asks for pages while little is left to do.
    pub(crate) fn pump_trees(&mut self) {
        self.pump_endings();
        while self.trees.remote.len() < SCANS_MAX
            && let Some((number, tree)) = self.trees.waiting.pop_front()
        {
            self.begin_scan(number, tree);
        }
        let queued = self.downloads.queued() + self.compares.queued() + self.trees.endings.queued();
        if queued < QUEUE_LOW
            && let Some(request) = self.trees.ready.pop_front()
        {
            self.quiet_since = Instant::now();
            self.sending.push_back(ClientMessage::ScanMore { request });
        }
        self.pump_walks();
    }

    pub(crate) fn remote_page(
        &mut self,
        request: u32,
        entries: Vec<Entry>,
        faults: Vec<(WirePath, Fault)>,
        done: bool,
    ) {
        if self.trees.listing == Some(request) && self.trees.listed.is_none() {
            self.trees.listed = Some((entries, faults, done));
            return;
        }
        // One that rests was not asked for its next page yet.
        let asked = !self.trees.ready.contains(&request);
        let scanning = asked.then(|| self.trees.remote.remove(&request)).flatten();
        let Some(mut scanning) = scanning else {
            return self.broke(Fault::new(Code::Protocol, "the server sent a page unasked"));
        };
        for (path, fault) in faults {
            let label = label_of(&scanning.tree.label, &path);
            self.failed(Item::new(scanning.number, &path), label, fault);
        }
        for entry in entries {
            self.remote_entry(&mut scanning, entry);
        }
        if !done {
            self.trees.remote.insert(request, scanning);
            self.trees.ready.push_back(request);
        } else {
            self.ledger.looked_at(scanning.number);
        }
    }

    fn remote_entry(&mut self, scanning: &mut Scanning, entry: Entry) {
        let Scanning { number, tree, nest } = scanning;
        let item = Item::new(*number, &entry.path);
        let label = label_of(&tree.label, &entry.path);
        let local = tree.local.join(&entry.path);
        let mark = Mark { item, within: nest.around(&entry.path) };
        let taken = match entry.kind {
            EntryKind::File => match tree.remote.join(&entry.path).checked() {
                Ok(remote) => {
                    let folder = tree.folder.clone();
                    let (size, mtime_ns) = (entry.size, entry.mtime_ns);
                    let download =
                        Download { remote, folder, local, size, mtime_ns, label, basis: None };
                    return self.add_download(mark, download);
                }
                Err(fault) => Err(fault),
            },
            EntryKind::Folder => {
                // The root was made before the scan began.
                let made = match entry.path.is_root() {
                    true => Ok(()),
                    false => self.take_folder(item, &tree.folder, &local, entry.mode, &label),
                };
                if let (Ok(()), Some(meta)) = (&made, entry.meta) {
                    let place = Place::Local(tree.folder.clone(), local);
                    let ending = self.trees.endings.plan(place, mark, label.clone(), *meta);
                    nest.enter(entry.path, ending);
                }
                made
            }
            EntryKind::Symlink { .. } => self.take_link(item, &tree.folder, &local, &entry, &label),
            EntryKind::Special => return self.skipped(item, label, SkipReason::Special),
        };
        if let Err(fault) = taken {
            self.not_placed(item, label, fault);
        }
    }

    /// Lets go of all trees. The next session looks at them from the beginning: what is over it
    /// leaves out, folders that are there are no harm, and they are finished then.
    pub(crate) fn leave_trees(&mut self) {
        let trees = std::mem::take(&mut self.trees);
        let remote = trees.remote.into_values();
        let waiting = trees.waiting.into_iter().map(|(number, tree)| (number, tree.label));
        let remote = remote.map(|scanning| (scanning.number, scanning.tree.label)).chain(waiting);
        for (number, label) in remote.chain(trees.walks.into_labels()) {
            self.ledger.leave(Item::rest(number), label, false);
        }
        for (item, label) in trees.making.into_values().flat_map(Making::into_labels) {
            self.ledger.leave(item, label, false);
        }
    }
}

pub(crate) fn label_of(base: &str, path: &WirePath) -> String {
    if path.is_root() {
        return base.to_owned();
    }
    let base = base.trim_end_matches('/');
    let mut label = String::with_capacity(base.len() + 1 + path.as_bytes().len());
    // Writing to a string does not fail.
    let _ = write!(label, "{base}/{path}");
    label
}
