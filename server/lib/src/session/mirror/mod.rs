//! Owns the requests of `rdma-sync`: walks of trees in order (`walks`), locks of targets, staging
//! trees (`atomic_tree`), and account names (`owners`). Never changes an entry: edits are returned,
//! and wait in one queue with new folders (`namespace`), because their order matters. The
//! dispatcher stands above it, `sync_lock` and `exports` below.
//!
//! A lock lasts as long as its session, and as long as a job that may still change the target.

mod atomic_tree;
mod owners;
mod walks;

use super::client::Client;
use super::disclosed_owners::DisclosedOwners;
use super::end::End;
use super::namespace::Edits;
use super::sync_lock::{LockCarrier, LockOwner, RunLock, SyncLock};
use crate::exports::client_view::ClientView;
pub(crate) use atomic_tree::StagingEvent;
use atomic_tree::StagingTrees;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use verbatim_files::hold::which;
use verbatim_proto::chosen::Chosen;
use verbatim_proto::message::ServerMessage;
use verbatim_proto::mirror::{About, TreeScan};
use verbatim_proto::owners::{Owner, OwnerName};
use verbatim_proto::units::CHANGES_MAX;
use verbatim_proto::{Code, Digest, Fault, Habits, MirrorReply, MirrorRequest, Twin, WirePath};
use verbatim_serve::Jobs;
pub(super) use walks::WALKS_MAX;
pub(crate) use walks::WalkedPage;
use walks::{KnownPage, WalkScope, Walks};

/// Targets that one session may lock.
const LOCKS_MAX: usize = 4;

/// How long the client of an open mirror may be silent: enough to hash a large file. TCP keepalive
/// finds a vanished client within minutes.
pub(super) const MIRROR_IDLE_MAX: Duration = Duration::from_secs(6 * 3600);

/// The walks and locked targets of a session.
pub(super) struct Mirrors {
    walks: Walks,
    locks: Vec<Arc<SyncLock>>,
    trees: StagingTrees,
    /// The lock that sessions of one run hand to each other.
    run: Option<Arc<RunLock>>,
    /// Lock requests under way.
    locks_pending: usize,
    jobs: Jobs<MirrorEvent>,
}

/// Answers of jobs.
pub(crate) enum MirrorEvent {
    Begun { request: u32, hold: bool, answer: Result<(About, Option<SyncLock>), Fault> },
    LookedUp(MirrorReply),
    Walked(Box<WalkedPage>),
    Staging(StagingEvent),
}

impl From<WalkedPage> for MirrorEvent {
    fn from(walked: WalkedPage) -> Self {
        Self::Walked(Box::new(walked))
    }
}

impl From<StagingEvent> for MirrorEvent {
    fn from(event: StagingEvent) -> Self {
        Self::Staging(event)
    }
}

impl Mirrors {
    /// No walk, lock or tree yet.
    pub fn new(
        jobs: Jobs<MirrorEvent>,
        walks: Jobs<WalkedPage>,
        trees: Jobs<StagingEvent>,
    ) -> Self {
        let (walks, trees) = (Walks::new(walks), StagingTrees::new(trees));
        Self { walks, locks: Vec::new(), trees, run: None, locks_pending: 0, jobs }
    }

    /// How many pages of a walk are ready and not sent.
    #[cfg(test)]
    pub fn ready_pages(&self, request: u32) -> usize {
        self.walks.ready_pages(request)
    }

    /// Whether the client has a walk, a lock or a staging tree.
    pub fn is_open(&self) -> bool {
        !self.walks.is_empty() || !self.locks.is_empty() || !self.trees.is_empty()
    }

    /// The locks of the session, for a job that changes targets.
    pub fn carry_locks(&self, cancelled: Arc<AtomicBool>) -> LockCarrier {
        LockCarrier { cancelled, _locks: self.locks.clone(), trees: self.trees.for_jobs() }
    }

    /// Ends walks and releases locks. Jobs release theirs when they are done.
    pub fn end_all(&mut self) {
        self.walks.clear();
        self.locks.clear();
        self.trees.clear();
        self.run = None;
    }

