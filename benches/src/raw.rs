//! What a copy costs without a check: the links and workers of the product, over
//! loopback TCP, moving the chunks of one file into another, with no digest, no
//! session and no protocol. Only for comparing: no command of ours can do this.
//! Also what one BLAKE3 pass costs. Called by `raw-copy` and `compare-bench`.

use crate::{OWN, cpu_of};
use std::collections::HashMap;
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use verbatim_fabric::tcp::{self, TcpLink};
use verbatim_fabric::worker::{Handler, LinkKey, LinkSet, WorkerHandle};
use verbatim_fabric::{
    Buffer, Completion, Domain, FabricError, Link, MappedFile, Memory, Op, RegionHandle,
    RemoteRange, SharedSlot, SoftDomain, SparePages, Ticket,
};
use verbatim_files::lanes::Lanes;
use verbatim_files::limit::processors;
use verbatim_proto::Digest;
use verbatim_proto::units::{
    CHUNK_BYTES_DEFAULT, GRAIN_BYTES, WINDOW_BYTES, links_for, workers_for,
};

/// Operations in flight on a link.
const SLOTS: u64 = 3;

const CHUNK_BYTES: u64 = CHUNK_BYTES_DEFAULT as u64;

/// The longest wait for one chunk.
const CHUNK_MAX: Duration = Duration::from_secs(30);

/// Which way the bytes go: as a download or as an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// The near side reads.
    Down,
    /// The near side writes.
    Up,
}

/// The file on its way, shared by all workers.
struct Job {
    way: Way,
    bytes: u64,
    next: AtomicU64,
    source: Arc<File>,
    target: File,
    lanes: Lanes,
    /// The windows of the source, in order; none on the way up.
    windows: Vec<RegionHandle>,
    stored: Sender<()>,
}

impl Job {
    /// The next chunk nobody has: its number, where it begins and how long it is.
    fn take(&self) -> Option<(u64, u64, usize)> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let offset = number * CHUNK_BYTES;
        let len = CHUNK_BYTES.min(self.bytes.checked_sub(offset)?);
        (len > 0).then_some((number, offset, len as usize))
    }

    /// Writes a chunk, in the steps in which a checked one is written, and no more at a time than of those.
    fn store(&self, bytes: &[u8], offset: u64) {
        let lane = self.lanes.take();
        for (grain, at) in bytes.chunks(GRAIN_BYTES as usize).zip((offset..).step_by(GRAIN)) {
            self.target.write_all_at(grain, at).expect("the target can be written");
        }
        drop(lane);
        self.stored.send(()).expect("somebody counts");
    }
}

const GRAIN: usize = GRAIN_BYTES as usize;

/// The side that asks: takes chunk after chunk on each link.
struct Near {
    job: Arc<Job>,
    /// Where each link may write to; none on the way down.
    slots: HashMap<LinkKey, Vec<RegionHandle>>,
}

impl Near {
    /// Begins the next chunk on a slot of a link, if there is one.
    fn submit(&self, link: &mut TcpLink, key: LinkKey, slot: u64, mut buffer: Buffer) {
        let Some((number, offset, len)) = self.job.take() else { return };
        buffer.set_len(len);
        let named = Ticket(number * SLOTS + slot);
        let op = match self.job.way {
            Way::Down => {
                let window = self.job.windows[(offset / WINDOW_BYTES) as usize];
                let address = window.base + offset % WINDOW_BYTES;
                Op::Read { from: RemoteRange { key: window.key, address }, into: buffer }
            }
            Way::Up => {
                buffer.send_from(0, len, self.job.source.clone(), offset);
                let to = self.slots[&key][slot as usize];
                let to = RemoteRange { key: to.key, address: to.base };
                Op::WriteNotify { from: buffer, to, tag: named.0 as u32 }
            }
        };
        assert!(link.submit(named, op).is_ok(), "there is room for what is in a slot");
    }
}

impl Handler<TcpLink> for Near {
    type Command = (LinkKey, TcpLink, Vec<RegionHandle>);

