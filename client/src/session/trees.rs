//! Trees: remote folders are scanned and local ones walked a page at a time,
//! while what was found before is copied. A page is asked for only when little
//! is left to do, so a tree of any size takes one page of memory. Folders are
//! made before what is in them.

use super::choices::Offer;
use super::ledger::Item;
use super::{Core, Download, Event, Upload, UploadSource};
use crate::report::SkipReason;
use crate::rules::Rules;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use verbatim_files::{Folder, Walk};
use verbatim_proto::message::{ClientMessage, Entry, EntryKind, NewEntry};
use verbatim_proto::units::{BATCH_FILES_MAX, OPEN_FILES_MAX, PAGE_ENTRIES_MAX};
use verbatim_proto::{Code, Fault, Scan, WirePath};

/// Files that wait before another page is asked for.
const QUEUE_LOW: usize = OPEN_FILES_MAX / 2;

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

/// A local folder to send.
#[derive(Clone)]
pub struct LocalTree {
    /// The folder.
    pub folder: Arc<Folder>,
    /// Where it goes, export first.
    pub remote: WirePath,
    /// How the user would name it.
    pub label: String,
}

/// A tree, and the number of the work it is.
type Numbered<T> = (u32, T);

/// A local tree, and its walk if that has begun.
type Resting = (Numbered<Arc<LocalTree>>, Option<Box<Walk>>);

type Listed = (Vec<Entry>, Vec<(WirePath, Fault)>, bool);

#[derive(Default)]
pub(super) struct Trees {
    remote: HashMap<u32, Numbered<RemoteTree>>,
    /// Scans with more pages to ask for.
    ready: VecDeque<u32>,
    /// Trees whose walk rests between two pages, or has not begun.
    local: VecDeque<Resting>,
    /// The tree a job walks just now.
    walking: Option<Numbered<Arc<LocalTree>>>,
    making: HashMap<u32, Making>,
    listing: Option<u32>,
    listed: VecDeque<Listed>,
}

/// Folders and links that the server was asked to make, and the files that wait for them.
struct Making {
    labels: Vec<(Item, String)>,
    files: Vec<(Item, Upload)>,
}

/// What a walk found.
pub(crate) struct LocalPage {
    tree: Numbered<Arc<LocalTree>>,
    walk: Option<Box<Walk>>,
    entries: Vec<Entry>,
    faults: Vec<(WirePath, Fault)>,
}

impl Trees {
    pub fn is_idle(&self) -> bool {
        self.remote.is_empty()
            && self.local.is_empty()
            && self.walking.is_none()
            && self.making.is_empty()
    }

    /// Whether the server was asked for a page, or to make something, and has not answered.
    pub fn awaits(&self) -> bool {
        self.remote.len() > self.ready.len() || !self.making.is_empty()
    }

    /// The next scan is only listed.
    pub fn list(&mut self, request: u32) {
        self.listing = Some(request);
    }

    pub fn listed(&mut self) -> Option<Listed> {
        self.listed.pop_front()
    }
}

impl Core {
    pub(super) fn add_remote_tree(&mut self, number: u32, tree: RemoteTree) {
        let item = Item::new(number, &WirePath::root());
        let made = self.take_folder(item, &tree.folder, &tree.local, 0o755, &tree.label);
        if let Err(fault) = made {
            return self.failed(item, tree.label, fault);
        }
        let request = self.request();
        let (path, follow) = (tree.remote.clone(), self.rules.follow);
        let exclude = self.rules.exclude.texts().to_vec();
        let scan = Scan { path, recursive: true, follow, exclude };
        self.sending.push_back(ClientMessage::Scan { request, scan });
        self.trees.remote.insert(request, (number, tree));
    }

    pub(super) fn add_local_tree(&mut self, number: u32, tree: LocalTree) {
        let item = Item::new(number, &WirePath::root());
        let (path, kind, force) = (tree.remote.clone(), EntryKind::Folder, self.rules.force);
        let entry = NewEntry { path, kind, force, mode: 0o755 };
        self.offer(vec![Offer::Entry { item, entry, mtime_ns: 0, label: tree.label.clone() }]);
        self.trees.local.push_back(((number, Arc::new(tree)), None));
    }

