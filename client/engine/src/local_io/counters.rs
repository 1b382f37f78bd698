//! Counters of one session: verified bytes, and how the workers spent their time. Workers and jobs
//! add to them, the session reads them; they are atomic and never block.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters of one session: verified bytes, and how the workers spent their time.
#[derive(Default)]
pub struct Stats {
    /// Bytes that are verified and stored, from links, holes or a basis.
    pub bytes: AtomicU64,
    /// Bytes of these that links carried.
    pub moved: AtomicU64,
    /// Bytes of these that were holes.
    pub holes: AtomicU64,
    /// Bytes of partial files that this machine hashed again before it resumed them.
    pub rehashed: AtomicU64,
    pub(crate) hash_ns: AtomicU64,
    pub(crate) disk_ns: AtomicU64,
    pub(crate) link_ns: AtomicU64,
    pub(crate) peer_ns: AtomicU64,
}

impl Stats {
    /// Adds time spent on the disk and on hashing.
    pub(crate) fn add(&self, disk: Duration, hash: Duration) {
        self.disk_ns.fetch_add(disk.as_nanos() as u64, Ordering::Relaxed);
        self.hash_ns.fetch_add(hash.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Counts verified bytes that a link carried.
    pub(crate) fn moved(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a hole whose zeros were hashed, and written where the file system cannot punch holes.
    pub(crate) fn zeroed(&self, bytes: u64, time: Duration) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.holes.fetch_add(bytes, Ordering::Relaxed);
        self.add(Duration::ZERO, time);
    }

    /// Names the part that took most of the time: `hash`, `disk`, `link` or `peer`.
    pub fn bottleneck(&self) -> &'static str {
        let counters = [
            ("hash", &self.hash_ns),
            ("disk", &self.disk_ns),
            ("link", &self.link_ns),
            ("peer", &self.peer_ns),
        ];
        let most = counters.iter().max_by_key(|(_, counter)| counter.load(Ordering::Relaxed));
        most.map_or("peer", |(name, _)| name)
    }
}
