//! Verbs links on a real device, each connected to another on the same device:
//! what arrives, what is refused, what comes back when a link ends. Ignored by
//! default; `tests/softroce/run` runs them, in a guest where there is no device.
//! Every test asserts that requests were posted, so none passes over nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbatim_fabric::verbs::{
    Context, DomainLimits, FileWindows, Options, Place, VerbsDomain, VerbsEndpoint, VerbsLink,
    Wish, leaked_count, probe, usable,
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
    usable(&wish).expect("an RDMA device with an ACTIVE port")
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
    fn near_completes(&mut self, count: usize) -> Vec<Completion> {
        let (mut near, mut far) = (Vec::new(), Vec::new());
        until(|| {
            self.far.poll(&mut far).expect("the far end lives");
            self.near.poll(&mut near).expect("the near end lives");
            near.len() >= count
        });
        near
    }

    /// Polls the near end until it dies; says why, and what completed before.
    fn near_dies(&mut self) -> (FabricError, Vec<Completion>) {
        death_of(&mut self.near)
    }
}

fn death_of(link: &mut VerbsLink) -> (FabricError, Vec<Completion>) {
    let mut completions = Vec::new();
    let mut cause = None;
    until(|| {
        cause = link.poll(&mut completions).err();
        cause.is_some()
    });
    (cause.expect("it died"), completions)
}

fn until(mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < DEADLINE, "nothing happens");
        std::thread::sleep(Duration::from_micros(50));
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at.wrapping_mul(31).wrapping_add(at >> 8).wrapping_add(seed)) as u8)
        .collect()
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

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_read_brings_what_is_in_a_file_and_in_a_staged_slot() {
    let mut ends = Ends::new();
    assert!(ends.near.transport().starts_with("verbs "), "{}", ends.near.transport());
    let bytes = pattern(5 << 20, 1);
    let file = ends.register(window_of(&file_with(&bytes), bytes.len()));
    let staged = ends.register(Memory::Staged(slot_with(&bytes[..100_000])));
    // Of one byte, of an odd length, of several pieces, across a page.
    let cases = [
        (file, 0, 1),
        (file, 4095, 2),
        (file, 12_345, 65_537),
        (file, 100, 5_000_000),
        (file, 0, 5 << 20),
        (staged, 0, 100_000),
        (staged, 99_999, 1),
    ];
    for (ticket, (region, at, len)) in cases.into_iter().enumerate() {
        let op = Op::Read { from: range(region, at as u64), into: empty(len) };
        ends.near.submit(Ticket(ticket as u64), op).expect("room");
        let buffer = only(ends.near_completes(1), ticket as u64);
        assert!(buffer[..] == bytes[at..at + len], "{len} bytes at {at} differ");
    }
    // A piece is a mebibyte: five for each of the long ones.
    assert_eq!(ends.asks.counters().reads(), 5 + 2 * 5);
    assert_eq!(ends.offers.counters().reads(), 0, "the far side only offers");
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_write_lands_and_its_notification_comes_after_it() {
    let mut ends = Ends::new();
    let slot = SharedSlot::new(3 << 20).expect("slot");
    let region = ends.register(Memory::Upload(slot.clone()));
    let mut notified = 0;
    for (ticket, len) in [1, 64, 65, 4096, 1 << 20, 3_000_001].into_iter().enumerate() {
        let bytes = pattern(len, ticket);
        let tag = 0xdead_0000 + ticket as u32;
        let (from, to) = (buffer_with(&bytes), range(region, 5));
        let op = if ticket % 2 == 0 {
            Op::WriteNotify { from, to, tag }
        } else {
            Op::Write { from, to }
        };
        let notifies = matches!(op, Op::WriteNotify { .. });
        ends.near.submit(Ticket(ticket as u64), op).expect("room");
        let (mut near, mut far) = (Vec::new(), Vec::new());
        until(|| {
            ends.far.poll(&mut far).expect("the far end lives");
            if !far.is_empty() {
                assert!(bytes_of(&slot)[5..5 + len] == bytes[..], "told before all had arrived");
            }
            ends.near.poll(&mut near).expect("the near end lives");
            near.len() + far.len() == 1 + usize::from(notifies)
        });
        only(near, ticket as u64);
        if notifies {
            assert!(
                matches!(far[..], [Completion::Notified { tag: told }] if told == tag),
                "{far:?}"
            );
            notified += 1;
        }
        assert!(bytes_of(&slot)[5..5 + len] == bytes[..], "{len} bytes differ");
    }
    assert_eq!(ends.asks.counters().writes(), 5 + 3);
    assert_eq!(ends.offers.counters().notifications(), notified);
}
