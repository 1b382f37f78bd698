//! All of a session but its incoming queues: what is left to do, the machines,
//! and the routes between them. Never waits and never touches a socket; the
//! session in `mod.rs` feeds it messages and events, and sends what it queues.

use super::down::Downloads;
use super::links::Links;
use super::trees::Trees;
use super::up::Uploads;
use super::{Event, SessionOptions, Work};
use crate::report::{Failure, FileDone, Observer, Progress, Summary};
use crate::worker::{Command, Stats};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use verbatim_control::Fingerprint;
use verbatim_fabric::worker::WorkerHandle;
use verbatim_proto::message::{Entry, FileId, LinkId, ServerMessage};
use verbatim_proto::read::ReadClient;
use verbatim_proto::write::WriteClient;
use verbatim_proto::{ClientMessage, Code, Fault};

/// All of a session but its incoming queues.
pub(super) struct Core {
    pub options: SessionOptions,
    pub peer: String,
    /// Who the server is.
    pub server: Fingerprint,
    pub address: SocketAddr,
    pub events: mpsc::Sender<Event>,
    pub workers: Vec<WorkerHandle<Command>>,
    pub stats: Arc<Stats>,
    pub begin: Instant,
    pub sending: VecDeque<ClientMessage>,
    pub read: ReadClient,
    pub write: WriteClient,
    pub links: Links,
    pub downloads: Downloads,
    pub uploads: Uploads,
    pub trees: Trees,
    /// Files that may be open at a time.
    pub open_max: usize,
    pub next_file: u32,
    pub next_request: u32,
    pub summary: Summary,
    pub progress: Progress,
    pub reports: VecDeque<Report>,
    pub stated: HashMap<u32, Result<Entry, Fault>>,
    /// Whether `stat` or `list` waits for an answer.
    pub asking: bool,
    /// Since when nothing was heard, or asked.
    pub quiet_since: Instant,
    pub broken: Option<Fault>,
}

pub(super) enum Report {
    Done(FileDone),
    Failed(Failure),
}

/// The longest a turn waits: deadlines are looked at, and progress is told, this often.
const TURN_MAX: Duration = Duration::from_millis(250);

impl Core {
    pub(super) fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    pub(super) fn request(&mut self) -> u32 {
        self.quiet_since = Instant::now();
        self.next_request += 1;
        self.next_request
    }

    pub(super) fn file(&mut self) -> FileId {
        self.next_file += 1;
        FileId(self.next_file)
    }

    /// Whether an answer is late that neither machine waits for.
    pub(super) fn is_overdue(&self) -> bool {
        let waits = self.asking || self.trees.awaits();
        waits && self.quiet_since.elapsed() > self.options.timeout
    }

    pub(super) fn add(&mut self, work: Work) {
        match work {
            Work::Download(download) => self.add_download(download, None),
            Work::Upload(upload) => self.add_upload(upload, None),
            Work::DownloadTree(tree) => self.add_remote_tree(tree),
            Work::UploadTree(tree) => self.add_local_tree(tree),
        }
    }

    pub(super) fn is_done(&mut self) -> bool {
        self.downloads.is_idle() && self.uploads.is_idle() && self.trees.is_idle()
    }

    pub(super) fn wait(&self) -> Duration {
        let now = self.now();
        let deadlines = self.read.deadline().into_iter().chain(self.write.deadline());
        let wait = deadlines.min().map_or(TURN_MAX, |at| at.saturating_sub(now));
        // A deadline that has passed was acted on: look again soon, but do not spin.
        wait.clamp(Duration::from_millis(1), TURN_MAX)
    }

    /// Starts what there is room for, and does what the machines ask.
    pub(super) fn advance(&mut self) {
        self.pump_trees();
        self.pump_downloads();
        self.pump_uploads();
        loop {
            let now = self.now();
            self.read.advance(now);
            self.write.advance(now);
            if let Some(effect) = self.read.next_effect() {
                self.read_effect(effect);
            } else if let Some(effect) = self.write.next_effect() {
                self.write_effect(effect);
            } else {
                break;
            }
            while let Some(effect) = self.read.next_effect() {
                self.read_effect(effect);
            }
            while let Some(effect) = self.write.next_effect() {
                self.write_effect(effect);
            }
        }
        self.commit_landed();
        self.check_sources();
    }

