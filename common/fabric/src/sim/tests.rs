//! Tests of the simulated network through its public handles: what moves, in what
//! order, at what time, and that every fault strikes and is counted. The clock is
//! moved by hand except where the real one is the subject.

use super::*;
use crate::domain::Domain;
use crate::link::RemoteRange;
use crate::memory::{Buffer, FromFiles, MappedFile, Memory, SharedSlot};
use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

const SLOT_BYTES: usize = 256;
const ALWAYS: u32 = 1_000_000;

/// A client end `near` and a server end `far` with a slot to read and a slot to write.
struct Rig {
    net: SimNet,
    near: SimLink,
    far: SimLink,
    there: Arc<SoftDomain>,
    upload: SharedSlot,
    upload_key: u64,
    staged_key: u64,
}

impl Rig {
    fn new(faults: Faults) -> Self {
        Self::on(&SimNet::new(1, faults, SimClock::Manual))
    }

    fn on(net: &SimNet) -> Self {
        let there = SoftDomain::new();
        let (staged, upload) = (slot(), slot());
        staged.copy_in(0, &pattern());
        let staged_key = there.register(Memory::Staged(staged)).expect("registers").key;
        let upload_key = there.register(Memory::Upload(upload.clone())).expect("registers").key;
        let (near, far) = net.pair(SoftDomain::new(), there.clone());
        Self { net: net.clone(), near, far, there, upload, upload_key, staged_key }
    }

    fn read(&mut self, ticket: u64) {
        let op = Op::Read { from: at(self.staged_key, 0), into: buffer(&[0; SLOT_BYTES]) };
        self.near.submit(Ticket(ticket), op).expect("has room");
    }

    fn write(&mut self, ticket: u64, data: &[u8]) {
        let op = Op::Write { from: buffer(data), to: at(self.upload_key, 0) };
        self.near.submit(Ticket(ticket), op).expect("has room");
    }

    fn write_notify(&mut self, ticket: u64, data: &[u8], tag: u32) {
        let op = Op::WriteNotify { from: buffer(data), to: at(self.upload_key, 0), tag };
        self.near.submit(Ticket(ticket), op).expect("has room");
    }

    fn uploaded(&self) -> Vec<u8> {
        let mut bytes = vec![0; SLOT_BYTES];
        self.upload.copy_out(0, &mut bytes);
        bytes
    }
}

fn slot() -> SharedSlot {
    SharedSlot::new(SLOT_BYTES).expect("slot")
}

fn pattern() -> Vec<u8> {
    (0..SLOT_BYTES).map(|i| i as u8 ^ 0x5a).collect()
}

fn buffer(data: &[u8]) -> Buffer {
    let mut buffer = Buffer::new(data.len()).expect("buffer");
    buffer.copy_from_slice(data);
    buffer
}

fn at(key: u64, address: u64) -> RemoteRange {
    RemoteRange { key, address }
}

/// What an end polls, and whether it is alive.
fn poll(link: &mut SimLink) -> (Vec<Completion>, Result<(), FabricError>) {
    let mut completions = Vec::new();
    let alive = link.poll(&mut completions);
    (completions, alive)
}

fn abort(link: &mut SimLink) -> Vec<Completion> {
    let mut completions = Vec::new();
    link.abort(&mut completions);
    completions
}

/// Completions without their data: ticket and result, or the tag.
fn outline(completions: &[Completion]) -> Vec<String> {
    let line = |completion: &Completion| match completion {
        Completion::Done { ticket, result: Ok(()), .. } => format!("{} ok", ticket.0),
        Completion::Done { ticket, result: Err(e), .. } => format!("{} {e}", ticket.0),
        Completion::Notified { tag } => format!("notified {tag}"),
    };
    completions.iter().map(line).collect()
}

fn data(completion: &Completion) -> &[u8] {
    match completion {
        Completion::Done { buffer, .. } => buffer,
        Completion::Notified { .. } => panic!("a notification has no data"),
    }
}

fn bits_wrong(left: &[u8], right: &[u8]) -> u32 {
    left.iter().zip(right).map(|(l, r)| (l ^ r).count_ones()).sum()
}

