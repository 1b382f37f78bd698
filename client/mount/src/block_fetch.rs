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
            let flights = self.want(path, file, offset, len as u64, true).await;
            let waits = self.gate.wait();
            let mut brought = HashMap::new();
            for (block, mut flight) in flights {
                brought.insert(block, ended(&mut flight).await?);
            }
            drop(waits);
            let whole = brought.values().find(|it| it.at(offset, len).is_some());
            if let Some(brought) = whole {
                return Ok(ReadBytes::Received(brought.clone(), offset, len));
            }
            let this = file.clone();
            let read = blocking(move || compose(&this, offset, len, &brought)).await;
            if let Some(bytes) = read {
                return bytes.map(ReadBytes::Cached).map_err(|error| cannot(&error));
            }
        }
        Err(Fault::new(Code::NoSpace, "the cache is too small for what is read at a time"))
    }

    /// Bytes of a version that came lately, if all of them are at hand.
    pub fn at_hand(&self, file: &CacheFile, offset: u64, len: usize) -> Option<ReadBytes> {
        let brought = file.flights.at_hand(*file.blocks_of(offset, len as u64).start())?;
        brought.at(offset, len)?;
        Some(ReadBytes::Received(brought, offset, len))
    }

    /// Copies bytes of a version that came lately, if all of them are at hand.
    pub fn copy_at_hand(&self, file: &CacheFile, offset: u64, into: &mut [u8]) -> bool {
        let end = offset + into.len() as u64;
        let mut rest = into;
        for block in file.blocks_of(offset, rest.len() as u64) {
            let extent = block_extent(block, file.size);
            let from = offset.max(extent.offset);
            let count = (end.min(extent.offset + extent.len) - from) as usize;
            let (here, behind) = rest.split_at_mut(count);
            rest = behind;
            let brought = file.flights.at_hand(block);
            if brought.is_none_or(|brought| brought.copy(from, here) < count) {
                return false;
            }
        }
        true
    }

    /// Brings what is missing of a range for nobody yet, and waits for it; says how many bytes
    /// came: those of holes do not.
    pub async fn bring(
        self: &Arc<Self>,
        path: &WirePath,
        file: &Arc<CacheFile>,
        offset: u64,
        len: u64,
    ) -> Result<u64, Fault> {
        let (mut bytes, mut last) = (0, None);
        for (_, mut flight) in self.want(path, file, offset, len, false).await {
            let brought = ended(&mut flight).await?;
            // The blocks of one flight follow one another.
            if last.as_ref().is_none_or(|last| !Arc::ptr_eq(last, &brought)) {
                bytes += brought.byte_count();
            }
            last = Some(brought);
        }
        Ok(bytes)
    }

    /// Has what is missing of a range brought, and joins what is on its way.
    async fn want(
        self: &Arc<Self>,
        path: &WirePath,
        file: &Arc<CacheFile>,
        offset: u64,
        len: u64,
        waits: bool,
    ) -> Vec<(u32, watch::Receiver<FetchResult>)> {
        let blocks = file.blocks_of(offset, len);
        let looked = file.clone();
        let absent = blocking(move || looked.absent(blocks)).await;
        if absent.is_empty() {
            return Vec::new();
        }
        let (begun, joined) = file.flights.join(&absent, FETCH_BLOCKS_MAX, waits);
        for flight in begun {
            tokio::spawn(self.clone().fly(path.clone(), file.clone(), flight, None));
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
        if !self.line.is_up() || !file.keeps() {
            return;
        }
        for run in file.unknown(file.blocks_of(offset, len)).chunks(FETCH_BLOCKS_MAX) {
            let Ok(permit) = self.ahead.clone().try_acquire_owned() else { return };
            let (begun, _) = file.flights.join(run, FETCH_BLOCKS_MAX, false);
            let mut permit = Some(permit);
            for flight in begun {
                let flown = self.clone().fly(path.clone(), file.clone(), flight, permit.take());
                tokio::spawn(flown);
            }
        }
    }

    /// Brings a run of blocks, keeps them, and tells all who wait.
    async fn fly(
        self: Arc<Self>,
        path: WirePath,
        file: Arc<CacheFile>,
        flight: BlockFetch,
        _ahead: Option<OwnedSemaphorePermit>,
    ) {
        // It is never closed.
        let _fetch = self.fetches.acquire().await;
        // Some may have come since they were looked for.
        let absent: Vec<u32> =
            flight.blocks.iter().copied().filter(|block| !file.has(*block)).collect();
        let (Some(&first), Some(&last)) = (absent.first(), absent.last()) else {
            file.flights.end(&flight, Ok(Arc::default()));
            return file.flights.forget(&flight);
        };
        let (first, last) = (block_extent(first, file.size), block_extent(last, file.size));
        let want = Extent::new(first.offset, last.offset + last.len - first.offset);
        let version = Some((file.mtime_ns, file.version));
        let part = Part { size: file.size, version, want };
        let came = self.line.fetch(&path, part, flight.haste.clone()).await;
        match came {
            Ok(came) => {
                let came_bytes = came.landed.byte_count();
                self.counts.fetched(came_bytes);
                let brought = Arc::new(came.landed);
                let (this, kept, bytes) = (self.clone(), file.clone(), brought.clone());
                let kept = blocking(move || this.keep(&kept, &absent, &bytes)).await;
                file.flights.end(&flight, Ok(brought));
                self.hot.add(&file, flight, came_bytes, kept);
            }
            Err(fault) => {
                let cause = &fault.text;
                tracing::warn!(path = %path, offset = want.offset, cause, "cannot fetch");
                self.counts.failed();
                file.flights.end(&flight, Err(fault));
            }
        }
    }

    /// Keeps blocks that came; whether it could. What cannot be kept was brought all the same.
    pub(super) fn keep(&self, file: &CacheFile, blocks: &[u32], brought: &Landed) -> bool {
        let mut kept = true;
        for &block in blocks {
            let extent = block_extent(block, file.size);
            let grains = (extent.offset..extent.offset + extent.len).step_by(GRAIN_BYTES as usize);
            let digests: Option<Vec<Digest>> =
                grains.map(|grain| brought.digests.get(&grain).copied()).collect();
            let bytes = brought.gather(extent.offset, extent.len as usize);
            let (Some(digests), Some(bytes)) = (digests, bytes) else { continue };
            if let Err(error) = self.cache.store(file, block, &bytes, &digests) {
                tracing::debug!(block, cause = %error, "block not kept");
                kept = false;
            }
        }
        file.note_kept(kept);
        kept
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
            Self::Received(brought, offset, len) => {
                brought.at(*offset, *len).expect("whoever made it has looked")
            }
        }
    }
}

/// Waits for the end of a flight. Whoever flies it has a deadline.
async fn ended(flight: &mut watch::Receiver<FetchResult>) -> Result<Arc<Landed>, Fault> {
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
    brought: &HashMap<u32, Arc<Landed>>,
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
        match brought.get(&block).and_then(|brought| brought.gather(from, count)) {
            Some(part) => bytes.extend_from_slice(&part),
            None => match file.read(from, count)? {
                Ok(part) => bytes.extend_from_slice(&part),
                Err(error) => return Some(Err(error)),
            },
        }
    }
    Some(Ok(bytes))
}
