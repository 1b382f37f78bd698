//! The account of pinned memory: who may pin how much now, of one budget for all clients. Pure: no
//! lock, no clock, no memory; `pin_budget` drives it.
//!
//! Each admitted client has a floor, as long as all floors fit the budget. Memory above the floors
//! is lent by a dynamic threshold: no client may hold more of it than stays free. So one client
//! gets half of it, n clients get equal parts and leave as much, and a new client always finds some
//! free.
//!
//! If many clients arrive at once, the budget owes them their floors: no client gets more than its
//! floor until those above theirs have returned some. A client that returns nothing is hoarding,
//! and `above_floor` names it.

use std::collections::BTreeMap;

/// Windows that a client should have at a time: it reads one while jobs make the others.
const WINDOWS_AT_A_TIME: u64 = 4;

/// The account.
#[derive(Debug)]
pub(crate) struct PinBook {
    budget: u64,
    /// The maximum of one client, however much is free.
    client_max: u64,
    /// Floors, plus bytes held above them; more than the budget while floors are owed.
    used: u64,
    floors: u64,
    /// Bytes held, without unused floors.
    held: u64,
    held_peak: u64,
    clients: BTreeMap<u64, Client>,
}

#[derive(Debug, Default)]
struct Client {
    floor: u64,
    held: u64,
    /// A request was refused: the client wants an event when there is more.
    waits: bool,
}

impl Client {
    fn above_floor(&self, more: u64) -> u64 {
        (self.held + more).saturating_sub(self.floor)
    }
}

impl PinBook {
    /// An account of `budget` bytes, of which one client may hold `client_max`.
    pub fn new(budget: u64, client_max: u64) -> Self {
        let clients = BTreeMap::new();
        Self { budget, client_max, used: 0, floors: 0, held: 0, held_peak: 0, clients }
    }

    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes held now, and the most ever.
    pub fn held(&self) -> (u64, u64) {
        (self.held, self.held_peak)
    }

    pub fn client_count(&self) -> usize {
        self.clients.len()
    }

    /// Admits a client with a floor; false if the floor does not fit.
    pub fn admit(&mut self, id: u64, floor: u64) -> bool {
        if self.floors + floor > self.budget {
            return false;
        }
        self.floors += floor;
        self.used += floor;
        self.clients.insert(id, Client { floor, ..Client::default() });
        true
    }

    /// Changes a client's floor; false if it does not fit.
    pub fn set_floor(&mut self, id: u64, floor: u64) -> bool {
        let client = self.clients.get_mut(&id).expect("only clients that were let in ask");
        let floors = self.floors - client.floor + floor;
        if floors > self.budget {
            return false;
        }
        self.used = self.used + floor.max(client.held) - client.floor.max(client.held);
        (self.floors, client.floor) = (floors, floor);
        true
    }

