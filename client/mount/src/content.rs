//! Versions and bytes of files: which version an open returns, and its bytes, from the
//! cache or from the server. A reader keeps the version that it opened. When that
//! version is gone from the server and incomplete in the cache, the reader gets an
//! error, never bytes of another version.

use super::cache::{BLOCK_BYTES, Cache, CacheFile, FILE_BYTES_MAX, Key};
use super::cache_keys::CacheKeys;
use super::connection::{Connection, FetchedPart, is_connection_fault};
use super::counters::MountCounters;
use super::open_once::OpenOnce;
use super::priority_gate::PriorityGate;
use super::recent_blocks::RecentBlocks;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};
use verbatim_client::remote_fs::attributes::Facts;
use verbatim_engine::local_io::range_buffer::{Priority, VerifiedRange};
use verbatim_proto::message::FileInfo;
use verbatim_proto::read::Part;
use verbatim_proto::{Code, Extent, Fault, Kept, WirePath};

/// Parts that are fetched at a time; each takes up to `RANGE_BYTES_MAX` of memory.
const FETCHES_MAX: usize = 16;

/// How many of these fetches may be read-ahead.
const READ_AHEAD_FETCHES_MAX: usize = 10;

/// How long an open waits for a file that was just written: a later write could leave its time
/// unchanged.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// How often the open checks the file meanwhile.
const SETTLE_EVERY: Duration = Duration::from_millis(250);

/// Why an open fails.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// The file is not the one that the kernel looked up: it must look again.
    Stale,
    /// Any other fault.
    Fault(Fault),
}

/// The cache, the connection and the limits that reads share.
pub(crate) struct Content {
    pub connection: Connection,
    pub cache: Cache,
    pub counters: MountCounters,
    pub keys: CacheKeys,
    pub gate: PriorityGate,
    open_once: Mutex<OpenOnce>,
    pub(super) fetches: Semaphore,
    pub(super) read_ahead_permits: Arc<Semaphore>,
    pub recent_blocks: RecentBlocks,
}

impl Content {
    pub fn new(connection: Connection, cache: Cache, server: String) -> Self {
        let (fetches, read_ahead_permits) =
            (Semaphore::new(FETCHES_MAX), Semaphore::new(READ_AHEAD_FETCHES_MAX));
        let (read_ahead_permits, recent_blocks, gate) =
            (Arc::new(read_ahead_permits), RecentBlocks::default(), PriorityGate::default());
        let (counters, open_once, keys) =
            (MountCounters::default(), Mutex::default(), CacheKeys(server));
        Self {
            connection,
            cache,
            counters,
            keys,
            gate,
            open_once,
            fetches,
            read_ahead_permits,
            recent_blocks,
        }
    }

    /// The cached version with these attributes.
    pub async fn find_cached(
        self: &Arc<Self>,
        path: &WirePath,
        facts: Facts,
    ) -> Option<Arc<CacheFile>> {
        let (this, key) = (self.clone(), self.keys.of_content(path, &facts));
        let found = blocking(move || this.cache.find(&key)).await;
        let matches = |file: &Arc<CacheFile>| {
            (file.size, file.mtime_ns) == (facts.size, facts.mtime_ns) && facts.may_be(file.version)
        };
        found.filter(matches)
    }

    /// Opens the current version with the attributes that the kernel knows. `waits` says whether a
    /// reader waits for it.
    pub async fn open(
        self: &Arc<Self>,
        path: &WirePath,
        facts: Facts,
        waits: bool,
    ) -> Result<Arc<CacheFile>, OpenError> {
        let (key, deadline) = (self.keys.of_content(path, &facts), self.connection.deadline());
        if facts.shared().is_some() {
            // Content cached by path while the file had one link is void now.
            let (this, alone) = (self.clone(), self.keys.of_path(path, ""));
            blocking(move || this.cache.discard(&alone)).await;
        }
        let found = self.find_cached(path, facts).await;
        let old = found.as_ref().map(|file| file.version);
        if let Some(file) = found {
            if !self.connection.is_up() {
                return Ok(file);
            }
            let version = Some((file.mtime_ns, file.version));
            let part = Part { size: file.size, version, want: Extent::new(0, 0) };
            match self.connection.fetch_without_retry(path, part).await {
                Ok(_) => return Ok(file),
                // Without a server the cached version is served.
                Err(fault) if is_connection_fault(&fault) => return Ok(file),
                Err(fault) if fault.code == Code::Changed => {}
                Err(fault) => return Err(OpenError::Fault(fault)),
            }
        }
        // Concurrent opens of one file wait for the first, and find the version it cached.
        let open_lock = self.open_once.lock().unwrap_or_else(PoisonError::into_inner).lock_of(key);
        let _reader = waits.then(|| self.gate.reader_waits());
        if waits {
            open_lock.priority.raise();
        }
        let Ok(_guard) = timeout_at(deadline, open_lock.lock.lock()).await else {
            let text = format!("{path} was not opened in time");
            return Err(OpenError::Fault(Fault::new(Code::TimedOut, text)));
        };
        let found = self.find_cached(path, facts).await;
        match found.filter(|file| Some(file.version) != old) {
            Some(file) => Ok(file),
            None => self.open_new(path, facts, key, (&open_lock.priority, deadline)).await,
        }
    }

