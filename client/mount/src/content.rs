//! What is in files: which version a reader gets, and its bytes, from the cache or from
//! the server. A reader keeps the version that it opened; when that is gone from the
//! server and not all of it is in the cache, it is told so, and never given another.

use super::cache::{BLOCK_BYTES, Cache, CacheFile, FILE_BYTES_MAX, Key};
use super::cache_keys::CacheKeys;
use super::connection::{Connection, FetchedPart, is_away};
use super::counters::MountCounters;
use super::open_once::OpenOnce;
use super::priority_gate::PriorityGate;
use super::recent_blocks::RecentBlocks;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};
use verbatim_client::remote_fs::attributes::Facts;
use verbatim_engine::local_io::range_buffer::{Haste, Landed};
use verbatim_proto::message::FileInfo;
use verbatim_proto::read::Part;
use verbatim_proto::{Code, Extent, Fault, Kept, WirePath};

/// Parts that are fetched at a time; each takes up to `PART_BYTES_MAX` of memory.
const FETCHES_MAX: usize = 16;

/// How many of them may be for what nobody waits for yet.
const READ_AHEAD_FETCHES_MAX: usize = 10;

/// How long a file that was just written is waited for: until then a later write could hide.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// How often it is looked at meanwhile.
const SETTLE_EVERY: Duration = Duration::from_millis(250);

/// Why a file is not opened.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// What is there is not what the kernel was told of: it must look again.
    Stale,
    /// Anything else.
    Fault(Fault),
}

/// What is in files.
pub(crate) struct Content {
    pub line: Connection,
    pub cache: Cache,
    pub counts: MountCounters,
    pub keys: CacheKeys,
    pub gate: PriorityGate,
    opening: Mutex<OpenOnce>,
    pub(super) fetches: Semaphore,
    pub(super) ahead: Arc<Semaphore>,
    pub hot: RecentBlocks,
}

impl Content {
    pub fn new(line: Connection, cache: Cache, server: String) -> Self {
        let (fetches, ahead) =
            (Semaphore::new(FETCHES_MAX), Semaphore::new(READ_AHEAD_FETCHES_MAX));
        let (ahead, hot, gate) =
            (Arc::new(ahead), RecentBlocks::default(), PriorityGate::default());
        let (counts, opening, keys) =
            (MountCounters::default(), Mutex::default(), CacheKeys(server));
        Self { line, cache, counts, keys, gate, opening, fetches, ahead, hot }
    }

    /// What is here of a version like this.
    pub async fn cached(self: &Arc<Self>, path: &WirePath, facts: Facts) -> Option<Arc<CacheFile>> {
        let (this, key) = (self.clone(), self.keys.of_content(path, &facts));
        let found = blocking(move || this.cache.find(&key)).await;
        let is_it = |file: &Arc<CacheFile>| {
            (file.size, file.mtime_ns) == (facts.size, facts.mtime_ns) && facts.may_be(file.version)
        };
        found.filter(is_it)
    }

    /// The version that is there now, as the kernel knows it; for a reader, who `waits`, or for
    /// nobody yet.
    pub async fn open(
        self: &Arc<Self>,
        path: &WirePath,
        facts: Facts,
        waits: bool,
    ) -> Result<Arc<CacheFile>, OpenError> {
        let (key, deadline) = (self.keys.of_content(path, &facts), self.line.deadline());
        if facts.shared().is_some() {
            // What it was while this was its only name is not what it is.
            let (this, alone) = (self.clone(), self.keys.of(path, ""));
            blocking(move || this.cache.discard(&alone)).await;
        }
        let found = self.cached(path, facts).await;
        let old = found.as_ref().map(|file| file.version);
        if let Some(file) = found {
            if !self.line.is_up() {
                return Ok(file);
            }
            let version = Some((file.mtime_ns, file.version));
            let part = Part { size: file.size, version, want: Extent::new(0, 0) };
            match self.line.fetch_now(path, part).await {
                Ok(_) => return Ok(file),
                // What is cached is served on.
                Err(fault) if is_away(&fault) => return Ok(file),
                Err(fault) if fault.code == Code::Changed => {}
                Err(fault) => return Err(OpenError::Fault(fault)),
            }
        }
        // Who opens the same file at once waits for the first, and finds what it brought.
        let turn = self.opening.lock().unwrap_or_else(PoisonError::into_inner).of(key);
        let _waits = waits.then(|| self.gate.wait());
        if waits {
            turn.haste.raise();
        }
        let Ok(_turn) = timeout_at(deadline, turn.lock.lock()).await else {
            let text = format!("{path} was not opened in time");
            return Err(OpenError::Fault(Fault::new(Code::TimedOut, text)));
        };
        let found = self.cached(path, facts).await;
        match found.filter(|file| Some(file.version) != old) {
            Some(file) => Ok(file),
            None => self.open_new(path, facts, key, (&turn.haste, deadline)).await,
        }
    }

