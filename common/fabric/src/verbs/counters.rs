//! What the queue pairs of a domain did: the requests they posted and completed, and what
//! the peer told them. This is how a test knows that verbs ran.

use std::sync::atomic::{AtomicU64, Ordering};

/// What people call a read, which is counted apart from all else.
pub(super) const READ: &str = "READ";

/// Requests of the queue pairs of a domain: posted, and completed.
#[derive(Debug, Default)]
pub struct Counters {
    pub(super) reads: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) reads_done: AtomicU64,
    pub(super) writes_done: AtomicU64,
    pub(super) notifications: AtomicU64,
}

impl Counters {
    /// An operation of this name ended well. Its last request alone is signalled, and a queue
    /// pair works in order: all of its pieces are done.
    pub(super) fn done(&self, name: &str, pieces: usize) {
        let done = if name == READ { &self.reads_done } else { &self.writes_done };
        done.fetch_add(pieces as u64, Ordering::Relaxed);
    }

    /// READ requests posted.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// WRITE requests posted, with and without an immediate.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    /// READ requests that completed well.
    pub fn reads_done(&self) -> u64 {
        self.reads_done.load(Ordering::Relaxed)
    }

    /// WRITE requests that completed well, with and without an immediate.
    pub fn writes_done(&self) -> u64 {
        self.writes_done.load(Ordering::Relaxed)
    }

    /// Immediates of the peer that arrived.
    pub fn notifications(&self) -> u64 {
        self.notifications.load(Ordering::Relaxed)
    }
}
