//! Counters of a mount since it started, for its status and its metrics. Only counts
//! here; `status` reports them.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counters.
#[derive(Debug, Default)]
pub(crate) struct MountCounters {
    /// Bytes received from the server.
    pub fetched_bytes: AtomicU64,
    /// Bytes that this process returned to readers.
    pub read_bytes: AtomicU64,
    /// Fetches that failed.
    pub failures: AtomicU64,
    /// Files that were opened.
    pub opens: AtomicU64,
    /// Opens that use passthrough.
    pub passthrough_opens: AtomicU64,
}

impl MountCounters {
    pub fn add_fetched(&self, bytes: u64) {
        self.fetched_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn add_read(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn add_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub fn add_open(&self, is_passthrough: bool) {
        self.opens.fetch_add(1, Ordering::Relaxed);
        self.passthrough_opens.fetch_add(u64::from(is_passthrough), Ordering::Relaxed);
    }
}
