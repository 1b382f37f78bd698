//! What mirrors ask of the server: all of a tree in order (`walks`), a hold on a
//! target, and changes that are neither a copy nor a new folder. A hold lasts as
//! long as its session, and as long as a job of it that may still change the
//! target. Changes wait in the same queue as what is to be made (`namespace`),
//! because both depend on their order.

use super::Session;
use super::end::End;
use super::event::Event;
use super::holding::{Held, Holder, Keeping, Kept, StagingTree};
use super::namespace::Edits;
use super::staging::Staging;
use super::walks::{All, Known, Walked, Walks};
use crate::exports::client_view::Reach;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use verbatim_files::hold::which;
use verbatim_proto::chosen::Chosen;
use verbatim_proto::message::ServerMessage;
use verbatim_proto::mirror::{About, Staged};
use verbatim_proto::units::CHANGES_MAX;
use verbatim_proto::{Code, Fault, Habits, MirrorReply, MirrorRequest, Twin, WirePath};

/// Targets one client may hold.
const HOLDS_MAX: usize = 4;

/// How long a client in the middle of a mirror may say nothing: enough to hash a large file.
/// One that is gone without a word is found by the kernel within minutes.
pub(super) const MIRROR_IDLE_MAX: Duration = Duration::from_secs(6 * 3600);

/// The mirrors of a session: walks, and targets held.
#[derive(Default)]
pub(super) struct Mirrors {
    pub(super) walks: Walks,
    holds: Vec<Arc<Held>>,
    pub(super) stages: Vec<Arc<Staging>>,
    /// What is handed on between the sessions of a run.
    pub(super) kept: Option<Arc<Kept>>,
    /// Requests to hold that are being answered.
    pub(super) holding: usize,
    /// Trees that were put in their place, or are being.
    pub(super) published: usize,
}

impl Mirrors {
    /// Whether a client is in the middle of one.
    pub fn is_open(&self) -> bool {
        !self.walks.is_empty() || !self.holds.is_empty() || !self.stages.is_empty()
    }

    /// What a job keeps that changes targets.
    pub fn keep(&self, over: Arc<AtomicBool>) -> Keeping {
        let holds = self.holds.clone();
        let stages = self.stages.iter().map(|it| it.clone() as Arc<dyn StagingTree>).collect();
        Keeping { over, _held: holds, stages }
    }
}

/// What jobs for mirrors tell a session.
pub(crate) enum MirrorEvent {
    Begun { request: u32, hold: bool, answer: Result<(About, Option<Held>), Fault> },
    Walked(u32, Box<Walked>),
    Staged(u32, Result<(Staged, Box<Staging>), Fault>),
    Published(u32, Result<(), Fault>),
    LookedUp(MirrorReply),
}

impl Session {
    pub(super) fn mirror_event(&mut self, event: MirrorEvent) -> Result<(), End> {
        match event {
            MirrorEvent::Begun { request, hold, answer } => self.begun(request, hold, answer),
            MirrorEvent::Walked(request, walked) => self.walked(request, *walked),
            MirrorEvent::Staged(request, answer) => self.staged(request, answer),
            MirrorEvent::Published(request, answer) => {
                self.client.send(ServerMessage::Mirror(MirrorReply::Published { request, answer }))
            }
            MirrorEvent::LookedUp(reply) => self.client.send(ServerMessage::Mirror(reply)),
        }
    }

    pub(super) fn mirror(&mut self, request: MirrorRequest) -> Result<(), End> {
        match request {
            MirrorRequest::Begin { request, path, hold } => self.begin_mirror(request, path, hold),
            MirrorRequest::Walk { request, walk } => self.walk_tree(request, walk, All::Told),
            MirrorRequest::WalkPlain { request, walk } => self.walk_tree(request, walk, All::Plain),
            MirrorRequest::WalkOnly { only, .. } if only.changes.len() > CHANGES_MAX => {
                let text = format!("more than {CHANGES_MAX} changes to look at");
                Err(End::Refused(Fault::new(Code::Limit, text)))
            }
            MirrorRequest::WalkOnly { request, walk, only } => {
                self.walk_tree(request, walk, All::Only(Arc::new(Chosen::changed(&only))))
            }
            MirrorRequest::WalkMore { request } => self.walk_on(request, None),
            MirrorRequest::WalkUnless { request, alike: digest, owners } => {
                self.walk_on(request, Some(Known { digest, owners }))
            }
            MirrorRequest::Edit { request, edits } => {
                let locks = self.mirrors.keep(self.client.gone.flag());
                self.namespace.change(&self.client, Edits { request, edits }, locks)
            }
            MirrorRequest::Stage { request, path, key } => self.stage(request, path, key),
            MirrorRequest::Publish { request, path, changed } => {
                self.publish(request, &path, changed)
            }
            MirrorRequest::NamesOf { request, owners } => self.names_of(request, owners),
            MirrorRequest::NumbersOf { request, names } => self.numbers_of(request, names),
            MirrorRequest::HabitsOf { request, path, tries } => {
                self.habits_of(request, path, tries);
                Ok(())
            }
            // What it holds is handed on to the sessions that ask the same, and taken from them.
            MirrorRequest::Share { key } => {
                let (locks, who) = (&self.client.shared.locks, &self.client.view.who);
                self.mirrors.kept = Some(Kept::of(locks, who, key));
                Ok(())
            }
        }
    }

