//! The RDMA devices that the server has open. The binary opens all there are before
//! the process gives up its rights, so its user need not be let at them; every session
//! makes a protection domain of its own on one of these. A device that came later, or
//! failed and came back, is opened when it is wanted, if the process still may.
//! Nothing is chosen here: `rails` does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use verbatim_fabric::FabricError;
use verbatim_fabric::ports::{Access, DeviceInfo, Machine, Transport};
use verbatim_fabric::verbs::{Context, DomainLimits, Place, VerbsDomain};

/// Open devices, by the kernel's name. As many as `Machine` tells of at most, and one more for
/// each that was renamed.
#[derive(Default)]
pub struct Devices {
    open: Mutex<BTreeMap<String, Arc<Context>>>,
}

impl Devices {
    /// Opens the device of this name, or all where it is empty, if RDMA is enabled: also what has no port that is up yet. What cannot
    /// be opened is told, and may be later.
    pub fn open(enable: bool, device: &str) -> Arc<Self> {
        let devices = Self::default();
        let wanted = |it: &&DeviceInfo| device.is_empty() || device == it.name;
        // What is not given to this process the doctor tells of.
        let usable =
            |it: &&DeviceInfo| it.transport == Transport::Ib && it.access == Access::Granted;
        let machine = if enable { Machine::here() } else { Machine::default() };
        for device in machine.devices.iter().filter(wanted).filter(usable) {
            if let Err(error) = devices.context(&device.name) {
                tracing::warn!(%error, hint = error.hint(), "device not opened");
            }
        }
        Arc::new(devices)
    }

    /// The names of those that are open and work. Takes what the kernel has to say of each.
    pub fn names(&self) -> Vec<String> {
        let works = |(name, context): (&String, &Arc<Context>)| {
            (!context.has_failed()).then(|| name.clone())
        };
        self.lock().iter().filter_map(works).collect()
    }

    /// A device, as it is open; one that failed is opened anew.
    pub fn context(&self, name: &str) -> Result<Arc<Context>, FabricError> {
        let known = self.lock().get(name).filter(|context| !context.has_failed()).cloned();
        if let Some(context) = known {
            return Ok(context);
        }
        // Not under the lock: a device may take its time.
        let context = Context::open(name)?;
        self.lock().insert(name.to_owned(), context.clone());
        Ok(context)
    }

    /// A new domain on the device of a place.
    pub fn domain(
        &self,
        place: &Place,
        limits: DomainLimits,
    ) -> Result<Arc<VerbsDomain>, FabricError> {
        VerbsDomain::new(&self.context(&place.device)?, limits).or_else(|error| {
            // Kernels refuse write(2) to who has other rights than when it opened the device.
            // Libraries since about 2019 use ioctl(2); with an older one, who still may opens it anew.
            tracing::debug!(%error, "the open device is of no use");
            VerbsDomain::open(place, limits).map_err(|_| error)
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Context>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
