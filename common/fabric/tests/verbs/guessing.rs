//! A peer that guesses and one that comes late: keys it was never told, and a
//! grant that was taken back. Each costs the peer its own queue pair and nobody
//! else anything.

use crate::*;

/// Guesses on either side of a real key, each on a queue pair of its own: the first wrong one
/// ends it.
const GUESSES: u64 = 24;

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_sweep_of_guessed_keys_finds_nothing_and_harms_nobody() {
    let offers = domain();
    let asks = sibling(&offers);
    let bytes = pattern(64 << 10, 7);
    let region = offers.register(Memory::Staged(slot_with(&bytes))).expect("registers");
    let mut honest = Ends::between(asks.clone(), offers.clone(), Options::default());
    // The sweeper's far end is in a domain of its own, as every client's is, with a region of
    // its own: its key is known to it, and the others are near it.
    let own = sibling(&offers);
    let known = own.register(Memory::Staged(slot_with(&pattern(4096, 8)))).expect("registers");
    let near = |key: u64| (1..=GUESSES / 2).flat_map(move |step| [key ^ step, key ^ (step << 8)]);
    for key in near(known.key).take(GUESSES as usize).chain([region.key]) {
        let mut sweeper = Ends::between(asks.clone(), own.clone(), Options::default());
        let from = RemoteRange { key, address: region.base };
        sweeper.near.submit(Ticket(1), Op::Read { from, into: empty(4096) }).expect("room");
        let (error, mut flushed) = sweeper.near_dies();
        assert_refused(&error);
        sweeper.near.abort(&mut flushed);
        let Completion::Done { buffer, result, .. } = &flushed[0] else { panic!("{flushed:?}") };
        assert!(result.is_err() && buffer.iter().all(|&byte| byte == 0), "{key:x} brings nothing");
    }
    let read = Op::Read { from: range(region, 0), into: empty(bytes.len()) };
    honest.near.submit(Ticket(2), read).expect("room");
    assert!(only(honest.near_completes(1), 2)[..] == bytes[..], "others are served");
    assert_eq!(asks.counters().reads(), GUESSES + 2);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_write_after_its_grant_was_taken_back_lands_nowhere() {
    let mut ends = Ends::new();
    let slot = SharedSlot::new(8192).expect("slot");
    let region = ends.register(Memory::Upload(slot.clone()));
    let write = |byte| Op::Write { from: buffer_with(&[byte; 8192]), to: range(region, 0) };
    ends.near.submit(Ticket(1), write(1)).expect("room");
    only(ends.near_completes(1), 1);
    ends.offers.deregister(region.key);
    ends.near.submit(Ticket(2), write(2)).expect("room");
    assert_refused(&ends.near_dies().0);
    assert!(bytes_of(&slot).iter().all(|&byte| byte == 1), "what came before is as it was");
    assert_eq!(ends.asks.counters().writes(), 2);
}