    /// Asks for pages while little is left to do.
    pub(super) fn pump_trees(&mut self) {
        if self.downloads.queued() + self.compares.queued() < QUEUE_LOW
            && let Some(request) = self.trees.ready.pop_front()
        {
            self.quiet_since = Instant::now();
            self.sending.push_back(ClientMessage::ScanMore { request });
        }
        let waiting: usize = self.trees.making.values().map(|making| making.files.len()).sum();
        if self.uploads.queued() + self.compares.queued() + self.choices.queued() + waiting
            < QUEUE_LOW
            && self.trees.walking.is_none()
            && let Some((tree, walk)) = self.trees.local.pop_front()
        {
            self.trees.walking = Some(tree.clone());
            let rules = self.rules.clone();
            self.job(move || Event::LocalPage(walk_page(tree, walk, &rules)));
        }
    }

    pub(super) fn remote_page(
        &mut self,
        request: u32,
        entries: Vec<Entry>,
        faults: Vec<(WirePath, Fault)>,
        done: bool,
    ) {
        if self.trees.listing == Some(request) {
            return self.trees.listed.push_back((entries, faults, done));
        }
        let Some((number, tree)) = self.trees.remote.remove(&request) else {
            return self.broke(Fault::new(Code::Protocol, "the server sent a page unasked"));
        };
        for (path, fault) in faults {
            self.failed(Item::new(number, &path), label_of(&tree.label, &path), fault);
        }
        for entry in entries {
            self.remote_entry(number, &tree, entry);
        }
        if !done {
            self.trees.remote.insert(request, (number, tree));
            self.trees.ready.push_back(request);
        } else {
            self.ledger.looked_at(number);
        }
    }

    fn remote_entry(&mut self, number: u32, tree: &RemoteTree, entry: Entry) {
        let item = Item::new(number, &entry.path);
        let label = label_of(&tree.label, &entry.path);
        let local = tree.local.join(&entry.path);
        let taken = match entry.kind {
            EntryKind::File => {
                let remote = tree.remote.join(&entry.path);
                let (folder, size, mtime_ns) = (tree.folder.clone(), entry.size, entry.mtime_ns);
                let download = Download { remote, folder, local, size, mtime_ns, label };
                return self.add_download(item, download);
            }
            EntryKind::Folder => self.take_folder(item, &tree.folder, &local, entry.mode, &label),
            EntryKind::Symlink { target } => {
                self.take_link(item, &tree.folder, &local, &target, entry.mtime_ns, &label)
            }
            EntryKind::Special => return self.skipped(item, label, SkipReason::Special),
        };
        if let Err(fault) = taken {
            self.failed(item, label, fault);
        }
    }

    pub(super) fn local_page(&mut self, page: LocalPage) {
        self.trees.walking = None;
        let LocalPage { tree: (number, tree), walk, entries, faults } = page;
        for (path, fault) in faults {
            self.failed(Item::new(number, &path), label_of(&tree.label, &path), fault);
        }
        let mut offers = Vec::new();
        for entry in entries {
            let item = Item::new(number, &entry.path);
            let label = label_of(&tree.label, &entry.path);
            let (path, mtime_ns) = (tree.remote.join(&entry.path), entry.mtime_ns);
            match entry.kind {
                EntryKind::File => {
                    let source = UploadSource::Below(tree.folder.clone(), entry.path);
                    let (remote, size) = (path, entry.size);
                    let upload = Upload { source, remote, size, mtime_ns, label };
                    offers.push(Offer::File(item, upload));
                }
                EntryKind::Special => self.skipped(item, label, SkipReason::Special),
                kind => {
                    let (force, mode) = (self.rules.force, entry.mode);
                    let entry = NewEntry { path, kind, force, mode };
                    offers.push(Offer::Entry { item, entry, mtime_ns, label });
                }
            }
        }
        self.offer(offers);
        if walk.is_some() {
            self.trees.local.push_back(((number, tree), walk));
        } else {
            self.ledger.looked_at(number);
        }
    }