#[test]
fn a_read_brings_bytes_and_a_write_places_them() {
    let mut rig = Rig::new(Faults::default());
    rig.read(1);
    rig.write(2, b"upload");
    let (completions, alive) = poll(&mut rig.near);
    assert_eq!(alive, Ok(()));
    assert_eq!(outline(&completions), ["1 ok", "2 ok"]);
    assert_eq!(data(&completions[0]), pattern());
    assert!(rig.uploaded().starts_with(b"upload\0"));
    assert!(poll(&mut rig.far).0.is_empty(), "a plain write tells nobody");
    let counts = SimCounts { ops: 2, bytes: SLOT_BYTES as u64 + 6, ..SimCounts::default() };
    assert_eq!(rig.net.counts(), counts);
}

#[test]
fn the_far_end_may_submit_as_well() {
    let (here, there) = (SoftDomain::new(), SoftDomain::new());
    let upload = slot();
    let key = here.register(Memory::Upload(upload.clone())).expect("registers").key;
    let net = SimNet::new(1, Faults::default(), SimClock::Manual);
    let (mut near, mut far) = net.pair(here, there);
    let op = Op::WriteNotify { from: buffer(b"back"), to: at(key, 3), tag: 7 };
    far.submit(Ticket(1), op).expect("has room");
    assert_eq!(outline(&poll(&mut near).0), ["notified 7"]);
    assert_eq!(outline(&poll(&mut far).0), ["1 ok"]);
    let mut bytes = [0; 7];
    upload.copy_out(0, &mut bytes);
    assert_eq!(&bytes, b"\0\0\0back");
}

#[test]
fn a_window_is_read_from_its_file_and_a_truncated_one_reads_as_zeros() {
    let mut file = tempfile::tempfile().expect("file");
    file.write_all(&[7; 8192]).expect("writes");
    let keep: File = file.try_clone().expect("clones");
    let window = MappedFile::new(Arc::new(file), 4096, 4096).expect("maps");
    let mut rig = Rig::new(Faults::default());
    let key = rig.there.register(Memory::File(window)).expect("registers").key;
    keep.set_len(4096 + 1000).expect("truncates");
    let op = Op::Read { from: at(key, 900), into: buffer(&[9; 200]) };
    rig.near.submit(Ticket(1), op).expect("has room");
    let (completions, _) = poll(&mut rig.near);
    assert_eq!(outline(&completions), ["1 ok"]);
    assert_eq!(data(&completions[0])[..100], [7; 100]);
    assert_eq!(data(&completions[0])[100..], [0; 100]);
}

#[test]
fn what_lies_in_files_is_read_from_them_among_what_lies_in_memory() {
    let mut file = tempfile::tempfile().expect("file");
    file.write_all(b"--file").expect("writes");
    let slot = SharedSlot::new(8).expect("slot");
    slot.copy_in(0, b"ab......");
    let mut from_files = FromFiles::default();
    from_files.push(2, 5, Arc::new(file), 2);
    let mut rig = Rig::new(Faults::default());
    let memory = Memory::Gathered(slot, Arc::new(from_files));
    let key = rig.there.register(memory).expect("registers").key;
    let op = Op::Read { from: at(key, 1), into: buffer(&[9; 7]) };
    rig.near.submit(Ticket(1), op).expect("has room");
    let (completions, _) = poll(&mut rig.near);
    assert_eq!(data(&completions[0])[..], *b"bfile\0.", "the file is shorter than was said");
}

#[test]
fn nothing_moves_before_its_time() {
    let mut rig = Rig::new(Faults { delay_ns: 1000, ..Faults::default() });
    rig.write_notify(1, b"later", 5);
    assert_eq!(rig.net.next_event_ns(), Some(1000));
    rig.net.advance_to(999);
    assert!(poll(&mut rig.near).0.is_empty() && poll(&mut rig.far).0.is_empty());
    assert_eq!(rig.uploaded(), [0; SLOT_BYTES]);
    rig.net.advance_to(1000);
    assert_eq!(rig.net.next_event_ns(), None);
    assert_eq!(outline(&poll(&mut rig.far).0), ["notified 5"]);
    rig.net.advance_to(5);
    assert_eq!(rig.net.now_ns(), 1000, "time does not go back");
}

