//! Who may pin how much now: a pure account of one budget over all clients. No
//! lock, no clock, no memory; `pins` drives it.
//!
//! Each client that is let in has a floor of its own, which nobody else can take:
//! so each can always go on, whatever the others hold and never give back. What is
//! left above the floors is lent by a dynamic threshold: nobody may hold more of it
//! than stays free. One client alone gets half of it, n get equal parts and leave
//! as much, and a newcomer finds something free, without anything being taken from
//! those who were there first.

use std::collections::BTreeMap;

/// Windows that a client should be able to have at a time: one is read, the others are made.
const WINDOWS_AT_A_TIME: u64 = 4;

/// The account.
#[derive(Debug)]
pub(super) struct Book {
    budget: u64,
    /// What one client may hold, however much is free.
    client_max: u64,
    /// Floors, and what is held above them.
    used: u64,
    /// What is held, floors that are not in use left out.
    held: u64,
    held_peak: u64,
    clients: BTreeMap<u64, Client>,
}

#[derive(Debug, Default)]
struct Client {
    floor: u64,
    held: u64,
    /// It was refused something and wants to hear when there is more.
    waits: bool,
}

impl Client {
    fn above_floor(&self, more: u64) -> u64 {
        (self.held + more).saturating_sub(self.floor)
    }
}

impl Book {
    /// An account of so many bytes, of which one client may hold so many.
    pub fn new(budget: u64, client_max: u64) -> Self {
        Self { budget, client_max, used: 0, held: 0, held_peak: 0, clients: BTreeMap::new() }
    }

    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes held now, and the most at a time.
    pub fn held(&self) -> (u64, u64) {
        (self.held, self.held_peak)
    }

    pub fn client_count(&self) -> usize {
        self.clients.len()
    }

    /// Lets a client in with a floor; false when there is no room for it.
    pub fn admit(&mut self, id: u64, floor: u64) -> bool {
        if self.free() < floor {
            return false;
        }
        self.used += floor;
        self.clients.insert(id, Client { floor, ..Client::default() });
        true
    }

    /// Lends bytes to a client, or notes that it waits.
    pub fn ask(&mut self, id: u64, bytes: u64) -> bool {
        let free = self.free();
        let client = self.clients.get_mut(&id).expect("only clients that were let in ask");
        let above = client.above_floor(bytes);
        let more = above - client.above_floor(0);
        let fits = client.held + bytes <= self.client_max
            && (more == 0 || (more <= free && above <= free - more));
        if fits {
            client.held += bytes;
            self.used += more;
            self.held += bytes;
            self.held_peak = self.held_peak.max(self.held);
        } else {
            client.waits = true;
        }
        fits
    }

    /// Takes bytes back; returns who waited and should ask again.
    pub fn give_back(&mut self, id: u64, bytes: u64) -> Vec<u64> {
        let client = self.clients.get_mut(&id).expect("who holds something is in");
        let before = client.above_floor(0);
        client.held -= bytes;
        self.used -= before - client.above_floor(0);
        self.held -= bytes;
        self.take_waiting()
    }

    /// A client that holds nothing leaves; returns who waited.
    pub fn leave(&mut self, id: u64) -> Vec<u64> {
        let client = self.clients.remove(&id).expect("only clients that are in leave");
        assert_eq!(client.held, 0, "a client left with something in hand");
        self.used -= client.floor;
        self.take_waiting()
    }

    /// How long windows of a client should be: so that it can have several at a time, from
    /// `min` to `max`, a power of two. A client that holds nothing always gets one.
    pub fn window_bytes(&self, id: u64, min: u64, max: u64) -> u64 {
        let client = &self.clients[&id];
        let above = (self.free() + client.above_floor(0)) / 2;
        let bytes = (client.floor + above).min(self.client_max) / WINDOWS_AT_A_TIME;
        let power = if bytes == 0 { 0 } else { 1 << bytes.ilog2() };
        power.clamp(min, max)
    }

    fn free(&self) -> u64 {
        self.budget - self.used
    }

