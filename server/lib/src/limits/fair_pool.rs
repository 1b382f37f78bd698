//! Fair-share pools of sessions, descriptors, watches, watched folders and bytes of memory. A
//! client that uses as many permits as are free gets no more. So one client has at most half,
//! two have a third each, and a new client finds some free; the same rule holds among the
//! sessions of one client. Below `ALWAYS_ALLOWED` permits a client may take any that are free.
//! All clients of one name have at most three quarters, from however many addresses. Owns these
//! counts: dropping a `Permit` returns it. `client_limits` decides which sessions are one client.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A client with fewer permits may take any that are free: a command has two sessions, for
/// example, and the whole pool may be small.
const ALWAYS_ALLOWED: usize = 4;

/// All permits of one kind.
#[derive(Debug)]
pub(crate) struct FairPool {
    capacity: usize,
    free: Mutex<usize>,
}

impl FairPool {
    /// Makes a pool with `max` free permits.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { capacity: max, free: Mutex::new(max) })
    }

    /// Permits in the pool, used or free.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Permits in use.
    pub fn in_use(&self) -> usize {
        self.capacity - self.free()
    }

    /// Permits that are free.
    pub fn free(&self) -> usize {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The share of a pool that a name, a client or a session uses: a session's counts towards its
/// client's, and a client's towards its name's.
#[derive(Debug)]
pub(crate) struct PoolShare {
    pool: Arc<FairPool>,
    /// The share that this one counts towards.
    parent: Option<Arc<PoolShare>>,
    /// The maximum of a name; a client has none of its own.
    max: Option<usize>,
    /// Permits in use; changed only under the lock of the pool.
    used: AtomicUsize,
}

impl PoolShare {
    /// A client without a name.
    #[cfg(test)]
    pub fn new(pool: &Arc<FairPool>) -> Arc<Self> {
        Arc::new(Self { pool: pool.clone(), parent: None, max: None, used: AtomicUsize::new(0) })
    }

    /// A name, with at most three quarters of the pool.
    pub fn for_name(pool: &Arc<FairPool>) -> Arc<Self> {
        let max = Some((pool.capacity / 4 * 3).max(ALWAYS_ALLOWED));
        Arc::new(Self { pool: pool.clone(), parent: None, max, used: AtomicUsize::new(0) })
    }

    /// A client of this name, or a session of this client.
    pub fn child(self: &Arc<Self>) -> Arc<Self> {
        let (pool, parent) = (self.pool.clone(), Some(self.clone()));
        Arc::new(Self { pool, parent, max: None, used: AtomicUsize::new(0) })
    }

    /// Takes `count` permits at once; `None` if that exceeds the share.
    pub fn take(self: &Arc<Self>, count: usize) -> Option<Permit> {
        let mut free = self.pool.lock();
        if self.allowance(*free) < count {
            return None;
        }
        *free -= count;
        for share in self.with_ancestors() {
            share.used.fetch_add(count, Ordering::Relaxed);
        }
        Some(Permit { share: self.clone(), count })
    }

    /// A permit for nothing, to be resized later.
    pub fn empty(self: &Arc<Self>) -> Permit {
        Permit { share: self.clone(), count: 0 }
    }

    /// Permits in use by this share.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// How many more permits it may take while `free` are free in the pool.
    fn allowance(&self, free: usize) -> usize {
        if let Some(max) = self.max {
            return free.min(max.saturating_sub(self.used()));
        }
        let fair = |free: usize| {
            if self.used() < ALWAYS_ALLOWED { free } else { free.saturating_sub(self.used()) }
        };
        match &self.parent {
            None => fair(free),
            Some(name) if name.max.is_some() => fair(free).min(name.allowance(free)),
            Some(client) => fair(client.allowance(free)),
        }
    }

    fn with_ancestors(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |share| share.parent.as_deref())
    }
}

/// Permits taken from a pool; dropping it returns them.
#[derive(Debug)]
pub(crate) struct Permit {
    share: Arc<PoolShare>,
    count: usize,
}

