//! What is in files: which version a reader gets, and its bytes, from the cache or from
//! the server. A reader keeps the version that it opened; when that is gone from the
//! server and not all of it is in the cache, it is told so, and never given another.

use super::cache::{BLOCK_BYTES, Cache, CacheFile, Key, block_extent};
use super::counts::Counts;
use super::flights::{Flight, Flown};
use super::line::{Came, Line, is_away};
use super::listing::Facts;
use super::turns::Turns;
use crate::part::{Landed, PART_BYTES_MAX};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep};
use verbatim_proto::message::FileInfo;
use verbatim_proto::read::Part;
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::{Code, Digest, Extent, Fault, Kept, WirePath};

/// Parts that are fetched at a time; each takes up to `PART_BYTES_MAX` of memory.
const FETCHES_MAX: usize = 16;

/// How many of them may be for what nobody waits for yet.
const AHEAD_MAX: usize = 10;

/// Parts that stay in memory because the cache could not keep them.
const LINGERS_MAX: usize = 8;

/// Blocks in one part.
const RUN_MAX: usize = (PART_BYTES_MAX / BLOCK_BYTES) as usize;

/// How long a file that was just written is waited for: until then a later write could hide.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// How often it is looked at meanwhile.
const SETTLE_EVERY: Duration = Duration::from_millis(250);

/// How often a block may vanish under its reader before that is an error.
const ROUNDS_MAX: usize = 8;

/// Why a file is not opened.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// What is there is not what the kernel was told of: it must look again.
    Outdated,
    /// Anything else.
    Fault(Fault),
}

/// What is in files.
pub(crate) struct Content {
    pub line: Line,
    pub cache: Cache,
    pub counts: Counts,
    /// The server, as it is part of the names in the cache.
    server: String,
    turns: Mutex<Turns>,
    fetches: Semaphore,
    ahead: Semaphore,
    lingers: Arc<Semaphore>,
}

impl Content {
    pub fn new(line: Line, cache: Cache, server: String) -> Self {
        let (fetches, ahead) = (Semaphore::new(FETCHES_MAX), Semaphore::new(AHEAD_MAX));
        let (counts, turns) = (Counts::default(), Mutex::default());
        let lingers = Arc::new(Semaphore::new(LINGERS_MAX));
        Self { line, cache, counts, server, turns, fetches, ahead, lingers }
    }

    /// What is kept of a path is found by this: its content where `what` is empty.
    pub fn key_of(&self, path: &WirePath, what: &str) -> Key {
        let mut bytes = format!("{what}{} ", self.server).into_bytes();
        bytes.extend_from_slice(path.as_bytes());
        let Digest(value) = Digest::of(&bytes);
        *value.first_chunk().expect("a digest is longer")
    }

    /// What is here of a version like this.
    pub async fn cached(self: &Arc<Self>, path: &WirePath, facts: Facts) -> Option<Arc<CacheFile>> {
        let (this, key) = (self.clone(), self.key_of(path, ""));
        let found = blocking(move || this.cache.find(&key)).await;
        found.filter(|file| (file.size, file.mtime_ns) == (facts.size, facts.mtime_ns))
    }

