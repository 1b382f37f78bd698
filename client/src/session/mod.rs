//! A session with one server: the control connection, the links, the machines,
//! and the work that is left. One task takes messages of the server and events
//! of workers and jobs, feeds the machines and does what they ask; `links`,
//! `down`, `up` and `trees` each do one kind of work.
//!
//! A session ends when its work is done, or breaks: then everything unfinished
//! fails with the cause, and temporary files are removed.

mod down;
mod links;
mod trees;
mod up;

use crate::location::peer;
use crate::report::{Failure, FileDone, Observer, Progress, Summary};
use crate::worker::{ClientWorker, Command, Stats};
use down::Downloads;
use links::Links;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use trees::Trees;
use up::Uploads;
use verbatim_control::{ConnectOptions, ControlError, Outbox, Receiver, connect};
use verbatim_fabric::sim::SimNet;
use verbatim_fabric::worker::WorkerHandle;
use verbatim_fabric::{FabricError, Link};
use verbatim_proto::message::{Entry, FileId, LinkId, ServerMessage, Tag};
use verbatim_proto::read::{self, Outcome, ReadClient};
use verbatim_proto::write::{self, Posted, WriteClient};
use verbatim_proto::{ClientMessage, Code, Digest, Extent, Fault, WirePath};

pub use down::Download;
pub use up::{Upload, UploadSource};

/// Events that may wait for a session; slots and jobs are bounded far below this.
const EVENTS_MAX: usize = 16 << 10;

/// How often an observer hears of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// Reads in flight on each link.
const READS_PER_LINK: u16 = 3;

/// How to make a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Whom to connect to, and as whom.
    pub connect: ConnectOptions,
    /// Links, and threads that move data.
    pub streams: u16,
    /// After how long without an answer the peer is given up.
    pub timeout: Duration,
    /// A simulated network to make links on, for tests.
    pub sim: Option<SimNet>,
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server cannot be reached, trusted, or does not let this client in.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// No worker could be started.
    #[error("{0}")]
    Fabric(#[from] FabricError),
    /// The server refused a request.
    #[error("{0}")]
    Fault(#[from] Fault),
}

impl ClientError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Control(error) => error.hint(),
            Self::Fabric(_) | Self::Fault(_) => None,
        }
    }
}

/// What workers and jobs tell a session.
pub(crate) enum Event {
    Fetched { link: LinkId, slot: u16, outcome: Outcome },
    Posted { tag: Tag, posted: Posted },
    LinkLost { link: LinkId, error: FabricError },
    LinkMade { link: LinkId, made: Result<Box<dyn Link>, FabricError> },
    LinkWanted { link: LinkId },
    WorkerFailed(FabricError),
    Landed(Vec<(FileId, Digest, Result<(), Fault>)>),
    SourceChecked { file: FileId, root: Digest, answer: Result<(), Fault> },
    Hashed { file: FileId, extent: Extent, answer: Result<Vec<Digest>, Fault> },
    LocalPage(trees::LocalPage),
}

/// Something to copy.
pub enum Work {
    /// A file to fetch.
    Download(Download),
    /// A file to send.
    Upload(Upload),
    /// A remote folder and all in it, to fetch.
    DownloadTree(trees::RemoteTree),
    /// A local folder and all in it, to send.
    UploadTree(trees::LocalTree),
}

pub use trees::{LocalTree, RemoteTree};

/// A session.
pub struct Session {
    outbox: Outbox<ClientMessage>,
    receiver: Receiver<ServerMessage>,
    events: mpsc::Receiver<Event>,
    core: Core,
}

/// All of a session but its incoming queues.
struct Core {
    options: SessionOptions,
    peer: String,
    address: SocketAddr,
    events: mpsc::Sender<Event>,
    workers: Vec<WorkerHandle<Command>>,
    stats: Arc<Stats>,
    begin: Instant,
    sending: VecDeque<ClientMessage>,
    read: ReadClient,
    write: WriteClient,
    links: Links,
    downloads: Downloads,
    uploads: Uploads,
    trees: Trees,
    next_file: u32,
    next_request: u32,
    summary: Summary,
    progress: Progress,
    reports: VecDeque<Report>,
    stated: HashMap<u32, Result<Entry, Fault>>,
    /// Whether `stat` or `list` waits for an answer.
    asking: bool,
    /// Since when nothing was heard, or asked.
    quiet_since: Instant,
    broken: Option<Fault>,
}

enum Report {
    Done(FileDone),
    Failed(Failure),
}

