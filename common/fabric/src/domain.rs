//! Domains: which memory one peer may name. A domain with a device behind it is
//! in `verbs`; the soft one here is a table that links without a device look
//! into. A soft domain can mirror the names of the other, so that a TCP link can
//! serve what was offered for verbs.

use crate::error::FabricError;
use crate::memory::{Memory, random_u64};
use crate::region::{REGIONS_MAX, RegionHandle};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, PoisonError, RwLock};

/// The memory one peer may name: a protection domain. All links to that peer share it, and no
/// link to another peer knows its keys.
pub trait Domain: Send + Sync {
    /// Registers memory; the access follows from its kind.
    fn register(&self, memory: Memory) -> Result<RegionHandle, FabricError>;

    /// Takes a region back. Operations that name it later fail.
    fn deregister(&self, key: u64);

    /// How many regions are registered.
    fn region_count(&self) -> usize;
}

/// The domain of links without a device: a table of regions under random keys.
#[derive(Debug, Default)]
pub struct SoftDomain {
    regions: RwLock<HashMap<u64, SoftRegion>>,
}

#[derive(Debug)]
struct SoftRegion {
    base: u64,
    memory: Memory,
}

/// What a peer wants to do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it.
    Read,
    /// Write it.
    Write,
}

impl SoftDomain {
    /// An empty domain.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Registers memory under the name it has elsewhere, so that a link without a device can
    /// serve what was offered for one with.
    pub fn register_as(&self, handle: RegionHandle, memory: Memory) -> Result<(), FabricError> {
        if handle.base.checked_add(memory.len() as u64).is_none() {
            return Err(FabricError::Limit("a region ends beyond all addresses".into()));
        }
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        check_room(&regions)?;
        match regions.entry(handle.key) {
            Entry::Occupied(_) => Err(FabricError::Limit("the key names a region already".into())),
            Entry::Vacant(free) => {
                free.insert(SoftRegion { base: handle.base, memory });
                Ok(())
            }
        }
    }

    /// Finds the memory a peer names, when the peer may do this to all of the range, and where
    /// in it the range begins.
    pub fn find(
        &self,
        key: u64,
        address: u64,
        len: usize,
        access: Access,
    ) -> Result<(Memory, u64), FabricError> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let SoftRegion { base, memory } =
            regions.get(&key).ok_or_else(|| FabricError::Access("no such region".into()))?;
        let allowed = match memory {
            Memory::File(_) | Memory::Staged(_) | Memory::Gathered(..) => access == Access::Read,
            Memory::Upload(_) => access == Access::Write,
            Memory::Spot(_) => false,
        };
        if !allowed {
            return Err(FabricError::Access(format!("region does not allow {access:?}")));
        }
        let offset = address.checked_sub(*base);
        let end = offset.and_then(|offset| offset.checked_add(len as u64));
        match (offset, end) {
            (Some(offset), Some(end)) if end <= memory.len() as u64 => Ok((memory.clone(), offset)),
            _ => Err(FabricError::Access("range is outside its region".into())),
        }
    }
}

fn check_room(regions: &HashMap<u64, SoftRegion>) -> Result<(), FabricError> {
    if regions.len() >= REGIONS_MAX {
        return Err(FabricError::Limit(format!("{REGIONS_MAX} regions are registered")));
    }
    Ok(())
}

impl Domain for SoftDomain {
    fn register(&self, memory: Memory) -> Result<RegionHandle, FabricError> {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        check_room(&regions)?;
        let key = loop {
            let key = random_u64()?;
            if !regions.contains_key(&key) {
                break key;
            }
        };
        regions.insert(key, SoftRegion { base: 0, memory });
        Ok(RegionHandle { key, base: 0 })
    }

    fn deregister(&self, key: u64) {
        self.regions.write().unwrap_or_else(PoisonError::into_inner).remove(&key);
    }

    fn region_count(&self) -> usize {
        self.regions.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SharedSlot;

    #[test]
    fn a_region_is_found_only_by_its_key_range_and_access() {
        let domain = SoftDomain::new();
        let slot = SharedSlot::new(100).expect("slot");
        let upload = domain.register(Memory::Upload(slot.clone())).expect("registers");
        let staged = domain.register(Memory::Staged(slot)).expect("registers");
        assert!(domain.find(upload.key, 0, 100, Access::Write).is_ok());
        assert!(domain.find(upload.key, 1, 100, Access::Write).is_err(), "past the end");
        assert!(domain.find(upload.key, u64::MAX, 2, Access::Write).is_err(), "overflow");
        assert!(domain.find(upload.key, 0, 1, Access::Read).is_err(), "uploads cannot be read");
        assert!(domain.find(staged.key, 0, 1, Access::Write).is_err(), "staging cannot be written");
        assert!(SoftDomain::new().find(upload.key, 0, 1, Access::Write).is_err(), "other domain");
        domain.deregister(upload.key);
        assert!(domain.find(upload.key, 0, 1, Access::Write).is_err(), "stale key");
    }

    #[test]
    fn a_region_under_a_foreign_name_is_addressed_from_its_base() {
        let domain = SoftDomain::new();
        let slot = SharedSlot::new(100).expect("slot");
        let handle = RegionHandle { key: 0x1234, base: 0x7f00_0000_1000 };
        domain.register_as(handle, Memory::Upload(slot.clone())).expect("registers");
        let at = |address, len| domain.find(handle.key, address, len, Access::Write);
        assert_eq!(at(handle.base + 10, 90).expect("inside").1, 10);
        assert!(at(handle.base + 10, 91).is_err(), "past the end");
        assert!(at(handle.base - 1, 2).is_err(), "before the base");
        assert!(at(0, 1).is_err(), "an offset is no address here");
        let twice = domain.register_as(handle, Memory::Upload(slot.clone()));
        assert!(matches!(twice, Err(FabricError::Limit(_))), "the key is taken");
        let wild = RegionHandle { key: 5, base: u64::MAX - 5 };
        assert!(domain.register_as(wild, Memory::Upload(slot)).is_err(), "wraps around");
        assert_eq!(domain.region_count(), 1);
        domain.deregister(handle.key);
        assert!(at(handle.base, 1).is_err(), "stale key");
    }
}
