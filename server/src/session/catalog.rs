//! Looking around and making room: stat, scans in pages, folders and links.
//! A scan is a walk that rests between two pages, so that a tree of any size
//! costs the server one page of memory.

use super::Session;
use super::end::End;
use super::event::Event;
use super::mirror::{MirrorEvent, change_all};
use super::told_owners::{of_meta, of_ties};
use crate::exports::client_view::Reach;
use crate::exports::quota;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use verbatim_control::Expected;
use verbatim_files::walk::Describe;
use verbatim_files::{Over, Walk};
use verbatim_proto::message::{Entry, EntryKind, NewEntry, ServerMessage};
use verbatim_proto::mirror::Edit;
use verbatim_proto::units::{BATCH_FILES_MAX, FRAME_BYTES_MAX, LOOK_PATHS_MAX, PAGE_ENTRIES_MAX};
use verbatim_proto::{
    Code, Dropped, Excludes, Fault, Look, Meter, Scan as ScanRequest, Ties, WirePath,
};

/// How long what is told of one path may be: a link has a target of up to 4 KiB.
const ANSWER_BYTES: usize = 4 << 10;

/// Scans one client may have at a time.
const SCANS_MAX: usize = 8;

/// Requests to make things that may wait for the one before: as many as a client has under way.
pub(super) const MAKES_MAX: usize = 64;

/// From so many on the bytes count that they take.
pub(super) const MAKES_HEARD_MAX: usize = 2;

/// The scans of a session, `None` while a page is being made; and what is to be made, in
/// order, because a folder comes before what is in it.
#[derive(Default)]
pub(super) struct Catalog {
    scans: HashMap<u32, Option<Scan>>,
    makes: VecDeque<(u32, Make)>,
    making: bool,
    /// Whether the client wants to know whose things are.
    pub(super) ties: bool,
}

impl Catalog {
    /// How many requests to make something wait.
    pub fn makes_waiting(&self) -> usize {
        self.makes.len()
    }
}

/// Something to make, or to change, many at a time.
enum Make {
    Entries(Vec<NewEntry>),
    Changes(Vec<Edit>),
}

/// What is at some paths; ties of those that are there, where they are told.
pub(crate) struct Looked {
    answers: Vec<Result<Entry, Fault>>,
    ties: Vec<Option<Ties>>,
    /// Which of the answers are errors.
    errors: Vec<usize>,
    /// Until they are sent.
    _expected: Expected,
}

impl Looked {
    /// What failed: that nothing is there is an answer, unless it is the export.
    pub(crate) fn errors(&self) -> impl Iterator<Item = &Fault> {
        self.errors.iter().filter_map(|&at| self.answers[at].as_ref().err())
    }
}

enum Scan {
    Walk(Box<Walk>, Excludes),
    Exports(Vec<Entry>),
}

/// A page, and the scan to go on with.
#[derive(Default)]
pub(crate) struct Page {
    scan: Option<Scan>,
    entries: Vec<Entry>,
    ties: Vec<Option<Ties>>,
    faults: Vec<(WirePath, Fault)>,
}

impl Page {
    /// What could not be listed.
    pub(crate) fn errors(&self) -> impl Iterator<Item = &Fault> {
        self.faults.iter().map(|(_, fault)| fault)
    }
}

impl Session {
    pub(super) fn stat(&mut self, request: u32, look: Look) -> Result<(), End> {
        if look.paths.len() > LOOK_PATHS_MAX {
            let text = format!("more than {LOOK_PATHS_MAX} paths to look at");
            return Err(End::Refused(Fault::new(Code::Limit, text)));
        }
        let (reach, telling) = (self.client.reach.clone(), self.catalog.ties);
        let bytes = look.paths.len() * ANSWER_BYTES;
        self.jobs.run_expecting(bytes, move |expected| {
            let mut ties = Vec::new();
            let mut look_at = |path| {
                let (entry, its) = stat(&reach, path, look.follow)?;
                ties.extend(telling.then_some(its));
                Ok(entry)
            };
            let answers: Vec<_> = look.paths.iter().map(&mut look_at).collect();
            let is_error = |(path, answer): (&WirePath, &Result<Entry, Fault>)| {
                let code = answer.as_ref().err().map(|fault| fault.code);
                code.is_some_and(|code| code != Code::NotFound || path.parent().is_root())
            };
            let told = look.paths.iter().zip(&answers).map(is_error).enumerate();
            let errors = told.filter_map(|(at, is_error)| is_error.then_some(at)).collect();
            Event::Stated(request, Looked { answers, ties, errors, _expected: expected })
        });
        Ok(())
    }

    pub(super) fn stated(&mut self, request: u32, looked: Looked) -> Result<(), End> {
        let Looked { answers, ties, _expected, .. } = looked;
        self.tell_ties(request, ties)?;
        self.client.send(ServerMessage::Stated { request, answers })
    }

