//! What a worker of the client does: it owns links, reads chunks, verifies and
//! writes them while they are in cache; or reads, hashes and sends them. Told
//! what to do by the session, answers into its event queue.
//!
//! Buffers: a slot leaves its pool with an operation and comes back with the
//! completion, on success, failure and flush alike.

use crate::connection::event::WorkerEvent;
use crate::connection::link_buffers::Pools;
use crate::connection::receive::{Landing, land, take};
use crate::local_io::counters::Stats;
use crate::local_io::endpoint::{Goal, Origin};
use crate::local_io::trace::Trace;
use crate::local_io::verify_file;
use crate::local_io::verify_file::Likeness;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use verbatim_fabric::slots::{MakeBuffer, SlotPool};
use verbatim_fabric::worker::{Handler, LinkKey, LinkSet};
use verbatim_fabric::{
    Buffer, Completion, FROM_FILE_BYTES_MIN, FabricError, Link, Op, RemoteRange, Ticket,
};
use verbatim_files::checked::Stopwatch;
use verbatim_proto::message::LinkId;
use verbatim_proto::read::{Fetch, Outcome};
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::write::{Post, Posted};
use verbatim_proto::{Digest, Extent, Fault};

/// What the session tells a worker.
pub(crate) enum Command {
    /// Take this link.
    Adopt { id: LinkId, link: Box<dyn Link>, slots: u16, chunk_bytes: usize },
    /// Read a chunk into these places.
    Fetch(Fetch, Vec<Landing>),
    /// Write a chunk of these sources.
    Post(Post, Vec<Origin>),
    /// Read nothing: compare the digests of a chunk with these files; those that were given up
    /// are none. Needs no link.
    Compare(Fetch, Vec<Option<Likeness>>),
    /// End this link.
    Drop(LinkId),
}

impl Command {
    /// Whether somebody waits for some of what it brings, before all that nobody waits for.
    pub fn is_urgent(&self) -> bool {
        let waits = |to: &Landing| matches!(&to.goal, Goal::Part(part) if part.haste.is_urgent());
        matches!(self, Self::Fetch(_, landings) if landings.iter().any(waits))
    }
}

/// The handler of one worker thread.
pub(crate) struct ClientWorker {
    events: mpsc::Sender<WorkerEvent>,
    stats: Arc<Stats>,
    trace: Option<Arc<Trace>>,
    links: HashMap<LinkKey, Pools>,
    flights: HashMap<Ticket, Flight>,
    next_ticket: u64,
    /// What became of posts since links were polled last, and is not told yet.
    posted: Vec<WorkerEvent>,
}

enum Flight {
    Fetch { fetch: Fetch, landings: Vec<Landing>, since: Option<Instant> },
    Post { bytes: u64, since: Option<Instant> },
}

/// A link's name as a number of its worker.
pub(crate) fn key_of(id: LinkId) -> LinkKey {
    LinkKey(u64::from(id.index) << 16 | u64::from(id.epoch))
}

impl ClientWorker {
    pub fn new(
        events: mpsc::Sender<WorkerEvent>,
        stats: Arc<Stats>,
        trace: Option<Arc<Trace>>,
    ) -> Self {
        let (links, flights) = (HashMap::new(), HashMap::new());
        Self { events, stats, trace, links, flights, next_ticket: 0, posted: Vec::new() }
    }

