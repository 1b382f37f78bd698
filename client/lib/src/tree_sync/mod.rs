//! A tree that is made equal to another: both sides are scanned at once, a page at a time, `plan`
//! says what differs, and transfers and edits make it equal. One mirror is all the work of its
//! session. When the session breaks, the next one begins the comparison anew: what was done is
//! equal by then. Below `session`, above `transfer`.
//!
//! Order: everything as it is found; then large new files, when all of the target was seen and may
//! have them under another name; then, where something did not fit, `free_space` makes room and all
//! begins anew; then links, when the files they name are there; then what interrupted copies left
//! is swept away; then deletes, the last first; then what was waiting for a folder to be deleted;
//! then the metadata of folders; then a tree that was built beside its target takes its place.

mod apply;
mod apply_local;
mod delta_candidates;
mod free_space;
mod id_map;
mod lock_and_publish;
mod page_match;
mod report;
mod scan_both;
mod schedule;
pub mod spec;

use crate::tree_sync::apply::Apply;
use crate::tree_sync::free_space::Clearing;
use crate::tree_sync::lock_and_publish::{Held, TargetLock};
use crate::tree_sync::report::report_step;
use crate::tree_sync::scan_both::{ScanBoth, SidePage};
use crate::tree_sync::schedule::Schedule;
use crate::tree_sync::spec::{Mirror, Spec, Way};
use std::time::Instant;
use verbatim_engine::connection::Engine;
use verbatim_engine::connection::ledger::Item;
use verbatim_engine::model::copy_policy::Task;
use verbatim_engine::transfer::Transfer;
use verbatim_proto::mirror::{About, MirrorReply};
use verbatim_proto::plan::{Next, Step, What};
use verbatim_proto::units::OPEN_FILES_MAX;
use verbatim_proto::{Code, Fault, WirePath};

/// Files that wait before more is compared.
const QUEUE_LOW: usize = OPEN_FILES_MAX / 2;

/// Steps taken before the session looks at its messages again.
const STEPS_MAX: usize = 1024;

/// Pages of steps done in one turn.
const PAGES_MAX: usize = 16;

/// What a mirror is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// The target is asked for; none while the answer is awaited.
    Holding(Option<Instant>),
    Comparing,
    /// New files that waited for all of the target to be seen.
    Fetching,
    /// What interrupted runs left is removed where something did not fit.
    Clearing,
    Linking,
    Sweeping,
    Deleting,
    Late,
    LinkingLate,
    Finishing,
    /// A tree takes the place of its target; whether that was begun.
    Publishing(bool),
    Done,
}

/// A tree that is made equal to another: the comparison, the steps that follow from it, and how far
/// all of that is.
pub(crate) struct TreeSync {
    spec: Spec,
    scan: ScanBoth,
    schedule: Schedule,
    apply: Apply,
    lock: TargetLock,
    phase: Phase,
    /// Whether anything may be deleted is decided.
    judged: bool,
    /// Nothing may be deleted.
    refused: bool,
    /// Whether room is made for what did not fit.
    clearing: Clearing,
    /// There is more to do, whatever comes.
    eager: bool,
}

impl TreeSync {
    /// The mirror that is the work of this number.
    pub fn new(engine: &mut Engine, number: u32, of: Mirror) -> Self {
        // Whoever began the first session held the target with it; the others do it here.
        let again = engine.outcomes().ledger().summary.reconnects > 0;
        let copies = engine.rules().task == Task::Copy;
        let holds = again && copies && of.way == Way::Up;
        if copies {
            engine.outcomes().ledger().hold_back();
        }
        let phase = if holds { Phase::Holding(Some(Instant::now())) } else { Phase::Comparing };
        let waker = engine.waker();
        Self {
            scan: ScanBoth::new(&of, waker),
            schedule: Schedule::default(),
            apply: Apply::new(waker),
            lock: TargetLock::new(waker),
            phase,
            judged: false,
            refused: false,
            clearing: Clearing::default(),
            eager: false,
            spec: Spec { number, of },
        }
    }

