//! A session with one server: the control connection, the links, the machines,
//! and the work that is left. One task takes messages of the server and events
//! of workers and jobs, feeds the machines and does what they ask; `links`,
//! `down`, `up`, `trees`, `walking`, `making`, `endings`, `choices`, `compare` and
//! `mirror` each do one kind of work.
//!
//! A session ends when its work is done, or breaks: then it lets go of what is
//! unfinished, and its ledger goes to the next one. Whether there is a next one
//! is decided in `reconnect`.

pub mod backoff;
pub mod dispatch;
pub mod overlap;
pub mod progress;
pub mod queries;
pub mod retry;
pub mod run;

use crate::engine::links::Links;
use crate::engine::rate_limit::Pace;
use crate::engine::silence::Silence;
use crate::engine::worker::ClientWorker;
use crate::local_io::counters::Stats;
use crate::local_io::pipe::PipeEvent;
use crate::local_io::trace::Trace;
use crate::model::copy_policy::Rules;
use crate::model::location::peer;
use crate::model::report::{Progress, hint_of};
use crate::session::dispatch::Core;
use crate::transfer::download::Downloads;
use crate::transfer::remote_scan::Trees;
use crate::transfer::select::Choices;
use crate::transfer::upload::Uploads;
use crate::transfer::verify::Compares;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use verbatim_control::{ConnectOptions, ControlError, Outbox, Receiver, connect};
use verbatim_fabric::sim::SimNet;
use verbatim_fabric::{FabricError, Link};
use verbatim_proto::message::{FileId, LinkId, ServerMessage, Tag};
use verbatim_proto::read::{self, Outcome, ReadClient, Zero};
use verbatim_proto::units::OPEN_FILES_MAX;
use verbatim_proto::write::{self, Posted, WriteClient};
use verbatim_proto::{ClientMessage, Code, Digest, Extent, Fault, Kept, Survey};

pub(crate) use crate::engine::ledger::Ledger;
pub use crate::engine::transport::{CarrierOptions, Transport};
pub use crate::remote_fs::service::{Ask, Carried};
pub use crate::session::run::fault_of;
pub use crate::transfer::download::Download;
pub use crate::transfer::local_walk::LocalTree;
pub use crate::transfer::remote_scan::RemoteTree;
pub use crate::transfer::upload::{Upload, UploadSource};
pub use crate::tree_sync::spec::{Aside, Mirror, Way};

/// Events that may wait for a session; slots and jobs are bounded far below this.
const EVENTS_MAX: usize = 16 << 10;

/// Files open at a time, those that are being made durable included.
const OPEN_MAX: usize = 2 * OPEN_FILES_MAX;

/// Reads in flight on each link.
pub(crate) const READS_PER_LINK: u16 = 3;

/// How to make a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Whom to connect to, and as whom.
    pub connect: ConnectOptions,
    /// Links, and threads that move data.
    pub streams: u16,
    /// After how long without an answer the peer is given up.
    pub timeout: Duration,
    /// What data moves over.
    pub carrier: CarrierOptions,
    /// Whether chunks over a device may be of another size than `connect.chunk_bytes`.
    pub chunk_by_carrier: bool,
    /// Whether modes, times, attributes and owners are kept.
    pub preserve: bool,
    /// How many bytes of data may go in a second; none for all there is.
    pub bytes_per_second: Option<u64>,
    /// A simulated network to make links on, for tests.
    pub sim: Option<SimNet>,
    /// Where the timeline of chunks is written.
    pub trace: Option<Arc<Trace>>,
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server cannot be reached, trusted, or does not let this client in.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// No worker could be started, or RDMA was insisted on and cannot be used.
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
            Self::Fabric(error) => error.hint().map(str::to_owned),
            Self::Fault(fault) => match fault.code {
                // What to do then is another thing for each command.
                Code::IsFolder | Code::BadPath => None,
                code => hint_of(code).map(str::to_owned),
            },
            Self::Ended { .. } => Some("run the same command again".into()),
        }
    }
}

