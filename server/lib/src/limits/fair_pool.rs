//! Places of one kind that all clients share: sessions, descriptors of files,
//! watches, folders that these watch, bytes of memory. Who has as many as are left
//! gets no more, so one client has half of them at most, two have a third each, and
//! who comes next finds some; the same holds among the sessions of one client. The
//! first few are anybody's, as long as there are any. All clients of one name have
//! three quarters at most, from however many addresses they come. Owns these counts: a
//! place is given back when it is dropped. Who is one client is for `client_limits` to say.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who has fewer gets what is left: a command has two sessions, say, and few places may be all
/// there are.
const FEW: usize = 4;

/// All places of one kind.
#[derive(Debug)]
pub(crate) struct Places {
    all: usize,
    left: Mutex<usize>,
}

impl Places {
    /// So many, and nobody has any.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { all: max, left: Mutex::new(max) })
    }

    /// How many there are.
    pub fn all(&self) -> usize {
        self.all
    }

    /// How many somebody has.
    pub fn taken(&self) -> usize {
        self.all - self.left()
    }

    /// How many nobody has.
    pub fn left(&self) -> usize {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who takes places: a name or a client of all there are, a client of what its name may have, or
/// a session of what its client may have.
#[derive(Debug)]
pub(crate) struct Taker {
    places: Arc<Places>,
    /// Of whose places it takes some.
    of: Option<Arc<Taker>>,
    /// How many a name may have; a client has no such number.
    most: Option<usize>,
    /// How many it has; changed while nobody else takes any.
    has: AtomicUsize,
}

impl Taker {
    /// A client whose name does not count.
    #[cfg(test)]
    pub fn new(places: &Arc<Places>) -> Arc<Self> {
        Arc::new(Self { places: places.clone(), of: None, most: None, has: AtomicUsize::new(0) })
    }

    /// A name, which has three quarters of all places at most.
    pub fn named(places: &Arc<Places>) -> Arc<Self> {
        let most = Some((places.all / 4 * 3).max(FEW));
        Arc::new(Self { places: places.clone(), of: None, most, has: AtomicUsize::new(0) })
    }

    /// A client of this name, or a session of this client.
    pub fn part(self: &Arc<Self>) -> Arc<Self> {
        let (places, of) = (self.places.clone(), Some(self.clone()));
        Arc::new(Self { places, of, most: None, has: AtomicUsize::new(0) })
    }

    /// Takes so many places at once; none if that is more than it may have now.
    pub fn take(self: &Arc<Self>, count: usize) -> Option<Place> {
        let mut left = self.places.lock();
        if self.room(*left) < count {
            return None;
        }
        *left -= count;
        for taker in self.and_above() {
            taker.has.fetch_add(count, Ordering::Relaxed);
        }
        Some(Place { taker: self.clone(), count })
    }

    /// None at first, to be held one after the other.
    pub fn none(self: &Arc<Self>) -> Place {
        Place { taker: self.clone(), count: 0 }
    }

    /// How many it has.
    pub fn has(&self) -> usize {
        self.has.load(Ordering::Relaxed)
    }

    /// How many more it may have, when so many are left to all.
    fn room(&self, left: usize) -> usize {
        if let Some(most) = self.most {
            return left.min(most.saturating_sub(self.has()));
        }
        let beside = |left: usize| {
            if self.has() < FEW { left } else { left.saturating_sub(self.has()) }
        };
        match &self.of {
            None => beside(left),
            Some(name) if name.most.is_some() => beside(left).min(name.room(left)),
            Some(client) => beside(client.room(left)),
        }
    }

    fn and_above(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |taker| taker.of.as_deref())
    }
}

/// Places that were taken; dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Place {
    taker: Arc<Taker>,
    count: usize,
}

