//! Statistics of one session: client, age, transport, bytes, and the larger files in
//! transfer. The session, its jobs and the workers that store its chunks report here; each call
//! is a few atomic additions. Leaves the table when its last reference is dropped. After the
//! session has used a hidden export, its files and errors are logged and no longer shown.

use crate::limits::fair_pool::PoolShare;
use crate::observe::counters::{Counters, hint_of, lock};
use crate::rdma::registrations::SessionDomain;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};
use verbatim_proto::message::{FileId, Verdict as Stored};
use verbatim_proto::{Code, Fault, WirePath};
pub(crate) use verbatim_serve::host::FileRecord;
use verbatim_serve::host::LeaseRecord;
use verbatim_telemetry::labels::{
    Direction, Fallback, Operation, Outcome, Spared, Step, Transport, Verdict,
};

/// The maximum of files shown for a session.
const SHOWN_FILES_MAX: usize = 64;

/// Files from this size on are shown; smaller ones finish between two refreshes.
const SHOWN_FILE_BYTES_MIN: u64 = 4 << 20;

/// The identity of a session and its client.
pub(crate) struct SessionInfo {
    pub id: u64,
    pub request: String,
    pub peer: SocketAddr,
    pub who: String,
    pub agent: String,
    pub domain: Arc<SessionDomain>,
    /// Turns true when the client names a hidden export: its files and errors are no longer shown.
    pub used_hidden: Arc<AtomicBool>,
}

/// The live sessions by number. Each is removed when it is dropped.
pub(crate) type SessionTable = Mutex<BTreeMap<u64, Weak<SessionStats>>>;

/// Statistics of one session.
pub(crate) struct SessionStats {
    pub id: u64,
    /// What the client calls the session in its log.
    pub request: String,
    pub peer: SocketAddr,
    /// The peer as text: every file of the session has it in its line.
    address: String,
    pub who: String,
    pub agent: String,
    pub domain: Arc<SessionDomain>,
    pub began: Instant,
    pub moved: [AtomicU64; 2],
    /// Bytes of its uploads that needed no transfer.
    pub spared: AtomicU64,
    /// Queue pairs that are shutting down.
    pub ending: AtomicU64,
    /// Upload slots.
    pub slots: AtomicU64,
    /// Its share of the memory budget.
    memory: OnceLock<Arc<PoolShare>>,
    pub files: Mutex<HashMap<(Direction, FileId), FileProgress>>,
    /// Links that are up, by transport.
    links: [AtomicU64; 3],
    fell_back: AtomicU64,
    used_hidden: Arc<AtomicBool>,
    counters: Arc<Counters>,
    views: Arc<SessionTable>,
}

/// A file in transfer.
#[derive(Clone)]
pub(crate) struct FileProgress {
    pub path: String,
    pub bytes: u64,
    pub done_bytes: u64,
    pub began: Instant,
}

impl SessionStats {
    pub(super) fn new(
        counters: Arc<Counters>,
        views: Arc<SessionTable>,
        guest: SessionInfo,
    ) -> Self {
        let SessionInfo { id, request, peer, who, agent, domain, used_hidden } = guest;
        Self {
            id,
            request,
            peer,
            address: peer.to_string(),
            who,
            agent,
            domain,
            began: Instant::now(),
            moved: Default::default(),
            spared: AtomicU64::new(0),
            ending: AtomicU64::new(0),
            slots: AtomicU64::new(0),
            memory: OnceLock::new(),
            files: Mutex::default(),
            links: Default::default(),
            fell_back: AtomicU64::new(0),
            used_hidden,
            counters,
            views,
        }
    }

    /// Sets the share that counts the memory of the session.
    pub fn set_memory_share(&self, memory: Arc<PoolShare>) {
        self.memory.get_or_init(|| memory);
    }

