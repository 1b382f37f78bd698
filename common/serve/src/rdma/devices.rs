//! The open RDMA devices of the server. The program opens all devices before it gives up root, so
//! its user needs no access to them; every session makes a protection domain of its own on one of
//! them. A device that appears later, or failed and came back, is opened on demand, if the process
//! still may. Chooses no device: `rails` does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use verbatim_fabric::FabricError;
use verbatim_fabric::ports::{Access, DeviceInfo, Machine, Transport};
use verbatim_fabric::verbs::{Context, DomainLimits, Place, VerbsDomain};

/// Open devices, by the kernel's name. At most as many as `Machine` lists, and one more for each
/// renamed device.
#[derive(Default)]
pub struct Devices {
    open: Mutex<BTreeMap<String, Arc<Context>>>,
}

impl Devices {
    /// Opens the device of this name, or all if the name is empty, provided RDMA is enabled.
    /// Includes devices without an active port. Logs devices that cannot be opened; they may be
    /// opened later.
    pub fn open(enable: bool, device: &str) -> Arc<Self> {
        let devices = Self::default();
        let wanted = |it: &&DeviceInfo| device.is_empty() || device == it.name;
        // The doctor reports devices that this process has no access to.
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

    /// The names of open, working devices. Reads pending kernel events of each.
    pub fn names(&self) -> Vec<String> {
        let works = |(name, context): (&String, &Arc<Context>)| {
            (!context.has_failed()).then(|| name.clone())
        };
        self.lock().iter().filter_map(works).collect()
    }

    /// An open device; one that failed is opened again.
    pub fn context(&self, name: &str) -> Result<Arc<Context>, FabricError> {
        let known = self.lock().get(name).filter(|context| !context.has_failed()).cloned();
        if let Some(context) = known {
            return Ok(context);
        }
        // Without the lock: opening a device may take a while.
        let context = Context::open(name)?;
        self.lock().insert(name.to_owned(), context.clone());
        Ok(context)
    }

    /// A new domain on the device of a port.
    pub fn domain(
        &self,
        place: &Place,
        limits: DomainLimits,
    ) -> Result<Arc<VerbsDomain>, FabricError> {
        VerbsDomain::new(&self.context(&place.device)?, limits).or_else(|error| {
            // Kernels refuse write(2) after the process has changed its credentials since it opened
            // the device. Libraries since about 2019 use ioctl(2); with an older one, a process
            // that still may opens the device again.
            tracing::debug!(%error, "the open device is of no use");
            VerbsDomain::open(place, limits).map_err(|_| error)
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Context>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
