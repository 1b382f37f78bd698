//! All of a session but its incoming queues: what is left to do, the machines,
//! and the routes between them. Never waits and never touches a socket; the
//! session in `mod.rs` feeds it messages and events, and sends what it queues.

use crate::engine::fd_budget::Descriptors;
use crate::engine::ledger::{Item, Ledger};
use crate::engine::links::Links;
use crate::engine::outcomes::Reports;
use crate::engine::rate_limit::Pace;
use crate::engine::silence::Silence;
use crate::engine::transport::Carrier;
use crate::engine::worker::Command;
use crate::local_io::counters::Stats;
use crate::model::copy_policy::{Rules, Task};
use crate::model::report::Progress;
use crate::remote_fs::service::Serving;
use crate::session::queries::Answers;
use crate::session::{Event, SessionOptions, Work};
use crate::transfer::dir_metadata::Mark;
use crate::transfer::download::Downloads;
use crate::transfer::remote_scan::Trees;
use crate::transfer::select::{Choices, Offer};
use crate::transfer::upload::Uploads;
use crate::transfer::verify::Compares;
use crate::tree_sync::Mirroring;
use crate::tree_sync::apply::Gathered;
use crate::tree_sync::id_map::Owners;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc;
use verbatim_control::Fingerprint;
use verbatim_fabric::worker::WorkerHandle;
use verbatim_proto::message::{Entry, FileId, LinkId, ServerMessage};
use verbatim_proto::read::ReadClient;
use verbatim_proto::write::WriteClient;
use verbatim_proto::{ClientMessage, Code, Fault, WirePath};

/// All of a session but its incoming queues.
pub(crate) struct Core {
    pub options: SessionOptions,
    pub rules: Arc<Rules>,
    /// What waits for its time, where the rate is limited.
    pub pace: Option<Pace<(LinkId, Command)>>,
    pub peer: String,
    pub server: Fingerprint,
    /// The version of the protocol that both speak.
    pub version: usize,
    /// What both ends call this session in their logs.
    pub request: String,
    pub address: SocketAddr,
    pub events: mpsc::Sender<Event>,
    /// Threads that own the links; a link is always the same one's.
    pub workers: Vec<WorkerHandle<Command>>,
    /// How many links there are to be.
    pub streams: u16,
    pub stats: Arc<Stats>,
    pub sending: VecDeque<ClientMessage>,
    pub read: ReadClient,
    pub write: WriteClient,
    pub carrier: Carrier,
    pub links: Links,
    pub downloads: Downloads,
    pub uploads: Uploads,
    pub trees: Trees,
    /// The tree that is made equal to another, if that is the work.
    pub mirror: Option<Box<Mirroring>>,
    /// Questions, where answering them is the work.
    pub serving: Option<Box<Serving>>,
    /// Whom owners at the source are at the target.
    pub owners: Owners,
    pub gathered: Gathered,
    /// What the server said of places before there is a mirror.
    pub answers: Answers,
    /// Descriptors that files may have at a time, and those they have.
    pub open_max: usize,
    pub descriptors: Descriptors,
    pub choices: Choices,
    pub compares: Compares,
    pub next_file: u32,
    pub next_request: u32,
    /// What this session has in common with those before and behind it.
    pub ledger: Ledger,
    /// Bytes that were in place when this session began its files.
    pub found_bytes: u64,
    pub progress: Progress,
    pub reports: Reports,
    pub stated: HashMap<u32, Vec<Result<Entry, Fault>>>,
    /// Whether `stat` or `list` waits for an answer.
    pub asking: bool,
    /// The time, as of when something last woke the session.
    pub moment: Instant,
    /// Since when nothing was heard, or asked.
    pub quiet_since: Instant,
    pub silence: Silence,
    /// For how long this process did not run though it was to, which no deadline counts.
    pub absent: Duration,
    /// Hashing on this machine, during which nobody owes us an answer.
    pub hashing: usize,
    pub broken: Option<Fault>,
    /// Whether a job did: what it was to tell never comes.
    pub panicked: bool,
}