#[test]
fn a_notification_comes_only_after_its_data() {
    let faults = Faults {
        reorder_ppm: ALWAYS / 2,
        reorder_ns: 5000,
        duplicate_ppm: ALWAYS / 4,
        jitter_ns: 300,
        ..Faults::default()
    };
    let mut rig = Rig::new(faults);
    for tag in 0..60 {
        let op = Op::WriteNotify {
            from: buffer(&[tag as u8 + 1]),
            to: at(rig.upload_key, u64::from(tag)),
            tag,
        };
        rig.near.submit(Ticket(u64::from(tag)), op).expect("has room");
    }
    let mut heard = 0;
    while let Some(next_ns) = rig.net.next_event_ns() {
        rig.net.advance_to(next_ns);
        for completion in poll(&mut rig.far).0 {
            let Completion::Notified { tag } = completion else { panic!("{completion:?}") };
            assert_eq!(u32::from(rig.uploaded()[tag as usize]), tag + 1);
            heard += 1;
        }
    }
    let counts = rig.net.counts();
    assert_eq!(heard, 60 + counts.duplicated);
    assert!(counts.reordered > 0 && counts.duplicated > 0, "{counts:?}");
}

/// Runs two links with all kinds of faults and writes down all that their ends see.
fn trace(seed: u64) -> (Vec<String>, SimCounts) {
    let faults = Faults {
        corrupt_ppm: 50_000,
        lose_ppm: 20_000,
        duplicate_ppm: 100_000,
        reorder_ppm: 100_000,
        reorder_ns: 3000,
        delay_ns: 1000,
        jitter_ns: 500,
        death_ppm: 2000,
        die_after_bytes: Some(1 << 20),
        bandwidth_bytes_per_s: Some(1_000_000_000),
    };
    let net = SimNet::new(seed, faults, SimClock::Manual);
    let mut rigs = [Rig::on(&net), Rig::on(&net)];
    let mut lines = Vec::new();
    let mut open = [true; 2];
    for round in 0..200_u32 {
        for (number, rig) in rigs.iter_mut().enumerate() {
            if open[number] && rig.near.depth() < 60 {
                rig.read(u64::from(round) * 2);
                rig.write_notify(u64::from(round) * 2 + 1, &round.to_le_bytes(), round);
            }
            for link in [&mut rig.near, &mut rig.far] {
                let (completions, alive) = poll(link);
                let flat = completions.iter().map(|c| match c {
                    Completion::Done { buffer, .. } => bits_wrong(buffer, &pattern()),
                    Completion::Notified { .. } => 0,
                });
                let wrong: Vec<u32> = flat.collect();
                open[number] &= alive.is_ok();
                lines.push(format!("{number} {:?} {wrong:?} {alive:?}", outline(&completions)));
            }
        }
        net.advance_to(u64::from(round) * 400);
    }
    (lines, net.counts())
}

impl SimLink {
    fn depth(&self) -> usize {
        self.net.state().depth_of(self.number, self.side)
    }
}

#[test]
fn the_same_seed_replays_exactly_and_another_does_not() {
    assert_eq!(trace(42), trace(42));
    assert_ne!(trace(42).0, trace(43).0);
    let (_, counts) = trace(42);
    assert!(counts.bytes > 0 && counts.reordered > 0 && counts.lost > 0, "{counts:?}");
}

#[test]
fn jitter_alone_keeps_the_order() {
    let mut rig = Rig::new(Faults { jitter_ns: 10_000, ..Faults::default() });
    (0..50).for_each(|ticket| rig.read(ticket));
    rig.net.advance_to(10_000);
    let expected: Vec<String> = (0..50).map(|ticket| format!("{ticket} ok")).collect();
    assert_eq!(outline(&poll(&mut rig.near).0), expected);
    assert_eq!(rig.net.counts().reordered, 0);
}

#[test]
fn a_held_back_operation_is_overtaken_and_counted() {
    let mut rig = Rig::new(Faults { reorder_ppm: 300_000, reorder_ns: 100, ..Faults::default() });
    (0..50).for_each(|ticket| rig.read(ticket));
    rig.net.advance_to(100);
    let (completions, _) = poll(&mut rig.near);
    assert_eq!(completions.len(), 50);
    let in_order: Vec<String> = (0..50).map(|ticket| format!("{ticket} ok")).collect();
    assert_ne!(outline(&completions), in_order);
    assert!(rig.net.counts().reordered > 0);
}

