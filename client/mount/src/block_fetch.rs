//! Reads and fetches blocks: fetches missing blocks in parts that all readers of a
//! block share, stores them in the cache, and answers reads. Reads go before prefetches
//! and the fill.

use super::cache::{BLOCK_BYTES, CacheFile, block_extent};
use super::content::{Content, blocking};
use super::inflight::{BlockFetch, FetchResult};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, watch};
use verbatim_engine::local_io::range_buffer::{RANGE_BYTES_MAX, VerifiedRange};
use verbatim_proto::read::Part;
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::{Code, Digest, Extent, Fault, WirePath};

/// The most blocks in one fetch.
const FETCH_BLOCKS_MAX: usize = (RANGE_BYTES_MAX / BLOCK_BYTES) as usize;

/// How often eviction may punch a block before its reader gets an error.
const READ_TRIES_MAX: usize = 8;

impl Content {
    /// Reads a range of a version: all bytes, or a fault.
    pub async fn read(
        self: &Arc<Self>,
        path: &WirePath,
        file: &Arc<CacheFile>,
        offset: u64,
        len: usize,
    ) -> Result<ReadBytes, Fault> {
        let cannot = |error: &std::io::Error| {
            Fault::from_io(format!("cannot read the cache of {path}"), error)
        };
        for _ in 0..READ_TRIES_MAX {
            let in_flight = self.join_or_fetch(path, file, offset, len as u64, true).await;
            let reader = self.gate.reader_waits();
            let mut received = HashMap::new();
            for (block, mut fetch) in in_flight {
                received.insert(block, wait_for_fetch(&mut fetch).await?);
            }
            drop(reader);
            let single = received.values().find(|it| it.at(offset, len).is_some());
            if let Some(received) = single {
                return Ok(ReadBytes::Received(received.clone(), offset, len));
            }
            let this = file.clone();
            let read = blocking(move || assemble(&this, offset, len, &received)).await;
            if let Some(bytes) = read {
                return bytes.map(ReadBytes::Cached).map_err(|error| cannot(&error));
            }
        }
        Err(Fault::new(Code::NoSpace, "the cache is too small for what is read at a time"))
    }

    /// A range of a version, if one recent fetch received all of it.
    pub fn recent_bytes(&self, file: &CacheFile, offset: u64, len: usize) -> Option<ReadBytes> {
        let received = file.in_flight.received(*file.block_range(offset, len as u64).start())?;
        received.at(offset, len)?;
        Some(ReadBytes::Received(received, offset, len))
    }

    /// Copies a range of a version, if recent fetches received all of it.
    pub fn copy_recent(&self, file: &CacheFile, offset: u64, into: &mut [u8]) -> bool {
        let end = offset + into.len() as u64;
        let mut rest = into;
        for block in file.block_range(offset, rest.len() as u64) {
            let extent = block_extent(block, file.size);
            let from = offset.max(extent.offset);
            let count = (end.min(extent.offset + extent.len) - from) as usize;
            let (piece, tail) = rest.split_at_mut(count);
            rest = tail;
            let received = file.in_flight.received(block);
            if received.is_none_or(|received| received.copy(from, piece) < count) {
                return false;
            }
        }
        true
    }

    /// Fetches the missing blocks of a range at background priority and waits for them. Returns the
    /// received bytes, without holes.
    pub async fn fetch_range(
        self: &Arc<Self>,
        path: &WirePath,
        file: &Arc<CacheFile>,
        offset: u64,
        len: u64,
    ) -> Result<u64, Fault> {
        let (mut bytes, mut last) = (0, None);
        for (_, mut fetch) in self.join_or_fetch(path, file, offset, len, false).await {
            let received = wait_for_fetch(&mut fetch).await?;
            // The blocks of one fetch are consecutive.
            if last.as_ref().is_none_or(|last| !Arc::ptr_eq(last, &received)) {
                bytes += received.byte_count();
            }
            last = Some(received);
        }
        Ok(bytes)
    }

    /// Starts fetches for the missing blocks of a range, and joins those already running.
    async fn join_or_fetch(
        self: &Arc<Self>,
        path: &WirePath,
        file: &Arc<CacheFile>,
        offset: u64,
        len: u64,
        waits: bool,
    ) -> Vec<(u32, watch::Receiver<FetchResult>)> {
        let blocks = file.block_range(offset, len);
        let searched = file.clone();
        let absent = blocking(move || searched.absent(blocks)).await;
        if absent.is_empty() {
            return Vec::new();
        }
        let (started, joined) = file.in_flight.join(&absent, FETCH_BLOCKS_MAX, waits);
        for fetch in started {
            tokio::spawn(self.clone().fetch_blocks(path.clone(), file.clone(), fetch, None));
        }
        joined
    }

    /// Starts background fetches for a range, as far as there are permits for read-ahead.
    pub fn prefetch(
        self: &Arc<Self>,
        path: &WirePath,
        file: &Arc<CacheFile>,
        offset: u64,
        len: u64,
    ) {
        if !self.connection.is_up() || !file.is_storable() {
            return;
        }
        for run in file.unclaimed(file.block_range(offset, len)).chunks(FETCH_BLOCKS_MAX) {
            let Ok(permit) = self.read_ahead_permits.clone().try_acquire_owned() else { return };
            let (started, _) = file.in_flight.join(run, FETCH_BLOCKS_MAX, false);
            let mut permit = Some(permit);
            for fetch in started {
                let result =
                    self.clone().fetch_blocks(path.clone(), file.clone(), fetch, permit.take());
                tokio::spawn(result);
            }
        }
    }

