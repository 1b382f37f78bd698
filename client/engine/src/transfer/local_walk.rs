//! Local trees on their way to the server: walked a page at a time on the blocking pool, one tree
//! at a time, while what was found before is sent. What a page holds is offered to `select`.

use crate::connection::Engine;
use crate::connection::dir_guard::{Mark, Nest, Place};
use crate::connection::jobs::Jobs;
use crate::connection::label::label_of;
use crate::connection::ledger::Item;
use crate::local_io::waker::Waker;
use crate::model::copy_policy::Rules;
use crate::model::report::SkipReason;
use crate::transfer::dir_metadata::DirMetadata;
use crate::transfer::remote_scan::QUEUE_LOW;
use crate::transfer::select::Offer;
use crate::transfer::upload::{Upload, UploadSource};
use std::collections::VecDeque;
use std::sync::Arc;
use verbatim_files::walk::Describe;
use verbatim_files::{Folder, Walk};
use verbatim_proto::message::{Entry, EntryKind, NewEntry};
use verbatim_proto::units::{FRAME_BYTES_MAX, PAGE_ENTRIES_MAX};
use verbatim_proto::{Fault, WirePath};

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

/// A local tree, and the number of the work it is.
#[derive(Clone)]
struct Numbered {
    number: u32,
    tree: Arc<LocalTree>,
}

/// A local tree, how far its walk is, and the folders it is in.
struct Walking {
    of: Numbered,
    walk: Option<Box<Walk>>,
    nest: Nest,
}

/// The local trees of a session.
pub(crate) struct LocalWalks {
    /// Those whose walk rests between two pages, or has not begun.
    resting: VecDeque<Walking>,
    /// The one a job walks just now.
    walked: Option<Numbered>,
    jobs: Jobs<LocalPage>,
}

/// What a walk found.
struct LocalPage {
    walking: Walking,
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

    /// Adds a tree, whose root is offered at once.
    pub fn add(&mut self, engine: &Engine, number: u32, tree: LocalTree) -> Offer {
        let mark = Mark::alone(Item::new(number, &WirePath::root()));
        let entry = new_folder(engine, tree.remote.clone(), 0o755);
        let label = tree.label.clone();
        let of = Numbered { number, tree: Arc::new(tree) };
        self.resting.push_back(Walking { of, walk: None, nest: Nest::default() });
        Offer::Entry { mark, entry, mtime_ns: 0, label }
    }

    /// Walks on while little is queued.
    pub fn pump(&mut self, engine: &Engine, queued: usize) {
        if queued < QUEUE_LOW
            && self.walked.is_none()
            && let Some(walking) = self.resting.pop_front()
        {
            self.walked = Some(walking.of.clone());
            let (rules, describe) = (engine.rules().clone(), engine.options().preserve);
            self.jobs.run(move || walk_page(walking, &rules, describe));
        }
    }

    /// The offers of the page that a job walked, if it is there.
    pub fn next_offers(&mut self, engine: &mut Engine, dirs: &DirMetadata) -> Option<Vec<Offer>> {
        let page = self.jobs.next_answer()?;
        self.walked = None;
        let LocalPage { mut walking, entries, faults } = page;
        let Numbered { number, tree } = walking.of.clone();
        for (path, fault) in faults {
            engine.outcomes().failed(Item::new(number, &path), label_of(&tree.label, &path), fault);
        }
        let mut offers = Vec::new();
        for entry in entries {
            let label = label_of(&tree.label, &entry.path);
            match tree.remote.join(&entry.path).checked() {
                Ok(remote) => {
                    offers.extend(offer_of(engine, dirs, &mut walking, entry, remote, label));
                }
                Err(fault) => {
                    engine.outcomes().failed(Item::new(number, &entry.path), label, fault)
                }
            }
        }
        if walking.walk.is_some() {
            self.resting.push_back(walking);
        } else {
            engine.outcomes().ledger().looked_at(number);
        }
        Some(offers)
    }

    /// Lets go of trees that are not walked to their end.
    pub fn leave(&mut self, engine: &mut Engine) {
        let resting = self.resting.drain(..).map(|walking| walking.of);
        for Numbered { number, tree } in resting.chain(self.walked.take()) {
            engine.outcomes().ledger().leave(Item::rest(number), tree.label.clone(), false);
        }
    }
}

/// A folder for the server to make. One that is to keep its metadata gets it last, and is private
/// until then.
fn new_folder(engine: &Engine, path: WirePath, mode: u32) -> NewEntry {
    let (unfinished, force) = (engine.options().preserve, engine.rules().force);
    let mode = if unfinished { 0o700 } else { mode };
    NewEntry { path, kind: EntryKind::Folder, force, mode, meta: None, unfinished }
}

/// What there is to send of an entry.
fn offer_of(
    engine: &mut Engine,
    dirs: &DirMetadata,
    walking: &mut Walking,
    entry: Entry,
    remote: WirePath,
    label: String,
) -> Option<Offer> {
    let Walking { of: Numbered { number, tree }, nest, .. } = walking;
    let item = Item::new(*number, &entry.path);
    let mark = Mark { item, within: nest.around(&entry.path) };
    let mtime_ns = entry.mtime_ns;
    match entry.kind {
        EntryKind::File => {
            let source = UploadSource::Below(tree.folder.clone(), entry.path);
            let upload = Upload { source, remote, size: entry.size, mtime_ns, label, basis: None };
            Some(Offer::File(mark, upload))
        }
        EntryKind::Special => {
            engine.outcomes().skipped(item, label, SkipReason::Special);
            None
        }
        EntryKind::Symlink { .. } => {
            let Entry { kind, mode, meta, .. } = entry;
            let (force, unfinished) = (engine.rules().force, false);
            let entry = NewEntry { path: remote, kind, force, mode, meta, unfinished };
            Some(Offer::Entry { mark, entry, mtime_ns, label })
        }
        EntryKind::Folder => {
            let new = new_folder(engine, remote.clone(), entry.mode);
            // The root was offered before the walk began.
            let is_root = entry.path.is_root();
            if let Some(meta) = entry.meta {
                let place = Place::Remote(remote);
                let ending = dirs.plan(place, mark, label.clone(), *meta);
                nest.enter(entry.path, ending);
            }
            // It holds nothing up: the server makes it before it hears of its end.
            let mark = Mark::alone(item);
            (!is_root).then_some(Offer::Entry { mark, entry: new, mtime_ns, label })
        }
    }
}

fn walk_page(walking: Walking, rules: &Rules, describe: bool) -> LocalPage {
    let Walking { of, walk, nest } = walking;
    let folder = &of.tree.folder;
    let begin = || {
        let mut walk = match rules.follow {
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
        Ok(walk) => next_page(walk, rules, &mut entries, &mut faults),
        Err(fault) => {
            faults.push((WirePath::root(), fault));
            None
        }
    };
    LocalPage { walking: Walking { of, walk, nest }, entries, faults }
}

/// Fills a page; returns the walk if there is more.
fn next_page(
    mut walk: Box<Walk>,
    rules: &Rules,
    entries: &mut Vec<Entry>,
    faults: &mut Vec<(WirePath, Fault)>,
) -> Option<Box<Walk>> {
    let mut bytes = 0;
    while entries.len() < PAGE_ENTRIES_MAX && bytes < FRAME_BYTES_MAX {
        match walk.next()? {
            Ok(entry) => match is_excluded(rules, &entry) {
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

fn is_excluded(rules: &Rules, entry: &Entry) -> Result<bool, Fault> {
    rules.exclude.excludes(&entry.path, entry.kind == EntryKind::Folder)
}