    /// Bytes of the memory budget that it uses.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.get().map_or(0, |memory| memory.used() as u64)
    }

    /// Counts an error that the client received, and keeps it for the status page.
    pub fn report_error(&self, fault: &Fault) {
        if self.used_hidden.load(Relaxed) {
            let Self { id: session, request, peer, .. } = self;
            tracing::warn!(%peer, session, request, cause = %fault, "error of a hidden export");
            return self.counters.count(fault);
        }
        self.counters.record(Some(self.peer), Some(self.id), fault);
    }

    /// Records the duration of a job's step.
    pub fn took(&self, step: Step, time: Duration) {
        self.counters.metrics.took(step, time);
    }

    /// Counts a page of a scan that was sent.
    pub fn scanned(&self) {
        self.counters.metrics.ended(Operation::Scan, Outcome::Ok, 1);
    }

    /// Counts finished operations on files, and keeps their errors.
    pub fn ended<'a>(&self, operation: Operation, faults: impl Iterator<Item = Option<&'a Fault>>) {
        let (mut ok, mut failed) = (0, 0);
        for fault in faults {
            match fault {
                None => ok += 1,
                Some(fault) => {
                    failed += 1;
                    self.report_error(fault);
                }
            }
        }
        self.counters.metrics.ended(operation, Outcome::Ok, ok);
        self.counters.metrics.ended(operation, Outcome::Failed, failed);
    }

    /// Logs a finished file: one line per file.
    pub fn log(&self, way: Direction, of: &FileRecord, answer: Result<(), &Fault>) {
        let Self { id: session, request, .. } = self;
        let (bytes, ms) = (of.bytes, of.began.elapsed().as_millis() as u64);
        // As strings, which the log quotes: a path may contain spaces.
        let (peer, path) = (self.address.as_str(), of.path.text());
        let path = path.as_ref();
        let transport = self.transport().map_or("none", Transport::word);
        match (way, answer) {
            (Direction::Read, Ok(())) => {
                tracing::info!(peer, session, request, path, bytes, ms, transport, "file sent");
            }
            (Direction::Write, Ok(())) => {
                tracing::info!(peer, session, request, path, bytes, ms, transport, "file stored");
            }
            // The client asked not to overwrite.
            (_, Err(cause)) if cause.code == Code::Exists => {
                tracing::info!(peer, session, request, path, "file left alone");
            }
            (_, Err(cause)) => {
                let hint = hint_of(cause.code);
                tracing::warn!(peer, session, request, path, %cause, hint, "file failed");
            }
        }
    }

    /// Notes the start of a file's transfer.
    pub fn file_began(&self, way: Direction, file: FileId, path: &WirePath, bytes: u64, have: u64) {
        if bytes < SHOWN_FILE_BYTES_MIN || self.used_hidden.load(Relaxed) {
            return;
        }
        let mut files = lock(&self.files);
        if files.len() < SHOWN_FILES_MAX {
            let (path, began) = (path.to_string(), Instant::now());
            files.insert((way, file), FileProgress { path, bytes, done_bytes: have, began });
        }
    }

    /// Notes the end of a file's transfer, whether it succeeded or not.
    pub fn file_ended(&self, way: Direction, file: FileId) {
        lock(&self.files).remove(&(way, file));
    }

    fn add(&self, way: Direction, transport: Transport, file: Option<FileId>, bytes: u64) {
        self.counters.metrics.moved(way, transport, bytes);
        self.moved[way as usize].fetch_add(bytes, Relaxed);
        if let Some(file) = file {
            self.advance(way, file, bytes);
        }
    }

    /// Adds bytes to the progress of a file.
    fn advance(&self, way: Direction, file: FileId, bytes: u64) {
        if let Some(progress) = lock(&self.files).get_mut(&(way, file)) {
            progress.done_bytes += bytes;
        }
    }

    /// Counts bytes of an upload that needed no transfer, and adds them to its progress.
    pub fn spared(&self, reason: Spared, file: FileId, bytes: u64) {
        self.count_spared(reason, bytes);
        self.advance(Direction::Write, file, bytes);
    }

    /// Counts bytes of uploads that needed no transfer.
    pub fn count_spared(&self, reason: Spared, bytes: u64) {
        self.counters.metrics.spared(reason, bytes);
        self.spared.fetch_add(bytes, Relaxed);
    }

    /// Counts a window that the client has verified and released.
    pub fn window_released(&self, window: &LeaseRecord, chunk_bytes: u32) {
        // Without a link the client compared digests, and transferred nothing.
        let Some(transport) = self.transport() else { return };
        let metrics = &self.counters.metrics;
        metrics.took(Step::Read, window.leased.elapsed());
        let chunks = window.bytes.div_ceil(u64::from(chunk_bytes.max(1)));
        metrics.checked(Direction::Read, transport, Verdict::Verified, chunks);
        self.add(Direction::Read, transport, window.file, window.bytes);
    }

    /// Counts pieces that the client reports as mismatched, and that the server could read.
    pub fn mismatched(&self, pieces: usize) {
        let transport = self.transport().unwrap_or(Transport::Tcp);
        let metrics = &self.counters.metrics;
        metrics.checked(Direction::Read, transport, Verdict::Mismatched, pieces as u64);
    }

    /// Counts a chunk that was verified, and stored if it matched.
    pub fn stored(
        &self,
        transport: Transport,
        pieces: impl Iterator<Item = (FileId, u64)>,
        verdicts: &[Stored],
        time: Duration,
    ) {
        let metrics = &self.counters.metrics;
        metrics.took(Step::Write, time);
        let mut worst = Verdict::Verified;
        for ((file, bytes), verdict) in pieces.zip(verdicts) {
            match verdict {
                Stored::Stored => self.add(Direction::Write, transport, Some(file), bytes),
                Stored::Mismatch => worst = Verdict::Mismatched,
                Stored::Failed(fault) => {
                    self.report_error(fault);
                    worst = Verdict::Failed;
                }
            }
        }
        metrics.checked(Direction::Write, transport, worst, 1);
        metrics.notified(transport);
    }

    /// Sets the live links and the number of queue pairs that are shutting down.
    pub fn set_links(&self, up: impl Iterator<Item = Transport>, ending: u64) {
        let mut counts = [0; 3];
        up.for_each(|transport| counts[transport as usize] += 1);
        for (counter, count) in self.links.iter().zip(counts) {
            counter.store(count, Relaxed);
        }
        self.ending.store(ending, Relaxed);
    }

    /// Counts a lost link.
    pub fn link_lost(&self, transport: Transport) {
        self.counters.metrics.link_lost(transport);
    }

    /// Counts changes in a watched folder that a comparison found and no event reported.
    pub fn watch_healed(&self, count: u64) {
        self.counters.metrics.watch_healed(count);
    }

    /// Counts a fallback to TCP by its first reason; a lost device later counts once more.
    pub fn fell_back(&self, reason: Fallback) {
        let told = 1 << reason as u64;
        let before = self.fell_back.fetch_or(told, Relaxed);
        if before == 0 || reason == Fallback::Lost && before & told == 0 {
            self.counters.metrics.fell_back(reason);
        }
    }

    /// The number of live links of a transport.
    pub fn links_of(&self, transport: Transport) -> u64 {
        self.links[transport as usize].load(Relaxed)
    }

    /// The transport with most live links; `None` without a link.
    pub fn transport(&self) -> Option<Transport> {
        let most = Transport::ALL.iter().rev().max_by_key(|&&of| self.links_of(of));
        most.copied().filter(|&transport| self.links_of(transport) > 0)
    }
}

impl Drop for SessionStats {
    fn drop(&mut self) {
        lock(&self.views).remove(&self.id);
    }
}