    /// Says whose the entries are that are told next.
    fn tell_ties(&mut self, request: u32, ties: Vec<Option<Ties>>) -> Result<(), End> {
        self.mirrors.told_owners.note(ties.iter().flatten().map(of_ties));
        match ties.is_empty() {
            true => Ok(()),
            false => self.client.send(ServerMessage::Ties { request, ties }),
        }
    }

    pub(super) fn scan(&mut self, request: u32, scan: ScanRequest) -> Result<(), End> {
        if self.catalog.scans.len() >= SCANS_MAX || self.catalog.scans.contains_key(&request) {
            let text = format!("a session may have {SCANS_MAX} scans");
            return Err(End::Refused(Fault::new(Code::Limit, text)));
        }
        self.catalog.scans.insert(request, None);
        let (reach, ties) = (self.client.reach.clone(), self.catalog.ties);
        let (over, meter) = (self.client.gone.flag(), self.client.share.name.matching.meter());
        self.jobs.run(move || {
            let page = match begin(&reach, scan, ties, meter) {
                Ok(scan) => next_page(scan, &over),
                Err(fault) => Page { faults: vec![(WirePath::root(), fault)], ..Page::default() },
            };
            Event::Page(request, page)
        });
        Ok(())
    }

    pub(super) fn scan_more(&mut self, request: u32) -> Result<(), End> {
        let scan = self.catalog.scans.get_mut(&request).and_then(Option::take);
        let Some(scan) = scan else {
            let text = "the client asked for more of a scan that is not open";
            return Err(End::Refused(Fault::new(Code::Protocol, text)));
        };
        let over = self.client.gone.flag();
        self.jobs.run(move || Event::Page(request, next_page(scan, &over)));
        Ok(())
    }

    pub(super) fn page(&mut self, request: u32, page: Page) -> Result<(), End> {
        let Page { scan, entries, ties, faults } = page;
        let done = scan.is_none();
        if done {
            self.catalog.scans.remove(&request);
        } else {
            self.catalog.scans.insert(request, scan);
        }
        let owners = entries.iter().filter_map(|entry| entry.meta.as_deref()).map(of_meta);
        self.mirrors.told_owners.note(owners);
        self.tell_ties(request, ties)?;
        self.client.send(ServerMessage::Page { request, entries, faults, done })
    }

    pub(super) fn make(&mut self, request: u32, entries: Vec<NewEntry>) -> Result<(), End> {
        if entries.len() > BATCH_FILES_MAX {
            let text = format!("more than {BATCH_FILES_MAX} entries to make at a time");
            return Err(End::Refused(Fault::new(Code::Limit, text)));
        }
        self.queue_make(request, Make::Entries(entries));
        Ok(())
    }

    /// Has changes done behind all that is to be made before them.
    pub(super) fn queue_changes(&mut self, request: u32, changes: Vec<Edit>) {
        self.queue_make(request, Make::Changes(changes));
    }

    fn queue_make(&mut self, request: u32, make: Make) {
        self.catalog.makes.push_back((request, make));
        self.make_next();
    }

    fn make_next(&mut self) {
        if self.catalog.making {
            return;
        }
        let Some((request, what)) = self.catalog.makes.pop_front() else { return };
        self.catalog.making = true;
        let (over, reach, keeping) = (
            self.writing.over,
            self.client.reach.clone(),
            self.mirrors.keep(self.client.gone.flag()),
        );
        self.jobs.run(move || {
            let entries = match what {
                Make::Entries(entries) => entries,
                Make::Changes(changes) => {
                    let (answers, dropped) = change_all(&reach, &changes, &keeping);
                    let changed = MirrorEvent::Changed(request, answers, dropped);
                    return Event::Mirror(changed);
                }
            };
            let mut dropped = Dropped::default();
            let mut make_one = |entry| {
                keeping.go_on()?;
                make(&reach, entry, over).map(|not_kept| dropped += not_kept)
            };
            let answers = entries.iter().map(&mut make_one).collect();
            Event::Made(request, answers, dropped)
        });
    }

    /// One request is done: the next may begin.
    pub(super) fn made_one(&mut self) {
        self.catalog.making = false;
        self.make_next();
    }

    pub(super) fn made(
        &mut self,
        request: u32,
        answers: Vec<Result<(), Fault>>,
    ) -> Result<(), End> {
        self.made_one();
        self.client.send(ServerMessage::Made { request, answers })
    }
}

fn stat(reach: &Reach, path: &WirePath, follow: bool) -> Result<(Entry, Option<Ties>), Fault> {
    if path.is_root() {
        return Ok((folder_entry(WirePath::root()), None));
    }
    let (export, below) = reach.resolve(path)?;
    let (entry, ties) = export.folder.look(&below, follow)?;
    // The client knows the paths it asked for.
    Ok((Entry { path: WirePath::root(), ..entry }, Some(ties)))
}

