//! Concurrent first opens of a file: one opens it, the others wait for the lock and
//! find the cached version. Keeps only files with an open in progress. Used by
//! `content`.

use super::cache::Key;
use std::collections::HashMap;
use std::sync::Arc;
use verbatim_engine::local_io::range_buffer::Priority;

/// The files that are being opened.
#[derive(Default)]
pub(crate) struct OpenOnce(HashMap<Key, Arc<OpenLock>>);

/// The lock of one file.
#[derive(Default)]
pub(crate) struct OpenLock {
    pub lock: tokio::sync::Mutex<()>,
    /// Whether a reader waits for the open.
    pub priority: Priority,
}

impl OpenOnce {
    /// The lock of a file, for the caller to wait on.
    pub fn lock_of(&mut self, key: Key) -> Arc<OpenLock> {
        // Drops locks that no open uses.
        self.0.retain(|_, open_lock| Arc::strong_count(open_lock) > 1);
        self.0.entry(key).or_default().clone()
    }
}
