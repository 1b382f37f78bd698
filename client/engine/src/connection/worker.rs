//! The worker threads of a client. A worker owns links: it reads chunks, verifies and writes them
//! while they are in cache, or reads, hashes and sends them. The session sends it commands; the
//! worker answers into the session's event queue.
//!
//! Buffers: a slot leaves its pool with an operation and returns with the completion, after
//! success, failure and flush alike.

use crate::connection::event::WorkerEvent;
use crate::connection::link_buffers::LinkBuffers;
use crate::connection::receive::{ChunkTarget, copy_from_basis, verify_and_write};
use crate::local_io::counters::Stats;
use crate::local_io::endpoint::{DataSink, DataSource};
use crate::local_io::trace::Trace;
use crate::local_io::verify_file;
use crate::local_io::verify_file::ComparedFile;
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

/// A command of the session to a worker.
pub(crate) enum Command {
    /// Takes over a link.
    Adopt { id: LinkId, link: Box<dyn Link>, slots: u16, chunk_bytes: usize },
    /// Reads a chunk into these targets.
    Fetch(Fetch, Vec<ChunkTarget>),
    /// Writes a chunk from these sources.
    Post(Post, Vec<DataSource>),
    /// Compares the digests of a chunk with these files; an abandoned file is `None`. Needs no
    /// link.
    Compare(Fetch, Vec<Option<ComparedFile>>),
    /// Ends a link.
    Drop(LinkId),
}

impl Command {
    /// Whether a reader of a mount waits for this chunk.
    pub fn is_urgent(&self) -> bool {
        let waits = |to: &ChunkTarget| matches!(&to.sink, DataSink::Part(part) if part.priority.is_urgent());
        matches!(self, Self::Fetch(_, targets) if targets.iter().any(waits))
    }
}

/// The handler of one worker thread.
pub(crate) struct ClientWorker {
    events: mpsc::Sender<WorkerEvent>,
    stats: Arc<Stats>,
    trace: Option<Arc<Trace>>,
    links: HashMap<LinkKey, LinkBuffers>,
    in_flight: HashMap<Ticket, InFlight>,
    next_ticket: u64,
    /// Outcomes of posts, sent when the commands of a batch are done.
    posted: Vec<WorkerEvent>,
}

enum InFlight {
    Fetch { fetch: Fetch, targets: Vec<ChunkTarget>, since: Option<Instant> },
    Post { bytes: u64, since: Option<Instant> },
}

/// The worker's key of a link.
pub(crate) fn key_of(id: LinkId) -> LinkKey {
    LinkKey(u64::from(id.index) << 16 | u64::from(id.epoch))
}

impl ClientWorker {
    pub fn new(
        events: mpsc::Sender<WorkerEvent>,
        stats: Arc<Stats>,
        trace: Option<Arc<Trace>>,
    ) -> Self {
        let (links, in_flight) = (HashMap::new(), HashMap::new());
        Self { events, stats, trace, links, in_flight, next_ticket: 0, posted: Vec::new() }
    }