    /// Opens a version of which nothing is here, and brings its first block with it.
    async fn open_new(
        self: &Arc<Self>,
        path: &WirePath,
        facts: Facts,
        key: Key,
        (haste, until): (&Haste, Instant),
    ) -> Result<Arc<CacheFile>, OpenError> {
        if facts.size > FILE_BYTES_MAX {
            let text = format!("{path} has more than {FILE_BYTES_MAX} bytes");
            return Err(OpenError::Fault(Fault::new(Code::Limit, text)));
        }
        let first = Extent::new(0, facts.size.min(BLOCK_BYTES));
        let mut want = first;
        let deadline = Instant::now() + SETTLE_MAX;
        let (info, version, landed) = loop {
            let part = Part { size: facts.size, version: None, want };
            let came = self.line.fetch_by(until, path, part, haste.clone()).await;
            let FetchedPart { info, landed, .. } = match came {
                Ok(came) => came,
                Err(fault) if fault.code == Code::Changed => return Err(OpenError::Stale),
                Err(fault) => return Err(OpenError::Fault(fault)),
            };
            self.counts.fetched(landed.byte_count());
            if info.mtime_ns != facts.mtime_ns {
                return Err(OpenError::Stale);
            }
            match info.version {
                // What several names share is kept as what it was said to be, or not at all.
                Some(version) if !facts.may_be(version) => return Err(OpenError::Stale),
                Some(version) if want == first => break (info, version, landed),
                Some(_) => want = first,
                // Nothing is brought that could not be kept.
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
        let made = blocking(move || this.begin(&key, &info, version, landed));
        let what = || format!("cannot cache {shown}");
        made.await.map_err(|error| OpenError::Fault(Fault::from_io(what(), &error)))
    }

    fn begin(
        &self,
        key: &Key,
        info: &FileInfo,
        version: u64,
        landed: Landed,
    ) -> std::io::Result<Arc<CacheFile>> {
        // Who finds the file from here on waits for what came, and does not fetch it again.
        let first = |file: &CacheFile| match info.size > 0 && !file.has(0) {
            true => file.flights.join(&[0], 1, false).0,
            false => Vec::new(),
        };
        let (file, begun) = self.cache.create(key, info, version, first)?;
        let brought = Arc::new(landed);
        for flight in begun {
            let kept = self.keep(&file, &[0], &brought);
            file.flights.end(&flight, Ok(brought.clone()));
            self.hot.add(&file, flight, brought.byte_count(), kept);
        }
        Ok(file)
    }

    /// How much of a file is allocated at the source: of a sparse one less than it is long.
    pub async fn allocated(&self, path: &WirePath, facts: Facts) -> Result<u64, Fault> {
        let part = Part { size: facts.size, version: None, want: Extent::new(0, 0) };
        self.line.fetch(path, part, Haste::default()).await.map(|came| came.info.allocated)
    }

    /// The metadata of a file as it is there now.
    pub async fn meta(&self, path: &WirePath, facts: Facts) -> Result<Kept, Fault> {
        let part = Part { size: facts.size, version: None, want: Extent::new(0, 0) };
        self.line.fetch(path, part, Haste::default()).await.map(|came| came.meta)
    }
}

/// Does what may take a while where others need not wait for it.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("what is done there does not panic")
}
