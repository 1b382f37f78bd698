//! One connection to a server: links and the workers that own them, the clock of deadlines, ids,
//! queued messages, the rate limit, and the outcomes of files. Never plans a copy, never waits, and
//! never touches the socket of the control connection. Below `transfer`, above `local_io`.
//!
//! An activity is an object with its own state. It gets the engine as an argument, requests files
//! from the machines, and receives their effects, its jobs' answers and its messages from the
//! dispatcher.

pub mod clock;
pub mod dir_guard;
pub mod error;
pub mod event;
pub(crate) mod fd_budget;
pub mod jobs;
pub mod label;
pub(crate) mod largest_first;
pub mod ledger;
pub(crate) mod link_buffers;
pub mod links;
pub mod options;
pub mod outcomes;
pub(crate) mod port_scheduler;
pub mod rate_limit;
pub(crate) mod receive;
pub mod request_batches;
pub mod setup;
pub(crate) mod silence;
pub mod transport;
pub(crate) mod worker;

use crate::connection::clock::Clock;
use crate::connection::error::ClientError;
use crate::connection::event::WorkerEvent;
use crate::connection::fd_budget::FdBudget;
use crate::connection::links::Links;
use crate::connection::options::SessionOptions;
use crate::connection::outcomes::Outcomes;
use crate::connection::rate_limit::RateLimiter;
use crate::connection::receive::ChunkTarget;
use crate::connection::silence::SilenceStep;
use crate::connection::transport::Carrier;
use crate::connection::worker::{ClientWorker, Command};
use crate::local_io::counters::Stats;
use crate::local_io::endpoint::DataSink;
use crate::local_io::range_buffer::RangeBuffer;
use crate::local_io::waker::Waker;
use crate::model::copy_policy::CopyPolicy;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use verbatim_control::{Connection, Fingerprint};
use verbatim_fabric::worker::WorkerHandle;
use verbatim_proto::message::{FileId, LinkId, Piece, ServerMessage, WriteReply};
use verbatim_proto::read::{self, Fetch, ReadClient};
use verbatim_proto::units::OPEN_FILES_MAX;
use verbatim_proto::write::{self, WriteClient};
use verbatim_proto::{ClientMessage, Code, Fault, Look, WirePath};

/// The most worker events in the queue; the number of slots keeps it far shorter.
const EVENTS_MAX: usize = 16 << 10;

/// The most open files, with those that are being flushed.
const OPEN_MAX: usize = 2 * OPEN_FILES_MAX;

/// Reads in flight on each link.
pub(crate) const READS_PER_LINK: u16 = 3;

/// The longest wait of a turn: the session checks deadlines and reports progress this often.
const TURN_MAX: Duration = Duration::from_millis(250);

/// A shorter silence is ignored: whether the server owes an answer is costly to find out at every
/// turn.
const SHORT_SILENCE_MAX: Duration = Duration::from_millis(100);

/// One connection to a server: its links and workers, the machines that read and write, messages to
/// send, and the outcomes of files. Lives as long as its session, whose task alone calls it.
pub struct Engine {
    options: SessionOptions,
    policy: Arc<CopyPolicy>,
    peer: String,
    server: Fingerprint,
    /// The version of the protocol that both ends speak.
    version: usize,
    /// The id of this session in the logs of both ends.
    request: String,
    address: SocketAddr,
    /// Commands that the rate limit delays.
    rate_limiter: Option<RateLimiter<(LinkId, Command)>>,
    events: mpsc::Sender<WorkerEvent>,
    waker: Waker,
    /// The threads that own the links; a link stays with one of them.
    workers: Vec<WorkerHandle<Command>>,
    /// The number of links to request.
    streams: u16,
    stats: Arc<Stats>,
    sending: VecDeque<ClientMessage>,
    read: ReadClient,
    write: WriteClient,
    carrier: Carrier,
    links: Links,
    fds: FdBudget,
    next_file: u32,
    next_request: u32,
    outcomes: Outcomes,
    clock: Clock,
    /// Jobs that hash on this machine; meanwhile the server owes no answer.
    hashing: usize,
    broken: Option<Fault>,
}

