//! Verbs links on a real device, each connected to another on the same device:
//! what arrives, what is refused, what comes back when a link ends. Ignored by
//! default; `tests/softroce/run` runs them, in a guest where there is no device.
//! Every test asserts that requests were posted, so none passes over nothing.

mod ending;
mod guessing;
mod moving;
mod refusing;

use std::fmt::Debug;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbatim_fabric::verbs::{
    Context, DomainLimits, FileWindows, Options, Place, VerbsDomain, VerbsEndpoint, VerbsLink,
    Wish, find_place, leaked_count, probe, usable,
};
use verbatim_fabric::{
    Buffer, Completion, Domain, FabricError, Link, MappedFile, Memory, Op, RegionHandle,
    RemoteRange, SharedSlot, Ticket,
};

/// How long anything here may take; guests are slow.
const DEADLINE: Duration = Duration::from_secs(60);

fn place() -> Place {
    let device = std::env::var("VERBATIM_RDMA_DEVICE").ok();
    let wish = Wish { device, ..Wish::default() };
    find_place(&wish).expect("an RDMA device with an ACTIVE port")
}

fn domain() -> Arc<VerbsDomain> {
    VerbsDomain::open(&place(), DomainLimits::default()).expect("domain")
}

/// A domain on the same open device.
fn sibling(domain: &VerbsDomain) -> Arc<VerbsDomain> {
    VerbsDomain::new(domain.context(), DomainLimits::default()).expect("domain")
}

/// Two connected links and the domain of each: near asks, far offers.
struct Ends {
    near: VerbsLink,
    far: VerbsLink,
    asks: Arc<VerbsDomain>,
    offers: Arc<VerbsDomain>,
}

impl Ends {
    fn new() -> Self {
        let offers = domain();
        Self::between(sibling(&offers), offers, Options::default())
    }

    fn between(asks: Arc<VerbsDomain>, offers: Arc<VerbsDomain>, options: Options) -> Self {
        let place = place();
        let near = VerbsEndpoint::new(&asks, &place, options).expect("endpoint");
        let far = VerbsEndpoint::new(&offers, &place, options).expect("endpoint");
        let (here, there) = (near.address(), far.address());
        assert_ne!(here.packet, there.packet, "packet numbers are random");
        let near = near.connect(&there).expect("connects");
        let far = far.connect(&here).expect("connects");
        Self { near, far, asks, offers }
    }

    fn register(&self, memory: Memory) -> RegionHandle {
        self.offers.register(memory).expect("registers")
    }

    /// Polls both ends until the near one has `count` completions.
    #[track_caller]
    fn near_completes(&mut self, count: usize) -> Vec<Completion> {
        let (mut near, mut far) = (Vec::new(), Vec::new());
        until(&format!("the near end has {count} completions"), || {
            self.far.poll(&mut far).expect("the far end lives");
            self.near.poll(&mut near).expect("the near end lives");
            seen(near.len() >= count, completed(&near, &far))
        });
        near
    }

    /// Polls the near end until it dies; says why, and what completed before.
    fn near_dies(&mut self) -> (FabricError, Vec<Completion>) {
        death_of(&mut self.near)
    }
}

#[track_caller]
fn death_of(link: &mut VerbsLink) -> (FabricError, Vec<Completion>) {
    let mut completions = Vec::new();
    let cause = until("the link dies", || match link.poll(&mut completions) {
        Ok(()) => Err(format!("it lives, after {} completions", completions.len())),
        Err(cause) => Ok(cause),
    });
    (cause, completions)
}

/// Waits until `look` returns Ok; panics after `DEADLINE`, and says what `look` saw last.
#[track_caller]
fn until<T, S: Debug>(what: &str, mut look: impl FnMut() -> Result<T, S>) -> T {
    let begin = Instant::now();
    loop {
        let seen = match look() {
            Ok(value) => return value,
            Err(seen) => seen,
        };
        let late = begin.elapsed() >= DEADLINE;
        assert!(!late, "{what}: not within {DEADLINE:?}; last seen: {seen:?}");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// What a look returns: Ok when it is done, else what it saw.
fn seen<S>(done: bool, seen: S) -> Result<(), S> {
    if done { Ok(()) } else { Err(seen) }
}

/// How much completed at both ends of a link, for a message.
fn completed(near: &[Completion], far: &[Completion]) -> String {
    format!("{} completions at the near end, {} at the far end", near.len(), far.len())
}

/// Bytes that are the same at no two places a power of two apart, as those of a piece that went
/// astray would be.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    let mixed = |at: usize| ((at + seed * 977) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..len).map(|at| (mixed(at) >> 56) as u8).collect()
}

fn buffer_with(bytes: &[u8]) -> Buffer {
    let mut buffer = Buffer::new(bytes.len()).expect("buffer");
    buffer.copy_from_slice(bytes);
    buffer
}

fn empty(len: usize) -> Buffer {
    Buffer::new(len).expect("buffer")
}

/// A file on tmpfs, which is what /dev/shm is in every guest.
fn file_with(bytes: &[u8]) -> Arc<File> {
    let file = tempfile::tempfile_in("/dev/shm").expect("file");
    file.write_all_at(bytes, 0).expect("writes");
    Arc::new(file)
}

fn window_of(file: &Arc<File>, len: usize) -> Memory {
    Memory::File(MappedFile::new(file.clone(), 0, len).expect("maps"))
}

/// Whether this kernel pins read-only mappings of files: 6.1 does not, 6.12 does. Said here from
/// its version, so that no test takes a refusal by a newer one for granted.
fn pins_files() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("Linux");
    let mut numbers = release.split('.').map(|it| it.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) > (Some(6), Some(1))
}

/// The memory that a server offers a file as: mapped, or staged where the kernel wants that.
fn file_memory(bytes: &[u8]) -> Memory {
    match pins_files() {
        true => window_of(&file_with(bytes), bytes.len()),
        false => Memory::Staged(slot_with(bytes)),
    }
}

fn range(region: RegionHandle, offset: u64) -> RemoteRange {
    RemoteRange { key: region.key, address: region.base + offset }
}

fn slot_with(bytes: &[u8]) -> SharedSlot {
    let slot = SharedSlot::new(bytes.len()).expect("slot");
    slot.copy_in(0, bytes);
    slot
}

fn bytes_of(slot: &SharedSlot) -> Vec<u8> {
    let mut bytes = vec![0; slot.len()];
    slot.copy_out(0, &mut bytes);
    bytes
}

/// The buffer of the one operation that ended well.
fn only(mut completions: Vec<Completion>, ticket: u64) -> Buffer {
    assert_eq!(completions.len(), 1, "{completions:?}");
    match completions.remove(0) {
        Completion::Done { ticket: Ticket(number), buffer, result: Ok(()) } => {
            assert_eq!(number, ticket);
            buffer
        }
        other => panic!("{other:?}"),
    }
}

/// Asserts that the peer's device refused.
fn assert_refused(error: &FabricError) {
    assert!(error.to_string().contains("remote access error"), "{error}");
    assert!(error.hint().is_some_and(|hint| !hint.is_empty()), "{error:?}");
}