impl Session {
    /// Connects, authenticates and starts the workers. Links are made when there is work.
    pub async fn connect(options: SessionOptions) -> Result<Self, ClientError> {
        verbatim_files::limit::raise_open_files();
        let connection = connect(&options.connect).await?;
        let peer = peer(&options.connect.host, options.connect.port);
        tracing::debug!(peer, session = connection.welcome.session, "session began");
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let stats = Arc::new(Stats::default());
        let streams = options.streams.min(connection.welcome.links_max).max(1);
        let workers = (0..streams)
            .map(|number| {
                let worker = ClientWorker::new(sender.clone(), stats.clone());
                WorkerHandle::spawn(&format!("stream-{number}"), worker)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let chunk_bytes = options.connect.chunk_bytes;
        let timeout = options.timeout;
        let slots_per_link = READS_PER_LINK;
        let core = Core {
            peer,
            address: connection.peer,
            events: sender,
            workers,
            stats,
            begin: Instant::now(),
            sending: VecDeque::new(),
            read: ReadClient::new(read::ClientOptions { chunk_bytes, slots_per_link, timeout }),
            write: WriteClient::new(write::ClientOptions { chunk_bytes, timeout }),
            links: Links::default(),
            downloads: Downloads::default(),
            uploads: Uploads::default(),
            trees: Trees::default(),
            next_file: 0,
            next_request: 0,
            summary: Summary::default(),
            progress: Progress::default(),
            reports: VecDeque::new(),
            stated: HashMap::new(),
            asking: false,
            quiet_since: Instant::now(),
            broken: None,
            options,
        };
        let outbox = Outbox::new(connection.sender, timeout);
        Ok(Self { outbox, receiver: connection.receiver, events, core })
    }

    /// Says what is at a remote path.
    pub async fn stat(&mut self, path: &WirePath) -> Result<Result<Entry, Fault>, ClientError> {
        let request = self.core.request();
        self.core.sending.push_back(ClientMessage::Stat { request, path: path.clone() });
        self.core.asking = true;
        loop {
            if let Some(answer) = self.core.stated.remove(&request) {
                self.core.asking = false;
                return Ok(answer);
            }
            self.turn().await?;
        }
    }

    /// Lists a remote folder, or the exports.
    pub async fn list(
        &mut self,
        path: &WirePath,
        recursive: bool,
        mut page: impl FnMut(Vec<Entry>, Vec<(WirePath, Fault)>),
    ) -> Result<(), ClientError> {
        let request = self.core.request();
        let path = path.clone();
        self.core.sending.push_back(ClientMessage::Scan { request, path, recursive });
        self.core.trees.list(request);
        self.core.asking = true;
        loop {
            self.turn().await?;
            while let Some((entries, faults, done)) = self.core.trees.listed() {
                page(entries, faults);
                if done {
                    self.core.asking = false;
                    return Ok(());
                }
                self.core.sending.push_back(ClientMessage::ScanMore { request });
            }
        }
    }

    /// Copies all of this, and tells the observer. Stops early only when `stop` completes or
    /// the session breaks.
    pub async fn copy(
        &mut self,
        work: Vec<Work>,
        observer: &mut dyn Observer,
        stop: impl Future<Output = ()>,
    ) -> Summary {
        self.core.begin = Instant::now();
        work.into_iter().for_each(|work| self.core.add(work));
        self.core.attach_all();
        let mut last = Instant::now();
        tokio::pin!(stop);
        while !self.core.is_done() {
            tokio::select! {
                biased;
                () = &mut stop => {
                    let fault = Fault::new(Code::Interrupted, "interrupted");
                    self.core.broken.get_or_insert(fault);
                }
                turned = self.turn() => {
                    if let Err(error) = turned {
                        let fault = Fault::new(Code::LinkLost, error.to_string());
                        self.core.broken.get_or_insert(fault);
                    }
                }
            }
            self.core.report(observer);
            if last.elapsed() >= PROGRESS_EVERY {
                last = Instant::now();
                observer.progress(&self.core.progress_now());
            }
            if self.core.broken.is_some() {
                break;
            }
        }
        self.keep_landed().await;
        self.core.give_up();
        self.core.report(observer);
        observer.progress(&self.core.progress_now());
        self.core.summary_now()
    }

    /// Makes files durable that are all here: a session that broke behind their last byte is
    /// nothing to them. One that broke when all was done did not break at all.
    async fn keep_landed(&mut self) {
        if self.core.broken.is_none() {
            return;
        }
        self.core.advance();
        while self.core.downloads.is_landing() {
            let Some(event) = self.events.recv().await else { break };
            if let Event::Landed(answers) = event {
                self.core.landed(answers);
                self.core.commit_landed();
            }
        }
        if self.core.is_done() {
            self.core.broken = None;
        }
    }

    /// Says goodbye.
    pub async fn close(self) {
        // The server notices either way.
        let _ = self.outbox.push(ClientMessage::Bye);
        let _ = tokio::time::timeout(CLOSE_MAX, self.outbox.close()).await;
    }

    /// Waits for one message, event or deadline, and does what follows from it.
    async fn turn(&mut self) -> Result<(), ClientError> {
        self.core.advance();
        while let Some(message) = self.core.sending.pop_front() {
            tracing::trace!(?message, "message sent");
            self.outbox.push(message)?;
        }
        if self.core.is_overdue() {
            let (what, timeout) = ("an answer of the server".into(), self.core.options.timeout);
            return Err(ControlError::TimedOut { what, seconds: timeout.as_secs_f64() }.into());
        }
        let wait = self.core.wait();
        tokio::select! {
            message = self.receiver.recv() => match message? {
                Some(message) => self.core.message(message),
                None => {
                    let cause = "the server hung up".into();
                    return Err(ControlError::Closed { cause }.into());
                }
            },
            Some(event) = self.events.recv() => {
                self.core.event(event);
                // What is there already is cheaper to take at once.
                while let Ok(event) = self.events.try_recv() {
                    self.core.event(event);
                }
            }
            () = tokio::time::sleep(wait) => {}
        }
        Ok(())
    }
}

/// How long saying goodbye may take.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// The longest a turn waits: deadlines are looked at, and progress is told, this often.
const TURN_MAX: Duration = Duration::from_millis(250);

impl Core {
    fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    fn request(&mut self) -> u32 {
        self.quiet_since = Instant::now();
        self.next_request += 1;
        self.next_request
    }

    fn file(&mut self) -> FileId {
        self.next_file += 1;
        FileId(self.next_file)
    }

    /// Whether an answer is late that neither machine waits for.
    fn is_overdue(&self) -> bool {
        let waits = self.asking || self.trees.awaits();
        waits && self.quiet_since.elapsed() > self.options.timeout
    }

    fn add(&mut self, work: Work) {
        match work {
            Work::Download(download) => self.add_download(download),
            Work::Upload(upload) => self.add_upload(upload),
            Work::DownloadTree(tree) => self.add_remote_tree(tree),
            Work::UploadTree(tree) => self.add_local_tree(tree),
        }
    }

    fn is_done(&self) -> bool {
        self.downloads.is_idle() && self.uploads.is_idle() && self.trees.is_idle()
    }

    fn wait(&self) -> Duration {
        let now = self.now();
        let deadlines = self.read.deadline().into_iter().chain(self.write.deadline());
        let wait = deadlines.min().map_or(TURN_MAX, |at| at.saturating_sub(now));
        // A deadline that has passed was acted on: look again soon, but do not spin.
        wait.clamp(Duration::from_millis(1), TURN_MAX)
    }

    /// Starts what there is room for, and does what the machines ask.
    fn advance(&mut self) {
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
    }

    fn message(&mut self, message: ServerMessage) {
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
            ServerMessage::Refused(fault) => self.broke(fault),
            ServerMessage::Welcome(_) => {
                self.broke(Fault::new(Code::Protocol, "the server greeted twice"));
            }
        }
    }

    fn event(&mut self, event: Event) {
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
            Event::SourceChecked { file, root, answer } => {
                self.write.source_checked(file, root, answer);
            }
            Event::Hashed { file, extent, answer } => self.write.hashed(file, extent, answer),
            Event::LocalPage(page) => self.local_page(page),
        }
    }

