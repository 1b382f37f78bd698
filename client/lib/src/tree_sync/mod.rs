//! A mirror: makes one tree equal to another. Scans both sides at once, a page at a time; `plan`
//! finds the differences, transfers and edits apply them. A mirror is the only work of its session.
//! If the session breaks, the next one restarts the comparison, and finished entries are equal by
//! then. Below `session`, above `verbatim-engine`.
//!
//! Order: changes as the comparison finds them; large new files, once the whole target is scanned
//! and may contain a basis; if space was short, `free_space` and all of it again; hard links, after
//! their files; leftovers of interrupted copies; deletes, the last first; entries that waited for a
//! deleted folder; the metadata of folders; the replacement of the target by its staging tree.

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
use crate::tree_sync::free_space::LeftoverRemoval;
use crate::tree_sync::lock_and_publish::{LockOutcome, TargetLock};
use crate::tree_sync::report::report_step;
use crate::tree_sync::scan_both::{ScanBoth, SidePage};
use crate::tree_sync::schedule::Schedule;
use crate::tree_sync::spec::{Direction, Mirror, Spec};
use std::time::Instant;
use verbatim_engine::connection::Engine;
use verbatim_engine::connection::ledger::ItemKey;
use verbatim_engine::model::copy_policy::Task;
use verbatim_engine::transfer::Transfer;
use verbatim_proto::mirror::{About, MirrorReply};
use verbatim_proto::plan::{Next, Step, What};
use verbatim_proto::units::OPEN_FILES_MAX;
use verbatim_proto::{Code, Fault, WirePath};

/// The comparison pauses while more files are queued.
const QUEUE_LOW: usize = OPEN_FILES_MAX / 2;

/// The most steps before the session handles messages again.
const STEPS_MAX: usize = 1024;

/// The most pages of deferred steps in one turn.
const PAGES_MAX: usize = 16;

/// The phase of a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Requests the lock on the target at this time; `None` while the request is in flight.
    Locking(Option<Instant>),
    Comparing,
    /// Large new files, which waited for the scan of the whole target.
    Fetching,
    /// Removes leftovers of interrupted runs if space was short.
    Clearing,
    Linking,
    Sweeping,
    Deleting,
    Deferred,
    LinkingDeferred,
    Finishing,
    /// Replaces the target by its staging tree; whether that has started.
    Publishing(bool),
    Done,
}

/// A mirror in progress: the comparison, its steps, and their phase.
pub(crate) struct TreeSync {
    spec: Spec,
    scan: ScanBoth,
    schedule: Schedule,
    apply: Apply,
    lock: TargetLock,
    phase: Phase,
    /// Whether it was decided if entries may be deleted.
    delete_decided: bool,
    /// Whether nothing may be deleted.
    deletes_refused: bool,
    /// The removal of leftovers if space was short.
    leftover_removal: LeftoverRemoval,
    /// Whether there is more to do without waiting.
    has_more: bool,
}

impl TreeSync {
    /// The mirror that is this piece of work.
    pub fn new(engine: &mut Engine, number: u32, mirror: Mirror) -> Self {
        // The first session has the lock since it was prepared; later ones request it here.
        let again = engine.outcomes().ledger().summary.reconnects > 0;
        let copies = engine.policy().task == Task::Copy;
        let holds = again && copies && mirror.direction == Direction::Up;
        if copies {
            engine.outcomes().ledger().defer_no_space();
        }
        let phase = if holds { Phase::Locking(Some(Instant::now())) } else { Phase::Comparing };
        let waker = engine.waker();
        Self {
            scan: ScanBoth::new(&mirror, waker),
            schedule: Schedule::default(),
            apply: Apply::new(waker),
            lock: TargetLock::new(waker),
            phase,
            delete_decided: false,
            deletes_refused: false,
            leftover_removal: LeftoverRemoval::default(),
            has_more: false,
            spec: Spec { number, mirror },
        }
    }

    /// Restarts the comparison, after leftovers were removed.
    fn restart_comparison(&mut self, engine: &Engine) {
        let waker = engine.waker();
        (self.scan, self.apply) = (ScanBoth::new(&self.spec.mirror, waker), Apply::new(waker));
        self.schedule = Schedule::default();
        (self.delete_decided, self.deletes_refused, self.has_more) = (false, false, false);
        self.phase = Phase::Comparing;
    }