/// What workers and jobs tell a session.
pub(crate) enum Event {
    Fetched {
        link: LinkId,
        slot: u16,
        outcome: Outcome,
        /// Bytes of it that no link carried.
        spared_bytes: u64,
    },
    Posted {
        tag: Tag,
        posted: Posted,
    },
    LinkLost {
        link: LinkId,
        error: FabricError,
    },
    LinkMade {
        link: LinkId,
        made: Result<Box<dyn Link>, FabricError>,
    },
    LinkUnproven {
        link: LinkId,
        error: FabricError,
    },
    LinkWanted {
        link: LinkId,
    },
    WorkerFailed(FabricError),
    /// A job panicked: what it would have told will never come.
    Panicked,
    /// What an earlier run left of a file.
    Resumed(FileId, Option<Box<read::Have>>),
    Landed(crate::transfer::download::Landed),
    SourcesOpened(Vec<crate::transfer::upload::Opened>),
    /// Whether sources are still what was sent, and their metadata where that is kept.
    SourcesChecked(Vec<(FileId, Digest, Result<Kept, Fault>)>),
    /// The digests of a range, and how many bytes were hashed for them.
    Hashed {
        file: FileId,
        extent: Extent,
        answer: Result<(Vec<Digest>, u64), Fault>,
    },
    /// The digests of a range that is to be offered.
    OfferHashed {
        file: FileId,
        extent: Extent,
        answer: Result<Vec<Digest>, Fault>,
    },
    Zeroed(Zero, Result<Vec<Digest>, Fault>),
    ZerosHashed {
        file: FileId,
        extent: Extent,
        digests: Vec<Digest>,
    },
    HolesFound(FileId, Survey),
    Pipe(FileId, PipeEvent),
    LocalPage(crate::transfer::local_walk::LocalPage),
    TreePaged(crate::tree_sync::scan_both::TreePaged),
    Looked(crate::tree_sync::id_map::Looked),
    /// Whether a tree on this machine is in the place of its target.
    Published(Result<(), Fault>),
    DeedsDone(crate::tree_sync::apply_local::DeedsDone),
    Ended(crate::transfer::dir_metadata::Ended),
}

/// Something to copy.
#[derive(Clone)]
pub enum Work {
    /// A file to fetch.
    Download(Download),
    /// A file to send.
    Upload(Upload),
    /// A remote folder and all in it, to fetch.
    DownloadTree(RemoteTree),
    /// A local folder and all in it, to send.
    UploadTree(LocalTree),
    /// A file to write to standard output; the only work of its session.
    ToPipe(ToPipe),
    /// Standard input, to send.
    FromPipe(FromPipe),
    /// A tree to make equal to another; the only work of its session.
    Mirror(Box<Mirror>),
}

pub use crate::transfer::pipe_transfer::{FromPipe, ToPipe};

/// A session.
pub struct Session {
    outbox: Outbox<ClientMessage>,
    receiver: Receiver<ServerMessage>,
    events: mpsc::Receiver<Event>,
    pub(crate) core: Core,
}

impl Session {
    /// Connects, authenticates and starts the workers. Links are made when there is work.
    pub async fn connect(mut options: SessionOptions) -> Result<Self, ClientError> {
        let short = options.connect.chunk_bytes;
        options.connect.chunk_bytes = crate::engine::setup::longest_chunk(&options);
        // Half is for files; links, folders and the rest have the other.
        let open_max = (verbatim_files::limit::raise_open_files() / 2).min(OPEN_MAX);
        let connection = connect(&options.connect).await?;
        let peer = peer(&options.connect.host, options.connect.port);
        let (request, session) = (connection.request.clone(), connection.welcome.session);
        tracing::debug!(peer, session, request, "session began");
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let stats = Arc::new(Stats::default());
        let (carrier, streams) = crate::engine::setup::carry(&mut options, short, &connection)?;
        let workers = crate::engine::setup::workers(streams, carrier.is_verbs(), || {
            ClientWorker::new(sender.clone(), stats.clone(), options.trace.clone())
        })?;
        let (chunk_bytes, timeout) = (options.connect.chunk_bytes, options.timeout);
        let core = Core {
            ledger: Ledger::new(&peer),
            peer,
            carrier,
            server: connection.server,
            version: connection.version,
            request,
            address: connection.peer,
            events: sender,
            workers,
            streams,
            stats,
            sending: VecDeque::new(),
            read: ReadClient::new(read::ClientOptions {
                chunk_bytes,
                slots_per_link: READS_PER_LINK,
                timeout,
                describe: options.preserve,
            }),
            write: WriteClient::new(write::ClientOptions { chunk_bytes, timeout }),
            links: Links::default(),
            downloads: Downloads::default(),
            uploads: Uploads::default(),
            trees: Trees::default(),
            mirror: None,
            serving: None,
            owners: Default::default(),
            gathered: Default::default(),
            answers: Default::default(),
            open_max,
            descriptors: Default::default(),
            choices: Choices::default(),
            compares: Compares::default(),
            next_file: 0,
            next_request: 0,
            found_bytes: 0,
            progress: Progress::default(),
            reports: Default::default(),
            stated: HashMap::new(),
            asking: false,
            moment: Instant::now(),
            quiet_since: Instant::now(),
            silence: Silence::new(Instant::now()),
            absent: Duration::ZERO,
            hashing: 0,
            broken: None,
            panicked: false,
            rules: Arc::default(),
            pace: options.bytes_per_second.map(Pace::new),
            options,
        };
        let outbox = Outbox::new(connection.sender, timeout);
        Ok(Self { outbox, receiver: connection.receiver, events, core })
    }

