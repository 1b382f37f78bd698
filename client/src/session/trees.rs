//! Trees: remote folders are scanned and local ones walked a page at a time,
//! while what was found before is copied. A page is asked for only when little
//! is left to do, so a tree of any size takes one page of memory. Folders are
//! made before what is in them, and finished after it by `endings`.

use super::endings::{Endings, Nest, Place, Within};
use super::{Core, Download, Event, Upload, UploadSource};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use verbatim_files::walk::Describe;
use verbatim_files::{Folder, Rules, Walk};
use verbatim_proto::message::{ClientMessage, Entry, EntryKind, NewEntry};
use verbatim_proto::units::{BATCH_FILES_MAX, FRAME_BYTES_MAX, OPEN_FILES_MAX, PAGE_ENTRIES_MAX};
use verbatim_proto::{Code, Fault, WirePath};

/// Files that wait before another page is asked for.
const QUEUE_LOW: usize = OPEN_FILES_MAX / 2;

/// Requests to make something that may wait for their answer; the server takes more.
const MAKING_MAX: usize = 64;

/// A remote folder to fetch.
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
pub struct LocalTree {
    /// The folder.
    pub folder: Arc<Folder>,
    /// Where it goes, export first.
    pub remote: WirePath,
    /// How the user would name it.
    pub label: String,
}

type Listed = (Vec<Entry>, Vec<(WirePath, Fault)>, bool);

#[derive(Default)]
pub(super) struct Trees {
    remote: HashMap<u32, (RemoteTree, Nest)>,
    /// Scans with more pages to ask for.
    ready: VecDeque<u32>,
    /// Trees whose walk rests between two pages, or has not begun.
    local: VecDeque<Walking>,
    walking: usize,
    making: HashMap<u32, Making>,
    pub endings: Endings,
    listing: Option<u32>,
    listed: VecDeque<Listed>,
}

/// Folders and links that the server was asked to make, and the files that wait for them.
struct Making {
    labels: Vec<String>,
    files: Vec<(Upload, Within)>,
}

/// A local tree, how far its walk is, and the folders it is in.
struct Walking {
    tree: Arc<LocalTree>,
    walk: Option<Box<Walk>>,
    nest: Nest,
}

/// What a walk found.
pub(crate) struct LocalPage {
    walking: Walking,
    entries: Vec<Entry>,
    faults: Vec<(WirePath, Fault)>,
}

impl Trees {
    /// Whether nothing is left to find or to make, but perhaps to finish.
    pub fn is_found(&self) -> bool {
        self.remote.is_empty()
            && self.local.is_empty()
            && self.walking == 0
            && self.making.is_empty()
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

    pub fn listed(&mut self) -> Option<Listed> {
        self.listed.pop_front()
    }
}

impl Core {
    pub(super) fn add_remote_tree(&mut self, tree: RemoteTree) {
        let describe = self.options.preserve;
        if let Err(fault) = tree.folder.make_folder(&tree.local, 0o755, describe) {
            return self.failed(tree.label, fault);
        }
        let request = self.request();
        let path = tree.remote.clone();
        self.sending.push_back(ClientMessage::Scan { request, path, recursive: true, describe });
        self.trees.remote.insert(request, (tree, Nest::default()));
    }

    pub(super) fn add_local_tree(&mut self, tree: LocalTree) {
        let entry = self.new_folder(tree.remote.clone(), 0o755);
        let label = tree.label.clone();
        self.make(vec![(entry, label)], Vec::new());
        let nest = Nest::default();
        self.trees.local.push_back(Walking { tree: Arc::new(tree), walk: None, nest });
    }

    /// A folder for the server to make. One that is to keep its metadata gets it last, and is
    /// nobody else's business until then.
    fn new_folder(&self, path: WirePath, mode: u32) -> NewEntry {
        let unfinished = self.options.preserve;
        let mode = if unfinished { 0o700 } else { mode };
        NewEntry { path, kind: EntryKind::Folder, mode, meta: None, unfinished }
    }

    /// Whether the server may be asked to make more.
    pub(super) fn can_make(&self) -> bool {
        self.trees.making.len() < MAKING_MAX
    }