    /// Begins the comparison anew, behind what was removed to make room.
    fn compare_again(&mut self, engine: &Engine) {
        let waker = engine.waker();
        (self.scan, self.apply) = (ScanBoth::new(&self.spec.of, waker), Apply::new(waker));
        self.schedule = Schedule::default();
        (self.judged, self.refused, self.eager) = (false, false, false);
        self.phase = Phase::Comparing;
    }

    /// Whether the server owes an answer.
    pub fn awaits(&self) -> bool {
        let publishing = self.phase == Phase::Publishing(true) && self.spec.of.way == Way::Up;
        let holding = self.phase == Phase::Holding(None);
        holding || publishing || self.scan.awaits() || self.apply.awaits()
    }

    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Whether there is more to do at once, whatever comes.
    pub fn is_eager(&self) -> bool {
        self.eager
    }

    /// Whether a job changes something at a target on this machine.
    pub fn is_at_work(&self) -> bool {
        let publishing = self.phase == Phase::Publishing(true) && self.spec.of.way == Way::Down;
        publishing || self.apply.is_at_work()
    }

    /// Whether more may be found.
    pub fn is_searching(&self) -> bool {
        self.phase <= Phase::Fetching
    }

    /// Goes on with the mirror.
    pub fn pump(&mut self, engine: &mut Engine, transfer: &mut Transfer) {
        // Nothing new is begun in a session that is at its end.
        if engine.broken().is_some() {
            return;
        }
        self.eager = false;
        for _ in 0..PAGES_MAX {
            let before = self.phase;
            match self.advance(engine, transfer) {
                Err(fault) => engine.broke(fault),
                Ok(()) if self.phase != before || self.eager => continue,
                Ok(()) => {}
            }
            break;
        }
        self.apply.pump(engine, &self.spec, transfer);
    }

    /// Takes the answers of jobs.
    pub fn take_answers(&mut self, engine: &mut Engine, transfer: &mut Transfer) {
        self.scan.take_answers(engine, &self.spec, &mut transfer.ids);
        self.take_last_answers(engine, transfer);
    }

    /// The same in a session that is over: only what was begun at the target is finished.
    pub fn take_last_answers(&mut self, engine: &mut Engine, transfer: &mut Transfer) {
        self.apply.take_answers(engine, &self.spec, transfer);
        if let Some(answer) = self.lock.published() {
            self.published(engine, answer);
        }
    }

    /// Takes an answer of the server. Nothing of it is believed that was not asked for: an answer
    /// to another request, or too few of them, is the end of the session.
    pub fn reply(&mut self, engine: &mut Engine, transfer: &mut Transfer, reply: MirrorReply) {
        let (spec, ids) = (&self.spec, &mut transfer.ids);
        match reply {
            MirrorReply::Begun { request, answer } if self.awaits_hold(request) => {
                self.held(engine, answer.map(|about| (about, None)));
            }
            MirrorReply::Staged { request, answer } if self.awaits_hold(request) => {
                let answer = answer.map(|staged| (staged.about, Some(staged.path)));
                self.held(engine, answer);
            }
            MirrorReply::Published { request, answer } if self.awaits_place(request) => {
                self.published(engine, answer);
            }
            MirrorReply::Begun { .. } | MirrorReply::Staged { .. } => {
                engine.unasked("a target that it holds");
            }
            MirrorReply::Published { .. } => engine.unasked("a tree that is in place"),
            MirrorReply::Walked { request, found, leftovers, done } => {
                let side = spec.side_of_remote();
                let page = SidePage { side, found, leftovers, done };
                self.scan.walked(engine, spec, ids, request, page);
            }
            MirrorReply::Alike { request, done } => {
                self.scan.walked_alike(engine, spec, ids, request, done);
            }
            MirrorReply::Names { request, names } => {
                self.scan.named(engine, spec, ids, request, names);
            }
            MirrorReply::Numbers { request, numbers } => {
                self.scan.numbered(engine, spec, ids, request, numbers);
            }
            MirrorReply::Habits { .. } => engine.unasked("what it can keep"),
            MirrorReply::Changed { request, answers } => {
                self.apply.changed(engine, spec, request, answers);
            }
        }
    }

    fn awaits_hold(&self, request: u32) -> bool {
        self.phase == Phase::Holding(None) && self.lock.has_asked(request)
    }