    /// Copies by these rules from now on.
    pub fn obey(&mut self, rules: Rules) {
        self.core.rules = Arc::new(rules);
    }

    /// Says goodbye.
    pub async fn close(self) {
        // The server notices either way.
        let _ = self.outbox.push(&ClientMessage::Bye);
        let at_most = CLOSE_MAX.min(self.core.options.timeout / CLOSE_PART);
        let _ = tokio::time::timeout(at_most, self.outbox.close()).await;
    }

    /// A turn for a caller that waits for an answer: an ended session gives none.
    pub(crate) async fn turn_or_end(&mut self) -> Result<(), ClientError> {
        self.turn().await?;
        let peer = self.core.peer.clone();
        self.core.broken.clone().map_or(Ok(()), |fault| Err(ClientError::Ended { peer, fault }))
    }

    /// Waits for one message, event or deadline, and does what follows from it.
    async fn turn(&mut self) -> Result<(), ClientError> {
        self.core.advance();
        self.core.go_back();
        self.core.listen();
        while let Some(message) = self.core.sending.pop_front() {
            tracing::trace!(content = ?message, "message sent");
            self.outbox.push(&message)?;
        }
        if self.core.is_overdue() {
            let (what, timeout) = ("an answer of the server".into(), self.core.options.timeout);
            return Err(ControlError::TimedOut { what, seconds: timeout.as_secs_f64() }.into());
        }
        // The last effect may have ended the work: nothing more will come.
        if self.core.is_done() && !self.core.asking {
            return Ok(());
        }
        let until = self.core.moment + self.core.wait();
        let woken = tokio::select! {
            message = self.receiver.recv() => Woken::Message(message?),
            Some(event) = self.events.recv() => Woken::Event(event),
            () = tokio::time::sleep_until(until.into()) => Woken::Time,
        };
        self.core.look_at_clock();
        self.core.excuse(until);
        match woken {
            Woken::Message(Some(message)) => {
                // Who asked for one thing wants the answer to that; a copy what is there already.
                let copies = !self.core.asking;
                self.core.message(message);
                while copies
                    && self.core.broken.is_none()
                    && let Some(message) = self.receiver.arrived()?
                {
                    self.core.message(message);
                }
            }
            Woken::Message(None) => {
                let cause = "the server hung up".into();
                return Err(ControlError::Closed { cause }.into());
            }
            Woken::Event(event) => {
                self.core.event(event);
                // What is there already is cheaper to take at once.
                while let Ok(event) = self.events.try_recv() {
                    self.core.event(event);
                }
            }
            Woken::Time => {}
        }
        Ok(())
    }
}

/// What ends a turn's waiting.
enum Woken {
    Message(Option<ServerMessage>),
    Event(Event),
    Time,
}

/// How long saying goodbye may take.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// What part of the timeout it may take: nobody is owed anything by then.
const CLOSE_PART: u32 = 10;
