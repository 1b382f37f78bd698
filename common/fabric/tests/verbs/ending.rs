//! How links end: forced, aborted, their peer dead, their port down or without its
//! address; and that every buffer comes back.

use crate::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;

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

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn abort_does_not_wait_for_a_peer_that_is_gone() {
    let offers = domain();
    // Two minutes until the device itself gives up.
    let options = Options { timeout_exponent: 22, ..Options::default() };
    let mut ends = Ends::between(sibling(&offers), offers, options);
    let region = ends.register(Memory::Staged(slot_with(&pattern(4096, 1))));
    ends.far.abort(&mut Vec::new());
    for ticket in 0..8 {
        let op = Op::Read { from: range(region, 0), into: empty(4096) };
        ends.near.submit(Ticket(ticket), op).expect("room");
    }
    let mut completions = Vec::new();
    ends.near.poll(&mut completions).expect("it knows of nothing yet");
    let begin = Instant::now();
    ends.near.abort(&mut completions);
    assert!(begin.elapsed() < Duration::from_secs(4), "waited for what was never flushed");
    assert_all_back(&completions, 8);
    let failed = |it: &Completion| matches!(it, Completion::Done { result: Err(_), .. });
    assert!(completions.iter().all(failed), "{completions:?}");
    assert_eq!(ends.asks.counters().reads(), 8);
    assert_eq!(leaked_count(), 0);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn what_was_done_before_an_abort_is_not_called_lost() {
    let mut ends = Ends::new();
    let slot = SharedSlot::new(4096).expect("slot");
    let region = ends.register(Memory::Upload(slot.clone()));
    let mut completions = Vec::new();
    // Nothing is there, so whatever comes next wakes it.
    ends.near.poll(&mut completions).expect("lives");
    let op = Op::Write { from: buffer_with(&[7; 4096]), to: range(region, 0) };
    ends.near.submit(Ticket(0), op).expect("room");
    until("the write is in the slot", || {
        let bytes = bytes_of(&slot);
        let written = bytes.iter().filter(|byte| **byte == 7).count();
        seen(bytes == [7; 4096], format!("{written} of 4096 bytes"))
    });
    // The acknowledgement has come when it would wake us; nobody polls for it.
    until("the near end is woken by the acknowledgement", || {
        let readable = is_readable(ends.near.wake().fd.expect("it sleeps on one"));
        seen(readable, "its descriptor has nothing to read")
    });
    ends.near.abort(&mut completions);
    only(completions, 0);
    assert_eq!(ends.asks.counters().writes(), 1);
}

/// Whether there is something to read.
fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut looked = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut looked, Some(&Timespec::default())).expect("the kernel looks") > 0
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

/// Sets the network device of the guest up or down, and waits until its port is.
fn set_port(netdev: &str, state: &str) {
    let set = Command::new("ip").args(["link", "set", netdev, state]).status().expect("ip runs");
    assert!(set.success());
    until(&format!("the port under {netdev} is {state}"), || {
        let usable = usable(&Wish::default());
        seen((state == "up") == usable.is_ok(), usable.map(|_| "a device can be used"))
    });
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_port_that_goes_down_ends_its_links_and_new_ones_work_when_it_is_back() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    // Only a guest says which: nobody's real network is touched.
    let Ok(netdev) = std::env::var("VERBATIM_RDMA_NETDEV") else { return };
    let mut ends = Ends::new();
    let known = place();
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
    let refused = VerbsEndpoint::new(&ends.asks, &known, Options::default());
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
    ip("add", "10.77.0.1/24");
    let place = until("the port has the address 10.77.0.1", || {
        let at = Wish { local: Some("10.77.0.1".parse().expect("address")), ..Wish::default() };
        let place = find_place(&at).expect("a place");
        let address = place.gid.ip().to_string();
        if address == "10.77.0.1" { Ok(place) } else { Err(address) }
    });
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
    let cause = until("the link dies, as its port has lost the address", || {
        let _ = ends.near.wake();
        match ends.near.poll(&mut Vec::new()) {
            Ok(()) => Err("it lives"),
            Err(cause) => Ok(cause.to_string()),
        }
    });
    assert!(cause.contains("the port lost the address of the link"), "{cause}");
    // Nor is another made there.
    match VerbsEndpoint::new(&ends.asks, &place, Options::default()) {
        Ok(_) => panic!("there is no such address"),
        Err(error) => assert!(error.to_string().contains("lost the address 10.77"), "{error}"),
    }
    let op = Op::Read { from: range(region, 0), into: empty(4096) };
    other.near.submit(Ticket(2), op).expect("room");
    only(other.near_completes(1), 2);
    assert_eq!(ends.asks.counters().reads(), 2);
}