    fn tell(&self, event: WorkerEvent) {
        // Slots bound how many can be on the way; a session that is gone needs none.
        if self.events.try_send(event).is_err() {
            tracing::debug!("event of a worker came too late");
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    /// Says what became of a fetch, and how many bytes of it no link carried.
    fn answer(&self, fetch: &Fetch, spared_bytes: u64, outcome: Outcome) {
        let (link, slot) = (fetch.link, fetch.slot);
        self.tell(WorkerEvent::Fetched { link, slot, outcome, spared_bytes });
    }

    /// The time, where a trace is to tell of it: on some machines a clock is a system call.
    fn mark(&self) -> Option<Instant> {
        self.trace.as_ref().map(|_| Instant::now())
    }

    /// Takes a chunk from the file it replaces, or over its link. One whose link is gone is
    /// somebody else's by now, and its file may be another: nothing of it is touched.
    fn fetch_or_take(
        &mut self,
        links: &mut LinkSet<Box<dyn Link>>,
        fetch: Fetch,
        landings: Vec<Landing>,
    ) {
        if !self.links.contains_key(&key_of(fetch.link)) {
            return self.answer(&fetch, 0, Outcome::LinkLost);
        }
        match take(&fetch.chunk.pieces, &landings, &self.stats) {
            Some(outcome) => {
                // The target must not outlive the answer: a restart removes it.
                drop(landings);
                self.answer(&fetch, u64::from(fetch.chunk.bytes), outcome);
            }
            None => self.fetch(links, fetch, landings),
        }
    }

    fn fetch(&mut self, links: &mut LinkSet<Box<dyn Link>>, fetch: Fetch, landings: Vec<Landing>) {
        let key = key_of(fetch.link);
        let (Some(link), Some(pools)) = (links.get_mut(&key), self.links.get_mut(&key)) else {
            return self.answer(&fetch, 0, Outcome::LinkLost);
        };
        let mut into = match pools.reads.take(fetch.slot) {
            Ok(buffer) => buffer,
            Err(error) => return self.tell(WorkerEvent::WorkerFailed(error)),
        };
        into.set_len(fetch.chunk.bytes as usize);
        let from = RemoteRange { key: fetch.chunk.key, address: fetch.chunk.address };
        let ticket = self.ticket();
        match link.submit(ticket, Op::Read { from, into }) {
            Ok(()) => {
                let since = self.mark();
                self.flights.insert(ticket, Flight::Fetch { fetch, landings, since });
                self.links.get_mut(&key).expect("it was just there").fetching += 1;
            }
            Err(full) => {
                // The machine keeps within the depth, so only a dead link is full.
                let pools = self.links.get_mut(&key).expect("it was just there");
                pools.reads.put(fetch.slot, full.0.into_buffer());
                self.answer(&fetch, 0, Outcome::LinkLost);
            }
        }
    }

    fn post(&mut self, links: &mut LinkSet<Box<dyn Link>>, post: Post, sources: &[Origin]) {
        let Post { grant, pieces, again } = post;
        let tag = grant.tag;
        let key = key_of(grant.link);
        let Some(pools) = self.links.get_mut(&key) else {
            return self.posted.push(WorkerEvent::Posted { tag, posted: Posted::LinkLost });
        };
        let spare = pools.writes.pop().map_or_else(|| (pools.make)(pools.chunk_bytes), Ok);
        let mut buffer = match spare {
            Ok(buffer) => buffer,
            Err(error) => return self.tell(WorkerEvent::WorkerFailed(error)),
        };
        let bytes: u64 = pieces.iter().map(|(_, extent)| extent.len).sum();
        buffer.set_len(bytes as usize);
        // What did not match is sent as it was hashed, so that a file that keeps changing is found
        // out by its own check.
        let sends_from_file = links.get(&key).is_some_and(|link| link.limits().sends_from_file);
        let from_files = sends_from_file && !again;
        let since = self.mark();
        let (digests, faults) = self.load(&mut buffer, &pieces, sources, from_files);
        let Some(link) = links.get_mut(&key).filter(|_| faults.is_empty()) else {
            let posted = match faults.is_empty() {
                true => Posted::LinkLost,
                false => Posted::Unread(faults),
            };
            self.links.get_mut(&key).expect("it was just there").written(buffer);
            return self.posted.push(WorkerEvent::Posted { tag, posted });
        };
        let to = RemoteRange { key: grant.region.key, address: grant.region.base };
        let (ticket, is_device) = (self.ticket(), link.limits().registers_buffers);
        match link.submit(ticket, Op::WriteNotify { from: buffer, to, tag: tag.0 }) {
            Ok(()) => {
                if let Some((trace, since)) = self.trace.as_ref().zip(since) {
                    trace.worked("read and hash", grant.link.index, since, bytes);
                }
                self.flights.insert(ticket, Flight::Post { bytes, since: self.mark() });
                // Said before it has moved, so that the server knows what to expect when the data
                // is there: a device is at it already, a socket gets it when links are polled. A
                // link that dies before is fenced, and all it had not confirmed is sent again.
                self.posted.push(WorkerEvent::Posted { tag, posted: Posted::Sent(digests) });
                if is_device {
                    self.commanded();
                }
            }
            Err(full) => {
                let pools = self.links.get_mut(&key).expect("it was just there");
                pools.written(full.0.into_buffer());
                self.posted.push(WorkerEvent::Posted { tag, posted: Posted::LinkLost });
            }
        }
    }

    /// Reads and hashes the pieces of a chunk, a grain at a time. What can be sent from its file,
    /// where that is wanted, is only hashed: every grain goes through the same part of the buffer,
    /// which stays in cache.
    fn load(
        &self,
        buffer: &mut Buffer,
        pieces: &[(verbatim_proto::FileId, Extent)],
        sources: &[Origin],
        from_files: bool,
    ) -> (Vec<Vec<Digest>>, Vec<(usize, Fault)>) {
        let (mut begin, mut watch) = (0, Stopwatch::running());
        let mut digests = Vec::with_capacity(pieces.len());
        let mut faults = Vec::new();
        for (index, ((_, extent), source)) in pieces.iter().zip(sources).enumerate() {
            let piece_at = begin;
            begin += extent.len as usize;
            let is_long = pieces.len() == 1 || extent.len >= FROM_FILE_BYTES_MIN;
            let file = source.file().filter(|_| from_files && is_long);
            let size = source.size();
            let mut values = Vec::new();
            // Asked before the bytes are read: a write behind them must be seen.
            let settled = source.is_settled();
            for done in (0..extent.len).step_by(GRAIN_BYTES as usize) {
                let (offset, len) = (extent.offset + done, GRAIN_BYTES.min(extent.len - done));
                let at = piece_at + if file.is_some() { 0 } else { done as usize };
                let grain = &mut buffer[at..at + len as usize];
                if let Err(fault) = source.read_at(grain, offset) {
                    faults.push((index, fault));
                    break;
                }
                values.push(watch.hash(offset, size, grain));
            }
            if let Some(file) = file {
                buffer.send_from(piece_at, extent.len as usize, file.file().clone(), extent.offset);
            }
            if faults.is_empty() {
                source.hand_out(*extent, &values);
                if settled {
                    source.note(*extent, &values);
                }
            }
            digests.push(values);
        }
        let spent = watch.spent();
        self.stats.add(spent.disk, spent.hash);
        (digests, faults)
    }

    /// An operation ended: its buffer, or one like it, goes home, and the session is told.
    fn ended(
        &mut self,
        (key, over): (LinkKey, Option<&mut Box<dyn Link>>),
        ticket: Ticket,
        mut buffer: Buffer,
        ok: bool,
    ) {
        let flight = self.flights.remove(&ticket).expect("every ticket has a flight");
        match flight {
            Flight::Fetch { fetch, landings, since } => {
                let (link, bytes) = (fetch.link.index, u64::from(fetch.chunk.bytes));
                if let Some((trace, since)) = self.trace.as_ref().zip(since) {
                    trace.moved("read", link, since, bytes);
                }
                let landed = self.mark();
                let outcome = match ok {
                    true => Outcome::Landed(land(
                        &mut buffer,
                        &fetch.chunk.pieces,
                        &landings,
                        &self.stats,
                    )),
                    false => Outcome::LinkLost,
                };
                if let Some((trace, landed)) = self.trace.as_ref().zip(landed).filter(|_| ok) {
                    trace.worked("verify and store", link, landed, bytes);
                }
                // Somebody reads a part here and there, and waits for it.
                let waits = landings.iter().any(|to| matches!(to.goal, Goal::Part(_)));
                // The target must not outlive the answer: a restart removes it.
                drop(landings);
                let Some(pools) = self.links.get_mut(&key) else {
                    return self.answer(&fetch, 0, outcome);
                };
                let buffer = match over {
                    Some(link) => link.exchange(buffer),
                    None => buffer,
                };
                pools.reads.put(fetch.slot, buffer);
                let (link, slot) = (fetch.link, fetch.slot);
                let event = WorkerEvent::Fetched { link, slot, outcome, spared_bytes: 0 };
                pools.fetched(event, ok && !waits).into_iter().for_each(|event| self.tell(event));
            }
            Flight::Post { bytes, since } => {
                if let Some((trace, since)) = self.trace.as_ref().zip(since) {
                    // The key of a link is its index and its epoch.
                    trace.moved("write", (key.0 >> 16) as u16, since, bytes);
                }
                if let Some(pools) = self.links.get_mut(&key) {
                    pools.written(buffer);
                }
                if ok {
                    self.stats.moved(bytes);
                }
            }
        }
    }
}

impl Handler<Box<dyn Link>> for ClientWorker {
    type Command = Command;

    fn command(&mut self, links: &mut LinkSet<Box<dyn Link>>, command: Command) {
        match command {
            Command::Adopt { id, link, slots, chunk_bytes } => {
                let make: MakeBuffer = match link.limits().registers_buffers {
                    true => Buffer::for_device,
                    false => Buffer::new,
                };
                let reads = SlotPool::new(usize::from(slots), chunk_bytes, make);
                let pools = Pools::new(id, reads, make, chunk_bytes);
                self.links.insert(key_of(id), pools);
                links.insert(key_of(id), link);
            }
            Command::Fetch(fetch, landings) => self.fetch_or_take(links, fetch, landings),
            Command::Post(post, sources) => self.post(links, post, &sources),
            Command::Compare(fetch, likenesses) => {
                let outcome = verify_file::compare(&fetch.chunk.pieces, &likenesses, &self.stats);
                self.answer(&fetch, u64::from(fetch.chunk.bytes), outcome);
            }
            Command::Drop(id) => {
                if let Some(mut link) = links.remove(&key_of(id)) {
                    let mut flushed = Vec::new();
                    link.abort(&mut flushed);
                    self.lost(key_of(id), flushed, FabricError::Aborted);
                }
            }
        }
    }

    fn commanded(&mut self) {
        for event in std::mem::take(&mut self.posted) {
            self.tell(event);
        }
    }

    fn completed(&mut self, links: &mut LinkSet<Box<dyn Link>>, key: LinkKey, done: Completion) {
        match done {
            Completion::Done { ticket, buffer, result } => {
                self.ended((key, links.get_mut(&key)), ticket, buffer, result.is_ok());
            }
            // Servers do not write to clients.
            Completion::Notified { .. } => {}
        }
    }

    fn lost(&mut self, key: LinkKey, flushed: Vec<Completion>, error: FabricError) {
        // What became of its posts is told before its end.
        self.commanded();
        for completion in flushed {
            if let Completion::Done { ticket, buffer, .. } = completion {
                self.ended((key, None), ticket, buffer, false);
            }
        }
        if let Some(pools) = self.links.remove(&key) {
            pools.held.into_iter().for_each(|event| self.tell(event));
            self.tell(WorkerEvent::LinkLost { link: pools.id, error });
        }
    }

    fn waited(&mut self, time: Duration) {
        let counter = match self.flights.is_empty() {
            true => &self.stats.peer_ns,
            false => &self.stats.link_ns,
        };
        counter.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_io::download_file::Sink;
    use verbatim_files::Folder;
    use verbatim_proto::WirePath;
    use verbatim_proto::message::{FileId, FileInfo, Piece, WindowId};
    use verbatim_proto::read::{Chunk, PieceOutcome};

    /// A fetch of all of a file whose target has the same already.
    fn matching(folder: &std::path::Path) -> (Fetch, Landing) {
        let bytes = vec![7; 1 << 20];
        std::fs::write(folder.join("a"), &bytes).expect("writes");
        let path = WirePath::parse(b"a").expect("plain");
        let folder = Arc::new(Folder::open(folder).expect("opens"));
        let server = format!("SHA256:{}", "A".repeat(43)).parse().expect("a fingerprint");
        let basis =
            crate::local_io::delta_source::Basis { paths: vec![path.clone()], guess: false };
        let sink = Sink::new(folder, path.clone(), server, path);
        sink.compare_with(&basis);
        let size = bytes.len() as u64;
        let info = FileInfo { size, mode: 0o600, mtime_ns: 0, allocated: size, version: None };
        sink.opened(info).expect("there is room");
        let digests = Digest::of_grains(0, size, &bytes);
        let piece = Piece { file: FileId(1), extent: Extent::new(0, size), digests };
        let pieces = vec![piece];
        let chunk = Chunk { window: WindowId(1), key: 1, address: 0, bytes: 1 << 20, pieces };
        let link = LinkId { index: 0, epoch: 0 };
        (Fetch { link, slot: 0, chunk }, Landing { goal: Goal::File(sink), size })
    }

    #[test]
    fn a_fetch_that_comes_after_its_link_is_gone_touches_nothing() {
        let dir = tempfile::tempdir().expect("folder");
        let (events, mut heard) = mpsc::channel(8);
        let mut worker = ClientWorker::new(events, Arc::default(), None);
        let mut links = LinkSet::new();
        let (fetch, landing) = matching(dir.path());
        worker.command(&mut links, Command::Drop(fetch.link));
        let again = matching(dir.path()).1;
        worker.command(&mut links, Command::Fetch(fetch.clone(), vec![landing]));
        let Ok(WorkerEvent::Fetched { outcome, spared_bytes, .. }) = heard.try_recv() else {
            panic!("it is answered")
        };
        assert_eq!((outcome, spared_bytes), (Outcome::LinkLost, 0));
        assert_eq!(std::fs::read_dir(dir.path()).expect("lists").count(), 1, "nothing is begun");
        // With its link it is taken from the file it replaces, and no link carries it.
        let reads = SlotPool::new(1, 1 << 20, Buffer::new);
        let pools = Pools::new(fetch.link, reads, Buffer::new, 1 << 20);
        worker.links.insert(key_of(fetch.link), pools);
        worker.command(&mut links, Command::Fetch(fetch, vec![again]));
        let Ok(WorkerEvent::Fetched { outcome, spared_bytes, .. }) = heard.try_recv() else {
            panic!("it is answered")
        };
        let landed = Outcome::Landed(vec![PieceOutcome::Verified]);
        assert_eq!((outcome, spared_bytes), (landed, 1 << 20));
    }
}