    /// Whether the server owes an answer.
    pub fn awaits(&self) -> bool {
        let publishing =
            self.phase == Phase::Publishing(true) && self.spec.mirror.direction == Direction::Up;
        let holding = self.phase == Phase::Locking(None);
        holding || publishing || self.scan.awaits() || self.apply.awaits()
    }

    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Whether there is more to do without waiting.
    pub fn has_more_work(&self) -> bool {
        self.has_more
    }

    /// Whether a job changes a local target.
    pub fn is_applying_locally(&self) -> bool {
        let publishing =
            self.phase == Phase::Publishing(true) && self.spec.mirror.direction == Direction::Down;
        publishing || self.apply.is_applying_locally()
    }

    /// Whether the scans may find more entries.
    pub fn is_searching(&self) -> bool {
        self.phase <= Phase::Fetching
    }

    /// Continues the mirror within the bounds.
    pub fn pump(&mut self, engine: &mut Engine, transfer: &mut Transfer) {
        // A session that ends starts nothing new.
        if engine.session_fault().is_some() {
            return;
        }
        self.has_more = false;
        for _ in 0..PAGES_MAX {
            let before = self.phase;
            match self.advance(engine, transfer) {
                Err(fault) => engine.fail_session(fault),
                Ok(()) if self.phase != before || self.has_more => continue,
                Ok(()) => {}
            }
            break;
        }
        self.apply.pump(engine, &self.spec, transfer);
    }

    /// Handles the answers of jobs.
    pub fn take_answers(&mut self, engine: &mut Engine, transfer: &mut Transfer) {
        self.scan.take_answers(engine, &self.spec, &mut transfer.ids);
        self.take_last_answers(engine, transfer);
    }

    /// Handles the answers of jobs in a session that has ended: finishes only started changes.
    pub fn take_last_answers(&mut self, engine: &mut Engine, transfer: &mut Transfer) {
        self.apply.take_answers(engine, &self.spec, transfer);
        if let Some(answer) = self.lock.local_publish_result() {
            self.publish_answered(engine, answer);
        }
    }

    /// Handles an answer of the server. An answer without a request, or with a wrong number of
    /// entries, ends the session.
    pub fn reply(&mut self, engine: &mut Engine, transfer: &mut Transfer, reply: MirrorReply) {
        let (spec, ids) = (&self.spec, &mut transfer.ids);
        match reply {
            MirrorReply::Begun { request, answer } if self.awaits_lock(request) => {
                self.lock_answered(engine, answer.map(|about| (about, None)));
            }
            MirrorReply::Staged { request, answer } if self.awaits_lock(request) => {
                let answer = answer.map(|staged| (staged.about, Some(staged.path)));
                self.lock_answered(engine, answer);
            }
            MirrorReply::Published { request, answer } if self.awaits_publish(request) => {
                self.publish_answered(engine, answer);
            }
            MirrorReply::Begun { .. } | MirrorReply::Staged { .. } => {
                engine.protocol_violation("a lock reply");
            }
            MirrorReply::Published { .. } => engine.protocol_violation("a publish reply"),
            MirrorReply::Walked { request, found, leftovers, done } => {
                let side = spec.side_of_remote();
                let page = SidePage { side, found, leftovers, done };
                self.scan.remote_page(engine, spec, ids, request, page);
            }
            MirrorReply::Alike { request, done } => {
                self.scan.remote_page_matches(engine, spec, ids, request, done);
            }
            MirrorReply::Names { request, names } => {
                self.scan.named(engine, spec, ids, request, names);
            }
            MirrorReply::Numbers { request, numbers } => {
                self.scan.numbered(engine, spec, ids, request, numbers);
            }
            MirrorReply::Habits { .. } => engine.protocol_violation("file system capabilities"),
            MirrorReply::Changed { request, answers } => {
                self.apply.changed(engine, spec, request, answers);
            }
        }
    }