    /// The version that is there now, as the kernel knows it.
    pub async fn open(
        self: &Arc<Self>,
        path: &WirePath,
        facts: Facts,
    ) -> Result<Arc<CacheFile>, Refusal> {
        let key = self.key_of(path, "");
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
                Err(fault) => return Err(Refusal::Fault(fault)),
            }
        }
        // Who opens the same file at once waits for the first, and finds what it brought.
        let turn = self.turns.lock().unwrap_or_else(PoisonError::into_inner).of(key);
        let _turn = turn.lock().await;
        let found = self.cached(path, facts).await;
        match found.filter(|file| Some(file.version) != old) {
            Some(file) => Ok(file),
            None => self.open_new(path, facts, key).await,
        }
    }

    /// Opens a version of which nothing is here, and brings its first block with it.
    async fn open_new(
        self: &Arc<Self>,
        path: &WirePath,
        facts: Facts,
        key: Key,
    ) -> Result<Arc<CacheFile>, Refusal> {
        let first = Extent::new(0, facts.size.min(BLOCK_BYTES));
        let mut want = first;
        let deadline = Instant::now() + SETTLE_MAX;
        let (info, version, landed) = loop {
            let part = Part { size: facts.size, version: None, want };
            let came = self.line.fetch(path, part).await;
            let Came { info, landed, .. } = match came {
                Ok(came) => came,
                Err(fault) if fault.code == Code::Changed => return Err(Refusal::Outdated),
                Err(fault) => return Err(Refusal::Fault(fault)),
            };
            self.counts.fetched(want.len);
            if info.mtime_ns != facts.mtime_ns {
                return Err(Refusal::Outdated);
            }
            match info.version {
                Some(version) if want == first => break (info, version, landed),
                Some(_) => want = first,
                // Nothing is brought that could not be kept.
                None if Instant::now() < deadline => {
                    want = Extent::new(0, 0);
                    sleep(SETTLE_EVERY).await;
                }
                None => {
                    let text = format!("{path} is written to all the time");
                    return Err(Refusal::Fault(Fault::new(Code::Changed, text)));
                }
            }
        };
        let (this, shown) = (self.clone(), path.to_string());
        let made = blocking(move || this.begin(&key, &info, version, landed));
        let what = || format!("cannot cache {shown}");
        made.await.map_err(|error| Refusal::Fault(Fault::from_io(what(), &error)))
    }

    fn begin(
        &self,
        key: &Key,
        info: &FileInfo,
        version: u64,
        landed: Landed,
    ) -> std::io::Result<Arc<CacheFile>> {
        let file = self.cache.create(key, info, version)?;
        if info.size > 0 && !file.has(0) {
            let (begun, _) = file.flights.join(&[0], 1);
            let landed = Arc::new((0, landed));
            for flight in begun {
                let stay = self.keep(&file, &[0], &landed);
                file.flights.end(flight, Ok(landed.clone()), stay);
            }
        }
        Ok(file)
    }

    /// The metadata of a file as it is there now.
    pub async fn meta(&self, path: &WirePath, facts: Facts) -> Result<Kept, Fault> {
        let part = Part { size: facts.size, version: None, want: Extent::new(0, 0) };
        self.line.fetch(path, part).await.map(|came| came.meta)
    }

    /// Bytes of a version; all of them, or why not.
    pub async fn read(
        self: &Arc<Self>,
        path: &WirePath,
        file: &Arc<CacheFile>,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, Fault> {
        let cannot = |error: &std::io::Error| {
            Fault::from_io(format!("cannot read the cache of {path}"), error)
        };
        for _ in 0..ROUNDS_MAX {
            let flights = self.want(path, file, offset, len as u64).await;
            let mut brought = HashMap::new();
            for (block, mut flight) in flights {
                brought.insert(block, ended(&mut flight).await?);
            }
            let this = file.clone();
            let read = blocking(move || compose(&this, offset, len, &brought)).await;
            if let Some(bytes) = read {
                return bytes.map_err(|error| cannot(&error));
            }
        }
        Err(Fault::new(Code::NoSpace, "the cache is too small for what is read at a time"))
    }

    /// Whether readers have so much under way that nobody else should begin.
    pub fn is_busy(&self) -> bool {
        self.fetches.available_permits() < FETCHES_MAX / 2
    }

    /// Brings what is missing of a range, and waits for it.
    pub async fn bring(
        self: &Arc<Self>,
        path: &WirePath,
        file: &Arc<CacheFile>,
        offset: u64,
        len: u64,
    ) -> Result<(), Fault> {
        for (_, mut flight) in self.want(path, file, offset, len).await {
            ended(&mut flight).await?;
        }
        Ok(())
    }

    /// Has what is missing of a range brought, and joins what is on its way.
    async fn want(
        self: &Arc<Self>,
        path: &WirePath,
        file: &Arc<CacheFile>,
        offset: u64,
        len: u64,
    ) -> Vec<(u32, watch::Receiver<Flown>)> {
        let blocks = file.blocks_of(offset, len);
        let looked = file.clone();
        let absent = blocking(move || looked.absent(blocks)).await;
        if absent.is_empty() {
            return Vec::new();
        }
        let (begun, joined) = file.flights.join(&absent, RUN_MAX);
        for flight in begun {
            tokio::spawn(self.clone().fly(path.clone(), file.clone(), flight, false));
        }
        joined
    }

    /// Has a range brought that nobody waits for, as far as there is room.
    pub fn bring_ahead(
        self: &Arc<Self>,
        path: &WirePath,
        file: &Arc<CacheFile>,
        offset: u64,
        len: u64,
    ) {
        if self.ahead.available_permits() == 0 || !self.line.is_up() || !file.keeps() {
            return;
        }
        let (this, path, file) = (self.clone(), path.clone(), file.clone());
        tokio::spawn(async move {
            let (looked, blocks) = (file.clone(), file.blocks_of(offset, len));
            let absent = blocking(move || looked.absent(blocks)).await;
            for run in absent.chunks(RUN_MAX) {
                if this.ahead.available_permits() == 0 {
                    return;
                }
                let (begun, _) = file.flights.join(run, RUN_MAX);
                for flight in begun {
                    tokio::spawn(this.clone().fly(path.clone(), file.clone(), flight, true));
                }
            }
        });
    }

    /// Brings a run of blocks, keeps them, and tells all who wait.
    async fn fly(
        self: Arc<Self>,
        path: WirePath,
        file: Arc<CacheFile>,
        flight: Flight,
        ahead: bool,
    ) {
        // Neither is ever closed.
        let _ahead = if ahead { self.ahead.acquire().await.ok() } else { None };
        let _fetch = self.fetches.acquire().await;
        // Some may have come since they were looked for.
        let absent: Vec<u32> =
            flight.blocks.iter().copied().filter(|block| !file.has(*block)).collect();
        let (Some(&first), Some(&last)) = (absent.first(), absent.last()) else {
            return file.flights.end(flight, Ok(Arc::default()), None);
        };
        let (first, last) = (block_extent(first, file.size), block_extent(last, file.size));
        let want = Extent::new(first.offset, last.offset + last.len - first.offset);
        let version = Some((file.mtime_ns, file.version));
        let part = Part { size: file.size, version, want };
        let came = self.line.fetch(&path, part).await;
        let flown = came.map(|came| Arc::new((want.offset, came.landed)));
        let mut stay = None;
        let flown = match flown {
            Ok(brought) => {
                self.counts.fetched(want.len);
                let (this, kept, bytes) = (self.clone(), file.clone(), brought.clone());
                stay = blocking(move || this.keep(&kept, &absent, &bytes)).await;
                Ok(brought)
            }
            Err(fault) => {
                let cause = &fault.text;
                tracing::warn!(path = %path, offset = want.offset, cause, "cannot fetch");
                self.counts.failed();
                Err(fault)
            }
        };
        file.flights.end(flight, flown, stay);
    }

    /// Keeps blocks that came. What cannot be kept was brought all the same, and gets the right
    /// to stay in memory for a while, if there is one left.
    fn keep(
        &self,
        file: &CacheFile,
        blocks: &[u32],
        (offset, landed): &(u64, Landed),
    ) -> Option<OwnedSemaphorePermit> {
        let mut kept = true;
        for &block in blocks {
            let extent = block_extent(block, file.size);
            let at = (extent.offset - offset) as usize;
            let bytes = &landed.bytes[at..at + extent.len as usize];
            let grains = (extent.offset..extent.offset + extent.len).step_by(GRAIN_BYTES as usize);
            let digests: Option<Vec<Digest>> =
                grains.map(|grain| landed.digests.get(&grain).copied()).collect();
            let Some(digests) = digests else { continue };
            if let Err(error) = self.cache.store(file, block, bytes, &digests) {
                tracing::debug!(block, cause = %error, "block not kept");
                kept = false;
            }
        }
        file.note_kept(kept);
        if kept { None } else { self.lingers.clone().try_acquire_owned().ok() }
    }
}

