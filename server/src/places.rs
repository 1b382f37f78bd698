//! Places of one kind that all clients share: sessions, descriptors of files,
//! watches. Who has as many as are left gets no more, so one client has half of
//! them at most, two have a third each, and who comes next finds some; the same
//! holds among the sessions of one client. The first few are anybody's, as long as
//! there are any. Owns these counts: a place is given
//! back when it is dropped. Who is one client is for `shares` to say.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who has fewer gets what is left: a command has two sessions, say, and few places may be all
/// there are.
const FEW: usize = 4;

/// All places of one kind.
#[derive(Debug)]
pub(crate) struct Places {
    left: Mutex<usize>,
}

impl Places {
    /// So many, and nobody has any.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { left: Mutex::new(max) })
    }

    /// How many nobody has.
    pub fn left(&self) -> usize {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who takes places: a client of all there are, or a session of what its client may have.
#[derive(Debug)]
pub(crate) struct Taker {
    places: Arc<Places>,
    client: Option<Arc<Taker>>,
    /// How many it has; changed while nobody else takes any.
    has: AtomicUsize,
}

impl Taker {
    /// A client.
    pub fn new(places: &Arc<Places>) -> Arc<Self> {
        Arc::new(Self { places: places.clone(), client: None, has: AtomicUsize::new(0) })
    }

    /// A session of this client.
    pub fn session(self: &Arc<Self>) -> Arc<Self> {
        let (places, client) = (self.places.clone(), Some(self.clone()));
        Arc::new(Self { places, client, has: AtomicUsize::new(0) })
    }

    /// Takes so many places at once; none if that is more than it may have now.
    pub fn take(self: &Arc<Self>, count: usize) -> Option<Place> {
        let mut left = self.places.lock();
        if self.room(*left) < count {
            return None;
        }
        *left -= count;
        for taker in self.and_client() {
            taker.has.fetch_add(count, Ordering::Relaxed);
        }
        Some(Place { taker: self.clone(), count })
    }

    /// How many it has.
    pub fn has(&self) -> usize {
        self.has.load(Ordering::Relaxed)
    }

    /// How many more it may have, when so many are left to all.
    fn room(&self, left: usize) -> usize {
        let room = self.client.as_ref().map_or(left, |client| client.room(left));
        if self.has() < FEW { room } else { room.saturating_sub(self.has()) }
    }

    fn and_client(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.client.as_deref())
    }
}

/// Places that were taken; dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Place {
    taker: Arc<Taker>,
    count: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut left = self.taker.places.lock();
        *left += self.count;
        for taker in self.taker.and_client() {
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
        let taken: Vec<_> = (0..20).flat_map(|_| take_all(&client.session())).collect();
        assert!((450..=500).contains(&taken.len()), "{}", taken.len());
        let first = Places::new(900);
        assert_eq!(take_all(&Taker::new(&first).session()).len(), 300, "a session that is alone");
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
    fn a_client_may_have_the_only_places() {
        let places = Places::new(2);
        let client = Taker::new(&places);
        let taken = take_all(&client.session());
        assert_eq!((taken.len(), places.left()), (2, 0));
    }
}