    fn awaits_place(&self, request: u32) -> bool {
        self.phase == Phase::Publishing(true) && self.lock.has_asked(request)
    }

    /// The server holds the target, or does not.
    fn held(&mut self, engine: &mut Engine, answer: Result<(About, Option<WirePath>), Fault>) {
        self.phase = match self.lock.held(engine, &mut self.spec, answer) {
            Held::Yes => Phase::Comparing,
            Held::Again(at) => Phase::Holding(Some(at)),
            Held::No(fault) => {
                let item = self.spec.item(&WirePath::root());
                engine.outcomes().failed(item, self.spec.of.target.clone(), fault);
                Phase::Done
            }
        };
    }

    /// Puts the tree in the place of its target, unless something is missing in it.
    fn publish(&mut self, engine: &mut Engine) {
        let failed = engine.outcomes().ledger().summary.failed;
        if failed > 0 {
            let text = format!("{failed} not done, so the target stays as it was; run it again");
            return self.published(engine, Err(Fault::new(Code::Limit, text)));
        }
        let begun = self.lock.publish(engine, &self.spec);
        self.phase = if begun { Phase::Publishing(true) } else { Phase::Done };
    }

    /// The tree is in place, or is not.
    fn published(&mut self, engine: &mut Engine, answer: Result<(), Fault>) {
        self.phase = Phase::Done;
        if let Err(fault) = answer {
            let target = self.spec.of.target.clone();
            engine.outcomes().failed(Item::rest(u32::MAX - 1), target, fault);
        }
    }

    fn advance(&mut self, engine: &mut Engine, transfer: &mut Transfer) -> Result<(), Fault> {
        match self.phase {
            Phase::Holding(Some(at)) if at <= Instant::now() => {
                self.lock.ask(engine, &self.spec);
                self.phase = Phase::Holding(None);
            }
            Phase::Holding(_) | Phase::Publishing(true) | Phase::Done => {}
            Phase::Comparing => self.compare_trees(engine, transfer)?,
            Phase::Fetching if self.load(transfer) >= QUEUE_LOW => self.eager = false,
            Phase::Fetching => {
                self.do_spooled(engine, transfer, |schedule| schedule.fresh.take_first())?
            }
            _ if !self.is_settled(transfer) => self.eager = false,
            Phase::Clearing => self.clear(engine)?,
            Phase::Linking => {
                self.do_spooled(engine, transfer, |schedule| schedule.links.take_first())?
            }
            Phase::Deleting => {
                if self.schedule.deletes.count() > 0 && self.may_delete(engine) {
                    self.do_spooled(engine, transfer, |schedule| schedule.deletes.take_last())?;
                } else {
                    self.phase = Phase::Late;
                }
            }
            Phase::Late => {
                self.do_spooled(engine, transfer, |schedule| schedule.late.take_first())?
            }
            Phase::LinkingLate => {
                self.do_spooled(engine, transfer, |schedule| schedule.late_links.take_first())?
            }
            Phase::Finishing => {
                self.do_spooled(engine, transfer, |schedule| schedule.finishes.take_first())?
            }
            Phase::Sweeping => self.sweep(engine)?,
            Phase::Publishing(false) => self.publish(engine),
        }
        Ok(())
    }

    /// Takes steps while little is left to do.
    fn compare_trees(&mut self, engine: &mut Engine, transfer: &mut Transfer) -> Result<(), Fault> {
        self.eager = false;
        self.scan.hand_on(engine, &self.spec, &mut transfer.ids);
        for steps in 1..=STEPS_MAX {
            self.eager = steps == STEPS_MAX;
            if self.load(transfer) >= QUEUE_LOW {
                break;
            }
            match self.scan.diff.next_step()? {
                Next::Step(step) => self.take_step(engine, step)?,
                Next::Need { .. } => break,
                Next::End => {
                    self.compared_trees(engine);
                    break;
                }
            }
        }
        self.apply.flush_makes(engine, transfer);
        if self.phase == Phase::Comparing {
            self.scan.feed(engine, &self.spec, &mut transfer.ids);
        }
        Ok(())
    }

    /// What is found and not yet done.
    fn load(&self, transfer: &Transfer) -> usize {
        transfer.queued() + self.apply.queued()
    }