    fn command(&mut self, links: &mut LinkSet<TcpLink>, (key, link, slots): Self::Command) {
        self.slots.insert(key, slots);
        let link = links.entry(key).or_insert(link);
        for slot in 0..SLOTS {
            let buffer = Buffer::new(CHUNK_BYTES as usize).expect("a buffer");
            self.submit(link, key, slot, buffer);
        }
    }

    fn completed(&mut self, links: &mut LinkSet<TcpLink>, key: LinkKey, done: Completion) {
        let Completion::Done { ticket, buffer, result } = done else { return };
        result.expect("nothing is refused");
        if self.job.way == Way::Down {
            self.job.store(&buffer, ticket.0 / SLOTS * CHUNK_BYTES);
        }
        let link = links.get_mut(&key).expect("what completes has a link");
        let buffer = link.exchange(buffer);
        self.submit(link, key, ticket.0 % SLOTS, buffer);
    }

    fn lost(&mut self, key: LinkKey, flushed: Vec<Completion>, error: FabricError) {
        assert!(flushed.is_empty(), "{key:?} is gone: {error}");
    }
}

/// The side that is asked: serves reads, and stores what is written to its slots before the
/// same link receives anything else.
struct Far {
    job: Arc<Job>,
    slots: HashMap<LinkKey, Vec<SharedSlot>>,
}

impl Handler<TcpLink> for Far {
    type Command = (LinkKey, TcpLink, Vec<SharedSlot>);

    fn command(&mut self, links: &mut LinkSet<TcpLink>, (key, link, slots): Self::Command) {
        self.slots.insert(key, slots);
        links.insert(key, link);
    }

    fn completed(&mut self, _links: &mut LinkSet<TcpLink>, key: LinkKey, done: Completion) {
        let Completion::Notified { tag } = done else { return };
        let (number, slot) = (u64::from(tag) / SLOTS, u64::from(tag) % SLOTS);
        let offset = number * CHUNK_BYTES;
        let len = CHUNK_BYTES.min(self.job.bytes - offset) as usize;
        let slot = &self.slots[&key][slot as usize];
        slot.with(0, len, |bytes| self.job.store(bytes, offset));
        slot.give_back();
    }

    fn lost(&mut self, _key: LinkKey, _flushed: Vec<Completion>, _error: FabricError) {
        // The near side ends its links when all is done.
    }
}

/// Copies a file with nothing checked.
///
/// # Errors
/// When a socket or a worker cannot be had.
pub fn copy(way: Way, source: &Path, target: &Path) -> Result<(), FabricError> {
    let system = |error| FabricError::system("cannot open the files", error);
    let source = Arc::new(File::open(source).map_err(system)?);
    let target = File::create(target).map_err(system)?;
    let bytes = source.metadata().map_err(system)?.len();
    target.set_len(bytes).map_err(system)?;
    let domain = SoftDomain::new();
    let mut windows = Vec::new();
    for offset in (0..bytes).step_by(WINDOW_BYTES as usize) {
        let len = WINDOW_BYTES.min(bytes - offset) as usize;
        let window = MappedFile::new(source.clone(), offset, len)?;
        windows.push(domain.register(Memory::File(window))?);
    }
    let (stored, heard) = channel();
    let next = AtomicU64::new(0);
    let lanes = Lanes::default();
    let job = Arc::new(Job { way, bytes, next, source, target, lanes, windows, stored });
    let workers = carry(&job, &domain)?;
    for number in 0..bytes.div_ceil(CHUNK_BYTES) {
        heard.recv_timeout(CHUNK_MAX).unwrap_or_else(|_| panic!("chunk {number} does not come"));
    }
    drop(workers);
    Ok(())
}

type Workers<S> = Vec<WorkerHandle<(LinkKey, TcpLink, Vec<S>)>>;