impl Place {
    /// Has so many from now on, more or fewer; false, and as before, if that is more than it may.
    pub fn hold(&mut self, count: usize) -> bool {
        if count > self.count {
            let Some(mut more) = self.taker.take(count - self.count) else { return false };
            self.count += std::mem::take(&mut more.count);
        } else {
            // Dropped, and with it these places.
            drop(Self { taker: self.taker.clone(), count: self.count - count });
            self.count = count;
        }
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut left = self.taker.places.lock();
        *left += self.count;
        for taker in self.taker.and_above() {
            taker.has.fetch_sub(self.count, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes one at a time, until there are no more.
    fn take_all(taker: &Arc<Taker>) -> Vec<Place> {
        std::iter::from_fn(|| taker.take(1)).collect()
    }

    #[test]
    fn one_client_has_half_at_most_and_who_comes_next_finds_some() {
        let places = Places::new(1000);
        let clients = [(); 5].map(|()| Taker::new(&places));
        let taken = clients.each_ref().map(take_all);
        assert_eq!(taken.each_ref().map(Vec::len), [500, 250, 125, 63, 31]);
        assert_eq!(places.left(), 31);
        drop(taken);
        assert_eq!(places.left(), 1000);
        assert!(clients.iter().all(|client| client.has() == 0));
    }

    #[test]
    fn clients_that_take_turns_have_as_much_as_each_other() {
        let places = Places::new(1010);
        let clients: Vec<_> = (0..100).map(|_| Taker::new(&places)).collect();
        let turn = || Some(clients.iter().filter_map(|client| client.take(1)).collect::<Vec<_>>());
        let turns = std::iter::from_fn(turn).take_while(|turn| !turn.is_empty());
        let _taken: Vec<_> = turns.collect();
        assert!(clients.iter().all(|client| client.has() == 10), "{places:?}");
    }

    #[test]
    fn sessions_of_a_client_leave_each_other_some_and_the_half_of_others_alone() {
        let places = Places::new(1000);
        let client = Taker::new(&places);
        let taken: Vec<_> = (0..20).flat_map(|_| take_all(&client.part())).collect();
        assert!((450..=500).contains(&taken.len()), "{}", taken.len());
        let first = Places::new(900);
        assert_eq!(take_all(&Taker::new(&first).part()).len(), 300, "a session that is alone");
    }

    #[test]
    fn a_name_at_many_addresses_has_three_quarters_at_most_and_each_address_half() {
        let places = Places::new(1000);
        let name = Taker::named(&places);
        let taken: Vec<_> = (0..10).map(|_| take_all(&name.part().part())).collect();
        // A session that is alone has a third of all.
        assert_eq!(taken[0].len(), 334);
        let held: usize = taken.iter().map(Vec::len).sum();
        assert!((700..=750).contains(&held), "{held}");
        let other = Taker::named(&places).part();
        assert!(take_all(&other).len() >= 125, "another name finds some");
        let few = Places::new(2);
        assert_eq!(take_all(&Taker::named(&few).part()).len(), 2, "few places are anybody's");
    }

    #[test]
    fn places_for_one_thing_are_had_together_or_not_at_all() {
        let places = Places::new(9);
        let client = Taker::new(&places);
        let first = client.take(5);
        assert!(first.is_some() && client.take(1).is_none(), "it has as many as are left");
        assert!(Taker::new(&places).take(5).is_none() && places.left() == 4);
        drop(first);
        assert!(client.take(9).is_some(), "and they are there again");
    }

    #[test]
    fn places_that_are_held_grow_and_shrink() {
        let places = Places::new(100);
        let client = Taker::new(&places);
        let mut held = client.none();
        let mut other = client.none();
        assert!(held.hold(20) && other.hold(10) && !held.hold(90), "more than it may have");
        assert_eq!((client.has(), places.left()), (30, 70));
        assert!(held.hold(5) && held.hold(40));
        assert_eq!((client.has(), places.left()), (50, 50));
        drop(held);
        assert_eq!((client.has(), places.left()), (10, 90));
    }

    #[test]
    fn a_client_may_have_the_only_places() {
        let places = Places::new(2);
        let client = Taker::new(&places);
        let taken = take_all(&client.part());
        assert_eq!((taken.len(), places.left()), (2, 0));
    }
}