    /// Has entries made, and then the files added. The server makes them in order, so files
    /// wait for the last request that could hold their folder.
    pub(super) fn make(
        &mut self,
        mut makes: Vec<(NewEntry, (Item, String))>,
        files: Vec<(Item, Upload)>,
    ) {
        let mut files = Some(files);
        if makes.is_empty() && self.trees.making.is_empty() {
            let files = files.into_iter().flatten();
            return files.for_each(|(item, file)| self.queue_upload(item, file));
        }
        // An empty request still comes back behind those before it.
        loop {
            let rest = makes.split_off(makes.len().min(BATCH_FILES_MAX));
            let (entries, labels) = std::mem::replace(&mut makes, rest).into_iter().unzip();
            let request = self.request();
            self.sending.push_back(ClientMessage::Make { request, entries });
            let last = makes.is_empty();
            let files = if last { files.take().unwrap_or_default() } else { Vec::new() };
            self.trees.making.insert(request, Making { labels, files });
            if last {
                return;
            }
        }
    }

    pub(super) fn made(&mut self, request: u32, answers: Vec<Result<(), Fault>>) {
        let Some(making) = self.trees.making.remove(&request) else {
            return self.broke(Fault::new(Code::Protocol, "the server made what nobody asked for"));
        };
        for ((item, label), answer) in making.labels.into_iter().zip(answers) {
            if let Err(fault) = answer {
                self.failed(item, label, fault);
            }
        }
        making.files.into_iter().for_each(|(item, file)| self.queue_upload(item, file));
    }

    /// Lets go of all trees. The next session looks at them from the beginning: what is over it
    /// leaves out, and folders that are there are no harm.
    pub(super) fn leave_trees(&mut self) {
        let trees = std::mem::take(&mut self.trees);
        let remote = trees.remote.into_values().map(|(number, tree)| (number, tree.label));
        let walked = trees.local.into_iter().map(|(tree, _)| tree).chain(trees.walking);
        let local = walked.map(|(number, tree)| (number, tree.label.clone()));
        for (number, label) in remote.chain(local) {
            self.ledger.leave(Item::rest(number), label, false);
        }
        for (item, file) in trees.making.into_values().flat_map(|making| making.files) {
            self.ledger.leave(item, file.label, false);
        }
    }
}

fn walk_page(tree: Numbered<Arc<LocalTree>>, walk: Option<Box<Walk>>, rules: &Rules) -> LocalPage {
    let folder = &tree.1.folder;
    let begin = || {
        let walk = match rules.follow {
            true => Walk::following(folder.share(), WirePath::root(), true)?,
            false => Walk::new(folder.open_folder(&WirePath::root())?, true)?,
        };
        Ok(Box::new(walk))
    };
    let mut page = LocalPage { tree: tree.clone(), walk: None, entries: vec![], faults: vec![] };
    let mut walk = match walk.map_or_else(begin, Ok) {
        Ok(walk) => walk,
        Err(fault) => {
            page.faults.push((WirePath::root(), fault));
            return page;
        }
    };
    while page.entries.len() < PAGE_ENTRIES_MAX {
        match walk.next() {
            Some(Ok(entry)) if is_excluded(rules, &entry) => walk.leave(),
            Some(Ok(entry)) => page.entries.push(entry),
            Some(Err(fault)) => page.faults.push(fault),
            None => return page,
        }
    }
    page.walk = Some(walk);
    page
}

fn is_excluded(rules: &Rules, entry: &Entry) -> bool {
    rules.exclude.excludes(&entry.path, entry.kind == EntryKind::Folder)
}

fn label_of(base: &str, path: &WirePath) -> String {
    if path.is_root() {
        return base.to_owned();
    }
    format!("{}/{path}", base.trim_end_matches('/'))
}
