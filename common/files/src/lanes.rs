//! How many may write to one file at a time. A kernel lets one writer at a time into
//! a file, and who waits there spins: a processor of each that does is lost. Who waits
//! here sleeps, and may do something else first. Where processors are many a second one
//! is let through, who spins and goes on sooner than one who has to be woken. Used by
//! whoever stores what came.

use crate::limit::processors;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// With no more processors than this nobody spins.
const FEW_PROCESSORS: usize = 4;

/// The most who write to a file at a time.
const LANES_MAX: usize = 2;

/// The lanes that lead to a file.
#[derive(Debug)]
pub struct Lanes {
    lanes: [Mutex<()>; LANES_MAX],
    open: usize,
    /// How many had to wait so far: they are spread over the lanes.
    waited: AtomicUsize,
}

/// Leave to write, as long as it is kept.
pub type Lane<'a> = MutexGuard<'a, ()>;

impl Default for Lanes {
    fn default() -> Self {
        let open = if processors() <= FEW_PROCESSORS { 1 } else { LANES_MAX };
        Self { lanes: Default::default(), open, waited: AtomicUsize::new(0) }
    }
}

impl Lanes {
    /// A free lane.
    pub fn try_take(&self) -> Option<Lane<'_>> {
        self.lanes[..self.open].iter().find_map(|lane| match lane.try_lock() {
            Ok(lane) => Some(lane),
            Err(TryLockError::Poisoned(lane)) => Some(lane.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        })
    }

    /// A lane: a free one, or the next of those that are taken when it is.
    pub fn take(&self) -> Lane<'_> {
        self.try_take().unwrap_or_else(|| {
            let at = self.waited.fetch_add(1, Ordering::Relaxed) % self.open;
            self.lanes[at].lock().unwrap_or_else(PoisonError::into_inner)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::scope;

    #[test]
    fn as_many_as_there_are_lanes_go_at_a_time_and_others_behind_them() {
        for open in 1..=LANES_MAX {
            let lanes = Lanes { open, ..Lanes::default() };
            let mut taken: Vec<_> = std::iter::from_fn(|| lanes.try_take()).collect();
            assert_eq!(taken.len(), open);
            taken.pop();
            assert!(lanes.try_take().is_some());
            taken.push(lanes.take());
            let through = AtomicUsize::new(0);
            scope(|scope| {
                for _ in 0..20 {
                    scope.spawn(|| {
                        let _lane = lanes.take();
                        through.fetch_add(1, Ordering::Relaxed);
                    });
                }
                assert_eq!(through.load(Ordering::Relaxed), 0);
                taken.clear();
            });
            assert_eq!(through.load(Ordering::Relaxed), 20);
        }
    }
}