#[test]
fn a_corrupted_read_has_one_wrong_bit_in_the_buffer_only() {
    let mut rig = Rig::new(Faults { corrupt_ppm: ALWAYS, ..Faults::default() });
    rig.read(1);
    rig.read(2);
    let (completions, _) = poll(&mut rig.near);
    assert_eq!(outline(&completions), ["1 ok", "2 ok"]);
    assert_eq!(bits_wrong(data(&completions[0]), &pattern()), 1);
    // One bit again, not two: the first corruption left the memory alone.
    assert_eq!(bits_wrong(data(&completions[1]), &pattern()), 1);
    assert_eq!(rig.net.counts().corrupted, 2);
}

#[test]
fn a_corrupted_write_has_one_wrong_bit_in_the_slot_only() {
    let mut rig = Rig::new(Faults { corrupt_ppm: ALWAYS, ..Faults::default() });
    rig.write(1, &pattern());
    let (completions, _) = poll(&mut rig.near);
    assert_eq!(data(&completions[0]), pattern());
    assert_eq!(bits_wrong(&rig.uploaded(), &pattern()), 1);
    assert_eq!(rig.net.counts().corrupted, 1);
}

#[test]
fn a_lost_operation_comes_back_only_by_abort() {
    let mut rig = Rig::new(Faults { lose_ppm: ALWAYS, ..Faults::default() });
    rig.write_notify(1, b"lost", 1);
    rig.net.advance_to(u64::MAX);
    assert_eq!(rig.net.next_event_ns(), None);
    assert!(poll(&mut rig.near).0.is_empty() && poll(&mut rig.far).0.is_empty());
    let flushed = abort(&mut rig.near);
    assert_eq!(outline(&flushed), ["1 link was aborted"]);
    assert_eq!(data(&flushed[0]), b"lost");
    assert_eq!(rig.uploaded(), [0; SLOT_BYTES]);
    assert_eq!(rig.net.counts().lost, 1);
}

#[test]
fn a_duplicated_notification_arrives_twice_and_its_operation_completes_once() {
    let mut rig = Rig::new(Faults { duplicate_ppm: ALWAYS, jitter_ns: 100, ..Faults::default() });
    rig.write_notify(1, b"twice", 9);
    rig.net.advance_to(200);
    assert_eq!(outline(&poll(&mut rig.far).0), ["notified 9", "notified 9"]);
    assert_eq!(outline(&poll(&mut rig.near).0), ["1 ok"]);
    assert_eq!(rig.net.counts().duplicated, 1);
}

#[test]
fn a_death_ends_both_ends_and_flushes_what_was_in_flight() {
    let mut rig = Rig::new(Faults { death_ppm: ALWAYS, ..Faults::default() });
    rig.write(1, b"never");
    rig.read(2);
    let (completions, alive) = poll(&mut rig.near);
    assert_eq!(outline(&completions), ["1 peer closed the link", "2 link was aborted"]);
    assert_eq!(alive, Err(FabricError::Closed));
    assert_eq!(poll(&mut rig.far).1, Err(FabricError::Closed));
    assert_eq!(rig.uploaded(), [0; SLOT_BYTES]);
    assert_eq!(rig.net.counts().deaths, 1);
    rig.read(3);
    assert_eq!(outline(&poll(&mut rig.near).0), ["3 link was aborted"]);
}

#[test]
fn a_link_dies_after_its_bytes_and_tears_the_operation_that_crosses() {
    let faults = Faults { die_after_bytes: Some(10), ..Faults::default() };
    let mut rig = Rig::new(faults.clone());
    rig.write(1, b"abcdef");
    rig.write(2, b"ABCDEF");
    let (completions, alive) = poll(&mut rig.near);
    assert_eq!(outline(&completions), ["1 ok", "2 peer closed the link"]);
    assert_eq!(alive, Err(FabricError::Closed));
    assert!(rig.uploaded().starts_with(b"ABCDef\0"));
    assert_eq!((rig.net.counts().bytes, rig.net.counts().deaths), (10, 1));

    let mut exact = Rig::new(faults);
    exact.write_notify(1, b"0123456789", 1);
    let (completions, alive) = poll(&mut exact.near);
    assert_eq!((outline(&completions), alive), (vec!["1 ok".into()], Err(FabricError::Closed)));
    assert_eq!(outline(&poll(&mut exact.far).0), ["notified 1"], "heard before the death");
}

