//! Owns the scans of a session and its queue of changes, in one place because both depend on the
//! order. Never opens a file to copy it. The dispatcher stands above it and hands it the client and
//! the edits of mirrors; `sync_lock` and `exports` stand below.
//!
//! A scan pauses between two pages, so a tree of any size costs the server one page of memory.

mod changes;
mod lookups;

use super::client::Client;
use super::disclosed_owners::{DisclosedOwners, of_meta, of_ties};
use super::end::End;
use super::sync_lock::LockCarrier;
use crate::observe::session_stats::SessionStats;
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

/// The longest answer for one path: a symlink has a target of up to 4 KiB.
const ANSWER_BYTES: usize = 4 << 10;

/// Scans that one client may have.
const SCANS_MAX: usize = 8;

/// The scans of a session, `None` while a job makes a page; and the waiting changes, in order,
/// because a folder comes before its entries.
pub(super) struct Namespace {
    jobs: Jobs<NamespaceEvent>,
    scans: HashMap<u32, Option<Scan>>,
    waiting: VecDeque<(u32, Change)>,
    /// Whether a job applies changes; the next batch waits for it.
    busy: bool,
    /// Whether the client wants owner and link count of entries.
    ties: bool,
    /// What new folders and symlinks of this client may replace.
    over: Over,
}

/// Answers of jobs.
pub(crate) enum NamespaceEvent {
    Stated(u32, StatAnswers),
    Page(u32, Page),
    Made(u32, Vec<Result<(), Fault>>, Dropped),
    Changed(u32, Vec<Result<(), Fault>>, Dropped),
}

impl NamespaceEvent {
    /// Adds a job's answer to the counters.
    pub fn count(&self, view: &SessionStats, _time: Duration) {
        match self {
            Self::Stated(_, answers) => answers.errors().for_each(|fault| view.report_error(fault)),
            Self::Page(_, page) => {
                page.errors().for_each(|fault| view.report_error(fault));
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
    /// No scan and no waiting change.
    pub fn new(jobs: Jobs<NamespaceEvent>) -> Self {
        let (scans, waiting, over) = Default::default();
        Self { jobs, scans, waiting, busy: false, ties: false, over }
    }

    /// From now on answers include owner and link count.
    pub fn tell_ties(&mut self) {
        self.ties = true;
    }

    /// From now on folders and symlinks replace nothing.
    pub fn replace_nothing(&mut self) {
        self.over = Over::Nothing;
    }

    /// The number of waiting change requests.
    pub fn changes_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Looks up the paths of a request.
    pub fn stat(&self, client: &Client, request: u32, look: Look) -> Result<(), End> {
        if look.paths.len() > LOOK_PATHS_MAX {
            let text = format!("more than {LOOK_PATHS_MAX} paths to look at");
            return Err(End::refused(Code::Limit, text));
        }
        let (reach, with_ties) = (client.reach.clone(), self.ties);
        let bytes = look.paths.len() * ANSWER_BYTES;
        self.jobs.run_expecting(bytes, move |expected| {
            NamespaceEvent::Stated(request, look_at_all(&reach, &look, with_ties, expected))
        });
        Ok(())
    }

    /// Begins to list a folder, or all of a tree.
    pub fn scan(&mut self, client: &Client, request: u32, scan: ScanRequest) -> Result<(), End> {
        if self.scans.len() >= SCANS_MAX || self.scans.contains_key(&request) {
            let text = format!("a session may have {SCANS_MAX} scans");
            return Err(End::refused(Code::Limit, text));
        }
        self.scans.insert(request, None);
        let (reach, ties) = (client.reach.clone(), self.ties);
        let (over, meter) = (client.cancel.flag(), client.share.name.pattern_steps.meter());
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
            return Err(End::refused(Code::Protocol, text));
        };
        let over = client.cancel.flag();
        self.jobs.run(move || NamespaceEvent::Page(request, next_page(scan, &over)));
        Ok(())
    }

    /// Makes folders and symlinks, after all earlier changes. The job keeps the locks.
    pub fn make(
        &mut self,
        client: &Client,
        request: u32,
        entries: Vec<NewEntry>,
        locks: LockCarrier,
    ) -> Result<(), End> {
        if entries.len() > BATCH_FILES_MAX {
            let text = format!("more than {BATCH_FILES_MAX} entries to make at a time");
            return Err(End::refused(Code::Limit, text));
        }
        self.queue_change(client, request, Change::Make(entries), locks);
        Ok(())
    }

    /// Applies edits, after all earlier changes. The job keeps the locks.
    pub fn change(
        &mut self,
        client: &Client,
        Edits { request, edits }: Edits,
        locks: LockCarrier,
    ) -> Result<(), End> {
        if edits.len() > BATCH_FILES_MAX {
            let text = format!("more than {BATCH_FILES_MAX} changes at a time");
            return Err(End::refused(Code::Limit, text));
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

    /// Sends the client a job's answer, and remembers the owners in it. The next job keeps the
    /// locks.
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

/// Sends owner and link count of the entries that follow.
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
