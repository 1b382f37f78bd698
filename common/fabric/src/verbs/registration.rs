//! What of our memory a device knows: what a peer may name, kept as long as its region,
//! and buffers for this side's own requests. The kind of memory decides the access. A
//! region that was not taken back leaves its memory to the end of the process (`region`).

use super::ffi;
use super::region::{FILE_WINDOW, Pd, Region};
use crate::error::FabricError;
use crate::memory::{Buffer, Memory};
use std::sync::Arc;

/// A region and the memory it is of.
#[derive(Debug)]
pub(super) struct Registered {
    pub region: Region,
    memory: Option<Memory>,
}

impl Registered {
    pub fn new(pd: &Arc<Pd>, memory: Memory) -> Result<Self, FabricError> {
        let region = region_of(pd, &memory)?;
        Ok(Self { region, memory: Some(memory) })
    }

    /// Ends it; whether the device has let go of the memory.
    pub fn end(mut self) -> bool {
        self.region.take_back()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if !self.region.take_back() {
            std::mem::forget(self.memory.take());
        }
    }
}

/// Registers memory that a peer may name; the access follows from its kind. Whoever calls
/// keeps `memory` as long as the region.
fn region_of(pd: &Arc<Pd>, memory: &Memory) -> Result<Region, FabricError> {
    let write = ffi::IBV_ACCESS_LOCAL_WRITE | ffi::IBV_ACCESS_REMOTE_WRITE;
    let (address, access, what) = match memory {
        Memory::File(window) => {
            (window.address().cast_mut(), ffi::IBV_ACCESS_REMOTE_READ, FILE_WINDOW)
        }
        Memory::Staged(slot) => {
            (slot.lend_to_device(false), ffi::IBV_ACCESS_REMOTE_READ, "a staging slot")
        }
        Memory::Gathered(..) => {
            return Err(FabricError::Access("a device reads no files".into()));
        }
        Memory::Upload(slot) => (slot.lend_to_device(true), write, "an upload slot"),
        Memory::Spot(spot) => {
            let paged = if spot.is_on_demand() { ffi::IBV_ACCESS_ON_DEMAND } else { 0 };
            (spot.address(), write | paged, "a range of a file")
        }
    };
    let len = memory.len().max(1);
    // SAFETY: the caller keeps the memory. Its bytes are never borrowed where a device may
    // write (`SharedSlot`), or at all (`MappedFile`, `MappedSpot`).
    unsafe { Region::register(pd, address, len, access, what) }
}

/// The key for naming a buffer in requests of this domain; registers it the first time.
pub(super) fn local_key(buffer: &mut Buffer, pd: &Arc<Pd>) -> Result<u32, FabricError> {
    let (regions, address, len) = buffer.registered_and_memory();
    // SAFETY: the memory is the buffer's, and so are the regions. While a request that may write
    // to it is posted, the buffer belongs to its link, which looks at no byte.
    unsafe { regions.key_in(pd, address, len) }
}
