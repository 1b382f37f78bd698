//! A tree that is made equal to another: both sides are walked at once, a page
//! at a time, `plan` says what differs, and the machines that copies use do it.
//! One mirror is all the work of its session. When the session breaks, the next
//! one begins the comparison anew: what was done is equal by then.
//!
//! Order: everything as it is found; then large new files, when all of the target
//! was seen and may have them under another name; then, where something did not fit,
//! `clearing` makes room and all begins anew; then links, when the files they
//! name are there; then what interrupted copies left is swept away; then deletes,
//! the last first; then what was waiting for a folder to be deleted; then the
//! metadata of folders. `sides` feeds the comparison, `beside` says what may be alike,
//! `order` what waits, `owners` knows whose things are, `doing` does steps, on this
//! machine by `deeds`, `holding` has the target before all that and puts a new tree in
//! place behind it, `replies` takes what the server says; this file says which come when.

pub mod apply;
pub mod apply_local;
pub mod delta_candidates;
pub mod free_space;
pub mod id_map;
pub mod lock_and_publish;
pub mod page_match;
pub mod replies;
pub mod scan_both;
pub mod schedule;
pub mod spec;

use crate::engine::ledger::Item;
use crate::local_io::spool::Spool;
use crate::model::copy_policy::Task;
use crate::session::dispatch::Core;
use crate::tree_sync::apply::Asked;
use crate::tree_sync::apply_local::Deeds;
use crate::tree_sync::delta_candidates::Likely;
use crate::tree_sync::free_space::Clearing;
use crate::tree_sync::id_map::Parked;
use crate::tree_sync::page_match::Beside;
use crate::tree_sync::scan_both::{Local, Remote};
use std::collections::{HashMap, HashSet};
use std::time::Instant;
use verbatim_proto::mirror::Edit;
use verbatim_proto::plan::{Diff, Next, Side, What};
use verbatim_proto::units::OPEN_FILES_MAX;
use verbatim_proto::{Code, Fault, WirePath};

pub use crate::tree_sync::spec::{Aside, Mirror, Way};

/// Files that wait before more is compared.
const QUEUE_LOW: usize = OPEN_FILES_MAX / 2;

/// Steps taken before the session looks at its messages again.
const STEPS_MAX: usize = 1024;

/// Pages of steps done in one turn.
const PAGES_MAX: usize = 16;

/// Requests for changes that may wait for their answer; the server takes more.
const CHANGES_MAX: usize = 16;

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

/// A mirror under way.
pub(crate) struct Mirroring {
    number: u32,
    of: Mirror,
    diff: Diff,
    remote: Remote,
    local: Local,
    beside: Beside,
    phase: Phase,
    fresh: Spool<What>,
    likely: Likely,
    /// How many entries of the target were looked at, its root among them.
    there: usize,
    links: Spool<What>,
    deletes: Spool<What>,
    /// What only the tree beside the target may have, where nothing is deleted.
    reverts: Spool<What>,
    late: Spool<What>,
    late_paths: HashSet<WirePath>,
    late_links: Spool<What>,
    finishes: Spool<What>,
    leftovers: Spool<WirePath>,
    /// Listed paths that were found.
    listed: HashSet<WirePath>,
    /// Changes that the server was asked for.
    changing: HashMap<u32, Vec<Asked>>,
    /// Changes to ask for.
    changes: Vec<(Edit, Asked)>,
    deeds: Deeds,
    /// A page that waits for the names of its owners.
    parked: Option<Parked>,
    /// The request to hold the target, or to put a tree in its place, while that is awaited.
    asked: Option<u32>,
    /// Whether anything may be deleted is decided.
    judged: bool,
    /// Nothing may be deleted.
    refused: bool,
    /// Whether room is made for what did not fit.
    clearing: Clearing,
    /// There is more to do, whatever comes.
    pub eager: bool,
    since: Instant,
}

impl Mirroring {
    fn new(number: u32, of: Mirror, holds: bool) -> Self {
        Self {
            number,
            diff: Diff::new(of.options),
            remote: Remote::default(),
            local: Local::default(),
            beside: Beside::default(),
            phase: if holds { Phase::Holding(Some(Instant::now())) } else { Phase::Comparing },
            fresh: Spool::default(),
            likely: Likely::new(of.options.habits.resolution),
            there: 0,
            links: Spool::default(),
            deletes: Spool::default(),
            reverts: Spool::default(),
            late: Spool::default(),
            late_paths: HashSet::new(),
            late_links: Spool::default(),
            finishes: Spool::default(),
            leftovers: Spool::default(),
            listed: HashSet::new(),
            changing: HashMap::new(),
            changes: Vec::new(),
            deeds: Deeds::default(),
            parked: None,
            asked: None,
            judged: false,
            refused: false,
            clearing: Clearing::default(),
            eager: false,
            since: Instant::now(),
            of,
        }
    }