impl Engine {
    /// Starts the workers of a connection. Returns the engine and the queue of worker events, which
    /// the session hands to [`Engine::event`]. Links without RDMA use chunks of
    /// `short_chunk_bytes`; `peer` names the server in messages. Fails if the user requires RDMA
    /// and no port works, or if a thread cannot start.
    pub fn new(
        mut options: SessionOptions,
        short_chunk_bytes: u32,
        connection: &Connection,
        peer: &str,
    ) -> Result<(Self, mpsc::Receiver<WorkerEvent>), ClientError> {
        // Half of the limit is for files; links, folders and everything else share the other half.
        let fds = (verbatim_files::limit::raise_open_files() / 2).min(OPEN_MAX);
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let stats = Arc::new(Stats::default());
        let (carrier, streams) =
            setup::choose_transport(&mut options, short_chunk_bytes, connection)?;
        let workers = setup::workers(streams, carrier.is_verbs(), || {
            ClientWorker::new(sender.clone(), stats.clone(), options.trace.clone())
        })?;
        let (chunk_bytes, timeout) = (options.connect.chunk_bytes, options.timeout);
        let describe = options.preserve;
        let slots_per_link = READS_PER_LINK;
        let read = read::ClientOptions { chunk_bytes, slots_per_link, timeout, describe };
        let engine = Self {
            peer: peer.to_owned(),
            server: connection.server,
            version: connection.version,
            request: connection.request.clone(),
            address: connection.peer,
            rate_limiter: options.bytes_per_second.map(RateLimiter::new),
            events: sender,
            waker: Waker::default(),
            workers,
            streams,
            outcomes: Outcomes::new(peer, connection.version, stats.clone()),
            stats,
            sending: VecDeque::new(),
            read: ReadClient::new(read),
            write: WriteClient::new(write::ClientOptions { chunk_bytes, timeout }),
            carrier,
            links: Links::default(),
            fds: FdBudget::new(fds),
            next_file: 0,
            next_request: 0,
            clock: Clock::new(Instant::now()),
            hashing: 0,
            broken: None,
            policy: Arc::default(),
            options,
        };
        Ok((engine, events))
    }

    /// Sets the policy of the work that follows: which entries are copied, replaced or left out.
    pub fn set_policy(&mut self, policy: CopyPolicy) {
        self.outcomes.set_overwrite(policy.overwrite());
        self.policy = Arc::new(policy);
    }

    /// The policy of the work; the default one until [`Engine::set_policy`].
    #[inline]
    pub fn policy(&self) -> &Arc<CopyPolicy> {
        &self.policy
    }

    /// The options of the session, with the chunk size that was chosen for its transport.
    #[inline]
    pub fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// The folder with the digests of unfinished uploads.
    pub fn upload_memos(&self) -> PathBuf {
        self.options.connect.state_dir.join("uploads")
    }

    /// The server in messages: host and port.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The fingerprint of the server's key, which the handshake has verified.
    pub fn server(&self) -> Fingerprint {
        self.server
    }

    /// The id of this session in the logs of both ends.
    pub fn request_id(&self) -> &str {
        &self.request
    }

    /// The version of the protocol that both ends speak.
    pub fn version(&self) -> usize {
        self.version
    }

    /// The counters that workers and jobs add to.
    #[inline]
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// The transport of the links: TCP, RDMA ports or a simulated network.
    #[inline]
    pub fn carrier(&self) -> &Carrier {
        &self.carrier
    }

    /// The links: how many are up, how many were lost, and their transport.
    #[inline]
    pub fn links(&self) -> &Links {
        &self.links
    }

    pub(crate) fn fds(&self) -> &FdBudget {
        &self.fds
    }

    /// Wakes the task of the session; jobs and pipes keep a clone.
    #[inline]
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// The clock of the session, which counts the silence of the server.
    #[inline]
    pub fn clock(&mut self) -> &mut Clock {
        &mut self.clock
    }

    /// How long the copy has run, without the time in which this process was stopped.
    #[inline]
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// The time at which the session last woke. Reads no clock.
    #[inline]
    pub fn woken_at(&self) -> Instant {
        self.clock.woken_at()
    }

    /// The outcomes of files, and the reports queued for the observer.
    #[inline]
    pub fn outcomes(&mut self) -> &mut Outcomes {
        &mut self.outcomes
    }

    /// The machine that reads files of the server.
    #[inline]
    pub fn read(&mut self) -> &mut ReadClient {
        &mut self.read
    }

    /// The machine that writes files to the server.
    #[inline]
    pub fn write(&mut self) -> &mut WriteClient {
        &mut self.write
    }

    /// Allots the id of a request, and restarts the count of the server's silence: the caller sends
    /// the request at once.
    pub fn request(&mut self) -> u32 {
        self.clock.request_sent();
        self.next_request += 1;
        self.next_request
    }

    /// Allots the id of a file, unique in this session.
    pub fn file(&mut self) -> FileId {
        self.next_file += 1;
        FileId(self.next_file)
    }

    /// Queues a message to the server; the session takes it with [`Engine::next_message`].
    pub fn send(&mut self, message: ClientMessage) {
        self.sending.push_back(message);
    }

    /// Takes the oldest queued message.
    pub fn next_message(&mut self) -> Option<ClientMessage> {
        self.sending.pop_front()
    }