    fn send(&self, event: WorkerEvent) {
        // The number of slots bounds the queue; a session that has ended needs no event.
        if self.events.try_send(event).is_err() {
            tracing::debug!("event of a worker came too late");
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    /// Reports the outcome of a read, and how many of its bytes came from a basis.
    fn report_fetch(&self, fetch: &Fetch, basis_bytes: u64, outcome: Outcome) {
        let (link, slot) = (fetch.link, fetch.slot);
        self.send(WorkerEvent::Fetched { link, slot, outcome, basis_bytes });
    }

    /// The time, if a trace records it: reading the clock is a system call on some machines.
    fn trace_time(&self) -> Option<Instant> {
        self.trace.as_ref().map(|_| Instant::now())
    }

    /// Copies a chunk from a basis file, or reads it over its link. Touches nothing if the link is
    /// gone: the chunk was assigned elsewhere, and the file may be another version.
    fn fetch_or_copy_from_basis(
        &mut self,
        links: &mut LinkSet<Box<dyn Link>>,
        fetch: Fetch,
        targets: Vec<ChunkTarget>,
    ) {
        if !self.links.contains_key(&key_of(fetch.link)) {
            return self.report_fetch(&fetch, 0, Outcome::LinkLost);
        }
        match copy_from_basis(&fetch.chunk.pieces, &targets, &self.stats) {
            Some(outcome) => {
                // Drop the target before the answer: a restart removes it.
                drop(targets);
                self.report_fetch(&fetch, u64::from(fetch.chunk.bytes), outcome);
            }
            None => self.fetch(links, fetch, targets),
        }
    }

    fn fetch(
        &mut self,
        links: &mut LinkSet<Box<dyn Link>>,
        fetch: Fetch,
        targets: Vec<ChunkTarget>,
    ) {
        let key = key_of(fetch.link);
        let (Some(link), Some(buffers)) = (links.get_mut(&key), self.links.get_mut(&key)) else {
            return self.report_fetch(&fetch, 0, Outcome::LinkLost);
        };
        let mut into = match buffers.reads.take(fetch.slot) {
            Ok(buffer) => buffer,
            Err(error) => return self.send(WorkerEvent::WorkerFailed(error)),
        };
        into.set_len(fetch.chunk.bytes as usize);
        let from = RemoteRange { key: fetch.chunk.key, address: fetch.chunk.address };
        let ticket = self.ticket();
        match link.submit(ticket, Op::Read { from, into }) {
            Ok(()) => {
                let since = self.trace_time();
                self.in_flight.insert(ticket, InFlight::Fetch { fetch, targets, since });
                self.links.get_mut(&key).expect("it was just there").fetches_in_flight += 1;
            }
            Err(full) => {
                // The machine respects the queue depth, so only a dead link is full.
                let buffers = self.links.get_mut(&key).expect("it was just there");
                buffers.reads.put(fetch.slot, full.0.into_buffer());
                self.report_fetch(&fetch, 0, Outcome::LinkLost);
            }
        }
    }

    fn post(&mut self, links: &mut LinkSet<Box<dyn Link>>, post: Post, sources: &[DataSource]) {
        let Post { grant, pieces, again } = post;
        let tag = grant.tag;
        let key = key_of(grant.link);
        let Some(buffers) = self.links.get_mut(&key) else {
            return self.posted.push(WorkerEvent::Posted { tag, posted: Posted::LinkLost });
        };
        let spare =
            buffers.writes.pop().map_or_else(|| (buffers.make_buffer)(buffers.chunk_bytes), Ok);
        let mut buffer = match spare {
            Ok(buffer) => buffer,
            Err(error) => return self.send(WorkerEvent::WorkerFailed(error)),
        };
        let bytes: u64 = pieces.iter().map(|(_, extent)| extent.len).sum();
        buffer.set_len(bytes as usize);
        // A retried chunk is sent as it was hashed, so that the source check detects a file that
        // keeps changing.
        let sends_from_file = links.get(&key).is_some_and(|link| link.limits().sends_from_file);
        let from_files = sends_from_file && !again;
        let since = self.trace_time();
        let (digests, faults) = self.load(&mut buffer, &pieces, sources, from_files);
        let Some(link) = links.get_mut(&key).filter(|_| faults.is_empty()) else {
            let posted = match faults.is_empty() {
                true => Posted::LinkLost,
                false => Posted::Unread(faults),
            };
            self.links.get_mut(&key).expect("it was just there").recycle_write_buffer(buffer);
            return self.posted.push(WorkerEvent::Posted { tag, posted });
        };
        let to = RemoteRange { key: grant.region.key, address: grant.region.base };
        let (ticket, is_device) = (self.ticket(), link.limits().registers_buffers);
        match link.submit(ticket, Op::WriteNotify { from: buffer, to, tag: tag.0 }) {
            Ok(()) => {
                if let Some((trace, since)) = self.trace.as_ref().zip(since) {
                    trace.worked("read and hash", grant.link.index, since, bytes);
                }
                self.in_flight.insert(ticket, InFlight::Post { bytes, since: self.trace_time() });
                // Sent before the data moves, so that the server knows the digests when the data
                // arrives. A device is busy with it already; a socket gets it when links are
                // polled. If the link dies first, it is fenced, and unconfirmed chunks are sent
                // again.
                self.posted.push(WorkerEvent::Posted { tag, posted: Posted::Sent(digests) });
                if is_device {
                    self.commanded();
                }
            }
            Err(full) => {
                let buffers = self.links.get_mut(&key).expect("it was just there");
                buffers.recycle_write_buffer(full.0.into_buffer());
                self.posted.push(WorkerEvent::Posted { tag, posted: Posted::LinkLost });
            }
        }
    }

    /// Reads and hashes the pieces of a chunk, a grain at a time. A piece that the link sends from
    /// its file is only hashed: all its grains use the same part of the buffer, which stays in
    /// cache.
    fn load(
        &self,
        buffer: &mut Buffer,
        pieces: &[(verbatim_proto::FileId, Extent)],
        sources: &[DataSource],
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
            // Checked before the bytes are read, so that a later write is noticed.
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

    /// Handles a completion: returns the buffer to its pool and reports to the session.
    fn operation_ended(
        &mut self,
        (key, over): (LinkKey, Option<&mut Box<dyn Link>>),
        ticket: Ticket,
        mut buffer: Buffer,
        ok: bool,
    ) {
        let operation = self.in_flight.remove(&ticket).expect("every ticket has a flight");
        match operation {
            InFlight::Fetch { fetch, targets, since } => {
                let (link, bytes) = (fetch.link.index, u64::from(fetch.chunk.bytes));
                if let Some((trace, since)) = self.trace.as_ref().zip(since) {
                    trace.moved("read", link, since, bytes);
                }
                let landed = self.trace_time();
                let outcome = match ok {
                    true => Outcome::Landed(verify_and_write(
                        &mut buffer,
                        &fetch.chunk.pieces,
                        &targets,
                        &self.stats,
                    )),
                    false => Outcome::LinkLost,
                };
                if let Some((trace, landed)) = self.trace.as_ref().zip(landed).filter(|_| ok) {
                    trace.worked("verify and store", link, landed, bytes);
                }
                // A reader of a mount waits for a range in memory.
                let waits = targets.iter().any(|to| matches!(to.sink, DataSink::Part(_)));
                // Drop the target before the answer: a restart removes it.
                drop(targets);
                let Some(buffers) = self.links.get_mut(&key) else {
                    return self.report_fetch(&fetch, 0, outcome);
                };
                let buffer = match over {
                    Some(link) => link.exchange(buffer),
                    None => buffer,
                };
                buffers.reads.put(fetch.slot, buffer);
                let (link, slot) = (fetch.link, fetch.slot);
                let event = WorkerEvent::Fetched { link, slot, outcome, basis_bytes: 0 };
                buffers
                    .fetch_ended(event, ok && !waits)
                    .into_iter()
                    .for_each(|event| self.send(event));
            }
            InFlight::Post { bytes, since } => {
                if let Some((trace, since)) = self.trace.as_ref().zip(since) {
                    // The key of a link holds its index and its epoch.
                    trace.moved("write", (key.0 >> 16) as u16, since, bytes);
                }
                if let Some(buffers) = self.links.get_mut(&key) {
                    buffers.recycle_write_buffer(buffer);
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
                let make_buffer: MakeBuffer = match link.limits().registers_buffers {
                    true => Buffer::for_device,
                    false => Buffer::new,
                };
                let reads = SlotPool::new(usize::from(slots), chunk_bytes, make_buffer);
                let buffers = LinkBuffers::new(id, reads, make_buffer, chunk_bytes);
                self.links.insert(key_of(id), buffers);
                links.insert(key_of(id), link);
            }
            Command::Fetch(fetch, targets) => self.fetch_or_copy_from_basis(links, fetch, targets),
            Command::Post(post, sources) => self.post(links, post, &sources),
            Command::Compare(fetch, compared_files) => {
                let outcome =
                    verify_file::compare(&fetch.chunk.pieces, &compared_files, &self.stats);
                self.report_fetch(&fetch, u64::from(fetch.chunk.bytes), outcome);
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
            self.send(event);
        }
    }

    fn completed(&mut self, links: &mut LinkSet<Box<dyn Link>>, key: LinkKey, done: Completion) {
        match done {
            Completion::Done { ticket, buffer, result } => {
                self.operation_ended((key, links.get_mut(&key)), ticket, buffer, result.is_ok());
            }
            // Servers do not write to clients.
            Completion::Notified { .. } => {}
        }
    }

    fn lost(&mut self, key: LinkKey, flushed: Vec<Completion>, error: FabricError) {
        // Report the outcomes of posts before the loss of the link.
        self.commanded();
        for completion in flushed {
            if let Completion::Done { ticket, buffer, .. } = completion {
                self.operation_ended((key, None), ticket, buffer, false);
            }
        }
        if let Some(buffers) = self.links.remove(&key) {
            buffers.deferred.into_iter().for_each(|event| self.send(event));
            self.send(WorkerEvent::LinkLost { link: buffers.id, error });
        }
    }

    fn waited(&mut self, time: Duration) {
        let counter = match self.in_flight.is_empty() {
            true => &self.stats.peer_ns,
            false => &self.stats.link_ns,
        };
        counter.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_io::download_file::DownloadFile;
    use verbatim_files::Folder;
    use verbatim_proto::WirePath;
    use verbatim_proto::message::{FileId, FileInfo, Piece, WindowId};
    use verbatim_proto::read::{Chunk, PieceOutcome};

    /// A fetch of a whole file whose basis is identical.
    fn matching(folder: &std::path::Path) -> (Fetch, ChunkTarget) {
        let bytes = vec![7; 1 << 20];
        std::fs::write(folder.join("a"), &bytes).expect("writes");
        let path = WirePath::parse(b"a").expect("plain");
        let folder = Arc::new(Folder::open(folder).expect("opens"));
        let server = format!("SHA256:{}", "A".repeat(43)).parse().expect("a fingerprint");
        let basis =
            crate::local_io::delta_source::Basis { paths: vec![path.clone()], fuzzy: false };
        let local_file = DownloadFile::new(folder, path.clone(), server, path);
        local_file.set_basis(&basis);
        let size = bytes.len() as u64;
        let info = FileInfo { size, mode: 0o600, mtime_ns: 0, allocated: size, version: None };
        local_file.set_info(info).expect("there is room");
        let digests = Digest::of_grains(0, size, &bytes);
        let piece = Piece { file: FileId(1), extent: Extent::new(0, size), digests };
        let pieces = vec![piece];
        let chunk = Chunk { window: WindowId(1), key: 1, address: 0, bytes: 1 << 20, pieces };
        let link = LinkId { index: 0, epoch: 0 };
        (Fetch { link, slot: 0, chunk }, ChunkTarget { sink: DataSink::File(local_file), size })
    }

    #[test]
    fn a_fetch_on_a_lost_link_touches_nothing() {
        let dir = tempfile::tempdir().expect("folder");
        let (events, mut heard) = mpsc::channel(8);
        let mut worker = ClientWorker::new(events, Arc::default(), None);
        let mut links = LinkSet::new();
        let (fetch, target) = matching(dir.path());
        worker.command(&mut links, Command::Drop(fetch.link));
        let again = matching(dir.path()).1;
        worker.command(&mut links, Command::Fetch(fetch.clone(), vec![target]));
        let Ok(WorkerEvent::Fetched { outcome, basis_bytes, .. }) = heard.try_recv() else {
            panic!("it is answered")
        };
        assert_eq!((outcome, basis_bytes), (Outcome::LinkLost, 0));
        assert_eq!(std::fs::read_dir(dir.path()).expect("lists").count(), 1, "nothing is begun");
        // With a link, the chunk is copied from the basis and no link carries it.
        let reads = SlotPool::new(1, 1 << 20, Buffer::new);
        let buffers = LinkBuffers::new(fetch.link, reads, Buffer::new, 1 << 20);
        worker.links.insert(key_of(fetch.link), buffers);
        worker.command(&mut links, Command::Fetch(fetch, vec![again]));
        let Ok(WorkerEvent::Fetched { outcome, basis_bytes, .. }) = heard.try_recv() else {
            panic!("it is answered")
        };
        let landed = Outcome::Landed(vec![PieceOutcome::Verified]);
        assert_eq!((outcome, basis_bytes), (landed, 1 << 20));
    }
}