    pub(super) fn message(&mut self, message: ServerMessage) {
        tracing::trace!(?message, "message received");
        let now = self.now();
        self.quiet_since = Instant::now();
        self.read.touch(now);
        self.write.touch(now);
        match message {
            ServerMessage::Attached { link, answer } => self.attached(link, answer),
            ServerMessage::Fenced { link } => self.fenced(link),
            ServerMessage::Stated { request, answer } => {
                self.stated.insert(request, answer);
            }
            ServerMessage::Page { request, entries, faults, done } => {
                self.remote_page(request, entries, faults, done);
            }
            ServerMessage::Made { request, answers } => self.made(request, answers),
            ServerMessage::Read(reply) => self.read.reply(reply, now),
            ServerMessage::Write(reply) => self.write.reply(reply, now),
            ServerMessage::Working => {}
            ServerMessage::Dropped(dropped) => self.summary.dropped += dropped,
            ServerMessage::Refused(fault) => self.broke(fault),
            ServerMessage::Welcome(_) => {
                self.broke(Fault::new(Code::Protocol, "the server greeted twice"));
            }
        }
    }

    pub(super) fn event(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Fetched { link, slot, outcome } => {
                self.links.used(&outcome);
                self.read.fetched(link, slot, outcome, now);
            }
            Event::Posted { tag, posted } => {
                self.links.sent(&posted);
                self.write.posted(tag, posted, now);
            }
            Event::LinkLost { link, error } => self.link_lost(link, &error),
            Event::LinkMade { link, made } => self.link_made(link, made),
            Event::LinkWanted { link } => self.attach(link),
            Event::WorkerFailed(error) => {
                self.broke(Fault::new(Code::Io, error.to_string()));
            }
            Event::Landed(answers) => self.landed(answers),
            Event::SourcesChecked(answers) => {
                for (file, root, answer) in answers {
                    self.write.source_checked(file, root, answer);
                }
            }
            Event::Hashed { file, extent, answer } => self.write.hashed(file, extent, answer),
            Event::LocalPage(page) => self.local_page(page),
            Event::Ended(answers) => self.ended(answers),
        }
    }

    pub(super) fn broke(&mut self, fault: Fault) {
        self.broken.get_or_insert(fault);
    }

    pub(super) fn tell(&mut self, link: LinkId, command: Command) {
        let worker = usize::from(link.index) % self.workers.len();
        if let Err(error) = self.workers[worker].send(command) {
            self.broke(Fault::new(Code::Limit, error.to_string()));
        }
    }

    /// Starts file work on the blocking pool; its event comes back to this session.
    pub(super) fn job(&self, work: impl FnOnce() -> Event + Send + 'static) {
        let events = self.events.clone();
        tokio::task::spawn_blocking(move || {
            // A session that is gone needs no answer.
            let _ = events.try_send(work());
        });
    }

    pub(super) fn done(&mut self, done: FileDone) {
        self.summary.files += 1;
        self.summary.bytes += done.bytes;
        self.progress.files += 1;
        self.reports.push_back(Report::Done(done));
    }

    pub(super) fn failed(&mut self, path: String, fault: Fault) {
        self.summary.failed += 1;
        self.summary.mismatch |= fault.code == Code::Mismatch;
        let failure = Failure { path, peer: self.peer.clone(), fault };
        self.reports.push_back(Report::Failed(failure));
    }

    pub(super) fn report(&mut self, observer: &mut dyn Observer) {
        while let Some(report) = self.reports.pop_front() {
            match report {
                Report::Done(done) => observer.file_done(&done),
                Report::Failed(failure) => observer.failed(&failure),
            }
        }
    }

    /// Fails what is unfinished when the session broke.
    pub(super) fn give_up(&mut self) {
        let Some(fault) = self.broken.clone() else { return };
        self.drop_downloads(&fault);
        self.drop_uploads(&fault);
        self.trees = Trees::default();
    }

    pub(super) fn progress_now(&self) -> Progress {
        Progress {
            bytes: self.stats.bytes.load(Ordering::Relaxed),
            searching: !self.trees.is_found(),
            links: self.links.up_count(),
            elapsed: self.now(),
            ..self.progress.clone()
        }
    }

    pub(super) fn summary_now(&self) -> Summary {
        let transport = self.links.transport.clone().unwrap_or_else(|| "none".into());
        let reason = (transport == "tcp")
            .then(|| "this build has no verbs link yet; data moves over TCP".to_owned());
        Summary {
            elapsed: self.now(),
            transport,
            reason,
            limited_by: self.stats.limit(),
            mismatches: self.read.mismatches() + self.write.mismatches(),
            links_lost: self.links.lost,
            broken: self.broken.clone(),
            ..self.summary.clone()
        }
    }
}