/// The longest a turn waits: deadlines are looked at, and progress is told, this often.
const TURN_MAX: Duration = Duration::from_millis(250);

/// A turn that ends this much too late was not let run.
const LATE_MIN: Duration = Duration::from_secs(1);

impl Core {
    /// Looks at the clock: when a session begins something, and when it is woken. Not oftener, as
    /// that is a system call on some machines.
    pub(crate) fn look_at_clock(&mut self) {
        self.moment = Instant::now();
    }

    /// Takes the time off that passed since it was to be woken: this process was stopped, or who
    /// reads what it prints made it wait. The server may have answered long ago.
    pub(crate) fn excuse(&mut self, until: Instant) {
        let late = self.moment.saturating_duration_since(until);
        if late >= LATE_MIN {
            self.absent += late;
            self.quiet_since += late;
            self.silence.excuse(late);
        }
    }

    /// How long this goes on, by the clock of the deadlines.
    pub(crate) fn now(&self) -> Duration {
        self.moment.saturating_duration_since(self.ledger.begin).saturating_sub(self.absent)
    }

    pub(crate) fn request(&mut self) -> u32 {
        self.look_at_clock();
        self.quiet_since = self.moment;
        self.next_request += 1;
        self.next_request
    }

    pub(crate) fn file(&mut self) -> FileId {
        self.next_file += 1;
        FileId(self.next_file)
    }

    /// Whether a caller waits for this answer: he asks for one thing at a time.
    pub(crate) fn awaits_answer(&self, request: u32) -> bool {
        self.asking && request == self.next_request
    }

    /// Whether an answer is late that neither machine waits for.
    pub(crate) fn is_overdue(&self) -> bool {
        let waits = self.asking || self.trees.awaits() || self.choices.awaits();
        let waits = waits || self.mirror.as_ref().is_some_and(|mirror| mirror.awaits());
        let waits = waits || self.serving.as_ref().is_some_and(|serving| serving.awaits());
        waits && self.moment.saturating_duration_since(self.quiet_since) > self.options.timeout
    }

    /// Adds the work of this number; what of it is over is left out.
    pub(crate) fn add(&mut self, number: u32, work: Work) {
        if matches!(work, Work::Upload(_) | Work::UploadTree(_)) && number == 0 {
            verbatim_files::memo::tidy(&self.memos(), SystemTime::now());
        }
        let mark = Mark::alone(Item::new(number, &WirePath::root()));
        match work {
            Work::Download(download) => self.add_download(mark, download),
            Work::Upload(upload) => self.offer(vec![Offer::File(mark, upload)]),
            Work::DownloadTree(tree) => self.add_remote_tree(number, tree),
            Work::UploadTree(tree) => self.add_local_tree(number, tree),
            Work::ToPipe(work) => self.add_to_pipe(mark, work),
            Work::FromPipe(work) => self.add_from_pipe(mark, work),
            Work::Mirror(mirror) => self.add_mirror(number, *mirror),
        }
    }

    pub(crate) fn is_done(&mut self) -> bool {
        self.serving.is_none()
            && self.downloads.is_idle()
            && self.uploads.is_idle()
            && self.compares.is_idle()
            && self.trees.is_idle()
            && self.choices.is_idle()
            && self.mirror.as_ref().is_none_or(|mirror| mirror.is_done())
    }

    /// Whether something is being finished on this machine that nobody else is needed for.
    pub(crate) fn is_landing(&self) -> bool {
        let at_work = self.mirror.as_ref().is_some_and(|mirror| mirror.is_at_work());
        let landing = at_work || self.downloads.is_landing() || self.trees.endings.is_setting();
        // What a job that panicked was to finish never ends.
        landing && !self.panicked
    }

