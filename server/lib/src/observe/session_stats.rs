//! One session as people see it: who, since when, over what, how much, and the
//! larger files under way. The session, its jobs and the workers that store its
//! chunks tell it what happens; each call is a few atomic additions. It goes
//! when the last of them lets go of it. Of a session that uses a hidden export
//! neither files nor errors are shown: those are logged.

use crate::limits::fair_pool::Taker;
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

/// Files of a session that are shown.
const FILES_MAX: usize = 64;

/// Files from this size on are shown; smaller ones are over before anybody looks.
const FILE_BYTES_MIN: u64 = 4 << 20;

/// Who a session is of.
pub(crate) struct Guest {
    pub id: u64,
    pub request: String,
    pub peer: SocketAddr,
    pub who: String,
    pub agent: String,
    pub domain: Arc<SessionDomain>,
    /// Turns true when its files and errors are for nobody else.
    pub discreet: Arc<AtomicBool>,
}

/// The sessions that are in, by number. Each leaves as it is dropped.
pub(crate) type Views = Mutex<BTreeMap<u64, Weak<View>>>;

/// A session, as it is shown.
pub(crate) struct View {
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
    /// Bytes of its uploads that did not have to move.
    pub spared: AtomicU64,
    /// Queue pairs that are being ended.
    pub ending: AtomicU64,
    /// Upload slots.
    pub slots: AtomicU64,
    /// What it has of the memory for clients.
    memory: OnceLock<Arc<Taker>>,
    pub files: Mutex<HashMap<(Direction, FileId), Moving>>,
    /// Links that are up, by transport.
    links: [AtomicU64; 3],
    fell_back: AtomicU64,
    discreet: Arc<AtomicBool>,
    counters: Arc<Counters>,
    views: Arc<Views>,
}

/// A file under way.
#[derive(Clone)]
pub(crate) struct Moving {
    pub path: String,
    pub bytes: u64,
    pub done_bytes: u64,
    pub began: Instant,
}