    /// Sends the client the answer of a job.
    pub fn event(
        &mut self,
        client: &Client,
        disclosed_owners: &mut DisclosedOwners,
        event: MirrorEvent,
    ) -> Result<(), End> {
        let reply = match event {
            MirrorEvent::Begun { request, hold, answer } => {
                self.locks_pending -= usize::from(hold);
                let answer = answer.map(|(about, held)| {
                    self.locks.extend(held.map(Arc::new));
                    about
                });
                MirrorReply::Begun { request, answer }
            }
            MirrorEvent::LookedUp(reply) => reply,
            MirrorEvent::Walked(walked) => {
                return self.walks.walked(client, disclosed_owners, *walked);
            }
            MirrorEvent::Staging(StagingEvent::Staged(request, answer)) => {
                self.locks_pending -= 1;
                let answer = answer.map(|(staged, staging)| {
                    self.trees.add(staging);
                    staged
                });
                MirrorReply::Staged { request, answer }
            }
            MirrorEvent::Staging(StagingEvent::Published(request, answer)) => {
                MirrorReply::Published { request, answer }
            }
        };
        client.send(ServerMessage::Mirror(reply))
    }

    /// Handles a request, except edits, which it returns.
    pub fn request(
        &mut self,
        client: &Client,
        disclosed_owners: &mut DisclosedOwners,
        request: MirrorRequest,
    ) -> Result<Option<Edits>, End> {
        match request {
            MirrorRequest::Begin { request, path, hold } => {
                self.begin(client, request, path, hold)?
            }
            MirrorRequest::Walk { request, walk } => {
                self.walk(client, request, walk, WalkScope::Told)?
            }
            MirrorRequest::WalkPlain { request, walk } => {
                self.walk(client, request, walk, WalkScope::Plain)?
            }
            MirrorRequest::WalkOnly { only, .. } if only.changes.len() > CHANGES_MAX => {
                let text = format!("more than {CHANGES_MAX} changes to look at");
                return Err(End::refused(Code::Limit, text));
            }
            MirrorRequest::WalkOnly { request, walk, only } => {
                self.walk(client, request, walk, WalkScope::Only(Arc::new(Chosen::changed(&only))))?
            }
            MirrorRequest::WalkMore { request } => {
                self.walks.ask(client, disclosed_owners, request, None)?
            }
            MirrorRequest::WalkUnless { request, alike: digest, owners } => {
                let known = Some(KnownPage { digest, owners });
                self.walks.ask(client, disclosed_owners, request, known)?
            }
            MirrorRequest::Edit { request, edits } => return Ok(Some(Edits { request, edits })),
            MirrorRequest::Stage { request, path, key } => {
                self.stage(client, request, path, key)?
            }
            MirrorRequest::Publish { request, path, changed } => {
                self.trees.publish(request, &path, changed)?
            }
            MirrorRequest::NamesOf { request, owners } => {
                self.names_of(client, disclosed_owners, request, owners)?
            }
            MirrorRequest::NumbersOf { request, names } => {
                self.numbers_of(client, request, names)?
            }
            MirrorRequest::HabitsOf { request, path, tries } => {
                self.habits_of(client, request, path, tries)
            }
            // Sessions that send the same key hand the lock to each other.
            MirrorRequest::Share { key } => {
                self.run = Some(RunLock::of(&client.services.locks, &client.view.who, key));
            }
        }
        Ok(None)
    }

    fn begin(
        &mut self,
        client: &Client,
        request: u32,
        path: WirePath,
        hold: bool,
    ) -> Result<(), End> {
        if hold {
            self.count_lock()?;
        }
        let (registry, who) = (client.services.locks.clone(), client.view.who.clone());
        let (reach, run) = (client.reach.clone(), self.run.clone());
        let held: Vec<Twin> = self.locks.iter().map(|held| held.folder).collect();
        self.jobs.run(move || {
            let owner = LockOwner { registry: &registry, who: &who, run: run.as_ref() };
            let answer = begin(&reach, &path, hold.then_some(owner), &held);
            MirrorEvent::Begun { request, hold, answer }
        });
        Ok(())
    }

    fn walk(
        &mut self,
        client: &Client,
        request: u32,
        scan: TreeScan,
        all: WalkScope,
    ) -> Result<(), End> {
        let staging = self.trees.at(&scan.path);
        let open_beside = move || staging.and_then(|staging| staging.open_target());
        self.walks.begin(client, request, (scan, all), open_beside)
    }