    fn broke(&mut self, fault: Fault) {
        self.broken.get_or_insert(fault);
    }

    fn tell(&mut self, link: LinkId, command: Command) {
        let worker = usize::from(link.index) % self.workers.len();
        if let Err(error) = self.workers[worker].send(command) {
            self.broke(Fault::new(Code::Limit, error.to_string()));
        }
    }

    /// Starts file work on the blocking pool; its event comes back to this session.
    fn job(&self, work: impl FnOnce() -> Event + Send + 'static) {
        let events = self.events.clone();
        tokio::task::spawn_blocking(move || {
            // A session that is gone needs no answer.
            let _ = events.try_send(work());
        });
    }

    fn done(&mut self, path: String, bytes: u64, digest: Digest) {
        self.summary.files += 1;
        self.summary.bytes += bytes;
        self.progress.files += 1;
        self.reports.push_back(Report::Done(FileDone { path, bytes, digest }));
    }

    fn failed(&mut self, path: String, fault: Fault) {
        self.summary.failed += 1;
        self.summary.mismatch |= fault.code == Code::Mismatch;
        let failure = Failure { path, peer: self.peer.clone(), fault };
        self.reports.push_back(Report::Failed(failure));
    }

    fn report(&mut self, observer: &mut dyn Observer) {
        while let Some(report) = self.reports.pop_front() {
            match report {
                Report::Done(done) => observer.file_done(&done),
                Report::Failed(failure) => observer.failed(&failure),
            }
        }
    }

    /// Fails what is unfinished when the session broke.
    fn give_up(&mut self) {
        let Some(fault) = self.broken.clone() else { return };
        self.drop_downloads(&fault);
        self.drop_uploads(&fault);
        self.trees = Trees::default();
    }

    fn progress_now(&self) -> Progress {
        Progress {
            bytes: self.stats.bytes.load(Ordering::Relaxed),
            searching: !self.trees.is_idle(),
            links: self.links.up_count(),
            elapsed: self.now(),
            ..self.progress.clone()
        }
    }

    fn summary_now(&self) -> Summary {
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
