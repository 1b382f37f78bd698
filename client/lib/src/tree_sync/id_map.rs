//! Owners by name: a page of the source waits until the accounts that own its
//! entries are known at the target by their names. One side names the numbers, the
//! other numbers the names: this machine by a job, the server by a message. A
//! number that has no name there, or whose name is unknown here, stays as it is, and
//! so do root and what would become root's. Used by `scan_both` for every page.

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

/// Looks up the owners of pages of a source at the target, one page at a time.
pub(crate) struct IdMap {
    waiting: Option<WaitingPage>,
    jobs: Jobs<LookupResult>,
}

/// A page of the source.
pub(crate) struct SourcePage {
    pub found: Vec<Found>,
    pub done: bool,
}

/// A page of the source that waits, and the owners that it waits for.
struct WaitingPage {
    page: SourcePage,
    owners: Vec<Owner>,
    /// The request to the server, if it is its turn.
    request: Option<u32>,
}

/// What a job found out about owners.
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

    /// Whether the server was asked and has not answered.
    pub fn awaits_server(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.request.is_some())
    }

    /// Whether the server was asked this of so many owners.
    pub fn awaits(&self, request: u32, count: usize) -> bool {
        let asked = |waiting: &WaitingPage| {
            waiting.request == Some(request) && waiting.owners.len() == count
        };
        self.waiting.as_ref().is_some_and(asked)
    }

    /// Has a page wait where an owner is not known yet; gives back one that need not.
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
                // An account that cannot be looked up keeps its number.
                let look = move || Accounts::read().unwrap_or_default().names_of(&asked);
                self.jobs.run(move || LookupResult::Names(look()));
                None
            }
        };
        self.waiting = Some(WaitingPage { page, owners, request });
        None
    }

    /// Takes the answer of a job, if it is there; returns the page, once all its owners are known.
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

    /// The owners of the page that waits have these names at the source: now their numbers at
    /// the target are asked for.
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

    /// All owners of the page that waits are known: it may be compared.
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

/// Owners of a page of the source that have to be asked for.
pub(crate) fn unknown_owners(spec: &Spec, ids: &IdTranslation, found: &[Found]) -> Vec<Owner> {
    let by_name = spec.mirror.by_name && spec.mirror.rules.give_away;
    if by_name { ids.unknown(found) } else { Vec::new() }
}