    fn item(&self, path: &WirePath) -> Item {
        Item::new(self.number, path)
    }

    fn side_of_remote(&self) -> Side {
        if self.of.way == Way::Down { Side::Source } else { Side::Target }
    }

    fn side_of_local(&self) -> Side {
        if self.of.way == Way::Down { Side::Target } else { Side::Source }
    }

    /// Whether the server owes an answer.
    pub fn awaits(&self) -> bool {
        let publishing = self.phase == Phase::Publishing(true) && self.of.way == Way::Up;
        let holding = self.phase == Phase::Holding(None);
        let naming = self.parked.as_ref().is_some_and(Parked::awaits_server);
        holding || publishing || naming || self.remote.asked || !self.changing.is_empty()
    }

    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Whether a job changes something at a target on this machine.
    pub fn is_at_work(&self) -> bool {
        let publishing = self.phase == Phase::Publishing(true) && self.of.way == Way::Down;
        publishing || self.deeds.is_busy()
    }

    /// Whether more may be found.
    pub fn is_searching(&self) -> bool {
        self.phase <= Phase::Fetching
    }

    /// Its number and its name.
    pub fn label(&self) -> (u32, String) {
        (self.number, self.of.source.clone())
    }
}

impl Core {
    pub(crate) fn add_mirror(&mut self, number: u32, of: Mirror) {
        // Whoever began the first session held the target with it; the others do it here.
        let again = self.ledger.summary.reconnects > 0;
        let copies = self.rules.task == Task::Copy;
        let holds = again && copies && of.way == Way::Up;
        if copies {
            self.ledger.hold_back();
        }
        self.mirror = Some(Box::new(Mirroring::new(number, of, holds)));
    }

    /// Goes on with the mirror, if there is one.
    pub(crate) fn pump_mirror(&mut self) {
        // Nothing new is begun in a session that is at its end.
        let Some(mut mirror) = self.mirror.take_if(|_| self.broken.is_none()) else { return };
        mirror.eager = false;
        for _ in 0..PAGES_MAX {
            let before = mirror.phase;
            match self.advance_mirror(&mut mirror) {
                Err(fault) => self.broke(fault),
                Ok(()) if mirror.phase != before || mirror.eager => continue,
                Ok(()) => {}
            }
            break;
        }
        self.send_changes(&mut mirror);
        self.do_deeds(&mut mirror);
        self.mirror = Some(mirror);
    }

    fn advance_mirror(&mut self, mirror: &mut Mirroring) -> Result<(), Fault> {
        match mirror.phase {
            Phase::Holding(Some(at)) if at <= Instant::now() => self.ask_to_hold(mirror),
            Phase::Holding(_) | Phase::Publishing(true) | Phase::Done => {}
            Phase::Comparing => self.compare_trees(mirror)?,
            Phase::Fetching if self.mirror_load(mirror) >= QUEUE_LOW => mirror.eager = false,
            Phase::Fetching => self.do_spooled(mirror, |of| of.fresh.take_first())?,
            _ if !self.is_settled(mirror) => mirror.eager = false,
            Phase::Clearing => self.clear(mirror)?,
            Phase::Linking => self.do_spooled(mirror, |of| of.links.take_first())?,
            Phase::Deleting => {
                if mirror.deletes.count() > 0 && self.may_delete(mirror) {
                    self.do_spooled(mirror, |of| of.deletes.take_last())?;
                } else {
                    mirror.phase = Phase::Late;
                }
            }
            Phase::Late => self.do_spooled(mirror, |of| of.late.take_first())?,
            Phase::LinkingLate => self.do_spooled(mirror, |of| of.late_links.take_first())?,
            Phase::Finishing => self.do_spooled(mirror, |of| of.finishes.take_first())?,
            Phase::Sweeping => self.sweep(mirror)?,
            Phase::Publishing(false) => self.publish(mirror),
        }
        Ok(())
    }