    fn take_waiting(&mut self) -> Vec<u64> {
        let waiting = self.clients.iter_mut().filter(|(_, client)| client.waits);
        waiting
            .map(|(&id, client)| {
                client.waits = false;
                id
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GRAIN: u64 = MIB / 4;

    /// Asks for windows until there are no more; returns how much it has.
    fn fill(book: &mut Book, id: u64) -> u64 {
        let mut got = 0;
        loop {
            let bytes = book.window_bytes(id, GRAIN, 16 * MIB);
            if !book.ask(id, bytes) {
                return got;
            }
            got += bytes;
        }
    }

    #[test]
    fn one_client_holds_no_more_than_it_may_however_much_is_free() {
        let mut book = Book::new(4096 * MIB, 64 * MIB);
        assert!(book.admit(1, MIB) && book.admit(2, MIB));
        assert!(book.ask(1, 4096), "a page");
        assert_eq!(fill(&mut book, 1), 48 * MIB, "windows of 16 MiB beside the page");
        assert_eq!(book.give_back(1, 16 * MIB), [1], "and is told when it may have another");
        assert!(book.ask(1, 16 * MIB) && book.ask(2, 16 * MIB));
    }

    #[test]
    fn one_client_alone_gets_most_and_has_several_windows() {
        let mut book = Book::new(8 * MIB, u64::MAX);
        assert!(book.admit(1, MIB));
        assert_eq!(book.window_bytes(1, GRAIN, 16 * MIB), MIB);
        let got = fill(&mut book, 1);
        assert!((4 * MIB..=5 * MIB).contains(&got), "{got}");
        assert_eq!(book.held(), (got, got));
    }

    #[test]
    fn a_newcomer_gets_something_although_the_first_gives_nothing_back() {
        let mut book = Book::new(64 * MIB, u64::MAX);
        assert!(book.admit(1, MIB));
        let hog = fill(&mut book, 1);
        assert!(hog > 24 * MIB, "{hog}");
        for id in 2..6 {
            assert!(book.admit(id, MIB), "no room for client {id}");
            assert!(fill(&mut book, id) >= MIB, "client {id} has less than its floor");
        }
        assert!(!book.ask(1, 4 * MIB), "who has the most gets more");
    }

    #[test]
    fn shares_even_out_as_windows_are_given_back() {
        let mut book = Book::new(100 * MIB, u64::MAX);
        let mut held: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for id in 0..4 {
            assert!(book.admit(id, MIB));
            while book.ask(id, MIB) {
                held.entry(id).or_default().push(MIB);
            }
        }
        let count = |held: &BTreeMap<u64, Vec<u64>>, id: u64| held.get(&id).map_or(0, Vec::len);
        assert!(count(&held, 0) > 4 * count(&held, 3), "the first had it all");
        for _ in 0..200 {
            for id in 0..4 {
                let Some(bytes) = held.get_mut(&id).and_then(Vec::pop) else { continue };
                for waiting in book.give_back(id, bytes) {
                    while book.ask(waiting, MIB) {
                        held.entry(waiting).or_default().push(MIB);
                    }
                }
            }
        }
        let counts: Vec<usize> = (0..4).map(|id| count(&held, id)).collect();
        let (least, most) = (counts.iter().min(), counts.iter().max());
        assert!(most <= least.map(|least| least + 3).as_ref(), "{counts:?}");
        assert!(counts.iter().sum::<usize>() > 70, "much is left unused: {counts:?}");
    }

    #[test]
    fn more_clients_than_floors_are_turned_away_and_let_in_later() {
        let mut book = Book::new(8 * MIB, u64::MAX);
        assert!((0..8).all(|id| book.admit(id, MIB)));
        assert!(!book.admit(8, MIB));
        assert!((0..8).all(|id| fill(&mut book, id) == MIB), "a floor is not held back");
        assert!(!book.ask(5, GRAIN));
        let waiting = [0, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(book.give_back(5, MIB), waiting, "those who wait are told");
        assert!(!book.ask(3, GRAIN), "the floor of another");
        assert_eq!(book.leave(5), [3], "those who wait again are told again");
        assert!(book.admit(8, MIB));
    }

    /// Random clients come, ask, give back and leave. The budget holds at every moment, and
    /// whoever holds nothing gets a window at once.
    #[test]
    fn the_budget_holds_and_nobody_starves() {
        for seed in 0..200_u64 {
            let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut roll = |below: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % below
            };
            let budget = MIB * (4 + roll(200));
            let mut book = Book::new(budget, u64::MAX);
            let mut held: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            for _ in 0..500 {
                let id = roll(20);
                match (roll(4), held.contains_key(&id)) {
                    (_, false) => {
                        if book.admit(id, MIB) {
                            held.insert(id, Vec::new());
                        }
                    }
                    (0, true) if held[&id].is_empty() => {
                        book.leave(id);
                        held.remove(&id);
                    }
                    (1 | 2, true) => {
                        let bytes = book.window_bytes(id, GRAIN, 16 * MIB);
                        let mine = held.get_mut(&id).expect("it is in");
                        match book.ask(id, bytes) {
                            true => mine.push(bytes),
                            false => assert!(!mine.is_empty(), "seed {seed}: {id} starves"),
                        }
                    }
                    (_, true) => {
                        let mine = held.get_mut(&id).expect("it is in");
                        if let Some(bytes) = mine.pop() {
                            book.give_back(id, bytes);
                        }
                    }
                }
                let total: u64 = held.values().flatten().sum();
                assert_eq!(book.held().0, total, "seed {seed}");
                assert!(total <= budget && book.used <= budget, "seed {seed}: {total}");
            }
        }
    }
}