fn begin(reach: &Reach, scan: ScanRequest, ties: bool, meter: Meter) -> Result<Scan, Fault> {
    let ScanRequest { path, recursive, follow, describe, exclude } = scan;
    let exclude = Excludes::parse(exclude)?.metered(meter);
    if path.is_root() {
        let names = reach.names().map(WirePath::parse);
        let entries: Result<Vec<_>, Fault> = names.map(|name| name.map(folder_entry)).collect();
        return entries.map(Scan::Exports);
    }
    let (export, below) = reach.resolve(&path)?;
    let mut walk = match follow {
        true => Walk::following(export.folder.share(), below, recursive)?,
        false => Walk::new(export.folder.open_folder(&below)?, recursive)?
            .crossing(export.folder.crosses()),
    };
    if describe {
        walk = walk.describing(Describe { trusted: export.rules.privileged_xattrs })?;
    }
    let walk = if ties { walk.telling_ties() } else { walk };
    Ok(Scan::Walk(Box::new(walk), exclude))
}

fn folder_entry(path: WirePath) -> Entry {
    Entry { path, kind: EntryKind::Folder, size: 0, mode: 0o755, mtime_ns: 0, meta: None }
}

/// Fills a page, which nobody wants any more when the client is gone: what is left out may be long.
fn next_page(scan: Scan, over: &AtomicBool) -> Page {
    let mut page = Page::default();
    let (mut walk, exclude) = match scan {
        Scan::Exports(entries) => return Page { entries, ..page },
        Scan::Walk(walk, exclude) => (walk, exclude),
    };
    let mut bytes = 0;
    while page.entries.len() + page.faults.len() < PAGE_ENTRIES_MAX
        && bytes < FRAME_BYTES_MAX / 4
        && !over.load(Ordering::Relaxed)
    {
        match walk.next() {
            Some(Ok(entry)) => {
                match exclude.excludes(&entry.path, entry.kind == EntryKind::Folder) {
                    Ok(false) => {}
                    Ok(true) => {
                        walk.leave();
                        continue;
                    }
                    // The next path would take as long.
                    Err(fault) => {
                        page.faults.push((entry.path, fault));
                        return page;
                    }
                }
                bytes += entry.weight();
                page.entries.push(entry);
                if walk.tells_ties() {
                    page.ties.push(walk.ties());
                }
            }
            Some(Err((path, fault))) => {
                bytes += path.as_bytes().len() + fault.text.len();
                page.faults.push((path, fault));
            }
            None => return page,
        }
    }
    page.scan = Some(Scan::Walk(walk, exclude));
    page
}

fn make(reach: &Reach, entry: &NewEntry, over: Over) -> Result<Dropped, Fault> {
    let (export, path) = reach.resolve(&entry.path)?;
    // A client may say that it wants what is there anyway.
    if !path.is_root() {
        export.writable("make", &entry.path)?;
    }
    let (folder, rules) = (&export.folder, &export.rules);
    let keep = entry.meta.as_deref().map(|meta| (meta, rules));
    match &entry.kind {
        EntryKind::Folder => match keep {
            // How an export itself looks is for who exports it to say.
            Some(_) if path.is_root() => Ok(Dropped::default()),
            Some((meta, rules)) => {
                export.may_write(quota::attribute_bytes(meta, rules))?;
                folder.describe(&path, meta, rules)
            }
            None => {
                let made = match entry.force {
                    true => folder.force_folder(&path, entry.mode, entry.unfinished),
                    false => folder.make_folder(&path, entry.mode, entry.unfinished),
                };
                made.map(|()| Dropped::default())
            }
        },
        EntryKind::Symlink { target } => folder.make_symlink(&path, target, keep, over),
        EntryKind::File | EntryKind::Special => {
            Err(Fault::new(Code::Protocol, format!("{} is no folder and no link", entry.path)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_files::Folder;

    #[test]
    fn a_page_that_nobody_waits_for_ends_also_where_all_is_left_out() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("a"), b"").expect("writes");
        let folder = Folder::open(dir.path()).expect("opens");
        let walk = Walk::new(folder.open_folder(&WirePath::root()).expect("opens"), true);
        let none = Excludes::parse(vec![b"*".to_vec()]).expect("a pattern");
        let scan = Scan::Walk(Box::new(walk.expect("begins")), none);
        let page = next_page(scan, &AtomicBool::new(true));
        let page = next_page(page.scan.expect("it was not gone through"), &AtomicBool::new(false));
        assert!(page.scan.is_none() && page.entries.is_empty());
    }
}