    pub(crate) fn wait(&self) -> Duration {
        let now = self.now();
        let deadlines = self.read.deadline().into_iter().chain(self.write.deadline());
        let wait = deadlines.min().map_or(TURN_MAX, |at| at.saturating_sub(now));
        let paced = self.pace.as_ref().and_then(|pace| pace.wait(now));
        let wait = paced.map_or(wait, |paced| wait.min(paced));
        let eager = self.mirror.as_ref().is_some_and(|mirror| mirror.eager);
        let wait = if eager { Duration::ZERO } else { wait };
        // A deadline that has passed was acted on: look again soon, but do not spin.
        wait.clamp(Duration::from_millis(1), TURN_MAX)
    }

    /// Starts what there is room for, and does what the machines ask. What they ask may make
    /// room, or be what something waited for: a folder gets its times behind its last file.
    pub(crate) fn advance(&mut self) {
        loop {
            self.pump_serving();
            self.pump_mirror();
            self.pump_trees();
            self.pump_choices();
            self.pump_downloads();
            self.pump_uploads();
            self.pump_compares();
            if !self.act() {
                break;
            }
        }
        self.release_paced();
        self.commit_landed();
        self.check_sources();
    }

    /// Does what the machines ask; whether they asked something.
    fn act(&mut self) -> bool {
        let now = self.now();
        if self.hashing > 0 {
            self.write.touch(now);
        }
        self.read.advance(now);
        self.write.advance(now);
        let mut asked = false;
        while let Some(effect) = self.read.next_effect() {
            self.read_effect(effect);
            asked = true;
        }
        while let Some(effect) = self.write.next_effect() {
            self.write_effect(effect);
            asked = true;
        }
        asked
    }

    pub(crate) fn message(&mut self, message: ServerMessage) {
        tracing::trace!(content = ?message, "message received");
        if self.hears(&message) {
            return;
        }
        let now = self.now();
        self.quiet_since = self.moment;
        self.read.touch(now);
        self.write.touch(now);
        match message {
            ServerMessage::Attached { link, answer } => self.attached(link, answer),
            ServerMessage::Fenced { link } => self.fenced(link),
            ServerMessage::Stated { request, answers } => self.stated(request, answers),
            ServerMessage::Page { request, entries, faults, done } => {
                self.page(request, entries, faults, done);
            }
            ServerMessage::Ties { request, ties } => self.tied(request, ties),
            ServerMessage::Made { request, answers } => self.made(request, answers),
            ServerMessage::Read(reply) => self.read.reply(reply, now),
            ServerMessage::Write(reply) => {
                self.stored(&reply);
                self.created(&reply);
                self.write.reply(reply, now);
            }
            // This session watches and probes nothing: whoever does has one of its own.
            ServerMessage::Working | ServerMessage::Watch(_) | ServerMessage::Probed(_) => {}
            ServerMessage::Mirror(reply) => self.mirror_reply(reply),
            ServerMessage::Dropped(dropped) => self.ledger.summary.dropped += dropped,
            ServerMessage::Rehashed { bytes } => self.rehashed(bytes),
            // A server that tells us that it heard nothing is there: it can be asked again.
            ServerMessage::Refused(Fault { code: Code::TimedOut, text }) => {
                self.broke(Fault::new(Code::LinkLost, text));
            }
            ServerMessage::Refused(fault) => self.broke(fault),
            ServerMessage::Welcome(_) => {
                self.broke(Fault::new(Code::Protocol, "the server greeted twice"));
            }
        }
    }