    /// Fetches consecutive blocks, stores them in the cache, and wakes all waiters.
    async fn fetch_blocks(
        self: Arc<Self>,
        path: WirePath,
        file: Arc<CacheFile>,
        fetch: BlockFetch,
        _permit: Option<OwnedSemaphorePermit>,
    ) {
        // The semaphore is never closed.
        let _fetch = self.fetches.acquire().await;
        // Another fetch may have stored some of them since.
        let absent: Vec<u32> =
            fetch.blocks.iter().copied().filter(|block| !file.has(*block)).collect();
        let (Some(&first), Some(&last)) = (absent.first(), absent.last()) else {
            file.in_flight.finish(&fetch, Ok(Arc::default()));
            return file.in_flight.remove(&fetch);
        };
        let (first, last) = (block_extent(first, file.size), block_extent(last, file.size));
        let want = Extent::new(first.offset, last.offset + last.len - first.offset);
        let version = Some((file.mtime_ns, file.version));
        let part = Part { size: file.size, version, want };
        let fetched = self.connection.fetch(&path, part, fetch.priority.clone()).await;
        match fetched {
            Ok(fetched) => {
                let fetched_bytes = fetched.data.byte_count();
                self.counters.add_fetched(fetched_bytes);
                let received = Arc::new(fetched.data);
                let (this, stored, bytes) = (self.clone(), file.clone(), received.clone());
                let stored = blocking(move || this.store_blocks(&stored, &absent, &bytes)).await;
                file.in_flight.finish(&fetch, Ok(received));
                self.recent_blocks.add(&file, fetch, fetched_bytes, stored);
            }
            Err(fault) => {
                let cause = &fault.text;
                tracing::warn!(path = %path, offset = want.offset, cause, "cannot fetch");
                self.counters.add_failure();
                file.in_flight.finish(&fetch, Err(fault));
            }
        }
    }

    /// Stores received blocks; returns whether the cache took all. Readers get blocks that it
    /// refused too.
    pub(super) fn store_blocks(
        &self,
        file: &CacheFile,
        blocks: &[u32],
        received: &VerifiedRange,
    ) -> bool {
        let mut stored = true;
        for &block in blocks {
            let extent = block_extent(block, file.size);
            let grains = (extent.offset..extent.offset + extent.len).step_by(GRAIN_BYTES as usize);
            let digests: Option<Vec<Digest>> =
                grains.map(|grain| received.digests.get(&grain).copied()).collect();
            let bytes = received.gather(extent.offset, extent.len as usize);
            let (Some(digests), Some(bytes)) = (digests, bytes) else { continue };
            if let Err(error) = self.cache.store(file, block, &bytes, &digests) {
                tracing::debug!(block, cause = %error, "block not kept");
                stored = false;
            }
        }
        file.set_storable(stored);
        stored
    }
}

/// The bytes of an answered read.
pub(crate) enum ReadBytes {
    /// Read from the cache file.
    Cached(Vec<u8>),
    /// Received data, with the offset and length of the read.
    Received(Arc<VerifiedRange>, u64, usize),
}

impl ReadBytes {
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Cached(bytes) => bytes,
            Self::Received(received, offset, len) => {
                received.at(*offset, *len).expect("the range was checked before")
            }
        }
    }
}

/// Waits for a fetch to finish. The fetch itself has a deadline.
async fn wait_for_fetch(
    fetch: &mut watch::Receiver<FetchResult>,
) -> Result<Arc<VerifiedRange>, Fault> {
    let lost = || Fault::new(Code::LinkLost, "what was on its way was given up");
    let result = fetch.wait_for(Option::is_some).await.map_err(|_| lost())?;
    result.clone().unwrap_or_else(|| Err(lost()))
}

/// Assembles a range from received blocks and from the cache. `None` if eviction punched one of its
/// blocks meanwhile.
fn assemble(
    file: &CacheFile,
    offset: u64,
    len: usize,
    received: &HashMap<u32, Arc<VerifiedRange>>,
) -> Option<std::io::Result<Vec<u8>>> {
    if received.is_empty() {
        return file.read(offset, len);
    }
    let end = offset + len as u64;
    let mut bytes = Vec::with_capacity(len);
    for block in file.block_range(offset, len as u64) {
        let extent = block_extent(block, file.size);
        let from = offset.max(extent.offset);
        let count = (end.min(extent.offset + extent.len) - from) as usize;
        // A fetch skips blocks that the cache has.
        match received.get(&block).and_then(|received| received.gather(from, count)) {
            Some(part) => bytes.extend_from_slice(&part),
            None => match file.read(from, count)? {
                Ok(part) => bytes.extend_from_slice(&part),
                Err(error) => return Some(Err(error)),
            },
        }
    }
    Some(Ok(bytes))
}