    fn awaits_lock(&self, request: u32) -> bool {
        self.phase == Phase::Locking(None) && self.lock.is_own_request(request)
    }

    fn awaits_publish(&self, request: u32) -> bool {
        self.phase == Phase::Publishing(true) && self.lock.is_own_request(request)
    }

    /// Handles the answer to the request for the lock.
    fn lock_answered(
        &mut self,
        engine: &mut Engine,
        answer: Result<(About, Option<WirePath>), Fault>,
    ) {
        self.phase = match self.lock.lock_answered(engine, &mut self.spec, answer) {
            LockOutcome::Locked => Phase::Comparing,
            LockOutcome::RetryAt(at) => Phase::Locking(Some(at)),
            LockOutcome::Failed(fault) => {
                let item = self.spec.item(&WirePath::root());
                engine.outcomes().failed(item, self.spec.mirror.target.clone(), fault);
                Phase::Done
            }
        };
    }

    /// Replaces the target by its staging tree, unless entries are missing there.
    fn publish(&mut self, engine: &mut Engine) {
        let failed = engine.outcomes().ledger().summary.failed;
        if failed > 0 {
            let text = format!("{failed} not done, so the target stays as it was; run it again");
            return self.publish_answered(engine, Err(Fault::new(Code::Limit, text)));
        }
        let begun = self.lock.publish(engine, &self.spec);
        self.phase = if begun { Phase::Publishing(true) } else { Phase::Done };
    }

    /// Handles the outcome of the replacement.
    fn publish_answered(&mut self, engine: &mut Engine, answer: Result<(), Fault>) {
        self.phase = Phase::Done;
        if let Err(fault) = answer {
            let target = self.spec.mirror.target.clone();
            engine.outcomes().failed(ItemKey::unscanned(u32::MAX - 1), target, fault);
        }
    }

    fn advance(&mut self, engine: &mut Engine, transfer: &mut Transfer) -> Result<(), Fault> {
        match self.phase {
            Phase::Locking(Some(at)) if at <= Instant::now() => {
                self.lock.request_lock(engine, &self.spec);
                self.phase = Phase::Locking(None);
            }
            Phase::Locking(_) | Phase::Publishing(true) | Phase::Done => {}
            Phase::Comparing => self.compare_trees(engine, transfer)?,
            Phase::Fetching if self.pending_count(transfer) >= QUEUE_LOW => self.has_more = false,
            Phase::Fetching => {
                self.do_spooled(engine, transfer, |schedule| schedule.new_files.take_front_page())?
            }
            _ if !self.is_settled(transfer) => self.has_more = false,
            Phase::Clearing => self.free_space(engine)?,
            Phase::Linking => {
                self.do_spooled(engine, transfer, |schedule| schedule.links.take_front_page())?
            }
            Phase::Deleting => {
                if self.schedule.deletes.count() > 0 && self.may_delete(engine) {
                    self.do_spooled(engine, transfer, |schedule| {
                        schedule.deletes.take_back_page()
                    })?;
                } else {
                    self.phase = Phase::Deferred;
                }
            }
            Phase::Deferred => {
                self.do_spooled(engine, transfer, |schedule| schedule.late.take_front_page())?
            }
            Phase::LinkingDeferred => {
                self.do_spooled(engine, transfer, |schedule| schedule.late_links.take_front_page())?
            }
            Phase::Finishing => {
                self.do_spooled(engine, transfer, |schedule| schedule.finishes.take_front_page())?
            }
            Phase::Sweeping => self.sweep(engine)?,
            Phase::Publishing(false) => self.publish(engine),
        }
        Ok(())
    }

