//! What arrives: reads, writes and notifications of every size, on one queue pair
//! and on several, by drivers that sleep and drivers that do not.

use crate::*;

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
        let count = 1 + usize::from(notifies);
        until(&format!("{len} bytes are written: {count} completions at both ends"), || {
            ends.far.poll(&mut far).expect("the far end lives");
            if !far.is_empty() {
                assert!(bytes_of(&slot)[5..5 + len] == bytes[..], "told before all had arrived");
            }
            ends.near.poll(&mut near).expect("the near end lives");
            seen(near.len() + far.len() == count, completed(&near, &far))
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
    until(&format!("{chunks} chunks have arrived over {LINKS} links"), || {
        for pair in &mut pairs {
            pair.near.poll(&mut done).expect("lives");
            pair.far.poll(&mut Vec::new()).expect("lives");
        }
        seen(done.len() == chunks, done.len())
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
    const ROUNDS: u32 = 1000;
    let mut ends = Ends::new();
    let slot = SharedSlot::new(4096).expect("slot");
    let region = ends.register(Memory::Upload(slot.clone()));
    let wait = |link: &mut VerbsLink, seen: &mut Vec<Completion>| {
        let (begin, mut wakes) = (Instant::now(), 0);
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
            assert!(
                ready > 0,
                "the driver is not woken in 20 s, {:?} after it began",
                begin.elapsed()
            );
            wakes += 1;
            let late = begin.elapsed() >= DEADLINE;
            assert!(!late, "the driver is woken {wakes} times for nothing in {DEADLINE:?}");
        }
    };
    // When a driver looks decides which race it meets: sweep over the time an operation takes,
    // so that some completions come just before the queue is armed, and some just after.
    let mut takes = Duration::from_micros(100);
    for round in 0..ROUNDS {
        let from = buffer_with(&round.to_be_bytes());
        let op = Op::WriteNotify { from, to: range(region, 0), tag: round };
        // The far end sleeps before anything is on its way, the near end looks some time after.
        let mut far = Vec::new();
        ends.far.poll(&mut far).expect("lives");
        let begin = Instant::now();
        ends.near.submit(Ticket(1), op).expect("room");
        while begin.elapsed() < takes * (round % 97) / 64 {
            std::hint::spin_loop();
        }
        let mut near = Vec::new();
        wait(&mut ends.near, &mut near);
        if round % 97 == 0 {
            takes = begin.elapsed().min(Duration::from_millis(20));
        }
        only(near, 1);
        wait(&mut ends.far, &mut far);
        assert!(matches!(far[..], [Completion::Notified { tag }] if tag == round), "{far:?}");
    }
    assert_eq!(ends.asks.counters().writes(), u64::from(ROUNDS));
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
fn a_write_from_a_file_sends_what_is_in_the_file() {
    let mut ends = Ends::new();
    let bytes = pattern(1 << 20, 11);
    let slot = SharedSlot::new(bytes.len()).expect("slot");
    let region = ends.register(Memory::Upload(slot.clone()));
    let mut from = empty(900_000);
    from.send_from(0, 900_000, file_with(&bytes), 50_000);
    ends.near.submit(Ticket(1), Op::Write { from, to: range(region, 0) }).expect("room");
    only(ends.near_completes(1), 1);
    assert!(bytes_of(&slot)[..900_000] == bytes[50_000..950_000], "differs");
    assert_eq!(ends.asks.counters().writes(), 1);
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