    fn stage(
        &mut self,
        client: &Client,
        request: u32,
        path: WirePath,
        key: Digest,
    ) -> Result<(), End> {
        if let Some(staged) = self.trees.find(&path, key) {
            // The same session may ask again.
            let reply = MirrorReply::Staged { request, answer: Ok(staged) };
            return client.send(ServerMessage::Mirror(reply));
        }
        self.count_lock()?;
        self.trees.build(client, self.run.clone(), request, (path, key));
        Ok(())
    }

    fn names_of(
        &self,
        client: &Client,
        disclosed_owners: &DisclosedOwners,
        request: u32,
        owners: Vec<Owner>,
    ) -> Result<(), End> {
        owners::check_count(owners.len())?;
        let disclosed = owners.iter().map(|owner| disclosed_owners.has(owner)).collect();
        let services = client.services.clone();
        self.jobs.run(move || {
            let names = owners::names_of(&services.accounts, &owners, disclosed);
            MirrorEvent::LookedUp(MirrorReply::Names { request, names })
        });
        Ok(())
    }

    fn numbers_of(&self, client: &Client, request: u32, names: Vec<OwnerName>) -> Result<(), End> {
        owners::check_count(names.len())?;
        let (services, may) = (client.services.clone(), client.reach.may_give_away());
        self.jobs.run(move || {
            let numbers = owners::numbers_of(&services.accounts, &names, may);
            MirrorEvent::LookedUp(MirrorReply::Numbers { request, numbers })
        });
        Ok(())
    }

    /// Reports what the file system of a path can store; what cannot be found out counts as absent.
    fn habits_of(&self, client: &Client, request: u32, path: WirePath, tries: bool) {
        let reach = client.reach.clone();
        self.jobs.run(move || {
            let habits = habits(&reach, &path, tries).unwrap_or_default();
            MirrorEvent::LookedUp(MirrorReply::Habits { request, habits })
        });
    }

    /// Counts one more lock, or refuses it.
    fn count_lock(&mut self) -> Result<(), End> {
        if self.locks.len() + self.trees.count() + self.locks_pending >= LOCKS_MAX {
            let text = format!("a session may hold {LOCKS_MAX} targets");
            return Err(End::refused(Code::Limit, text));
        }
        self.locks_pending += 1;
        Ok(())
    }
}

/// Describes a folder, and locks it on request.
fn begin(
    reach: &ClientView,
    path: &WirePath,
    hold: Option<LockOwner<'_>>,
    held: &[Twin],
) -> Result<(About, Option<SyncLock>), Fault> {
    let (export, below) = reach.resolve(path)?;
    if hold.is_some() {
        export.writable("change", path)?;
        // With a fixed mode: an opened-up mode would make the answer differ every time.
        export.folder.make_folder(&below, 0o700, false)?;
    }
    let (keeps, above) = (export.rules.into(), Vec::new());
    let boot = verbatim_files::journal::boot_id().to_vec();
    let fd = match export.folder.open_folder(&below) {
        Ok(fd) => fd,
        Err(fault) if fault.code == Code::NotFound && hold.is_none() => {
            return Ok((About { boot, root: None, above, keeps, folds_case: false }, None));
        }
        Err(fault) => return Err(fault),
    };
    let what = format!("cannot look at {path}");
    let above = verbatim_files::hold::above(&fd);
    let root = Some(which(&fd).map_err(|e| Fault::from_io(&what, &e))?);
    let Some(owner) = hold else {
        return Ok((About { boot, root, above, keeps, folds_case: false }, None));
    };
    // The same session may ask again.
    let has = root.is_some_and(|root| held.contains(&root));
    let held = match has {
        true => None,
        false => Some(owner.take(path, || export.folder.open_folder(&below))?),
    };
    if held.as_ref().is_some_and(|held| Some(held.folder) != root) {
        let text = format!("{path} was replaced during the request; run the command again");
        return Err(Fault::new(Code::Limit, text));
    }
    if held.is_some() {
        reach.lock_target(path)?;
    }
    let folds_case = export.folder.folds_case(&below);
    Ok((About { boot, root, above, keeps, folds_case }, held))
}

fn habits(reach: &ClientView, path: &WirePath, tries: bool) -> Result<Habits, Fault> {
    let (export, below) = reach.resolve(path)?;
    if tries {
        export.writable("change", path)?;
    }
    Ok(export.folder.habits(&below, tries))
}
