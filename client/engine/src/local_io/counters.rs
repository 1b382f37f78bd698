//! Where the time of a session's workers goes, and how many bytes are safe.
//! Counters that workers and jobs add to and the session reads; nobody waits
//! for them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters of one session: bytes that are verified, and where the time of the workers went.
#[derive(Default)]
pub struct Stats {
    /// Bytes that are verified and stored, whichever way they came.
    pub bytes: AtomicU64,
    /// Of these, bytes that links carried.
    pub moved: AtomicU64,
    /// Of these, bytes that were holes.
    pub holes: AtomicU64,
    /// Bytes of partial files that this machine hashed again before it resumed them.
    pub rehashed: AtomicU64,
    pub(crate) hash_ns: AtomicU64,
    pub(crate) disk_ns: AtomicU64,
    pub(crate) link_ns: AtomicU64,
    pub(crate) peer_ns: AtomicU64,
}

impl Stats {
    /// Work on the disk and hashing took this long.
    pub(crate) fn add(&self, disk: Duration, hash: Duration) {
        self.disk_ns.fetch_add(disk.as_nanos() as u64, Ordering::Relaxed);
        self.hash_ns.fetch_add(hash.as_nanos() as u64, Ordering::Relaxed);
    }

    /// A link carried bytes that are verified.
    pub(crate) fn moved(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Zeros of a hole were hashed, and made where they were not.
    pub(crate) fn zeroed(&self, bytes: u64, time: Duration) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.holes.fetch_add(bytes, Ordering::Relaxed);
        self.add(Duration::ZERO, time);
    }

    /// Names what took most of the time: `hash`, `disk`, `link` or `peer`.
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