    /// Opens a version that is not cached, and fetches its first block.
    async fn open_new(
        self: &Arc<Self>,
        path: &WirePath,
        facts: Facts,
        key: Key,
        (priority, until): (&Priority, Instant),
    ) -> Result<Arc<CacheFile>, OpenError> {
        if facts.size > FILE_BYTES_MAX {
            let text = format!("{path} has more than {FILE_BYTES_MAX} bytes");
            return Err(OpenError::Fault(Fault::new(Code::Limit, text)));
        }
        let first = Extent::new(0, facts.size.min(BLOCK_BYTES));
        let mut want = first;
        let deadline = Instant::now() + SETTLE_MAX;
        let (info, version, data) = loop {
            let part = Part { size: facts.size, version: None, want };
            let fetched = self.connection.fetch_until(until, path, part, priority.clone()).await;
            let FetchedPart { info, data, .. } = match fetched {
                Ok(fetched) => fetched,
                Err(fault) if fault.code == Code::Changed => return Err(OpenError::Stale),
                Err(fault) => return Err(OpenError::Fault(fault)),
            };
            self.counters.add_fetched(data.byte_count());
            if info.mtime_ns != facts.mtime_ns {
                return Err(OpenError::Stale);
            }
            match info.version {
                // Hard links share one cached file by version, so an unexpected version must not be
                // stored.
                Some(version) if !facts.may_be(version) => return Err(OpenError::Stale),
                Some(version) if want == first => break (info, version, data),
                Some(_) => want = first,
                // No data is fetched that could not be stored.
                None if Instant::now() < deadline => {
                    want = Extent::new(0, 0);
                    sleep(SETTLE_EVERY).await;
                }
                None => {
                    let text = format!("{path} is written to all the time");
                    return Err(OpenError::Fault(Fault::new(Code::Changed, text)));
                }
            }
        };
        let (this, shown) = (self.clone(), path.to_string());
        let created = blocking(move || this.create_cached(&key, &info, version, data));
        let what = || format!("cannot cache {shown}");
        created.await.map_err(|error| OpenError::Fault(Fault::from_io(what(), &error)))
    }

    fn create_cached(
        &self,
        key: &Key,
        info: &FileInfo,
        version: u64,
        data: VerifiedRange,
    ) -> std::io::Result<Arc<CacheFile>> {
        // Readers that find the file from here on join this fetch.
        let first = |file: &CacheFile| match info.size > 0 && !file.has(0) {
            true => file.in_flight.join(&[0], 1, false).0,
            false => Vec::new(),
        };
        let (file, started) = self.cache.create(key, info, version, first)?;
        let received = Arc::new(data);
        for fetch in started {
            let stored = self.store_blocks(&file, &[0], &received);
            file.in_flight.finish(&fetch, Ok(received.clone()));
            self.recent_blocks.add(&file, fetch, received.byte_count(), stored);
        }
        Ok(file)
    }

    /// The bytes allocated at the source: fewer than the size for a sparse file.
    pub async fn allocated_bytes(&self, path: &WirePath, facts: Facts) -> Result<u64, Fault> {
        let part = Part { size: facts.size, version: None, want: Extent::new(0, 0) };
        self.connection
            .fetch(path, part, Priority::default())
            .await
            .map(|fetched| fetched.info.allocated)
    }

    /// The current metadata of a file.
    pub async fn meta(&self, path: &WirePath, facts: Facts) -> Result<Kept, Fault> {
        let part = Part { size: facts.size, version: None, want: Extent::new(0, 0) };
        self.connection.fetch(path, part, Priority::default()).await.map(|fetched| fetched.meta)
    }
}

/// Runs blocking work on the thread pool.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("blocking work does not panic")
}