    fn begin_mirror(&mut self, request: u32, path: WirePath, hold: bool) -> Result<(), End> {
        if hold {
            self.may_hold()?;
        }
        let (registry, who) = (self.client.shared.locks.clone(), self.client.view.who.clone());
        let (reach, kept) = (self.client.reach.clone(), self.mirrors.kept.clone());
        let held: Vec<Twin> = self.mirrors.holds.iter().map(|held| held.folder).collect();
        self.jobs.run(move || {
            let holder = Holder { registry: &registry, who: &who, kept: kept.as_ref() };
            let answer = begin(&reach, &path, hold.then_some(holder), &held);
            Event::Mirror(MirrorEvent::Begun { request, hold, answer })
        });
        Ok(())
    }

    /// Says what can be kept somewhere; what cannot be found out is no fault.
    fn habits_of(&mut self, request: u32, path: WirePath, tries: bool) {
        let reach = self.client.reach.clone();
        self.jobs.run(move || {
            let habits = habits(&reach, &path, tries).unwrap_or_default();
            let reply = MirrorReply::Habits { request, habits };
            Event::Mirror(MirrorEvent::LookedUp(reply))
        });
    }

    /// Whether one more target may be held; counts it.
    pub(super) fn may_hold(&mut self) -> Result<(), End> {
        let Mirrors { holds, stages, holding, published, .. } = &mut self.mirrors;
        if holds.len() + stages.len() + *holding + *published >= HOLDS_MAX {
            let text = format!("a session may hold {HOLDS_MAX} targets");
            return Err(End::Refused(Fault::new(Code::Limit, text)));
        }
        *holding += 1;
        Ok(())
    }

    fn begun(
        &mut self,
        request: u32,
        hold: bool,
        answer: Result<(About, Option<Held>), Fault>,
    ) -> Result<(), End> {
        self.mirrors.holding -= usize::from(hold);
        let answer = answer.map(|(about, held)| {
            self.mirrors.holds.extend(held.map(Arc::new));
            about
        });
        self.client.send(ServerMessage::Mirror(MirrorReply::Begun { request, answer }))
    }
}

/// Says what kind of place a folder is, and holds it where that is asked for.
fn begin(
    reach: &Reach,
    path: &WirePath,
    hold: Option<Holder<'_>>,
    held: &[Twin],
) -> Result<(About, Option<Held>), Fault> {
    let (export, below) = reach.resolve(path)?;
    if hold.is_some() {
        export.writable("change", path)?;
        // As it is: opened up before it is told, its mode would differ every time.
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
    let Some(holder) = hold else {
        return Ok((About { boot, root, above, keeps, folds_case: false }, None));
    };
    // A session that has it may ask again.
    let has = root.is_some_and(|root| held.contains(&root));
    let held = match has {
        true => None,
        false => Some(holder.take(path, || export.folder.open_folder(&below))?),
    };
    if held.as_ref().is_some_and(|held| Some(held.folder) != root) {
        let text = format!("{path} was exchanged just now; run it again");
        return Err(Fault::new(Code::Limit, text));
    }
    if held.is_some() {
        reach.hold(path)?;
    }
    let folds_case = export.folder.folds_case(&below);
    Ok((About { boot, root, above, keeps, folds_case }, held))
}

fn habits(reach: &Reach, path: &WirePath, tries: bool) -> Result<Habits, Fault> {
    let (export, below) = reach.resolve(path)?;
    if tries {
        export.writable("change", path)?;
    }
    Ok(export.folder.habits(&below, tries))
}