    /// Ends the session with this fault, unless it has ended already.
    pub fn fail_session(&mut self, fault: Fault) {
        self.broken.get_or_insert(fault);
    }

    /// Ends the session because the server answered a request that was never sent; `what` names the
    /// answer.
    pub fn protocol_violation(&mut self, what: &str) {
        let text = format!("the server sent {what} without a request");
        self.fail_session(Fault::new(Code::Protocol, text));
    }

    /// The fault that ended the session.
    pub fn session_fault(&self) -> Option<&Fault> {
        self.broken.as_ref()
    }

    /// Replaces the fault that ended the session; `None` lets the session continue.
    pub fn set_session_fault(&mut self, broken: Option<Fault>) {
        self.broken = broken;
    }

    /// Notes that a job hashes on this machine: meanwhile the server owes no answer.
    pub(crate) fn begin_hashing(&mut self) {
        self.hashing += 1;
    }

    pub(crate) fn end_hashing(&mut self) {
        self.hashing -= 1;
    }

    /// Whether a job hashes on this machine, so that the server owes no answer.
    pub fn is_hashing(&self) -> bool {
        self.hashing > 0
    }

    /// Whether this machine hashes the zeros of holes, which takes as long as hashing data.
    pub fn is_hashing_holes(&self) -> bool {
        self.read.is_hashing_holes() || self.write.is_hashing_holes()
    }

    /// How long the session may wait for an event: until the next deadline or the next delayed
    /// command, at least 1 ms and at most 250 ms.
    pub fn wait(&self) -> Duration {
        let now = self.now();
        let deadlines = self.read.deadline().into_iter().chain(self.write.deadline());
        let wait = deadlines.min().map_or(TURN_MAX, |at| at.saturating_sub(now));
        let paced = self.rate_limiter.as_ref().and_then(|rate_limiter| rate_limiter.wait(now));
        let wait = paced.map_or(wait, |paced| wait.min(paced));
        // The machines have acted on an expired deadline: check again soon, but do not spin.
        wait.clamp(Duration::from_millis(1), TURN_MAX)
    }

    /// Bytes that this session moved: verified bytes, without those that earlier sessions left in
    /// place.
    pub fn moved_bytes(&self) -> u64 {
        self.stats.bytes.load(Ordering::Relaxed) - self.outcomes.already_present_bytes()
    }

    /// Lets both machines act on expired deadlines.
    pub fn advance(&mut self) {
        let now = self.now();
        if self.hashing > 0 {
            self.write.touch(now);
        }
        self.read.advance(now);
        self.write.advance(now);
    }

    /// Takes the next effect of the machine that reads, if it concerns a file. Effects that concern
    /// the connection, such as messages and lost links, are carried out here.
    pub fn next_read_effect(&mut self) -> Option<read::ClientEffect> {
        loop {
            match self.read.next_effect()? {
                read::ClientEffect::Send(request) => self.send(ClientMessage::Read(request)),
                read::ClientEffect::DropLink { link } => self.drop_link(link),
                read::ClientEffect::Broken(fault) => self.fail_session(fault),
                effect => return Some(effect),
            }
        }
    }

    /// Takes the next effect of the machine that writes, like [`Engine::next_read_effect`].
    pub fn next_write_effect(&mut self) -> Option<write::ClientEffect> {
        loop {
            match self.write.next_effect()? {
                write::ClientEffect::Send(request) => self.send(ClientMessage::Write(request)),
                write::ClientEffect::DropLink { link } => self.drop_link(link),
                write::ClientEffect::Broken(fault) => self.fail_session(fault),
                effect => return Some(effect),
            }
        }
    }

    /// Sends a command to the worker of a link.
    pub(crate) fn send_command(&mut self, link: LinkId, command: Command) {
        let worker = usize::from(link.index) % self.workers.len();
        if let Err(error) = self.workers[worker].send(command) {
            self.fail_session(Fault::new(Code::Limit, error.to_string()));
        }
    }

    /// Sends a command that moves data, delayed by the rate limit.
    pub(crate) fn send_paced(&mut self, link: LinkId, bytes: u64, command: Command) {
        match &mut self.rate_limiter {
            Some(rate_limiter) => rate_limiter.push(bytes, (link, command)),
            None => self.send_command(link, command),
        }
    }

    /// Lets a worker read a chunk into ranges in memory; `part_of` names the range of each piece.
    /// The rate limit may delay the command.
    pub fn fetch_parts(&mut self, fetch: Fetch, part_of: impl Fn(&Piece) -> Arc<RangeBuffer>) {
        let target = |piece: &Piece| {
            let part = part_of(piece);
            ChunkTarget { size: part.part.size, sink: DataSink::Part(part) }
        };
        let targets = fetch.chunk.pieces.iter().map(target).collect();
        let (link, bytes) = (fetch.link, u64::from(fetch.chunk.bytes));
        self.send_paced(link, bytes, Command::Fetch(fetch, targets));
    }