    pub(crate) fn event(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Fetched { link, slot, outcome, spared_bytes } => {
                match spared_bytes {
                    0 => self.used(link, &outcome),
                    bytes => self.pace.iter_mut().for_each(|pace| pace.spare(bytes)),
                }
                self.quiet_since = self.moment;
                self.read.fetched(link, slot, outcome, now);
            }
            Event::Posted { tag, posted } => self.write.posted(tag, posted, now),
            Event::LinkLost { link, error } => self.link_lost(link, &error),
            Event::LinkMade { link, made } => self.link_made(link, made),
            Event::LinkUnproven { link, error } => self.link_unproven(link, &error),
            Event::LinkWanted { link } => self.attach(link),
            Event::WorkerFailed(error) => {
                self.broke(Fault::new(Code::Io, error.to_string()));
            }
            Event::Panicked => {
                self.panicked = true;
                let text = "a job failed here; the message above says where";
                self.broke(Fault::new(Code::Bug, text));
            }
            Event::Resumed(id, have) => self.resumed(id, have.map(|have| *have)),
            Event::Landed(answers) => self.landed(answers),
            Event::SourcesOpened(answers) => self.sources_opened(answers),
            Event::SourcesChecked(answers) => {
                self.hashing -= 1;
                for (file, root, answer) in answers {
                    match self.rules.task {
                        Task::Verify => self.compared(file, root, answer.map(drop)),
                        _ => {
                            let answer = answer.map(|kept| self.owners.translated(kept));
                            self.write.source_checked(file, root, answer);
                        }
                    }
                }
            }
            Event::Hashed { file, extent, answer } => {
                self.hashing -= 1;
                let hashed = answer.as_ref().map_or(0, |(_, bytes)| *bytes);
                self.ledger.summary.rehashed_bytes += hashed;
                self.write.hashed(file, extent, answer.map(|(digests, _)| digests));
            }
            Event::OfferHashed { file, extent, answer } => {
                self.hashing -= 1;
                self.write.offer_hashed(file, extent, answer, now);
            }
            Event::Zeroed(zero, answer) => self.read.zeroed(zero, answer, now),
            Event::ZerosHashed { file, extent, digests } => {
                self.write.zeros_hashed(file, extent, &digests, now);
            }
            Event::HolesFound(file, survey) => self.write.found(file, survey),
            Event::Pipe(file, event) => self.pipe_event(file, event),
            Event::LocalPage(page) => self.local_page(page),
            Event::TreePaged(paged) => self.tree_paged(paged),
            Event::Looked(looked) => self.looked_up(looked),
            Event::Published(answer) => self.published(answer),
            Event::DeedsDone(done) => self.deeds_done(done),
            Event::Ended(answers) => self.ended(answers),
        }
    }

    pub(crate) fn broke(&mut self, fault: Fault) {
        self.broken.get_or_insert(fault);
    }

    pub(crate) fn tell(&mut self, link: LinkId, command: Command) {
        let worker = usize::from(link.index) % self.workers.len();
        if let Err(error) = self.workers[worker].send(command) {
            self.broke(Fault::new(Code::Limit, error.to_string()));
        }
    }

    /// Tells a worker to move data, when it is time.
    pub(crate) fn tell_paced(&mut self, link: LinkId, bytes: u64, command: Command) {
        match &mut self.pace {
            Some(pace) => pace.push(bytes, (link, command)),
            None => self.tell(link, command),
        }
    }

    fn release_paced(&mut self) {
        let now = self.now();
        let urgent = |(_, command): &(LinkId, Command)| command.is_urgent();
        while let Some((link, command)) = self.pace.as_mut().and_then(|it| it.pop(now, urgent)) {
            self.tell(link, command);
        }
    }

    /// Starts file work on the blocking pool; its event comes back to this session.
    pub(crate) fn job(&self, work: impl FnOnce() -> Event + Send + 'static) {
        let events = self.events.clone();
        tokio::task::spawn_blocking(move || {
            // A session that is gone needs no answer; one that is waits for this one, so that a
            // job that panics tells it too.
            let event = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Event::Panicked);
            let _ = events.try_send(event);
        });
    }

    /// Lets go of what is unfinished, for another session or for none.
    pub(crate) fn leave(&mut self) {
        // First: letting go of a file must not end its folder.
        self.leave_endings();
        self.leave_downloads();
        self.leave_uploads();
        self.leave_compares();
        self.leave_choices();
        self.leave_mirror();
        self.leave_trees();
    }
}