#[test]
fn new_faults_strike_only_links_made_later() {
    let net = SimNet::new(1, Faults::default(), SimClock::Manual);
    let mut before = Rig::on(&net);
    net.set_faults(Faults { death_ppm: ALWAYS, ..Faults::default() });
    let mut after = Rig::on(&net);
    before.read(1);
    after.read(1);
    assert_eq!(poll(&mut before.near).1, Ok(()));
    assert_eq!(poll(&mut after.near).1, Err(FabricError::Closed));
}

#[test]
fn a_wrong_key_kills_that_link_and_no_other() {
    let net = SimNet::new(1, Faults { delay_ns: 10, ..Faults::default() }, SimClock::Manual);
    let (mut bad, mut good) = (Rig::on(&net), Rig::on(&net));
    bad.read(1);
    let wrong = bad.staged_key.wrapping_add(1);
    let op = Op::Read { from: at(wrong, 0), into: buffer(&[0; 8]) };
    bad.near.submit(Ticket(2), op).expect("has room");
    bad.write(3, b"flushed");
    good.read(1);
    net.advance_to(10);
    let (completions, alive) = poll(&mut bad.near);
    assert_eq!(
        outline(&completions),
        ["1 ok", "2 remote access error: no such region", "3 link was aborted"]
    );
    assert!(matches!(alive, Err(FabricError::Access(_))), "{alive:?}");
    assert!(matches!(poll(&mut bad.far).1, Err(FabricError::Access(_))));
    assert_eq!(bad.uploaded(), [0; SLOT_BYTES]);
    let (completions, alive) = poll(&mut good.near);
    assert_eq!((outline(&completions), alive), (vec!["1 ok".into()], Ok(())));
    assert_eq!(net.counts().deaths, 0, "a death by misuse is not a fault");
}

#[test]
fn a_range_outside_its_region_or_a_stale_key_is_refused() {
    for (address, stale) in [(1, false), (u64::MAX, false), (0, true)] {
        let mut rig = Rig::new(Faults::default());
        let op = Op::Write { from: buffer(&pattern()), to: at(rig.upload_key, address) };
        rig.near.submit(Ticket(1), op).expect("has room");
        if stale {
            rig.there.deregister(rig.upload_key);
        }
        assert!(matches!(poll(&mut rig.near).1, Err(FabricError::Access(_))), "{address} {stale}");
        assert_eq!(rig.uploaded(), [0; SLOT_BYTES]);
    }
}

#[test]
fn abort_returns_everything_with_an_error_and_ends_both_directions() {
    let mut rig = Rig::new(Faults { delay_ns: 100, ..Faults::default() });
    rig.read(1);
    rig.net.advance_to(100);
    rig.write_notify(2, b"in flight", 4);
    let flushed = abort(&mut rig.near);
    assert_eq!(outline(&flushed), ["1 link was aborted", "2 link was aborted"]);
    assert!(abort(&mut rig.near).is_empty());
    rig.net.advance_to(10_000);
    assert_eq!(rig.uploaded(), [0; SLOT_BYTES]);
    assert_eq!(poll(&mut rig.near).1, Err(FabricError::Aborted));
    let (completions, alive) = poll(&mut rig.far);
    assert_eq!((outline(&completions), alive), (vec![], Err(FabricError::Closed)));
}

#[test]
fn dropping_one_end_ends_the_other_and_stops_what_was_in_flight() {
    let mut rig = Rig::new(Faults { delay_ns: 100, ..Faults::default() });
    rig.write(1, b"in flight");
    let Rig { net, near, mut far, upload, .. } = rig;
    drop(near);
    net.advance_to(100);
    assert_eq!(poll(&mut far).1, Err(FabricError::Closed));
    upload.with(0, SLOT_BYTES, |bytes| assert_eq!(bytes, [0; SLOT_BYTES]));
    drop(far);
    assert_eq!(net.state().link_count(), 0, "a link without handles is forgotten");
}

