//! Names in the exports of a client: stat, scans in pages, making folders and links, and changes
//! that are neither a copy nor a new folder. Owns the scans of a session and the queue of what is
//! to be made and changed, both in one because each depends on the order.
//!
//! A scan is a walk that rests between two pages, so that a tree of any size
//! costs the server one page of memory.

use super::client::Client;
use super::end::End;
use super::holding::Keeping;
use super::told_owners::{ToldOwners, of_meta, of_ties};
use crate::exports::client_view::Reach;
use crate::exports::quota;
use crate::observe::session_stats::View;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use verbatim_control::Expected;
use verbatim_files::walk::Describe;
use verbatim_files::{Over, Walk};
use verbatim_proto::message::{Entry, EntryKind, NewEntry, ServerMessage};
use verbatim_proto::mirror::Edit;
use verbatim_proto::units::{BATCH_FILES_MAX, FRAME_BYTES_MAX, LOOK_PATHS_MAX, PAGE_ENTRIES_MAX};
use verbatim_proto::{
    Code, Dropped, Excludes, Fault, Look, Meter, MirrorReply, Scan as ScanRequest, Ties, WirePath,
};
use verbatim_serve::Jobs;
use verbatim_telemetry::labels::Operation;

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
pub(super) struct Namespace {
    jobs: Jobs<NamespaceEvent>,
    scans: HashMap<u32, Option<Scan>>,
    makes: VecDeque<(u32, Make)>,
    making: bool,
    /// Whether the client wants to know whose things are.
    ties: bool,
    /// What folders and links of this client may take the place of.
    over: Over,
}

/// What jobs answer.
pub(crate) enum NamespaceEvent {
    Stated(u32, Looked),
    Page(u32, Page),
    Made(u32, Vec<Result<(), Fault>>, Dropped),
    Changed(u32, Vec<Result<(), Fault>>, Dropped),
}

impl NamespaceEvent {
    /// Adds what a job answers to the counters.
    pub fn count(&self, view: &View, _time: Duration) {
        match self {
            Self::Stated(_, looked) => looked.errors().for_each(|fault| view.trouble(fault)),
            Self::Page(_, page) => {
                page.errors().for_each(|fault| view.trouble(fault));
                view.scanned();
            }
            Self::Made(_, answers, _) => {
                view.ended(Operation::Make, answers.iter().map(|answer| answer.as_ref().err()));
            }
            Self::Changed(..) => {}
        }
    }
}

/// Changes that a mirror asks for, in order.
pub(super) struct Edits {
    pub request: u32,
    pub edits: Vec<Edit>,
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

impl Namespace {
    /// No scan is open and nothing is to be made yet.
    pub fn new(jobs: Jobs<NamespaceEvent>) -> Self {
        let (scans, makes, over) = Default::default();
        Self { jobs, scans, makes, making: false, ties: false, over }
    }

    /// From now on the client is told whose entries are.
    pub fn tell_ties(&mut self) {
        self.ties = true;
    }

    /// From now on folders and links take the place of nothing.
    pub fn replace_nothing(&mut self) {
        self.over = Over::Nothing;
    }

    /// How many requests to make or change something wait.
    pub fn makes_waiting(&self) -> usize {
        self.makes.len()
    }

    /// Looks at the paths that the client names.
    pub fn stat(&self, client: &Client, request: u32, look: Look) -> Result<(), End> {
        if look.paths.len() > LOOK_PATHS_MAX {
            let text = format!("more than {LOOK_PATHS_MAX} paths to look at");
            return Err(End::Refused(Fault::new(Code::Limit, text)));
        }
        let (reach, telling) = (client.reach.clone(), self.ties);
        let bytes = look.paths.len() * ANSWER_BYTES;
        self.jobs.run_expecting(bytes, move |expected| {
            NamespaceEvent::Stated(request, look_at_all(&reach, &look, telling, expected))
        });
        Ok(())
    }

