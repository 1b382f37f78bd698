//! Names in the exports of a client: stat, scans in pages, making folders and links, and changes
//! that are neither a copy nor a new folder. Owns the scans of a session and the queue of what is
//! to be made and changed, both in one because each depends on the order. Opens no file to be
//! copied. The dispatcher hands it the client, and edits of mirrors; below it are the locks.
//!
//! A scan is a walk that rests between two pages, so that a tree of any size
//! costs the server one page of memory.

mod changes;
mod lookups;

use super::client::Client;
use super::disclosed_owners::{DisclosedOwners, of_meta, of_ties};
use super::end::End;
use super::sync_lock::LockCarrier;
use crate::observe::session_stats::View;
pub(super) use changes::{CHANGES_UNMETERED_MAX, CHANGES_WAITING_MAX, Edits};
use changes::{Change, change_all, make_all};
use lookups::{Page, Scan, StatAnswers, begin, look_at_all, next_page};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use verbatim_files::Over;
use verbatim_proto::message::{NewEntry, ServerMessage};
use verbatim_proto::units::{BATCH_FILES_MAX, LOOK_PATHS_MAX};
use verbatim_proto::{
    Code, Dropped, Fault, Look, MirrorReply, Scan as ScanRequest, Ties, WirePath,
};
use verbatim_serve::Jobs;
use verbatim_telemetry::labels::Operation;

/// How long what is told of one path may be: a link has a target of up to 4 KiB.
const ANSWER_BYTES: usize = 4 << 10;

/// Scans one client may have at a time.
const SCANS_MAX: usize = 8;

/// The scans of a session, `None` while a page is being made; and what is to be made, in
/// order, because a folder comes before what is in it.
pub(super) struct Namespace {
    jobs: Jobs<NamespaceEvent>,
    scans: HashMap<u32, Option<Scan>>,
    waiting: VecDeque<(u32, Change)>,
    /// Whether a job changes something; the next waits for it.
    busy: bool,
    /// Whether the client wants to know whose things are.
    ties: bool,
    /// What folders and links of this client may take the place of.
    over: Over,
}

/// What jobs answer.
pub(crate) enum NamespaceEvent {
    Stated(u32, StatAnswers),
    Page(u32, Page),
    Made(u32, Vec<Result<(), Fault>>, Dropped),
    Changed(u32, Vec<Result<(), Fault>>, Dropped),
}

impl NamespaceEvent {
    /// Adds what a job answers to the counters.
    pub fn count(&self, view: &View, _time: Duration) {
        match self {
            Self::Stated(_, answers) => answers.errors().for_each(|fault| view.trouble(fault)),
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

impl Namespace {
    /// No scan is open and nothing is to be made yet.
    pub fn new(jobs: Jobs<NamespaceEvent>) -> Self {
        let (scans, waiting, over) = Default::default();
        Self { jobs, scans, waiting, busy: false, ties: false, over }
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
    pub fn changes_waiting(&self) -> usize {
        self.waiting.len()
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
        let (over, meter) = (client.cancel.flag(), client.share.name.matching.meter());
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
        let over = client.cancel.flag();
        self.jobs.run(move || NamespaceEvent::Page(request, next_page(scan, &over)));
        Ok(())
    }

    /// Makes folders and links, after all that was asked for before them. The job keeps the locks.
    pub fn make(
        &mut self,
        client: &Client,
        request: u32,
        entries: Vec<NewEntry>,
        locks: LockCarrier,
    ) -> Result<(), End> {
        if entries.len() > BATCH_FILES_MAX {
            let text = format!("more than {BATCH_FILES_MAX} entries to make at a time");
            return Err(End::Refused(Fault::new(Code::Limit, text)));
        }
        self.queue_change(client, request, Change::Make(entries), locks);
        Ok(())
    }

    /// Changes what is there, after all that was asked for before it. The job keeps the locks.
    pub fn change(
        &mut self,
        client: &Client,
        Edits { request, edits }: Edits,
        locks: LockCarrier,
    ) -> Result<(), End> {
        if edits.len() > BATCH_FILES_MAX {
            let text = format!("more than {BATCH_FILES_MAX} changes at a time");
            return Err(End::Refused(Fault::new(Code::Limit, text)));
        }
        self.queue_change(client, request, Change::Edit(edits), locks);
        Ok(())
    }

    fn queue_change(&mut self, client: &Client, request: u32, change: Change, locks: LockCarrier) {
        self.waiting.push_back((request, change));
        self.start_next(client, locks);
    }

    fn start_next(&mut self, client: &Client, locks: LockCarrier) {
        if self.busy {
            return;
        }
        let Some((request, what)) = self.waiting.pop_front() else { return };
        self.busy = true;
        let (over, reach) = (self.over, client.reach.clone());
        self.jobs.run(move || match what {
            Change::Make(entries) => {
                let (answers, dropped) = make_all(&reach, &entries, over, &locks);
                NamespaceEvent::Made(request, answers, dropped)
            }
            Change::Edit(changes) => {
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
        disclosed_owners: &mut DisclosedOwners,
        event: NamespaceEvent,
        locks: LockCarrier,
    ) -> Result<(), End> {
        match event {
            NamespaceEvent::Stated(request, answers) => {
                let StatAnswers { answers, ties, _expected, .. } = answers;
                send_ties(client, disclosed_owners, request, ties)?;
                client.send(ServerMessage::Stated { request, answers })
            }
            NamespaceEvent::Page(request, page) => {
                self.page(client, disclosed_owners, request, page)
            }
            NamespaceEvent::Made(request, answers, dropped) => {
                client.tell_dropped(dropped)?;
                self.busy = false;
                self.start_next(client, locks);
                client.send(ServerMessage::Made { request, answers })
            }
            NamespaceEvent::Changed(request, answers, dropped) => {
                client.tell_dropped(dropped)?;
                self.busy = false;
                self.start_next(client, locks);
                client.send(ServerMessage::Mirror(MirrorReply::Changed { request, answers }))
            }
        }
    }

    fn page(
        &mut self,
        client: &Client,
        disclosed_owners: &mut DisclosedOwners,
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
        disclosed_owners.note(owners);
        send_ties(client, disclosed_owners, request, ties)?;
        client.send(ServerMessage::Page { request, entries, faults, done })
    }
}

/// Says whose the entries are that are told next.
fn send_ties(
    client: &Client,
    disclosed_owners: &mut DisclosedOwners,
    request: u32,
    ties: Vec<Option<Ties>>,
) -> Result<(), End> {
    disclosed_owners.note(ties.iter().flatten().map(of_ties));
    match ties.is_empty() {
        true => Ok(()),
        false => client.send(ServerMessage::Ties { request, ties }),
    }
}