/// Waits for the end of a flight. Whoever flies it has a deadline.
async fn ended(flight: &mut watch::Receiver<Flown>) -> Result<Arc<(u64, Landed)>, Fault> {
    let lost = || Fault::new(Code::LinkLost, "what was on its way was given up");
    let flown = flight.wait_for(Option::is_some).await.map_err(|_| lost())?;
    flown.clone().unwrap_or_else(|| Err(lost()))
}

/// Puts a range together: each block from what was brought, or from the cache. `None` when one
/// has gone from there meanwhile.
fn compose(
    file: &CacheFile,
    offset: u64,
    len: usize,
    brought: &HashMap<u32, Arc<(u64, Landed)>>,
) -> Option<std::io::Result<Vec<u8>>> {
    if brought.is_empty() {
        return file.read(offset, len);
    }
    let end = offset + len as u64;
    let mut bytes = Vec::with_capacity(len);
    for block in file.blocks_of(offset, len as u64) {
        let extent = block_extent(block, file.size);
        let from = offset.max(extent.offset);
        let count = (end.min(extent.offset + extent.len) - from) as usize;
        // A flight brings no block that was there.
        let part = brought.get(&block).and_then(|landed| {
            let at = from.checked_sub(landed.0)? as usize;
            landed.1.bytes.get(at..at + count)
        });
        match part {
            Some(part) => bytes.extend_from_slice(part),
            None => match file.read(from, count)? {
                Ok(part) => bytes.extend_from_slice(&part),
                Err(error) => return Some(Err(error)),
            },
        }
    }
    Some(Ok(bytes))
}

/// Does what may take a while where others need not wait for it.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("what is done there does not panic")
}