    /// Begins to list a folder, or all of a tree.
    pub fn scan(&mut self, client: &Client, request: u32, scan: ScanRequest) -> Result<(), End> {
        if self.scans.len() >= SCANS_MAX || self.scans.contains_key(&request) {
            let text = format!("a session may have {SCANS_MAX} scans");
            return Err(End::Refused(Fault::new(Code::Limit, text)));
        }
        self.scans.insert(request, None);
        let (reach, ties) = (client.reach.clone(), self.ties);
        let (over, meter) = (client.gone.flag(), client.share.name.matching.meter());
        self.jobs.run(move || {
            let page = match begin(&reach, scan, ties, meter) {
                Ok(scan) => next_page(scan, &over),
                Err(fault) => Page { faults: vec![(WirePath::root(), fault)], ..Page::default() },
            };
            NamespaceEvent::Page(request, page)
        });
        Ok(())
    }

    /// The client asks for the next page of a scan.
    pub fn scan_more(&mut self, client: &Client, request: u32) -> Result<(), End> {
        let scan = self.scans.get_mut(&request).and_then(Option::take);
        let Some(scan) = scan else {
            let text = "the client asked for more of a scan that is not open";
            return Err(End::Refused(Fault::new(Code::Protocol, text)));
        };
        let over = client.gone.flag();
        self.jobs.run(move || NamespaceEvent::Page(request, next_page(scan, &over)));
        Ok(())
    }

    /// Makes folders and links, after all that was asked for before them. The job keeps the locks.
    pub fn make(
        &mut self,
        client: &Client,
        request: u32,
        entries: Vec<NewEntry>,
        locks: Keeping,
    ) -> Result<(), End> {
        if entries.len() > BATCH_FILES_MAX {
            let text = format!("more than {BATCH_FILES_MAX} entries to make at a time");
            return Err(End::Refused(Fault::new(Code::Limit, text)));
        }
        self.queue_make(client, request, Make::Entries(entries), locks);
        Ok(())
    }

    /// Changes what is there, after all that was asked for before it. The job keeps the locks.
    pub fn change(
        &mut self,
        client: &Client,
        Edits { request, edits }: Edits,
        locks: Keeping,
    ) -> Result<(), End> {
        if edits.len() > BATCH_FILES_MAX {
            let text = format!("more than {BATCH_FILES_MAX} changes at a time");
            return Err(End::Refused(Fault::new(Code::Limit, text)));
        }
        self.queue_make(client, request, Make::Changes(edits), locks);
        Ok(())
    }

    fn queue_make(&mut self, client: &Client, request: u32, make: Make, locks: Keeping) {
        self.makes.push_back((request, make));
        self.make_next(client, locks);
    }

    fn make_next(&mut self, client: &Client, locks: Keeping) {
        if self.making {
            return;
        }
        let Some((request, what)) = self.makes.pop_front() else { return };
        self.making = true;
        let (over, reach) = (self.over, client.reach.clone());
        self.jobs.run(move || match what {
            Make::Entries(entries) => {
                let (answers, dropped) = make_all(&reach, &entries, over, &locks);
                NamespaceEvent::Made(request, answers, dropped)
            }
            Make::Changes(changes) => {
                let (answers, dropped) = change_all(&reach, &changes, &locks);
                NamespaceEvent::Changed(request, answers, dropped)
            }
        });
    }

    /// Tells the client what a job answers, and notes the owners that it is told of. The next job
    /// keeps the locks.
    pub fn event(
        &mut self,
        client: &mut Client,
        told_owners: &mut ToldOwners,
        event: NamespaceEvent,
        locks: Keeping,
    ) -> Result<(), End> {
        match event {
            NamespaceEvent::Stated(request, looked) => {
                let Looked { answers, ties, _expected, .. } = looked;
                send_ties(client, told_owners, request, ties)?;
                client.send(ServerMessage::Stated { request, answers })
            }
            NamespaceEvent::Page(request, page) => self.page(client, told_owners, request, page),
            NamespaceEvent::Made(request, answers, dropped) => {
                client.tell_dropped(dropped)?;
                self.making = false;
                self.make_next(client, locks);
                client.send(ServerMessage::Made { request, answers })
            }
            NamespaceEvent::Changed(request, answers, dropped) => {
                client.tell_dropped(dropped)?;
                self.making = false;
                self.make_next(client, locks);
                client.send(ServerMessage::Mirror(MirrorReply::Changed { request, answers }))
            }
        }
    }

