//! Owners by name: a page of the source waits until the ids of its owners at the target are known.
//! One side looks up the names of the ids, the other the ids of the names; a job does it on this
//! machine, a message at the server. An id without a name stays as it is. So does root, and any id
//! whose name is root's at the target. Used by `scan_both` for every page.

use crate::tree_sync::spec::{Direction, Spec};
use verbatim_engine::connection::Engine;
use verbatim_engine::connection::jobs::Jobs;
use verbatim_engine::local_io::waker::Waker;
use verbatim_engine::transfer::id_translation::IdTranslation;
use verbatim_files::accounts::Accounts;
use verbatim_proto::message::ClientMessage;
use verbatim_proto::mirror::MirrorRequest;
use verbatim_proto::owners::{Owner, OwnerName};
use verbatim_proto::tree::Found;

/// Looks up the owners of pages at the target, one page at a time.
pub(crate) struct IdMap {
    waiting: Option<WaitingPage>,
    jobs: Jobs<LookupResult>,
}

/// A page of the source.
pub(crate) struct SourcePage {
    pub found: Vec<Found>,
    pub done: bool,
}

/// A page that waits for the ids of these owners.
struct WaitingPage {
    page: SourcePage,
    owners: Vec<Owner>,
    /// The request to the server, if this step is the server's.
    request: Option<u32>,
}

/// The answer of a job about owners.
enum LookupResult {
    Names(Vec<Option<String>>),
    Numbers(Vec<Option<u32>>),
}

impl IdMap {
    pub fn new(waker: &Waker) -> Self {
        Self { waiting: None, jobs: Jobs::new(waker) }
    }

    /// Whether a page waits for its owners.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Whether the server owes an answer about owners.
    pub fn awaits_server(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.request.is_some())
    }

    /// Whether this request about this many owners is in flight.
    pub fn awaits(&self, request: u32, count: usize) -> bool {
        let asked = |waiting: &WaitingPage| {
            waiting.request == Some(request) && waiting.owners.len() == count
        };
        self.waiting.as_ref().is_some_and(asked)
    }

    /// Looks up the unknown owners of a page, which waits meanwhile. Returns a page without unknown
    /// owners.
    pub fn resolve_owners(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        ids: &IdTranslation,
        page: SourcePage,
    ) -> Option<SourcePage> {
        let owners = unknown_owners(spec, ids, &page.found);
        if owners.is_empty() {
            return Some(page);
        }
        let asked = owners.clone();
        let request = match spec.mirror.direction {
            Direction::Down => {
                let request = engine.request();
                let ask = MirrorRequest::NamesOf { request, owners: asked };
                engine.send(ClientMessage::Mirror(ask));
                Some(request)
            }
            Direction::Up => {
                // An account that cannot be looked up keeps its id.
                let look = move || Accounts::read().unwrap_or_default().names_of(&asked);
                self.jobs.run(move || LookupResult::Names(look()));
                None
            }
        };
        self.waiting = Some(WaitingPage { page, owners, request });
        None
    }

    /// Handles the answer of a job, if it has arrived. Returns the page once all its owners are
    /// known.
    pub fn take_answers(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        ids: &mut IdTranslation,
    ) -> Option<SourcePage> {
        match self.jobs.next_answer()? {
            LookupResult::Names(names) => self.named(engine, spec, ids, names),
            LookupResult::Numbers(numbers) => self.numbered(ids, numbers),
        }
    }

    /// Handles the names of the waiting page's owners, and looks up their ids at the target.
    pub fn named(
        &mut self,
        engine: &mut Engine,
        spec: &Spec,
        ids: &mut IdTranslation,
        names: Vec<Option<String>>,
    ) -> Option<SourcePage> {
        let waiting = self.waiting.as_mut()?;
        let (mut owners, mut wanted) = (Vec::new(), Vec::new());
        for (owner, name) in std::mem::take(&mut waiting.owners).into_iter().zip(names) {
            match name {
                Some(name) => {
                    owners.push(owner);
                    wanted.push(OwnerName { is_group: owner.is_group, name });
                }
                None => ids.learn(owner, None),
            }
        }
        (waiting.owners, waiting.request) = (owners, None);
        if wanted.is_empty() {
            return self.numbered(ids, Vec::new());
        }
        match spec.mirror.direction {
            Direction::Down => {
                let look = move || Accounts::read().unwrap_or_default().numbers_of(&wanted);
                self.jobs.run(move || LookupResult::Numbers(look()));
            }
            Direction::Up => {
                let request = engine.request();
                waiting.request = Some(request);
                let ask = MirrorRequest::NumbersOf { request, names: wanted };
                engine.send(ClientMessage::Mirror(ask));
            }
        }
        None
    }

    /// Handles the ids of the waiting page's owners, and returns the page.
    pub fn numbered(
        &mut self,
        ids: &mut IdTranslation,
        numbers: Vec<Option<u32>>,
    ) -> Option<SourcePage> {
        let WaitingPage { page, owners, .. } = self.waiting.take()?;
        for (owner, number) in owners.into_iter().zip(numbers) {
            ids.learn(owner, number);
        }
        Some(page)
    }
}

/// The owners of a page that must be looked up.
pub(crate) fn unknown_owners(spec: &Spec, ids: &IdTranslation, found: &[Found]) -> Vec<Owner> {
    let by_name = spec.mirror.by_name && spec.mirror.rules.give_away;
    if by_name { ids.unknown(found) } else { Vec::new() }
}