    /// Takes steps of the comparison while few are pending.
    fn compare_trees(&mut self, engine: &mut Engine, transfer: &mut Transfer) -> Result<(), Fault> {
        self.has_more = false;
        self.scan.release_local_pages(engine, &self.spec, &mut transfer.ids);
        for steps in 1..=STEPS_MAX {
            self.has_more = steps == STEPS_MAX;
            if self.pending_count(transfer) >= QUEUE_LOW {
                break;
            }
            match self.scan.diff.next_step()? {
                Next::Step(step) => self.schedule_step(engine, step)?,
                Next::Need { .. } => break,
                Next::End => {
                    self.comparison_finished(engine);
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

    /// Steps that are found and not finished.
    fn pending_count(&self, transfer: &Transfer) -> usize {
        transfer.queued() + self.apply.queued()
    }

    /// Applies, reports or defers a new step.
    fn schedule_step(&mut self, engine: &mut Engine, step: Step) -> Result<(), Fault> {
        let copies = engine.policy().task == Task::Copy;
        // Whether it is deleted is decided when all else is done.
        if !copies || !matches!(step.what, What::Delete { .. }) {
            report_step(engine, &self.spec, &step);
        }
        if !copies && step.what.is_change() {
            return Ok(());
        }
        if let Some(what) = self.schedule.defer(&self.spec, &self.scan.candidates, step.what)? {
            self.apply_step(engine, what);
        }
        Ok(())
    }

    fn apply_step(&mut self, engine: &mut Engine, what: What) {
        let (spec, candidates) = (&self.spec, &self.scan.candidates);
        self.apply.apply_step(engine, spec, candidates, self.deletes_refused, what);
    }

    fn comparison_finished(&mut self, engine: &mut Engine) {
        self.phase = Phase::Fetching;
        engine.outcomes().ledger().scan_finished(self.spec.number);
        let chosen = self.spec.mirror.chosen.clone().filter(|chosen| chosen.must_be_there());
        let Some(chosen) = chosen else { return };
        for path in chosen.paths().filter(|path| !self.scan.has_found(path)) {
            let fault = Fault::new(Code::NotFound, "it is listed, but not in the source");
            engine.outcomes().failed(self.spec.item(path), self.spec.shown(path), fault);
        }
    }

    /// Whether all started steps are finished.
    fn is_settled(&self, transfer: &mut Transfer) -> bool {
        transfer.is_idle() && self.apply.is_idle()
    }

    /// Whether extraneous entries are deleted; reports once why not.
    fn may_delete(&mut self, engine: &mut Engine) -> bool {
        if std::mem::replace(&mut self.delete_decided, true) {
            return !self.deletes_refused;
        }
        let failed = engine.outcomes().ledger().summary.failed;
        // An extraneous entry may be the only copy of an entry that could not be copied.
        let uncopied = (failed > 0).then(|| format!("nothing is deleted: {failed} not done"));
        let deletes_refused = self.spec.mirror.limit.refuses(&self.scan.diff.counts()).or(uncopied);
        let Some(text) = deletes_refused else { return true };
        self.deletes_refused = true;
        engine.outcomes().failed(
            ItemKey::unscanned(u32::MAX),
            self.spec.mirror.target.clone(),
            Fault::new(Code::Limit, text),
        );
        false
    }

    /// Applies a page of deferred steps, or enters the next phase.
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
                Phase::Deleting => Phase::Deferred,
                Phase::Deferred => Phase::LinkingDeferred,
                Phase::LinkingDeferred => Phase::Finishing,
                Phase::Finishing if self.spec.mirror.atomic_target.is_some() => {
                    Phase::Publishing(false)
                }
                _ => Phase::Done,
            };
            return Ok(());
        }
        page.into_iter().for_each(|what| self.apply_step(engine, what));
        self.apply.flush_makes(engine, transfer);
        self.has_more = true;
        Ok(())
    }

    /// Removes leftovers of interrupted copies if nothing failed. Otherwise the next run may resume
    /// them.
    fn sweep(&mut self, engine: &mut Engine) -> Result<(), Fault> {
        let wanted =
            engine.outcomes().ledger().summary.failed == 0 && engine.policy().task == Task::Copy;
        if !wanted || !self.sweep_page()? {
            self.phase = Phase::Deleting;
        }
        Ok(())
    }

    /// Notes unfinished work in the ledger, for the next session.
    pub fn suspend(&mut self, engine: &mut Engine) {
        engine.outcomes().ledger().note_no_space_unfinished();
        if !self.is_done() {
            let (number, label) = (self.spec.number, self.spec.mirror.source.clone());
            engine.outcomes().ledger().note_unfinished(ItemKey::unscanned(number), label, false);
        }
    }
}