    /// Does a step of which nothing was done yet, or only reports it, or keeps it for later.
    fn take_step(&mut self, engine: &mut Engine, step: Step) -> Result<(), Fault> {
        let copies = engine.rules().task == Task::Copy;
        // Whether it is deleted is known when all else is done.
        if !copies || !matches!(step.what, What::Delete { .. }) {
            report_step(engine, &self.spec, &step);
        }
        if !copies && step.what.is_change() {
            return Ok(());
        }
        if let Some(what) = self.schedule.keep(&self.spec, &self.scan.likely, step.what)? {
            self.do_step(engine, what);
        }
        Ok(())
    }

    fn do_step(&mut self, engine: &mut Engine, what: What) {
        let (spec, likely) = (&self.spec, &self.scan.likely);
        self.apply.do_step(engine, spec, likely, self.refused, what);
    }

    fn compared_trees(&mut self, engine: &mut Engine) {
        self.phase = Phase::Fetching;
        engine.outcomes().ledger().looked_at(self.spec.number);
        let chosen = self.spec.of.chosen.clone().filter(|chosen| chosen.must_be_there());
        let Some(chosen) = chosen else { return };
        for path in chosen.paths().filter(|path| !self.scan.has_found(path)) {
            let fault = Fault::new(Code::NotFound, "it is listed, but not in the source");
            engine.outcomes().failed(self.spec.item(path), self.spec.shown(path), fault);
        }
    }

    /// Whether all that was begun is over.
    fn is_settled(&self, transfer: &mut Transfer) -> bool {
        transfer.is_idle() && self.apply.is_idle()
    }

    /// Whether what only the target has is deleted; says why not, once.
    fn may_delete(&mut self, engine: &mut Engine) -> bool {
        if std::mem::replace(&mut self.judged, true) {
            return !self.refused;
        }
        let failed = engine.outcomes().ledger().summary.failed;
        // What is only at the target may be all there is of what could not be copied.
        let uncopied = (failed > 0).then(|| format!("nothing is deleted: {failed} not done"));
        let refused = self.spec.of.limit.refuses(&self.scan.diff.counts()).or(uncopied);
        let Some(text) = refused else { return true };
        self.refused = true;
        engine.outcomes().failed(
            Item::rest(u32::MAX),
            self.spec.of.target.clone(),
            Fault::new(Code::Limit, text),
        );
        false
    }

    /// Does a page of what was kept for later, or goes on to what comes behind it.
    fn do_spooled(
        &mut self,
        engine: &mut Engine,
        transfer: &mut Transfer,
        take: impl Fn(&mut Schedule) -> Result<Vec<What>, Fault>,
    ) -> Result<(), Fault> {
        let page = take(&mut self.schedule)?;
        if page.is_empty() {
            self.phase = match self.phase {
                Phase::Fetching => Phase::Clearing,
                Phase::Linking => Phase::Sweeping,
                Phase::Deleting => Phase::Late,
                Phase::Late => Phase::LinkingLate,
                Phase::LinkingLate => Phase::Finishing,
                Phase::Finishing if self.spec.of.aside.is_some() => Phase::Publishing(false),
                _ => Phase::Done,
            };
            return Ok(());
        }
        page.into_iter().for_each(|what| self.do_step(engine, what));
        self.apply.flush_makes(engine, transfer);
        self.eager = true;
        Ok(())
    }

    /// Removes what copies that were cut short left: all that is wanted is there. Where it is not,
    /// the next run may go on with it.
    fn sweep(&mut self, engine: &mut Engine) -> Result<(), Fault> {
        let wanted =
            engine.outcomes().ledger().summary.failed == 0 && engine.rules().task == Task::Copy;
        if !wanted || !self.sweep_page()? {
            self.phase = Phase::Deleting;
        }
        Ok(())
    }

    /// Lets go of what is unfinished, for another session or for none.
    pub fn leave(&mut self, engine: &mut Engine) {
        engine.outcomes().ledger().leave_held_back();
        if !self.is_done() {
            let (number, label) = (self.spec.number, self.spec.of.source.clone());
            engine.outcomes().ledger().leave(Item::rest(number), label, false);
        }
    }
}