#[test]
fn a_link_is_full_at_its_depth_until_polled() {
    let net = SimNet::new(1, Faults::default(), SimClock::Manual);
    net.set_limits(Limits {
        depth_max: 2,
        message_bytes_max: SLOT_BYTES,
        sends_from_file: true,
        registers_buffers: false,
    });
    let mut rig = Rig::on(&net);
    assert_eq!(rig.near.limits().depth_max, 2);
    rig.read(1);
    rig.read(2);
    let op = Op::Write { from: buffer(b"back"), to: at(rig.upload_key, 0) };
    let Full(op) = rig.near.submit(Ticket(3), op).expect_err("full");
    assert_eq!(&*op.into_buffer(), b"back");
    net.advance_to(1);
    assert!(
        rig.near
            .submit(Ticket(3), Op::Read { from: at(rig.staged_key, 0), into: buffer(b"?") })
            .is_err(),
        "unpolled completions count"
    );
    assert_eq!(poll(&mut rig.near).0.len(), 2);
    rig.read(3);
}

#[test]
fn an_operation_over_the_limit_ends_the_link() {
    let net = SimNet::new(1, Faults::default(), SimClock::Manual);
    net.set_limits(Limits {
        depth_max: 2,
        message_bytes_max: 4,
        sends_from_file: true,
        registers_buffers: false,
    });
    let mut rig = Rig::on(&net);
    rig.write(1, b"12345");
    let (completions, alive) = poll(&mut rig.near);
    assert_eq!(outline(&completions), ["1 operation of 5 bytes, the link takes 4"]);
    assert!(matches!(alive, Err(FabricError::Limit(_))));
}

#[test]
fn notifications_nobody_polls_end_the_link_at_their_bound() {
    let mut rig = Rig::new(Faults::default());
    let mut alive = Ok(());
    let mut sent = 0;
    while alive.is_ok() && sent < 10_000 {
        rig.write_notify(sent, b"x", 0);
        alive = poll(&mut rig.near).1;
        sent += 1;
    }
    assert!(matches!(alive, Err(FabricError::Limit(_))), "{alive:?} after {sent}");
    assert_eq!(poll(&mut rig.far).0.len(), link::NOTIFIED_MAX);
}

#[test]
fn eight_links_of_50_gb_per_s_take_the_modelled_time() {
    const OPS: u64 = 500;
    const OP_BYTES: usize = SLOT_BYTES;
    let faults =
        Faults { bandwidth_bytes_per_s: Some(50_000_000_000), delay_ns: 5, ..Faults::default() };
    let net = SimNet::new(1, faults, SimClock::Manual);
    let mut rigs: Vec<Rig> = (0..8).map(|_| Rig::on(&net)).collect();
    let mut left = [OPS; 8];
    let mut done = 0;
    while done < 8 * OPS {
        for (rig, left) in rigs.iter_mut().zip(&mut left) {
            done += poll(&mut rig.near).0.len() as u64;
            while *left > 0 && rig.near.depth() < 64 {
                rig.read(*left);
                *left -= 1;
            }
        }
        if let Some(next_ns) = net.next_event_ns() {
            net.advance_to(next_ns);
        }
    }
    assert_eq!(net.counts().bytes, 8 * OPS * OP_BYTES as u64);
    let modelled_ns = (OPS * OP_BYTES as u64) as f64 / 50.0;
    let ratio = net.now_ns() as f64 / modelled_ns;
    assert!((0.99..1.01).contains(&ratio), "{} ns for {modelled_ns} modelled", net.now_ns());
}

#[test]
fn the_two_directions_of_a_link_do_not_share_bandwidth() {
    let faults = Faults { bandwidth_bytes_per_s: Some(1_000_000_000), ..Faults::default() };
    let mut one_way = Rig::new(faults.clone());
    (0..4).for_each(|ticket| one_way.read(ticket));
    let mut both_ways = Rig::new(faults);
    both_ways.read(0);
    both_ways.read(1);
    both_ways.write(2, &pattern());
    both_ways.write(3, &pattern());
    for (rig, expected_ns) in [(&mut one_way, 1024), (&mut both_ways, 512)] {
        let mut last_ns = 0;
        while let Some(next_ns) = rig.net.next_event_ns() {
            rig.net.advance_to(next_ns);
            last_ns = next_ns;
        }
        assert_eq!(last_ns, expected_ns);
    }
}