    /// Takes steps while little is left to do.
    fn compare_trees(&mut self, mirror: &mut Mirroring) -> Result<(), Fault> {
        mirror.eager = false;
        self.hand_on(mirror);
        for steps in 1..=STEPS_MAX {
            mirror.eager = steps == STEPS_MAX;
            if self.mirror_load(mirror) >= QUEUE_LOW {
                break;
            }
            match mirror.diff.next_step()? {
                Next::Step(step) => self.take_step(mirror, step)?,
                Next::Need { .. } => break,
                Next::End => {
                    self.compared_trees(mirror);
                    break;
                }
            }
        }
        self.flush_makes();
        if mirror.phase == Phase::Comparing {
            self.feed(mirror);
        }
        Ok(())
    }

    /// What is found and not yet done.
    fn mirror_load(&self, mirror: &Mirroring) -> usize {
        let changes = mirror.changes.len() + mirror.changing.values().map(Vec::len).sum::<usize>();
        let queued = self.downloads.queued() + self.uploads.queued() + changes;
        queued + self.waiting_for_folders() + self.gathered.len() + mirror.deeds.len()
    }

    fn compared_trees(&mut self, mirror: &mut Mirroring) {
        mirror.phase = Phase::Fetching;
        self.ledger.looked_at(mirror.number);
        let chosen = mirror.of.chosen.clone().filter(|chosen| chosen.must_be_there());
        let Some(chosen) = chosen else { return };
        for path in chosen.paths().filter(|path| !mirror.listed.contains(*path)) {
            let fault = Fault::new(Code::NotFound, "it is listed, but not in the source");
            self.failed(mirror.item(path), mirror.of.shown(path), fault);
        }
    }

    /// Whether all that was begun is over.
    fn is_settled(&mut self, mirror: &Mirroring) -> bool {
        self.downloads.is_idle()
            && self.uploads.is_idle()
            && self.trees.is_idle()
            && self.gathered.is_empty()
            && mirror.changes.is_empty()
            && mirror.changing.is_empty()
            && mirror.deeds.is_idle()
    }

    /// Whether what only the target has is deleted; says why not, once.
    fn may_delete(&mut self, mirror: &mut Mirroring) -> bool {
        if std::mem::replace(&mut mirror.judged, true) {
            return !mirror.refused;
        }
        let failed = self.ledger.summary.failed;
        // What is only at the target may be all there is of what could not be copied.
        let uncopied = (failed > 0).then(|| format!("nothing is deleted: {failed} not done"));
        let refused = mirror.of.limit.refuses(&mirror.diff.counts()).or(uncopied);
        let Some(text) = refused else { return true };
        mirror.refused = true;
        self.failed(Item::rest(u32::MAX), mirror.of.target.clone(), Fault::new(Code::Limit, text));
        false
    }

    /// Does a page of what was kept for later, or goes on to what comes behind it.
    fn do_spooled(
        &mut self,
        mirror: &mut Mirroring,
        take: impl Fn(&mut Mirroring) -> Result<Vec<What>, Fault>,
    ) -> Result<(), Fault> {
        let page = take(mirror)?;
        if page.is_empty() {
            mirror.phase = match mirror.phase {
                Phase::Fetching => Phase::Clearing,
                Phase::Linking => Phase::Sweeping,
                Phase::Deleting => Phase::Late,
                Phase::Late => Phase::LinkingLate,
                Phase::LinkingLate => Phase::Finishing,
                Phase::Finishing if mirror.of.aside.is_some() => Phase::Publishing(false),
                _ => Phase::Done,
            };
            return Ok(());
        }
        page.into_iter().for_each(|what| self.do_step(mirror, what));
        self.flush_makes();
        mirror.eager = true;
        Ok(())
    }

    /// Removes what copies that were cut short left: all that is wanted is there. Where it is not,
    /// the next run may go on with it.
    fn sweep(&mut self, mirror: &mut Mirroring) -> Result<(), Fault> {
        let wanted = self.ledger.summary.failed == 0 && self.rules.task == Task::Copy;
        if !wanted || !self.sweep_page(mirror)? {
            mirror.phase = Phase::Deleting;
        }
        Ok(())
    }

    pub(crate) fn leave_mirror(&mut self) {
        self.ledger.leave_held_back();
        if let Some(mirror) = self.mirror.take().filter(|mirror| !mirror.is_done()) {
            let (number, label) = mirror.label();
            self.ledger.leave(Item::rest(number), label, false);
        }
        self.gathered.clear();
    }
}
