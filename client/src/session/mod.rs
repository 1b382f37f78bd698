//! A session with one server: the control connection, the links, the machines,
//! and the work that is left. One task takes messages of the server and events
//! of workers and jobs, feeds the machines and does what they ask; `links`,
//! `down`, `up` and `trees` each do one kind of work.
//!
//! A session ends when its work is done, or breaks: then everything unfinished
//! fails with the cause, and temporary files are removed.

mod core;
mod down;
mod endings;
mod links;
mod trees;
mod up;

use crate::location::peer;
use crate::report::{Observer, Progress, Summary};
use crate::worker::{ClientWorker, Stats};
use core::Core;
use down::Downloads;
use links::Links;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
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
use verbatim_proto::units::OPEN_FILES_MAX;
use verbatim_proto::write::{self, Posted, WriteClient};
use verbatim_proto::{ClientMessage, Code, Digest, Dropped, Extent, Fault, Kept, WirePath};

pub use down::Download;
pub use up::{Upload, UploadSource};

/// Events that may wait for a session; slots and jobs are bounded far below this.
const EVENTS_MAX: usize = 16 << 10;

/// Files open at a time, those that are being made durable included.
const OPEN_MAX: usize = 2 * OPEN_FILES_MAX;

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
    /// Whether modes, times, attributes and owners are kept.
    pub preserve: bool,
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
    /// The session was ended before it answered.
    #[error("{peer} ended the session: {fault}")]
    Ended {
        /// The server.
        peer: String,
        /// Why.
        fault: Fault,
    },
}

impl ClientError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Control(error) => error.hint(),
            Self::Fabric(_) | Self::Fault(_) => None,
            Self::Ended { .. } => Some("run the same command again".into()),
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
    Landed(down::Landed),
    SourcesChecked(Vec<(FileId, Digest, Result<Kept, Fault>)>),
    Hashed { file: FileId, extent: Extent, answer: Result<Vec<Digest>, Fault> },
    LocalPage(trees::LocalPage),
    Ended(Vec<(String, Result<Dropped, Fault>)>),
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

impl Session {
    /// Connects, authenticates and starts the workers. Links are made when there is work.
    pub async fn connect(options: SessionOptions) -> Result<Self, ClientError> {
        // Half is for files; links, folders and the rest have the other.
        let open_max = (verbatim_files::limit::raise_open_files() / 2).min(OPEN_MAX);
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
            server: connection.server,
            address: connection.peer,
            events: sender,
            workers,
            stats,
            begin: Instant::now(),
            sending: VecDeque::new(),
            read: ReadClient::new(read::ClientOptions {
                chunk_bytes,
                slots_per_link,
                timeout,
                describe: options.preserve,
            }),
            write: WriteClient::new(write::ClientOptions { chunk_bytes, timeout }),
            links: Links::default(),
            downloads: Downloads::default(),
            uploads: Uploads::default(),
            trees: Trees::default(),
            open_max,
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
            self.turn_or_end().await?;
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
        self.core.sending.push_back(ClientMessage::Scan {
            request,
            path,
            recursive,
            describe: false,
        });
        self.core.trees.list(request);
        self.core.asking = true;
        loop {
            self.turn_or_end().await?;
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

    /// A turn for a caller that waits for an answer: an ended session gives none.
    async fn turn_or_end(&mut self) -> Result<(), ClientError> {
        self.turn().await?;
        let peer = self.core.peer.clone();
        self.core.broken.clone().map_or(Ok(()), |fault| Err(ClientError::Ended { peer, fault }))
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
        // The last effect may have ended the work: nothing more will come.
        if self.core.is_done() && !self.core.asking {
            return Ok(());
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
