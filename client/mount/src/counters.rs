//! What a mount has done since it began: numbers for its status and its metrics. Only
//! counted here; told by `status`.

use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers.
#[derive(Debug, Default)]
pub(crate) struct MountCounters {
    /// Bytes that were brought from the server.
    pub fetched_bytes: AtomicU64,
    /// Bytes that were given to readers by this process.
    pub read_bytes: AtomicU64,
    /// Parts that could not be brought.
    pub failures: AtomicU64,
    /// Files that were opened.
    pub opens: AtomicU64,
    /// Of these, those that the kernel reads past this process.
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