#[test]
fn an_endpoint_is_taken_once_and_works() {
    let net = SimNet::new(1, Faults::default(), SimClock::Manual);
    let server = SoftDomain::new();
    let staged = slot();
    staged.copy_in(0, b"served");
    let key = server.register(Memory::Staged(staged)).expect("registers").key;
    let (endpoint, mut far) = net.listen_end(server);
    assert!(net.take_end(endpoint + 1, SoftDomain::new()).is_none(), "unknown");
    assert_eq!(poll(&mut far).1, Ok(()), "waiting is no error");
    let mut near = net.take_end(endpoint, SoftDomain::new()).expect("first take");
    assert!(net.take_end(endpoint, SoftDomain::new()).is_none(), "single use");
    let op = Op::Read { from: at(key, 0), into: buffer(&[0; 6]) };
    near.submit(Ticket(1), op).expect("has room");
    assert_eq!(data(&poll(&mut near).0[0]), b"served");
    drop(near);
    assert!(net.take_end(endpoint, SoftDomain::new()).is_none(), "used up");
    assert_eq!(poll(&mut far).1, Err(FabricError::Closed));
}

#[test]
fn an_endpoint_whose_listener_is_gone_or_aborted_cannot_be_taken() {
    let net = SimNet::new(1, Faults::default(), SimClock::Manual);
    let (gone, link) = net.listen_end(SoftDomain::new());
    drop(link);
    assert!(net.take_end(gone, SoftDomain::new()).is_none());
    let (aborted, mut link) = net.listen_end(SoftDomain::new());
    assert!(abort(&mut link).is_empty());
    assert!(net.take_end(aborted, SoftDomain::new()).is_none());
}

#[test]
fn an_operation_towards_an_end_nobody_took_ends_the_link() {
    let net = SimNet::new(1, Faults::default(), SimClock::Manual);
    let (endpoint, mut link) = net.listen_end(SoftDomain::new());
    let op = Op::Write { from: buffer(b"hello?"), to: at(1, 0) };
    link.submit(Ticket(1), op).expect("has room");
    assert!(matches!(poll(&mut link).1, Err(FabricError::Access(_))));
    assert!(net.take_end(endpoint, SoftDomain::new()).is_none());
}

#[test]
fn a_driver_on_the_real_clock_gets_there_by_sleeping_as_told() {
    let faults = Faults { delay_ns: 8_000_000, ..Faults::default() };
    let mut rig = Rig::on(&SimNet::new(1, faults, SimClock::Real));
    assert_eq!(rig.near.wake().at_most, Some(Duration::from_millis(1)), "idle");
    let begin = Instant::now();
    rig.write_notify(1, b"real", 3);
    let mut completions = Vec::new();
    while completions.is_empty() {
        let wake = rig.near.wake();
        assert!(wake.fd.is_none());
        let at_most = wake.at_most.expect("always told");
        assert!(at_most <= Duration::from_millis(5), "{at_most:?}");
        std::thread::sleep(at_most);
        rig.near.poll(&mut completions).expect("alive");
        assert!(begin.elapsed() < Duration::from_secs(10), "never completed");
    }
    assert!(begin.elapsed() >= Duration::from_millis(8));
    assert_eq!(rig.far.wake().at_most, Some(Duration::ZERO), "a notification is ready");
    assert_eq!(outline(&poll(&mut rig.far).0), ["notified 3"]);
    assert_eq!(rig.near.transport(), "sim");
}

#[test]
fn ends_may_be_driven_by_different_threads() {
    let faults = Faults { delay_ns: 10_000, jitter_ns: 5_000, ..Faults::default() };
    let Rig { mut near, mut far, upload_key, .. } =
        Rig::on(&SimNet::new(1, faults, SimClock::Real));
    let deadline = Instant::now() + Duration::from_secs(20);
    let listener = std::thread::spawn(move || {
        let mut heard = Vec::new();
        while heard.len() < 100 && Instant::now() < deadline {
            far.poll(&mut heard).expect("alive");
            std::thread::sleep(far.wake().at_most.expect("always told"));
        }
        heard.len()
    });
    let mut done = Vec::new();
    for tag in 0..100 {
        let op = Op::WriteNotify { from: buffer(&[1]), to: at(upload_key, 0), tag };
        let mut refused = near.submit(Ticket(u64::from(tag)), op).err();
        while let Some(Full(op)) = refused {
            near.poll(&mut done).expect("alive");
            refused = near.submit(Ticket(u64::from(tag)), op).err();
        }
    }
    while done.len() < 100 && Instant::now() < deadline {
        near.poll(&mut done).expect("alive");
    }
    assert_eq!(done.len(), 100);
    assert_eq!(listener.join().expect("no panic"), 100);
}