    /// Lends bytes to a client, or records that it waits.
    pub fn ask(&mut self, id: u64, bytes: u64) -> bool {
        let free = self.free();
        let client = self.clients.get_mut(&id).expect("only clients that were let in ask");
        let above = client.above_floor(bytes);
        let more = above - client.above_floor(0);
        let fits = match more {
            _ if client.held + bytes > self.client_max => false,
            // Its own floor, unless other clients still hold it.
            0 => self.held + bytes <= self.budget,
            more => more <= free && above <= free - more,
        };
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

    /// Returns bytes; gives the clients that waited and should ask again.
    pub fn give_back(&mut self, id: u64, bytes: u64) -> Vec<u64> {
        let client = self.clients.get_mut(&id).expect("who holds something is in");
        let before = client.above_floor(0);
        client.held -= bytes;
        self.used -= before - client.above_floor(0);
        self.held -= bytes;
        self.take_waiting()
    }

    /// Removes a client that holds nothing; gives the clients that waited.
    pub fn leave(&mut self, id: u64) -> Vec<u64> {
        let client = self.clients.remove(&id).expect("only clients that are in leave");
        assert_eq!(client.held, 0, "a client left with something in hand");
        self.used -= client.floor;
        self.floors -= client.floor;
        self.take_waiting()
    }

    /// The length of a client's windows if each takes `times` as much: a power of two from `min` to
    /// `max`, so that the client can have several. A client that holds nothing always gets one.
    pub fn window_bytes(&self, id: u64, times: u64, min: u64, max: u64) -> u64 {
        let client = &self.clients[&id];
        let above = (self.free() + client.above_floor(0)) / 2;
        let bytes = (client.floor + above).min(self.client_max) / WINDOWS_AT_A_TIME / times;
        let power = if bytes == 0 { 0 } else { 1 << bytes.ilog2() };
        power.clamp(min, max)
    }

    /// The clients above their floor.
    pub fn above_floor(&self) -> impl Iterator<Item = u64> {
        let above = |(_, client): &(&u64, &Client)| client.above_floor(0) > 0;
        self.clients.iter().filter(above).map(|(&id, _)| id)
    }

    /// Bytes that are neither held nor owed.
    fn free(&self) -> u64 {
        self.budget.saturating_sub(self.used)
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

    /// Takes windows until the book refuses; returns the sum.
    fn fill(book: &mut PinBook, id: u64) -> u64 {
        let mut got = 0;
        loop {
            let bytes = book.window_bytes(id, 1, GRAIN, 16 * MIB);
            if !book.ask(id, bytes) {
                return got;
            }
            got += bytes;
        }
    }

    #[test]
    fn a_client_never_pins_more_than_its_maximum() {
        let mut book = PinBook::new(4096 * MIB, 64 * MIB);
        assert!(book.admit(1, MIB) && book.admit(2, MIB));
        assert!(book.ask(1, 4096), "a page");
        assert_eq!(fill(&mut book, 1), 48 * MIB, "windows of 16 MiB beside the page");
        assert_eq!(book.give_back(1, 16 * MIB), [1], "and is told when it may have another");
        assert!(book.ask(1, 16 * MIB) && book.ask(2, 16 * MIB));
    }

    #[test]
    fn one_client_alone_gets_most_and_has_several_windows() {
        let mut book = PinBook::new(8 * MIB, u64::MAX);
        assert!(book.admit(1, MIB));
        assert_eq!(book.window_bytes(1, 1, GRAIN, 16 * MIB), MIB);
        let got = fill(&mut book, 1);
        assert!((4 * MIB..=5 * MIB).contains(&got), "{got}");
        assert_eq!(book.held(), (got, got));
    }

    #[test]
    fn a_new_client_gets_its_floor_although_the_first_returns_nothing() {
        let mut book = PinBook::new(64 * MIB, u64::MAX);
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
    fn clients_that_arrive_together_are_admitted_and_owed_their_floor() {
        let mut book = PinBook::new(16 * MIB, u64::MAX);
        assert!(book.admit(0, MIB));
        let hog = fill(&mut book, 0);
        assert!((1..16).all(|id| book.admit(id, MIB)), "their floors fit");
        let got: u64 = (1..16).map(|id| fill(&mut book, id)).sum();
        assert!(got + hog <= 16 * MIB && got >= 7 * MIB, "{got} and {hog}");
        assert!(!book.ask(0, GRAIN), "more for who owes");
        assert_eq!(book.above_floor().collect::<Vec<_>>(), [0]);
        book.give_back(0, hog);
        assert!((1..16).all(|id| fill(&mut book, id) > 0 || !book.ask(id, GRAIN)));
        assert!((1..16).all(|id| book.clients[&id].held == MIB), "{book:?}");
    }

    #[test]
    fn shares_even_out_as_windows_are_given_back() {
        let mut book = PinBook::new(100 * MIB, u64::MAX);
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
    fn clients_beyond_the_floors_are_refused_and_admitted_later() {
        let mut book = PinBook::new(8 * MIB, u64::MAX);
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

    #[test]
    fn a_floor_grows_with_the_rails_and_a_window_on_all_of_them_fits_it() {
        let mut book = PinBook::new(8 * MIB, u64::MAX);
        assert!(book.admit(1, MIB) && book.admit(2, MIB));
        assert!(book.set_floor(1, 4 * MIB));
        assert!(!book.set_floor(2, 5 * MIB), "more than all floors may be");
        assert_eq!(fill(&mut book, 2), MIB + 3 * MIB / 2, "its floor, and half of what is left");
        let bytes = book.window_bytes(1, 4, GRAIN, 16 * MIB);
        assert!(bytes >= GRAIN && book.ask(1, 4 * bytes));
        assert!(book.set_floor(1, MIB), "less always fits");
        book.give_back(1, 4 * bytes);
        assert_eq!(book.used, MIB + MIB + 3 * MIB / 2);
    }

    /// Random clients arrive, ask, return and leave. The budget holds at every moment, and a client
    /// that holds nothing gets a window, unless another is above its floor.
    #[test]
    fn the_pin_budget_holds_and_no_client_starves() {
        for seed in 0..200_u64 {
            let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut roll = |below: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % below
            };
            let budget = MIB * (4 + roll(200));
            let mut book = PinBook::new(budget, u64::MAX);
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
                        let bytes = book.window_bytes(id, 1, GRAIN, 16 * MIB);
                        let mine = held.get_mut(&id).expect("it is in");
                        match book.ask(id, bytes) {
                            true => mine.push(bytes),
                            false => assert!(
                                !mine.is_empty() || book.above_floor().next().is_some(),
                                "seed {seed}: {id} starves"
                            ),
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
                assert!(total <= budget && book.floors <= budget, "seed {seed}: {total}");
            }
        }
    }
}