    /// Asks for pages while little is left to do.
    pub(super) fn pump_trees(&mut self) {
        self.pump_endings();
        if self.downloads.queued() + self.trees.endings.queued() < QUEUE_LOW
            && let Some(request) = self.trees.ready.pop_front()
        {
            self.quiet_since = Instant::now();
            self.sending.push_back(ClientMessage::ScanMore { request });
        }
        let waiting: usize = self.trees.making.values().map(|making| making.files.len()).sum();
        if self.uploads.queued() + self.trees.endings.queued() + waiting < QUEUE_LOW
            && self.trees.walking == 0
            && self.can_make()
            && let Some(walking) = self.trees.local.pop_front()
        {
            self.trees.walking += 1;
            let describe = self.options.preserve;
            self.job(move || Event::LocalPage(walk_page(walking, describe)));
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
        let Some((tree, mut nest)) = self.trees.remote.remove(&request) else {
            return self.broke(Fault::new(Code::Protocol, "the server sent a page unasked"));
        };
        for (path, fault) in faults {
            self.failed(label_of(&tree.label, &path), fault);
        }
        for entry in entries {
            self.remote_entry(&tree, &mut nest, entry);
        }
        if !done {
            self.trees.remote.insert(request, (tree, nest));
            self.trees.ready.push_back(request);
        }
    }

    fn remote_entry(&mut self, tree: &RemoteTree, nest: &mut Nest, entry: Entry) {
        let label = label_of(&tree.label, &entry.path);
        let local = tree.local.join(&entry.path);
        let within = nest.around(&entry.path);
        let made = match entry.kind {
            EntryKind::File => match tree.remote.join(&entry.path).checked() {
                Ok(remote) => {
                    let (folder, size) = (tree.folder.clone(), entry.size);
                    let download = Download { remote, folder, local, size, label };
                    return self.add_download(download, within);
                }
                Err(fault) => Err(fault),
            },
            EntryKind::Folder => {
                let made = match (entry.path.is_root(), &entry.meta) {
                    (true, _) => Ok(()),
                    (false, None) => tree.folder.make_folder(&local, entry.mode, false),
                    (false, Some(_)) => tree.folder.make_folder(&local, 0o700, true),
                };
                if let (Ok(()), Some(meta)) = (&made, entry.meta) {
                    let place = Place::Local(tree.folder.clone(), local);
                    let ending = self.trees.endings.plan(place, label.clone(), *meta, within);
                    nest.enter(entry.path, ending);
                }
                made
            }
            EntryKind::Symlink { target } => {
                let rules = Rules::of_user();
                let keep = entry.meta.as_deref().map(|meta| (meta, &rules));
                let made = tree.folder.make_symlink(&local, &target, keep);
                made.map(|dropped| self.summary.dropped += dropped)
            }
            EntryKind::Special => Err(special()),
        };
        if let Err(fault) = made {
            self.failed(label, fault);
        }
    }

    pub(super) fn local_page(&mut self, page: LocalPage) {
        self.trees.walking -= 1;
        let LocalPage { mut walking, entries, faults } = page;
        let tree = walking.tree.clone();
        for (path, fault) in faults {
            self.failed(label_of(&tree.label, &path), fault);
        }
        let mut files = Vec::new();
        let mut makes = Vec::new();
        for entry in entries {
            let label = label_of(&tree.label, &entry.path);
            let path = match tree.remote.join(&entry.path).checked() {
                Ok(path) => path,
                Err(fault) => {
                    self.failed(label, fault);
                    continue;
                }
            };
            let within = walking.nest.around(&entry.path);
            match entry.kind {
                EntryKind::File => {
                    let source = UploadSource::Below(tree.folder.clone(), entry.path);
                    files.push((Upload { source, remote: path, size: entry.size, label }, within));
                }
                EntryKind::Folder => {
                    if !entry.path.is_root() {
                        makes.push((self.new_folder(path.clone(), entry.mode), label.clone()));
                    }
                    if let Some(meta) = entry.meta {
                        let place = Place::Remote(path);
                        let ending = self.trees.endings.plan(place, label, *meta, within);
                        walking.nest.enter(entry.path, ending);
                    }
                }
                EntryKind::Special => self.failed(label, special()),
                kind @ EntryKind::Symlink { .. } => {
                    let (mode, meta) = (entry.mode, entry.meta);
                    makes.push((NewEntry { path, kind, mode, meta, unfinished: false }, label));
                }
            }
        }
        self.make(makes, files);
        if walking.walk.is_some() {
            self.trees.local.push_back(walking);
        }
    }

    /// Has entries made, and then the files added. The server makes them in order, so files
    /// wait for the last request that could hold their folder.
    pub(super) fn make(&mut self, makes: Vec<(NewEntry, String)>, files: Vec<(Upload, Within)>) {
        if makes.is_empty() && (self.trees.making.is_empty() || files.is_empty()) {
            return self.add_uploads(files);
        }
        let mut requests = cut(makes);
        // An empty request still comes back behind those before it.
        let last = requests.pop().unwrap_or_default();
        for makes in requests {
            self.request_make(makes, Vec::new());
        }
        self.request_make(last, files);
    }

    fn request_make(&mut self, makes: Vec<(NewEntry, String)>, files: Vec<(Upload, Within)>) {
        let (entries, labels) = makes.into_iter().unzip();
        let request = self.request();
        self.sending.push_back(ClientMessage::Make { request, entries });
        self.trees.making.insert(request, Making { labels, files });
    }

    fn add_uploads(&mut self, files: Vec<(Upload, Within)>) {
        files.into_iter().for_each(|(file, within)| self.add_upload(file, within));
    }

    pub(super) fn made(&mut self, request: u32, answers: Vec<Result<(), Fault>>) {
        let Some(making) = self.trees.making.remove(&request) else {
            return self.broke(Fault::new(Code::Protocol, "the server made what nobody asked for"));
        };
        for (label, answer) in making.labels.into_iter().zip(answers) {
            if let Err(fault) = answer {
                self.failed(label, fault);
            }
        }
        self.add_uploads(making.files);
    }
}

/// Cuts a list into requests that stay below the largest frame.
fn cut(makes: Vec<(NewEntry, String)>) -> Vec<Vec<(NewEntry, String)>> {
    let mut requests: Vec<Vec<_>> = Vec::new();
    let mut bytes = 0;
    for make in makes {
        bytes += make.0.weight();
        match requests.last_mut() {
            Some(request) if request.len() < BATCH_FILES_MAX && bytes < FRAME_BYTES_MAX / 2 => {
                request.push(make);
            }
            _ => {
                bytes = make.0.weight();
                requests.push(vec![make]);
            }
        }
    }
    requests
}

fn walk_page(walking: Walking, describe: bool) -> LocalPage {
    let Walking { tree, walk, nest } = walking;
    let begin = || {
        let walk = Walk::new(tree.folder.open_folder(&WirePath::root())?, true)?;
        let walk = if describe { walk.describing(Describe { trusted: true })? } else { walk };
        Ok(Box::new(walk))
    };
    let (mut entries, mut faults) = (Vec::new(), Vec::new());
    let walk = match walk.map_or_else(begin, Ok) {
        Ok(walk) => next_page(walk, &mut entries, &mut faults),
        Err(fault) => {
            faults.push((WirePath::root(), fault));
            None
        }
    };
    LocalPage { walking: Walking { tree, walk, nest }, entries, faults }
}

/// Fills a page; returns the walk if there is more.
fn next_page(
    mut walk: Box<Walk>,
    entries: &mut Vec<Entry>,
    faults: &mut Vec<(WirePath, Fault)>,
) -> Option<Box<Walk>> {
    let mut bytes = 0;
    while entries.len() < PAGE_ENTRIES_MAX && bytes < FRAME_BYTES_MAX {
        match walk.next()? {
            Ok(entry) => {
                bytes += entry.weight();
                entries.push(entry);
            }
            Err(fault) => faults.push(fault),
        }
    }
    Some(walk)
}

fn special() -> Fault {
    Fault::new(Code::Special, "it is not a regular file, folder or link, and is skipped")
}

fn label_of(base: &str, path: &WirePath) -> String {
    if path.is_root() {
        return base.to_owned();
    }
    format!("{}/{path}", base.trim_end_matches('/'))
}
