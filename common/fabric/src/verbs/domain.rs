//! The domain of one client on one device: what the server registers for it and
//! what the client's queue pairs may name. Another client's domain on the same
//! device knows none of its keys. Dropping it takes every region back.

use super::context::Context;
use super::counters::Counters;
use super::probe;
use super::region::{DomainLimits, Pd};
use super::registration::Registered;
use crate::domain::Domain;
use crate::error::FabricError;
use crate::memory::{Memory, SharedSlot};
use crate::ports::Place;
use crate::region::RegionHandle;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A protection domain with the regions registered in it.
#[derive(Debug)]
pub struct VerbsDomain {
    // Before `pd`, though each region holds it anyway.
    regions: Mutex<HashMap<u64, Registered>>,
    pd: Arc<Pd>,
}

impl VerbsDomain {
    /// Makes an empty domain on an open device.
    pub fn new(context: &Arc<Context>, limits: DomainLimits) -> Result<Arc<Self>, FabricError> {
        let pd = Pd::new(context, limits)?;
        Ok(Arc::new(Self { regions: Mutex::default(), pd }))
    }

    /// Opens the device of a place and makes a domain on it.
    pub fn open(place: &Place, limits: DomainLimits) -> Result<Arc<Self>, FabricError> {
        Self::new(&Context::open(&place.device)?, limits)
    }

    /// Registers so many bytes and gives them back: what cannot be pinned is better known
    /// before data moves.
    pub fn try_pinning(&self, bytes: usize) -> Result<(), FabricError> {
        Registered::new(&self.pd, Memory::Upload(SharedSlot::for_device(bytes)?)).map(drop)
    }

    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    /// Takes a region back, and says whether the device has let go of it: then no operation that
    /// names it does anything to its memory any more, not even one that is under way.
    pub fn end_region(&self, key: u64) -> bool {
        let region = self.regions.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        // Taken back outside the lock: it is a system call, and unpins every page.
        region.is_none_or(Registered::end)
    }

    /// Whether the device writes to files on disks: it is tried once.
    pub fn pages_on_demand(&self) -> bool {
        probe::pages_on_demand(self.context())
    }

    /// What its queue pairs posted.
    pub fn counters(&self) -> &Counters {
        &self.pd.counters
    }

    /// Bytes that are registered in it, local buffers among them.
    pub fn pinned_bytes(&self) -> u64 {
        self.pd.pinned_bytes()
    }

    /// Regions in it, local buffers among them.
    pub fn pinned_regions(&self) -> u64 {
        self.pd.region_count()
    }

    pub(super) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
}

impl Domain for VerbsDomain {
    fn register(&self, memory: Memory) -> Result<RegionHandle, FabricError> {
        let registered = Registered::new(&self.pd, memory)?;
        let key = u64::from(registered.region.rkey());
        let base = registered.region.base();
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        // The device makes keys, and makes none twice while the first is in use.
        let before = regions.insert(key, registered);
        assert!(before.is_none(), "the device used key {key:#x} twice");
        Ok(RegionHandle { key, base })
    }

    fn deregister(&self, key: u64) {
        self.end_region(key);
    }

    fn region_count(&self) -> usize {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