impl Permit {
    /// Grows or shrinks to `count`; false, and unchanged, if that exceeds the share.
    pub fn resize(&mut self, count: usize) -> bool {
        if count > self.count {
            let Some(mut more) = self.share.take(count - self.count) else { return false };
            self.count += std::mem::take(&mut more.count);
        } else {
            // Dropping it returns these permits.
            drop(Self { share: self.share.clone(), count: self.count - count });
            self.count = count;
        }
        true
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut free = self.share.pool.lock();
        *free += self.count;
        for share in self.share.with_ancestors() {
            share.used.fetch_sub(self.count, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes one at a time, until there are no more.
    fn take_all(share: &Arc<PoolShare>) -> Vec<Permit> {
        std::iter::from_fn(|| share.take(1)).collect()
    }

    #[test]
    fn one_client_has_half_at_most_and_who_comes_next_finds_some() {
        let pool = FairPool::new(1000);
        let clients = [(); 5].map(|()| PoolShare::new(&pool));
        let taken = clients.each_ref().map(take_all);
        assert_eq!(taken.each_ref().map(Vec::len), [500, 250, 125, 63, 31]);
        assert_eq!(pool.free(), 31);
        drop(taken);
        assert_eq!(pool.free(), 1000);
        assert!(clients.iter().all(|client| client.used() == 0));
    }

    #[test]
    fn clients_that_take_turns_have_as_much_as_each_other() {
        let pool = FairPool::new(1010);
        let clients: Vec<_> = (0..100).map(|_| PoolShare::new(&pool)).collect();
        let turn = || Some(clients.iter().filter_map(|client| client.take(1)).collect::<Vec<_>>());
        let turns = std::iter::from_fn(turn).take_while(|turn| !turn.is_empty());
        let _taken: Vec<_> = turns.collect();
        assert!(clients.iter().all(|client| client.used() == 10), "{pool:?}");
    }

    #[test]
    fn sessions_of_a_client_leave_each_other_some_and_the_half_of_others_alone() {
        let pool = FairPool::new(1000);
        let client = PoolShare::new(&pool);
        let taken: Vec<_> = (0..20).flat_map(|_| take_all(&client.child())).collect();
        assert!((450..=500).contains(&taken.len()), "{}", taken.len());
        let first = FairPool::new(900);
        assert_eq!(take_all(&PoolShare::new(&first).child()).len(), 300, "a session that is alone");
    }

    #[test]
    fn a_name_at_many_addresses_has_three_quarters_at_most_and_each_address_half() {
        let pool = FairPool::new(1000);
        let name = PoolShare::for_name(&pool);
        let taken: Vec<_> = (0..10).map(|_| take_all(&name.child().child())).collect();
        // A session that is alone has a third of all.
        assert_eq!(taken[0].len(), 334);
        let held: usize = taken.iter().map(Vec::len).sum();
        assert!((700..=750).contains(&held), "{held}");
        let other = PoolShare::for_name(&pool).child();
        assert!(take_all(&other).len() >= 125, "another name finds some");
        let few = FairPool::new(2);
        assert_eq!(
            take_all(&PoolShare::for_name(&few).child()).len(),
            2,
            "few places are anybody's"
        );
    }

    #[test]
    fn places_for_one_thing_are_had_together_or_not_at_all() {
        let pool = FairPool::new(9);
        let client = PoolShare::new(&pool);
        let first = client.take(5);
        assert!(first.is_some() && client.take(1).is_none(), "it has as many as are left");
        assert!(PoolShare::new(&pool).take(5).is_none() && pool.free() == 4);
        drop(first);
        assert!(client.take(9).is_some(), "and they are there again");
    }

    #[test]
    fn places_that_are_held_grow_and_shrink() {
        let pool = FairPool::new(100);
        let client = PoolShare::new(&pool);
        let mut held = client.empty();
        let mut other = client.empty();
        assert!(held.resize(20) && other.resize(10) && !held.resize(90), "more than it may have");
        assert_eq!((client.used(), pool.free()), (30, 70));
        assert!(held.resize(5) && held.resize(40));
        assert_eq!((client.used(), pool.free()), (50, 50));
        drop(held);
        assert_eq!((client.used(), pool.free()), (10, 90));
    }

    #[test]
    fn a_client_may_have_the_only_places() {
        let pool = FairPool::new(2);
        let client = PoolShare::new(&pool);
        let taken = take_all(&client.child());
        assert_eq!((taken.len(), pool.free()), (2, 0));
    }
}