    /// Sends the delayed commands that the rate limit now permits, urgent ones first.
    pub fn release_paced(&mut self) {
        let now = self.now();
        let urgent = |(_, command): &(LinkId, Command)| command.is_urgent();
        while let Some((link, command)) =
            self.rate_limiter.as_mut().and_then(|it| it.pop(now, urgent))
        {
            self.send_command(link, command);
        }
    }

    /// Takes a report of a worker or a link.
    pub fn event(&mut self, event: WorkerEvent) {
        let now = self.now();
        match event {
            WorkerEvent::Fetched { link, slot, outcome, basis_bytes } => {
                match basis_bytes {
                    0 => self.note_fetch(link, &outcome),
                    bytes => self
                        .rate_limiter
                        .iter_mut()
                        .for_each(|rate_limiter| rate_limiter.refund(bytes)),
                }
                self.clock.reply_received();
                self.read.fetched(link, slot, outcome, now);
            }
            WorkerEvent::Posted { tag, posted } => self.write.posted(tag, posted, now),
            WorkerEvent::LinkLost { link, error } => self.link_lost(link, &error),
            WorkerEvent::LinkMade { link, made } => self.link_made(link, made),
            WorkerEvent::LinkUnproven { link, error } => self.link_unproven(link, &error),
            WorkerEvent::LinkWanted { link } => self.attach(link),
            WorkerEvent::WorkerFailed(error) => {
                self.fail_session(Fault::new(Code::Io, error.to_string()));
            }
        }
    }

    /// Takes a message of the server. Returns it if it is for an activity and not for the engine.
    pub fn message(&mut self, message: ServerMessage) -> Option<ServerMessage> {
        self.clock.received();
        if let ServerMessage::Stated { request, .. } = &message
            && self.clock.take_probe_reply(*request)
        {
            return None;
        }
        let now = self.now();
        self.clock.reply_received();
        self.read.touch(now);
        self.write.touch(now);
        match message {
            ServerMessage::Attached { link, answer } => self.attached(link, answer),
            ServerMessage::Fenced { link } => self.write.fenced(link),
            ServerMessage::Read(reply) => self.read.reply(reply, now),
            // Watches and probes have connections of their own.
            ServerMessage::Working | ServerMessage::Watch(_) | ServerMessage::Probed(_) => {}
            ServerMessage::Dropped(dropped) => self.outcomes.ledger().summary.dropped += dropped,
            ServerMessage::Rehashed { bytes } => {
                let sum = &mut self.outcomes.ledger().summary.rehashed_bytes;
                *sum = sum.saturating_add(bytes);
            }
            // A server that reports our silence is alive: a new session can reach it.
            ServerMessage::Refused(Fault { code: Code::TimedOut, text }) => {
                self.fail_session(Fault::new(Code::LinkLost, text));
            }
            ServerMessage::Refused(fault) => self.fail_session(fault),
            ServerMessage::Welcome(_) => {
                self.fail_session(Fault::new(Code::Protocol, "the server sent Welcome twice"));
            }
            message => return Some(message),
        }
        None
    }

    /// Hands a reply of the server to the machine that writes, after the activity has handled it.
    pub fn write_reply(&mut self, reply: WriteReply) {
        self.note_stored_chunks(&reply);
        let now = self.now();
        self.write.reply(reply, now);
    }

    /// Probes a silent server, and ends the session if it does not answer. `owes` says whether an
    /// activity waits for the server. A caller that waits for one answer has a deadline of its own.
    pub fn check_silence(&mut self, owes: impl FnOnce() -> bool, caller_waits: bool) {
        if self.broken.is_some() || self.clock.silent_for() < SHORT_SILENCE_MAX {
            return;
        }
        let machines = || self.read.awaits_server() || self.write.awaits_server();
        let owed = !caller_waits && self.hashing == 0 && (machines() || owes());
        let timeout = self.options.timeout;
        match self.clock.silence_step(owed, timeout) {
            SilenceStep::Wait => {}
            SilenceStep::Probe => {
                self.next_request += 1;
                let request = self.next_request;
                self.clock.probe_sent(request);
                let look = Look { follow: true, paths: vec![WirePath::root()] };
                self.send(ClientMessage::Stat { request, look });
            }
            SilenceStep::GiveUp => {
                let text = format!("server said nothing for {} s", timeout.as_secs());
                self.fail_session(Fault::new(Code::TimedOut, text));
            }
        }
    }
}
