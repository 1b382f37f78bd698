//! Where the time of a session's workers goes, and how many bytes are safe.
//! Counters that workers and jobs add to and the session reads; nobody waits
//! for them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Where the time of the workers goes, and how many bytes are safe.
#[derive(Default)]
pub(crate) struct Stats {
    pub bytes: AtomicU64,
    /// Bytes of these that links carried.
    pub moved: AtomicU64,
    /// Bytes of these that were holes.
    pub holes: AtomicU64,
    /// Bytes of partial files that this side hashed again before it went on with them.
    pub rehashed: AtomicU64,
    pub hash_ns: AtomicU64,
    pub disk_ns: AtomicU64,
    pub link_ns: AtomicU64,
    pub peer_ns: AtomicU64,
}

impl Stats {
    /// Work on the disk and hashing took this long.
    pub fn add(&self, disk: Duration, hash: Duration) {
        self.disk_ns.fetch_add(disk.as_nanos() as u64, Ordering::Relaxed);
        self.hash_ns.fetch_add(hash.as_nanos() as u64, Ordering::Relaxed);
    }

    /// A link carried bytes that are verified.
    pub fn moved(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Zeros of a hole were hashed, and made where they were not.
    pub fn zeroed(&self, bytes: u64, time: Duration) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.holes.fetch_add(bytes, Ordering::Relaxed);
        self.add(Duration::ZERO, time);
    }

    /// What most of the time went into.
    pub fn limit(&self) -> &'static str {
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