impl View {
    pub(super) fn new(counters: Arc<Counters>, views: Arc<Views>, guest: Guest) -> Self {
        let Guest { id, request, peer, who, agent, domain, discreet } = guest;
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
            discreet,
            counters,
            views,
        }
    }

    /// Says where the memory of the session is counted.
    pub fn keeps(&self, memory: Arc<Taker>) {
        self.memory.get_or_init(|| memory);
    }

    /// Bytes of memory that are kept for it.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.get().map_or(0, |memory| memory.has() as u64)
    }

    /// Keeps an error that the client was told, and counts it.
    pub fn trouble(&self, fault: &Fault) {
        if self.discreet.load(Relaxed) {
            let Self { id: session, request, peer, .. } = self;
            tracing::warn!(%peer, session, request, cause = %fault, "error of a hidden export");
            return self.counters.count(fault);
        }
        self.counters.keep(Some(self.peer), Some(self.id), fault);
    }

    /// A step that a job did took this long.
    pub fn took(&self, step: Step, time: Duration) {
        self.counters.metrics.took(step, time);
    }

    /// A page of a scan was told.
    pub fn scanned(&self) {
        self.counters.metrics.ended(Operation::Scan, Outcome::Ok, 1);
    }

    /// Counts files for which an operation is over, and keeps the errors among them.
    pub fn ended<'a>(&self, operation: Operation, faults: impl Iterator<Item = Option<&'a Fault>>) {
        let (mut ok, mut failed) = (0, 0);
        for fault in faults {
            match fault {
                None => ok += 1,
                Some(fault) => {
                    failed += 1;
                    self.trouble(fault);
                }
            }
        }
        self.counters.metrics.ended(operation, Outcome::Ok, ok);
        self.counters.metrics.ended(operation, Outcome::Failed, failed);
    }

    /// Logs a file that is over: the one line a file has.
    pub fn log(&self, way: Direction, of: &FileRecord, answer: Result<(), &Fault>) {
        let Self { id: session, request, .. } = self;
        let (bytes, ms) = (of.bytes, of.began.elapsed().as_millis() as u64);
        // As texts, which stand between quotes in a line for people: a path may have spaces.
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
            // The client asked for that.
            (_, Err(cause)) if cause.code == Code::Exists => {
                tracing::info!(peer, session, request, path, "file left alone");
            }
            (_, Err(cause)) => {
                let hint = hint_of(cause.code);
                tracing::warn!(peer, session, request, path, %cause, hint, "file failed");
            }
        }
    }

    /// A file is under way.
    pub fn began(&self, way: Direction, file: FileId, path: &WirePath, bytes: u64, have: u64) {
        if bytes < FILE_BYTES_MIN || self.discreet.load(Relaxed) {
            return;
        }
        let mut files = lock(&self.files);
        if files.len() < FILES_MAX {
            let (path, began) = (path.to_string(), Instant::now());
            files.insert((way, file), Moving { path, bytes, done_bytes: have, began });
        }
    }

    /// A file is over, one way or another.
    pub fn over(&self, way: Direction, file: FileId) {
        lock(&self.files).remove(&(way, file));
    }

    fn add(&self, way: Direction, transport: Transport, file: Option<FileId>, bytes: u64) {
        self.counters.metrics.moved(way, transport, bytes);
        self.moved[way as usize].fetch_add(bytes, Relaxed);
        if let Some(file) = file {
            self.advance(way, file, bytes);
        }
    }

    /// So much more of a file is there.
    fn advance(&self, way: Direction, file: FileId, bytes: u64) {
        if let Some(moving) = lock(&self.files).get_mut(&(way, file)) {
            moving.done_bytes += bytes;
        }
    }

    /// So much of an upload is there without having been moved.
    pub fn spared(&self, reason: Spared, file: FileId, bytes: u64) {
        self.count_spared(reason, bytes);
        self.advance(Direction::Write, file, bytes);
    }

    /// Counts bytes of uploads that did not have to move.
    pub fn count_spared(&self, reason: Spared, bytes: u64) {
        self.counters.metrics.spared(reason, bytes);
        self.spared.fetch_add(bytes, Relaxed);
    }

    /// A client gave a window back, and has verified what was in it.
    pub fn taken(&self, window: &LeaseRecord, chunk_bytes: u32) {
        // Without a link it compares digests, and nothing was moved.
        let Some(transport) = self.transport() else { return };
        let metrics = &self.counters.metrics;
        metrics.took(Step::Read, window.leased.elapsed());
        let chunks = window.bytes.div_ceil(u64::from(chunk_bytes.max(1)));
        metrics.checked(Direction::Read, transport, Verdict::Verified, chunks);
        self.add(Direction::Read, transport, window.file, window.bytes);
    }

    /// A client says that what it read does not match, and it could be read here.
    pub fn mismatched(&self, pieces: usize) {
        let transport = self.transport().unwrap_or(Transport::Tcp);
        let metrics = &self.counters.metrics;
        metrics.checked(Direction::Read, transport, Verdict::Mismatched, pieces as u64);
    }

    /// A chunk was checked, and stored if it matched.
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
                    self.trouble(fault);
                    worst = Verdict::Failed;
                }
            }
        }
        metrics.checked(Direction::Write, transport, worst, 1);
        metrics.notified(transport);
    }

    /// These links are up, and so many queue pairs are being ended.
    pub fn links(&self, up: impl Iterator<Item = Transport>, ending: u64) {
        let mut counts = [0; 3];
        up.for_each(|transport| counts[transport as usize] += 1);
        for (counter, count) in self.links.iter().zip(counts) {
            counter.store(count, Relaxed);
        }
        self.ending.store(ending, Relaxed);
    }

    /// A link died under the session.
    pub fn link_lost(&self, transport: Transport) {
        self.counters.metrics.link_lost(transport);
    }

    /// A comparison found changes in a folder that the client watches, which no event told.
    pub fn watch_healed(&self, count: u64) {
        self.counters.metrics.watch_healed(count);
    }

    /// The session moves to TCP; only the first reason counts, and a lost device once behind it.
    pub fn fell_back(&self, reason: Fallback) {
        let told = 1 << reason as u64;
        let before = self.fell_back.fetch_or(told, Relaxed);
        if before == 0 || reason == Fallback::Lost && before & told == 0 {
            self.counters.metrics.fell_back(reason);
        }
    }

    /// How many links of a kind are up.
    pub fn links_of(&self, transport: Transport) -> u64 {
        self.links[transport as usize].load(Relaxed)
    }

    /// What carries most of the session now, if anything does.
    pub fn transport(&self) -> Option<Transport> {
        let most = Transport::ALL.iter().rev().max_by_key(|&&of| self.links_of(of));
        most.copied().filter(|&transport| self.links_of(transport) > 0)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        lock(&self.views).remove(&self.id);
    }
}
