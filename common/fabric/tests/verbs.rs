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
    Context, DomainLimits, FileWindows, GidInfo, GidKind, Options, Place, VerbsDomain,
    VerbsEndpoint, VerbsLink, Wish, devices, leaked_count, probe, usable,
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

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_read_brings_what_is_in_a_file_and_in_a_staged_slot() {
    let mut ends = Ends::new();
    assert!(ends.near.transport().starts_with("verbs "), "{}", ends.near.transport());
    let bytes = pattern(5 << 20, 1);
    let file = ends.register(file_memory(&bytes));
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

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn many_operations_on_several_queue_pairs_all_arrive() {
    const LINKS: usize = 4;
    const CHUNK: usize = 256 << 10;
    let offers = domain();
    let asks = sibling(&offers);
    let bytes = pattern(8 << 20, 7);
    let region = offers.register(file_memory(&bytes)).expect("registers");
    let new_pair = |_| Ends::between(asks.clone(), offers.clone(), Options::default());
    let mut pairs: Vec<Ends> = (0..LINKS).map(new_pair).collect();
    let chunks = bytes.len() / CHUNK;
    for chunk in 0..chunks {
        let from = range(region, (chunk * CHUNK) as u64);
        let op = Op::Read { from, into: empty(CHUNK) };
        pairs[chunk % LINKS].near.submit(Ticket(chunk as u64), op).expect("room");
    }
    let mut done = Vec::new();
    until(|| {
        for pair in &mut pairs {
            pair.near.poll(&mut done).expect("lives");
            pair.far.poll(&mut Vec::new()).expect("lives");
        }
        done.len() == chunks
    });
    for completion in done {
        let Completion::Done { ticket: Ticket(chunk), buffer, result } = completion else {
            panic!("{completion:?}");
        };
        result.expect("arrives");
        let at = chunk as usize * CHUNK;
        assert!(buffer[..] == bytes[at..at + CHUNK], "chunk {chunk} differs");
    }
    assert_eq!(asks.counters().reads(), chunks as u64);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_link_takes_as_much_as_it_says_and_then_is_full() {
    let offers = domain();
    let options = Options { depth_max: 3, requests_max: 8, ..Options::default() };
    let mut ends = Ends::between(sibling(&offers), offers, options);
    let bytes = pattern(8 << 20, 3);
    let region = ends.register(file_memory(&bytes));
    let read = |len| Op::Read { from: range(region, 0), into: empty(len) };
    assert_eq!(ends.near.limits().message_bytes_max, 8 << 20, "eight requests of a piece each");
    ends.near.submit(Ticket(1), read(6 << 20)).expect("room");
    let full = ends.near.submit(Ticket(2), read(3 << 20)).expect_err("nine requests");
    assert_eq!(full.0.into_buffer().len(), 3 << 20, "the buffer comes back");
    ends.near.submit(Ticket(3), read(10)).expect("room");
    ends.near.submit(Ticket(4), read(10)).expect("room");
    assert!(ends.near.submit(Ticket(5), read(10)).is_err(), "three operations");
    let done = ends.near_completes(3);
    assert!(
        done.iter().all(|it| matches!(it, Completion::Done { result: Ok(()), .. })),
        "{done:?}"
    );
    ends.near.submit(Ticket(6), read(8 << 20)).expect("room again");
    let buffer = only(ends.near_completes(1), 6);
    assert!(buffer[..] == bytes[..], "differs");
    assert_eq!(ends.asks.counters().reads(), 6 + 1 + 1 + 8);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_sleeping_driver_is_woken_by_completions_and_notifications() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut ends = Ends::new();
    let slot = SharedSlot::new(4096).expect("slot");
    let region = ends.register(Memory::Upload(slot.clone()));
    let wait = |link: &mut VerbsLink, seen: &mut Vec<Completion>| {
        let begin = Instant::now();
        while seen.is_empty() {
            link.poll(seen).expect("lives");
            if !seen.is_empty() {
                break;
            }
            let wake = link.wake();
            assert_eq!(wake.at_most, None, "nothing but the descriptor wakes it");
            let mut fds = [PollFd::from_borrowed_fd(wake.fd.expect("fd"), PollFlags::IN)];
            let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
            let ready = poll(&mut fds, Some(&limit)).expect("polls");
            assert!(ready > 0, "not woken in 20 s");
            assert!(begin.elapsed() < DEADLINE, "woken for nothing again and again");
        }
    };
    for round in 0..200_u32 {
        let from = buffer_with(&round.to_be_bytes());
        let op = Op::WriteNotify { from, to: range(region, 0), tag: round };
        // The far end sleeps before anything is on its way, the near end right after.
        let mut far = Vec::new();
        ends.far.poll(&mut far).expect("lives");
        ends.near.submit(Ticket(1), op).expect("room");
        let mut near = Vec::new();
        wait(&mut ends.near, &mut near);
        only(near, 1);
        wait(&mut ends.far, &mut far);
        assert!(matches!(far[..], [Completion::Notified { tag }] if tag == round), "{far:?}");
    }
    assert_eq!(ends.asks.counters().writes(), 200);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_key_of_another_domain_is_refused_and_harms_only_who_used_it() {
    let offers = domain();
    let asks = sibling(&offers);
    let stranger = sibling(&offers);
    let bytes = pattern(64 << 10, 4);
    let region = offers.register(Memory::Staged(slot_with(&bytes))).expect("registers");
    let mut honest = Ends::between(asks.clone(), offers.clone(), Options::default());
    // Its far end is in a domain of its own, as every client's is.
    let mut thief = Ends::between(asks.clone(), stranger, Options::default());
    let read = || Op::Read { from: range(region, 0), into: empty(bytes.len()) };
    thief.near.submit(Ticket(1), read()).expect("room");
    let (error, mut flushed) = thief.near_dies();
    assert_refused(&error);
    thief.near.abort(&mut flushed);
    assert_eq!(flushed.len(), 1, "the buffer comes back");
    let Completion::Done { buffer, result, .. } = &flushed[0] else { panic!("{flushed:?}") };
    assert!(result.is_err() && buffer.iter().all(|&byte| byte == 0), "and brings nothing");
    let (seen, _) = death_of(&mut thief.far);
    // Older kernels flush and say no more.
    let told = ["the peer broke an access rule", "work request flushed"];
    assert!(told.iter().any(|text| seen.to_string().contains(text)), "{seen}");
    assert!(seen.hint().is_some(), "{seen:?}");

    honest.near.submit(Ticket(2), read()).expect("room");
    assert!(only(honest.near_completes(1), 2)[..] == bytes[..], "differs");
    assert_eq!(asks.counters().reads(), 2);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn what_a_region_does_not_allow_is_refused() {
    let bytes = pattern(8192, 5);
    let file = file_with(&bytes);
    let offered = || match pins_files() {
        true => window_of(&file, 8192),
        false => Memory::Staged(slot_with(&bytes)),
    };
    let upload = SharedSlot::new(8192).expect("slot");
    fn write(to: RemoteRange) -> Op {
        Op::Write { from: buffer_with(&[9; 100]), to }
    }
    fn notify(to: RemoteRange) -> Op {
        Op::WriteNotify { from: buffer_with(&[9; 100]), to, tag: 1 }
    }
    fn read(from: RemoteRange) -> Op {
        Op::Read { from, into: empty(100) }
    }
    let upload_of = || Memory::Upload(upload.clone());
    type Try = (&'static str, Memory, i64, fn(RemoteRange) -> Op);
    let cases: [Try; 6] = [
        ("write to a file", offered(), 0, write),
        ("write to staging", Memory::Staged(slot_with(&bytes)), 0, notify),
        ("write past the end", upload_of(), 8093, write),
        ("write before the start", upload_of(), -1, write),
        ("read past the end", offered(), 8093, read),
        ("read an upload", upload_of(), 0, read),
    ];
    for (what, memory, offset, op) in cases {
        let mut ends = Ends::new();
        let region = ends.register(memory);
        let at = RemoteRange { key: region.key, address: region.base.wrapping_add_signed(offset) };
        ends.near.submit(Ticket(1), op(at)).expect("room");
        let (error, _) = ends.near_dies();
        assert!(error.to_string().contains("remote access error"), "{what}: {error}");
        assert_eq!(ends.asks.counters().reads() + ends.asks.counters().writes(), 1, "{what}");
    }
    assert!(bytes_of(&upload).iter().all(|&byte| byte == 0), "nothing was written");
    let mut now = vec![0; 8192];
    file.read_exact_at(&mut now, 0).expect("reads");
    assert_eq!(now, bytes, "the file is as it was");
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_key_is_worth_nothing_after_its_region_was_taken_back() {
    let mut ends = Ends::new();
    let bytes = pattern(8192, 6);
    let region = ends.register(Memory::Staged(slot_with(&bytes)));
    let read = || Op::Read { from: range(region, 0), into: empty(8192) };
    ends.near.submit(Ticket(1), read()).expect("room");
    only(ends.near_completes(1), 1);
    assert_eq!((ends.offers.region_count(), ends.offers.pinned_bytes()), (1, 8192));
    ends.offers.deregister(region.key);
    assert_eq!((ends.offers.region_count(), ends.offers.pinned_bytes()), (0, 0));
    ends.near.submit(Ticket(2), read()).expect("room");
    assert_refused(&ends.near_dies().0);
    assert_eq!(ends.asks.counters().reads(), 2);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_queue_pair_forced_into_error_returns_every_buffer() {
    let mut ends = Ends::new();
    let bytes = pattern(8 << 20, 8);
    let region = ends.register(file_memory(&bytes));
    for ticket in 0..16 {
        let op = Op::Read { from: range(region, 0), into: empty(4 << 20) };
        ends.near.submit(Ticket(ticket), op).expect("room");
    }
    ends.near.fail();
    let (error, mut completions) = ends.near_dies();
    assert!(error.hint().is_some(), "{error}");
    ends.near.abort(&mut completions);
    assert_all_back(&completions, 16);
    assert!(
        ends.near.submit(Ticket(99), Op::Read { from: range(region, 0), into: empty(1) }).is_err()
    );
    assert!(matches!(ends.near.poll(&mut Vec::new()), Err(FabricError::Aborted)));
    assert_eq!(ends.asks.counters().reads(), 16 * 4);
    assert_eq!(leaked_count(), 0);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn abort_with_operations_in_flight_returns_every_buffer() {
    const LEN: usize = 1 << 20;
    let bytes = pattern(LEN, 1);
    for polls in [0, 1, 20] {
        let offers = domain();
        let options = Options { piece_bytes: LEN as u32 / 4, ..Options::default() };
        let mut ends = Ends::between(sibling(&offers), offers, options);
        let slot = SharedSlot::new(LEN).expect("slot");
        let region = ends.register(Memory::Upload(slot));
        for ticket in 0..20 {
            let from = buffer_with(&bytes);
            let op = Op::WriteNotify { from, to: range(region, 0), tag: ticket as u32 };
            ends.near.submit(Ticket(ticket), op).expect("room");
        }
        let mut completions = Vec::new();
        for _ in 0..polls {
            ends.near.poll(&mut completions).expect("lives");
            std::thread::sleep(Duration::from_millis(1));
        }
        let begin = Instant::now();
        ends.near.abort(&mut completions);
        assert!(begin.elapsed() < Duration::from_secs(4), "waited for what was never flushed");
        assert_all_back(&completions, 20);
        assert_eq!(ends.asks.counters().writes(), 20 * 4);
        // The other end finds out by itself, or is told by the control connection.
        ends.far.abort(&mut Vec::new());
    }
    assert_eq!(leaked_count(), 0);
}

/// Asserts that each of the operations 0 to `count` ended once.
fn assert_all_back(completions: &[Completion], count: u64) {
    let mut tickets: Vec<u64> = completions
        .iter()
        .map(|completion| match completion {
            Completion::Done { ticket: Ticket(number), .. } => *number,
            Completion::Notified { .. } => panic!("nobody notified us"),
        })
        .collect();
    tickets.sort_unstable();
    assert_eq!(tickets, (0..count).collect::<Vec<_>>());
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_dead_peer_is_noticed_and_everything_is_given_back() {
    let offers = domain();
    // About a twentieth of a second a try.
    let options = Options { timeout_exponent: 12, ..Options::default() };
    let mut ends = Ends::between(sibling(&offers), offers, options);
    let region = ends.register(Memory::Staged(slot_with(&pattern(4096, 1))));
    ends.far.abort(&mut Vec::new());
    ends.near
        .submit(Ticket(1), Op::Read { from: range(region, 0), into: empty(4096) })
        .expect("room");
    let (error, completions) = ends.near_dies();
    assert!(error.to_string().contains("the peer does not answer"), "{error}");
    assert_eq!(completions.len(), 1);
    assert_eq!(ends.asks.counters().reads(), 1);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_buffer_is_registered_once_and_in_every_domain_it_is_used_in() {
    let mut one = Ends::new();
    let mut two = Ends::new();
    let bytes = pattern(64 << 10, 2);
    let first = one.register(Memory::Staged(slot_with(&bytes)));
    let second = two.register(Memory::Staged(slot_with(&bytes)));
    let mut buffer = empty(64 << 10);
    for round in 0..6 {
        let (ends, region) = if round % 2 == 0 { (&mut one, first) } else { (&mut two, second) };
        buffer.set_len(1000 + round);
        buffer[..].fill(0);
        ends.near
            .submit(Ticket(1), Op::Read { from: range(region, 7), into: buffer })
            .expect("room");
        buffer = only(ends.near_completes(1), 1);
        assert!(buffer[..] == bytes[7..1007 + round], "differs");
    }
    assert_eq!((one.asks.pinned_regions(), two.asks.pinned_regions()), (1, 1));
    drop(buffer);
    assert_eq!((one.asks.pinned_regions(), two.asks.pinned_regions()), (0, 0));
    assert_eq!(one.asks.counters().reads() + two.asks.counters().reads(), 6);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_domain_pins_no_more_than_it_may() {
    let device = domain();
    let limits = DomainLimits { regions_max: 3, pinned_bytes_max: 1 << 20 };
    let offers = VerbsDomain::new(device.context(), limits).expect("domain");
    let slot = |len| Memory::Staged(SharedSlot::new(len).expect("slot"));
    offers.register(slot(512 << 10)).expect("fits");
    let error = offers.register(slot(513 << 10)).expect_err("too many bytes");
    assert!(matches!(&error, FabricError::Limit(_)), "{error}");
    assert!(error.to_string().contains("at most 1 MiB"), "{error}");
    let region = offers.register(slot(4096)).expect("fits");
    offers.register(slot(4096)).expect("fits");
    assert!(matches!(offers.register(slot(1)), Err(FabricError::Limit(_))), "a fourth region");
    offers.deregister(region.key);
    offers.register(slot(1)).expect("fits again");
    assert_eq!(offers.region_count(), 3);
    let mut ends = Ends::between(device, offers, Options::default());
    let op = Op::Read { from: range(region, 0), into: empty(1) };
    ends.near.submit(Ticket(1), op).expect("room");
    assert_refused(&ends.near_dies().0);
    assert_eq!(ends.asks.counters().reads(), 1);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_truncated_file_under_a_live_window_crashes_nobody() {
    let mut ends = Ends::new();
    let bytes = pattern(4 << 20, 9);
    let file = file_with(&bytes);
    let window = window_of(&file, bytes.len());
    let region = ends.offers.register(match pins_files() {
        true => window,
        // Nothing of it is mapped then, and nothing can go missing.
        false => Memory::Staged(slot_with(&bytes)),
    });
    let region = region.expect("registers");
    file.set_len(4096).expect("truncates");
    let at = 1 << 20;
    let op = Op::Read { from: range(region, at as u64), into: empty(64 << 10) };
    ends.near.submit(Ticket(1), op).expect("room");
    let mut completions = Vec::new();
    until(|| {
        // An error is an answer as well: on-demand regions refuse what is gone.
        ends.near.poll(&mut completions).is_err() || !completions.is_empty()
    });
    if let Some(Completion::Done { buffer, result: Ok(()), .. }) = completions.first() {
        let old = buffer[..] == bytes[at..at + (64 << 10)];
        assert!(old || buffer.iter().all(|&byte| byte == 0), "neither the old bytes nor none");
    }
    assert_eq!(ends.asks.counters().reads(), 1);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_write_from_a_file_sends_what_is_in_the_file() {
    let mut ends = Ends::new();
    let bytes = pattern(1 << 20, 11);
    let slot = SharedSlot::new(bytes.len()).expect("slot");
    let region = ends.register(Memory::Upload(slot.clone()));
    let mut from = empty(900_000);
    from.set_origin(file_with(&bytes), 50_000);
    ends.near.submit(Ticket(1), Op::Write { from, to: range(region, 0) }).expect("room");
    only(ends.near_completes(1), 1);
    assert!(bytes_of(&slot)[..900_000] == bytes[50_000..950_000], "differs");
    assert_eq!(ends.asks.counters().writes(), 1);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn the_probe_agrees_with_what_registers() {
    let context = Context::open(&place().device).expect("opens");
    let offers = VerbsDomain::new(&context, DomainLimits::default()).expect("domain");
    let bytes = pattern(8192, 1);
    let registered = offers.register(window_of(&file_with(&bytes), bytes.len()));
    let told = probe(&context, "/dev/shm".as_ref());
    match (&registered, &told) {
        (Ok(_), FileWindows::Mapped) => assert!(pins_files(), "an old kernel learned it"),
        (Err(error), FileWindows::Staged { reason }) => {
            assert!(!pins_files(), "{error}");
            assert_eq!(error.hint(), reason.hint());
            assert!(error.to_string().contains("read-only mappings"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let nowhere = probe(&context, "/nowhere".as_ref());
    let FileWindows::Staged { reason } = nowhere else { panic!("{nowhere:?}") };
    assert!(reason.to_string().contains("/nowhere"), "{reason}");
    let staged = offers.register(Memory::Staged(slot_with(&bytes))).expect("registers");
    let mut ends = Ends::between(sibling(&offers), offers, Options::default());
    ends.near
        .submit(Ticket(1), Op::Read { from: range(staged, 0), into: empty(8192) })
        .expect("room");
    assert!(only(ends.near_completes(1), 1)[..] == bytes[..], "differs");
    assert_eq!(ends.asks.counters().reads(), 1);
}

/// Sets the network device of the guest up or down, and waits until its port is.
fn set_port(netdev: &str, state: &str) {
    let set = Command::new("ip").args(["link", "set", netdev, state]).status().expect("ip runs");
    assert!(set.success());
    until(|| (state == "up") == usable(&Wish::default()).is_ok());
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_port_that_goes_down_ends_its_links_and_new_ones_work_when_it_is_back() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    // Only a guest says which: nobody's real network is touched.
    let Ok(netdev) = std::env::var("VERBATIM_RDMA_NETDEV") else { return };
    let mut ends = Ends::new();
    let region = ends.register(Memory::Staged(slot_with(&pattern(4096, 1))));
    let read = || Op::Read { from: range(region, 0), into: empty(4096) };
    ends.near.submit(Ticket(1), read()).expect("room");
    only(ends.near_completes(1), 1);
    ends.near.poll(&mut Vec::new()).expect("lives");
    set_port(&netdev, "down");
    let wake = ends.near.wake();
    let mut fds = [PollFd::from_borrowed_fd(wake.fd.expect("fd"), PollFlags::IN)];
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert!(poll(&mut fds, Some(&limit)).expect("polls") > 0, "an idle link is woken");
    for link in [&mut ends.near, &mut ends.far] {
        let (error, completions) = death_of(link);
        assert!(error.to_string().contains("the port went down"), "{error}");
        assert!(completions.is_empty(), "{completions:?}");
    }
    let refused = VerbsEndpoint::new(&ends.asks, &place_down(), Options::default());
    let refused = refused.map(drop).expect_err("the port is down").to_string();
    assert!(refused.contains("the port is not ACTIVE"), "{refused}");

    set_port(&netdev, "up");
    let mut ends = Ends::between(ends.asks.clone(), ends.offers.clone(), Options::default());
    ends.near.submit(Ticket(2), read()).expect("room");
    only(ends.near_completes(1), 2);
    assert_eq!(ends.asks.counters().reads(), 2);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_link_ends_when_its_port_loses_the_address_it_uses() {
    let Ok(netdev) = std::env::var("VERBATIM_RDMA_NETDEV") else { return };
    let ip = |action: &str, address: &str| {
        let mut command = Command::new("ip");
        let ran = command.args(["addr", action, address, "dev", &netdev]).status();
        assert!(ran.expect("ip runs").success());
    };
    let index_of = |address: &str| {
        let at = Wish { local: Some(address.parse().expect("address")), ..Wish::default() };
        let place = usable(&at).expect("a place");
        (place.gid.ip().to_string() == address).then_some(place)
    };
    ip("add", "10.77.0.1/24");
    let mut found = None;
    until(|| {
        found = index_of("10.77.0.1");
        found.is_some()
    });
    let place = found.expect("the port has it");
    let offers = domain();
    let asks = sibling(&offers);
    let near = VerbsEndpoint::new(&asks, &place, Options::default()).expect("endpoint");
    let far = VerbsEndpoint::new(&offers, &place, Options::default()).expect("endpoint");
    let (here, there) = (near.address(), far.address());
    let (near, far) = (near.connect(&there), far.connect(&here));
    let (near, far) = (near.expect("connects"), far.expect("connects"));
    let mut ends = Ends { near, far, asks, offers };
    let region = ends.register(Memory::Staged(slot_with(&pattern(4096, 1))));
    let op = Op::Read { from: range(region, 0), into: empty(4096) };
    ends.near.submit(Ticket(1), op).expect("room");
    only(ends.near_completes(1), 1);
    // One on another address of the port is not concerned.
    let mut other = Ends::between(ends.asks.clone(), ends.offers.clone(), Options::default());

    ip("del", "10.77.0.1/24");
    // As a driver that sleeps in between.
    let mut cause = None;
    until(|| {
        let _ = ends.near.wake();
        cause = ends.near.poll(&mut Vec::new()).err();
        cause.is_some()
    });
    let cause = cause.expect("it died").to_string();
    assert!(cause.contains("the port lost the address of the link"), "{cause}");
    let op = Op::Read { from: range(region, 0), into: empty(4096) };
    other.near.submit(Ticket(2), op).expect("room");
    only(other.near_completes(1), 2);
    assert_eq!(ends.asks.counters().reads(), 2);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_busy_link_never_asks_to_sleep_and_still_moves_bytes() {
    let offers = domain();
    let options = Options { busy_poll: true, ..Options::default() };
    let mut ends = Ends::between(sibling(&offers), offers, options);
    let bytes = pattern(300_000, 4);
    let region = ends.register(Memory::Staged(slot_with(&bytes)));
    assert_eq!(ends.near.wake().at_most, Some(Duration::ZERO));
    let op = Op::Read { from: range(region, 0), into: empty(bytes.len()) };
    ends.near.submit(Ticket(1), op).expect("room");
    assert!(only(ends.near_completes(1), 1)[..] == bytes[..], "differs");
    assert_eq!(ends.asks.counters().reads(), 1);
}

/// The place of a port that is down, as it was known before.
fn place_down() -> Place {
    let devices = devices().expect("the library is there");
    let device = devices.first().expect("a device");
    let port = device.ports.first().expect("a port");
    let gid = GidInfo { index: 0, raw: [0; 16], kind: GidKind::RoceV2 };
    Place {
        device: device.name.clone(),
        port: port.number,
        gid,
        link_layer: port.link_layer,
        mtu: port.mtu,
        lid: port.lid,
        message_bytes_max: port.message_bytes_max,
    }
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn an_ordinary_user_with_little_memlock_is_told_what_to_raise() {
    const INNER: &str = "VERBATIM_MEMLOCK_TEST";
    if std::env::var_os(INNER).is_some() {
        return with_little_memlock();
    }
    // Root is not bound by the limit: the test is this program again, as somebody else.
    let program = std::env::current_exe().expect("this program");
    let name = "an_ordinary_user_with_little_memlock_is_told_what_to_raise";
    let script = format!("ulimit -l 64 && exec {} --ignored --exact {name}", program.display());
    let nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all"];
    let mut run = Command::new("setpriv");
    run.args(nobody).args(["bash", "-c", &script]).env(INNER, "1");
    let output = run.output().expect("setpriv and bash run");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

fn with_little_memlock() {
    let offers = domain();
    let error = offers.register(Memory::Staged(SharedSlot::new(1 << 20).expect("slot")));
    let error = error.expect_err("1 MiB is more than 64 KiB");
    let text = error.to_string();
    assert_eq!(text, "cannot register 1 MiB for a staging slot: memlock limit is 64 KiB");
    assert!(error.hint().expect("hint").contains("ulimit -l unlimited"), "{error:?}");
    // What fits still works, and an operation whose buffer does not fit says so as well.
    let mut ends = Ends::between(
        sibling(&offers),
        offers,
        Options { requests_max: 4, receives: 4, depth_max: 2, ..Options::default() },
    );
    let region = ends.register(Memory::Staged(slot_with(&pattern(4096, 1))));
    ends.near
        .submit(Ticket(0), Op::Read { from: range(region, 0), into: empty(4096) })
        .expect("room");
    only(ends.near_completes(1), 0);
    ends.near
        .submit(Ticket(1), Op::Read { from: range(region, 0), into: empty(1 << 20) })
        .expect("room");
    let (error, completions) = ends.near_dies();
    assert!(error.to_string().contains("memlock limit is 64 KiB"), "{error}");
    assert_eq!(completions.len(), 1, "its buffer comes back");
    assert_eq!(ends.asks.counters().reads(), 1, "and it was not posted");
}