/// Connects both sides and gives their workers the links: they begin at once.
fn carry(
    job: &Arc<Job>,
    domain: &Arc<SoftDomain>,
) -> Result<(Workers<RegionHandle>, Workers<SharedSlot>), FabricError> {
    let system = |error| FabricError::system("cannot connect to myself", error);
    let far = || Far { job: job.clone(), slots: HashMap::new() };
    let near = || Near { job: job.clone(), slots: HashMap::new() };
    // As many as our commands have on this machine.
    let (links, far_workers) =
        (u64::from(links_for(processors())), workers_for(processors()) as u64);
    let far: Vec<_> =
        (0..far_workers).map(|_| WorkerHandle::spawn("far", far())).collect::<Result<_, _>>()?;
    let near: Vec<_> =
        (0..links).map(|_| WorkerHandle::spawn("near", near())).collect::<Result<_, _>>()?;
    let listener = TcpListener::bind("127.0.0.1:0").map_err(system)?;
    let address = listener.local_addr().map_err(system)?;
    tcp::unpace(&listener, address);
    for number in 0..links {
        let (mut slots, mut regions) = (Vec::new(), Vec::new());
        let in_turns = SparePages::new(CHUNK_BYTES as usize);
        for _ in 0..if job.way == Way::Up { SLOTS } else { 0 } {
            let slot = in_turns.slot()?;
            regions.push(domain.register(Memory::Upload(slot.clone()))?);
            slots.push(slot);
        }
        let here = tcp::connect(address, CHUNK_MAX).map_err(system)?;
        let (there, _) = listener.accept().map_err(system)?;
        let there = TcpLink::new(there, domain.clone())?;
        far[(number % far_workers) as usize].send((LinkKey(number), there, slots))?;
        let here = TcpLink::new(here, SoftDomain::new())?;
        near[number as usize].send((LinkKey(number), here, regions))?;
    }
    Ok((near, far))
}

/// What hashing a GB takes of a processor: of bytes that are in its cache, as what has just
/// arrived is; and of a file in the page cache, with reading it.
#[derive(Clone, Copy, Debug)]
pub struct Hashing {
    /// Seconds a GB of bytes in cache.
    pub in_cache_s_per_gb: f64,
    /// Seconds a GB of a file.
    pub of_file_s_per_gb: f64,
}

/// Hashed to find out what hashing costs: enough for the kernel's clock ticks.
const HASHED_BYTES: u64 = 4 << 30;

/// How often hashing is measured. What is held against it is the best of several runs.
const HASHED_ROUNDS: usize = 3;

/// Measures hashing, with this file for its bytes: the least of several rounds.
pub fn hashing(path: &Path) -> Hashing {
    let file = File::open(path).expect("the file opens");
    let size = file.metadata().expect("a size").len() / GRAIN_BYTES * GRAIN_BYTES;
    assert!(size > 0, "{} is shorter than a grain", path.display());
    let mut grain = vec![0; GRAIN];
    file.read_exact_at(&mut grain, 0).expect("it can be read");
    let mut cost = |read: bool| {
        let before = cpu_of("self", OWN);
        for number in 0..HASHED_BYTES / GRAIN_BYTES {
            let offset = number * GRAIN_BYTES % size;
            if read {
                file.read_exact_at(&mut grain, offset).expect("it can be read");
            }
            std::hint::black_box(Digest::of_grain(offset, size + 1, &grain));
        }
        (cpu_of("self", OWN) - before).as_secs_f64() / (HASHED_BYTES as f64 / 1e9)
    };
    let (mut in_cache_s_per_gb, mut of_file_s_per_gb) = (f64::MAX, f64::MAX);
    for _ in 0..HASHED_ROUNDS {
        in_cache_s_per_gb = in_cache_s_per_gb.min(cost(false));
        of_file_s_per_gb = of_file_s_per_gb.min(cost(true));
    }
    Hashing { in_cache_s_per_gb, of_file_s_per_gb }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than a window, and no whole chunk at its end.
    const BYTES: usize = (WINDOW_BYTES + 3 * CHUNK_BYTES + 12_345) as usize;

    #[test]
    fn what_is_not_checked_is_still_copied() {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("source");
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at / 7 + at / 4096) as u8).collect();
        std::fs::write(&source, &bytes).expect("a file");
        for way in [Way::Down, Way::Up] {
            let target = folder.path().join(format!("{way:?}"));
            copy(way, &source, &target).expect("it is copied");
            assert!(std::fs::read(&target).expect("a copy") == bytes, "{way:?} is another file");
        }
    }
}