    fn page(
        &mut self,
        client: &Client,
        told_owners: &mut ToldOwners,
        request: u32,
        page: Page,
    ) -> Result<(), End> {
        let Page { scan, entries, ties, faults } = page;
        let done = scan.is_none();
        if done {
            self.scans.remove(&request);
        } else {
            self.scans.insert(request, scan);
        }
        let owners = entries.iter().filter_map(|entry| entry.meta.as_deref()).map(of_meta);
        told_owners.note(owners);
        send_ties(client, told_owners, request, ties)?;
        client.send(ServerMessage::Page { request, entries, faults, done })
    }
}

/// Says whose the entries are that are told next.
fn send_ties(
    client: &Client,
    told_owners: &mut ToldOwners,
    request: u32,
    ties: Vec<Option<Ties>>,
) -> Result<(), End> {
    told_owners.note(ties.iter().flatten().map(of_ties));
    match ties.is_empty() {
        true => Ok(()),
        false => client.send(ServerMessage::Ties { request, ties }),
    }
}

fn look_at_all(reach: &Reach, look: &Look, telling: bool, expected: Expected) -> Looked {
    let mut ties = Vec::new();
    let mut look_at = |path| {
        let (entry, its) = stat(reach, path, look.follow)?;
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
    Looked { answers, ties, errors, _expected: expected }
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

/// Makes entries in order; says what of metadata was not kept.
fn make_all(
    reach: &Reach,
    entries: &[NewEntry],
    over: Over,
    keeping: &Keeping,
) -> (Vec<Result<(), Fault>>, Dropped) {
    let mut dropped = Dropped::default();
    let mut make_one = |entry| {
        keeping.go_on()?;
        make(reach, entry, over).map(|not_kept| dropped += not_kept)
    };
    let answers = entries.iter().map(&mut make_one).collect();
    (answers, dropped)
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

/// Does changes in order; says what of metadata was not kept.
fn change_all(
    reach: &Reach,
    changes: &[Edit],
    keeping: &Keeping,
) -> (Vec<Result<(), Fault>>, Dropped) {
    let mut dropped = Dropped::default();
    let mut change_one = |change: &Edit| {
        keeping.go_on()?;
        let (export, path) = reach.resolve(change.path())?;
        export.writable("change", change.path())?;
        match change {
            Edit::Link { to, .. } => {
                let (other, to) = reach.resolve(to)?;
                if !Arc::ptr_eq(&export, &other) {
                    let text = format!("{} and {to} are in two exports", change.path());
                    return Err(Fault::new(Code::BadPath, text));
                }
                export.folder.link(&path, &to)
            }
            // How an export itself looks is for who exports it to say.
            Edit::Describe { .. } if path.is_root() => Ok(()),
            Edit::Describe { meta, .. } | Edit::Own { meta, .. } => {
                export.may_write(quota::attribute_bytes(meta, &export.rules))?;
                if matches!(change, Edit::Own { .. }) {
                    export.folder.own(&path, &|bytes| export.may_write(bytes))?;
                }
                dropped += export.folder.describe_any(&path, meta, &export.rules)?;
                Ok(())
            }
            Edit::Remove { is_folder, .. } => export.folder.remove(&path, *is_folder),
            Edit::Sweep { path: whole } => match keeping.staging_of(whole) {
                Some((staging, below)) => staging.revert(&path, &below),
                None => export.folder.sweep(&path),
            },
        }
    };
    let answers = changes.iter().map(&mut change_one).collect();
    (answers, dropped)
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
