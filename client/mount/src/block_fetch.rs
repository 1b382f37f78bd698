//! How bytes of files come: the blocks that are missing are fetched in parts, which are
//! flights that all who want a block share; kept in the cache; and given to readers.
//! Readers go before what nobody waits for.

use super::cache::{BLOCK_BYTES, CacheFile, block_extent};
use super::content::{Content, blocking};
use super::inflight::{BlockFetch, FetchResult};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, watch};
use verbatim_engine::local_io::range_buffer::{Landed, PART_BYTES_MAX};
use verbatim_proto::read::Part;
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::{Code, Digest, Extent, Fault, WirePath};

/// Blocks in one part.
const FETCH_BLOCKS_MAX: usize = (PART_BYTES_MAX / BLOCK_BYTES) as usize;

/// How often a block may vanish under its reader before that is an error.
const READ_TRIES_MAX: usize = 8;

impl Content {
    /// Bytes of a version; all of them, or why not.
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
            let whole = received.values().find(|it| it.at(offset, len).is_some());
            if let Some(received) = whole {
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

    /// Bytes of a version that came lately, if all of them are at hand.
    pub fn recent_bytes(&self, file: &CacheFile, offset: u64, len: usize) -> Option<ReadBytes> {
        let received = file.in_flight.received(*file.block_range(offset, len as u64).start())?;
        received.at(offset, len)?;
        Some(ReadBytes::Received(received, offset, len))
    }

    /// Copies bytes of a version that came lately, if all of them are at hand.
    pub fn copy_recent(&self, file: &CacheFile, offset: u64, into: &mut [u8]) -> bool {
        let end = offset + into.len() as u64;
        let mut rest = into;
        for block in file.block_range(offset, rest.len() as u64) {
            let extent = block_extent(block, file.size);
            let from = offset.max(extent.offset);
            let count = (end.min(extent.offset + extent.len) - from) as usize;
            let (here, behind) = rest.split_at_mut(count);
            rest = behind;
            let received = file.in_flight.received(block);
            if received.is_none_or(|received| received.copy(from, here) < count) {
                return false;
            }
        }
        true
    }

    /// Brings what is missing of a range for nobody yet, and waits for it; says how many bytes
    /// came: those of holes do not.
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
            // The blocks of one flight follow one another.
            if last.as_ref().is_none_or(|last| !Arc::ptr_eq(last, &received)) {
                bytes += received.byte_count();
            }
            last = Some(received);
        }
        Ok(bytes)
    }

    /// Has what is missing of a range brought, and joins what is on its way.
    async fn join_or_fetch(
        self: &Arc<Self>,
        path: &WirePath,
        file: &Arc<CacheFile>,
        offset: u64,
        len: u64,
        waits: bool,
    ) -> Vec<(u32, watch::Receiver<FetchResult>)> {
        let blocks = file.block_range(offset, len);
        let looked = file.clone();
        let absent = blocking(move || looked.absent(blocks)).await;
        if absent.is_empty() {
            return Vec::new();
        }
        let (started, joined) = file.in_flight.join(&absent, FETCH_BLOCKS_MAX, waits);
        for fetch in started {
            tokio::spawn(self.clone().fetch_blocks(path.clone(), file.clone(), fetch, None));
        }
        joined
    }

    /// Has a range brought that nobody waits for, as far as there is room.
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

    /// Brings a run of blocks, keeps them, and tells all who wait.
    async fn fetch_blocks(
        self: Arc<Self>,
        path: WirePath,
        file: Arc<CacheFile>,
        fetch: BlockFetch,
        _permit: Option<OwnedSemaphorePermit>,
    ) {
        // It is never closed.
        let _fetch = self.fetches.acquire().await;
        // Some may have come since they were looked for.
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

    /// Keeps blocks that came; whether it could. What cannot be kept was brought all the same.
    pub(super) fn store_blocks(&self, file: &CacheFile, blocks: &[u32], received: &Landed) -> bool {
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

/// What a reader gets.
pub(crate) enum ReadBytes {
    /// From the cache file.
    Cached(Vec<u8>),
    /// From what came, an offset and a length of the file.
    Received(Arc<Landed>, u64, usize),
}

impl ReadBytes {
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Cached(bytes) => bytes,
            Self::Received(received, offset, len) => {
                received.at(*offset, *len).expect("whoever made it has looked")
            }
        }
    }
}

/// Waits for the end of a flight. Whoever flies it has a deadline.
async fn wait_for_fetch(fetch: &mut watch::Receiver<FetchResult>) -> Result<Arc<Landed>, Fault> {
    let lost = || Fault::new(Code::LinkLost, "what was on its way was given up");
    let result = fetch.wait_for(Option::is_some).await.map_err(|_| lost())?;
    result.clone().unwrap_or_else(|| Err(lost()))
}

/// Puts a range together: each block from what was brought, or from the cache. `None` when one
/// has gone from there meanwhile.
fn assemble(
    file: &CacheFile,
    offset: u64,
    len: usize,
    received: &HashMap<u32, Arc<Landed>>,
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
        // A flight brings no block that was there.
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
