//! RDMA on the server: which device a client is served from, and the memory one
//! client may name. A session's domain registers everything with the device and
//! mirrors it under the same names for TCP links, so that a client whose device
//! fails goes on over TCP with the windows and grants it has.

use crate::observe::Missing;
use crate::pins::{Pin, Pins, Share};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use verbatim_fabric::proof::{PROOF_PAGE_BYTES, Proof};
use verbatim_fabric::verbs::{
    self, Address, Context, DomainLimits, FileWindows, Options, Place, VerbsDomain, VerbsEndpoint,
    VerbsLink, Wish,
};
use verbatim_fabric::{Domain, FabricError, Memory, RegionHandle, SoftDomain};
use verbatim_proto::units::WINDOW_BYTES;

/// How RDMA is used.
#[derive(Clone, Default)]
pub(crate) struct Rdma {
    /// Whether clients may use it at all.
    pub enable: bool,
    /// Which device, port and address.
    pub wish: Wish,
    /// What one client may have.
    pub limits: DomainLimits,
    /// How links are.
    pub options: Options,
    /// Queue pairs of one client.
    pub qps_max: u16,
    /// Windows of one client at a time that are copies of files, each as long as a window.
    pub copied_windows_max: usize,
    /// What uploads of one client land in.
    pub upload_bytes_max: u64,
    /// What all clients together may have.
    pub pins: Option<Arc<Pins>>,
}

impl Rdma {
    /// Chooses where links of a client start that reached us at this address.
    fn place(&self, local: Option<IpAddr>) -> Result<Place, FabricError> {
        if !self.enable {
            let hint = "set rdma.enable in the server's configuration";
            return Err(FabricError::device("no RDMA", "it is switched off", hint));
        }
        let wish = Wish { local: self.wish.local.or(local), ..self.wish.clone() };
        verbs::find_place(&wish)
    }

    fn pins(&self) -> Result<&Arc<Pins>, FabricError> {
        self.pins.as_ref().ok_or_else(|| FabricError::Limit("the server may pin nothing".into()))
    }

    /// Why there is none for clients, if there is none.
    pub fn missing(&self) -> Option<Missing> {
        let error = self.place(None).err()?;
        let hint = error.hint().map(str::to_owned);
        Some(Missing { disabled: !self.enable, text: error.to_string(), hint })
    }

    /// What all sessions together may pin.
    pub fn pinned_bytes_max(&self) -> u64 {
        self.pins.as_ref().map_or(0, |pins| pins.budget())
    }

    /// Logs what clients can expect: which device, and how files of each folder are offered.
    pub fn announce<'a>(&self, folders: impl Iterator<Item = &'a std::path::Path>) {
        let opened = self.place(None).and_then(|place| {
            let context = Context::open(&place.device)?;
            Ok((place, context))
        });
        let (place, context) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let hint = error.hint().unwrap_or_default();
                return tracing::info!(%error, hint, "data moves over TCP");
            }
        };
        let pin_budget_mb = self.pins.as_ref().map_or(0, |pins| pins.budget() >> 20);
        tracing::info!(device = place.device, port = place.port, pin_budget_mb, "RDMA is offered");
        for folder in folders {
            let path = folder.display();
            match verbs::probe(&context, folder) {
                FileWindows::Mapped => tracing::info!(%path, "files are registered as they are"),
                FileWindows::Staged { reason } => {
                    tracing::warn!(%path, %reason, "files are read into registered slots");
                }
            }
        }
    }
}

/// The memory that one client may name.
#[derive(Default)]
pub(crate) struct SessionDomain {
    soft: Arc<SoftDomain>,
    /// Set by the first link that runs over a device.
    device: OnceLock<Device>,
    /// What the regions take of the budget. Behind `device`: given back after they are gone.
    pins: Mutex<HashMap<u64, Pin>>,
    /// A page of that device.
    proof: OnceLock<Proof>,
}

/// The device that a session is served from.
struct Device {
    place: Place,
    domain: Arc<VerbsDomain>,
    share: Share,
}

impl SessionDomain {
    /// What links without a device look into.
    pub fn soft(&self) -> &Arc<SoftDomain> {
        &self.soft
    }

    /// How many regions the client may name.
    pub fn regions(&self) -> u64 {
        self.soft.region_count() as u64
    }

    /// Bytes that are pinned for it.
    pub fn pinned_bytes(&self) -> u64 {
        self.device.get().map_or(0, |device| device.domain.pinned_bytes())
    }

    /// Makes the server's half of a queue pair for a client that reached us at `local`. It will
    /// need slots of this length: where none can be pinned, the client is told why. `bell` is rung
    /// when something that `pin` refused may be had.
    pub fn connect(
        &self,
        rdma: &Rdma,
        (local, slot_bytes): (Option<IpAddr>, u64),
        peer: &[u8],
        bell: impl Fn() + Send + Sync + 'static,
    ) -> Result<(VerbsLink, Vec<u8>), FabricError> {
        let peer = Address::from_bytes(peer)?;
        if self.device.get().is_none() {
            // What is registered by now has no name on a device.
            if self.soft.region_count() > 0 {
                return Err(FabricError::Limit("the session began without a device".into()));
            }
            let place = rdma.place(local)?;
            tell(&place);
            let share = rdma.pins()?.admit(slot_bytes, bell)?;
            let domain = VerbsDomain::open(&place, rdma.limits)?;
            domain.try_pinning(share.floor() as usize)?;
            // Only this task sets it.
            let _ = self.device.set(Device { place, domain, share });
        }
        let Device { place, domain, .. } = self.device.get().expect("it was just set");
        let endpoint = VerbsEndpoint::new(domain, place, rdma.options)?;
        let mut address = endpoint.address().to_bytes().to_vec();
        if peer.proves {
            address.extend(self.proof(domain)?.to_bytes());
        }
        Ok((endpoint.connect(&peer)?, address))
    }

    /// What the client reads to see that a link works: one page for all its links.
    fn proof(&self, domain: &VerbsDomain) -> Result<Proof, FabricError> {
        if let Some(proof) = self.proof.get() {
            return Ok(*proof);
        }
        // It is part of the client's floor, and nothing was taken before it.
        let pin = self.pin(PROOF_PAGE_BYTES as u64).ok_or_else(|| {
            FabricError::Limit("no page is left in the pin budget for a proof".into())
        })?;
        let proof = Proof::offer(domain)?;
        self.keep(proof.key(), pin);
        Ok(*self.proof.get_or_init(|| proof))
    }

    /// Takes so many bytes of the client's part of the budget. None means: the bell will ring.
    /// Without a device nothing is pinned, and nothing taken.
    pub fn pin(&self, bytes: u64) -> Option<Pin> {
        self.device.get().map_or_else(|| Some(Pin::none()), |device| device.share.pin(bytes))
    }

    /// How long windows should be now.
    pub fn window_bytes(&self) -> u64 {
        self.device.get().map_or(WINDOW_BYTES, |device| device.share.window_bytes())
    }

    /// Keeps what a region takes of the budget until it is taken back.
    pub fn keep(&self, key: u64, pin: Pin) {
        self.pins().insert(key, pin);
    }

    fn pins(&self) -> MutexGuard<'_, HashMap<u64, Pin>> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Domain for SessionDomain {
    fn register(&self, memory: Memory) -> Result<RegionHandle, FabricError> {
        let Some(Device { domain: device, .. }) = self.device.get() else {
            return self.soft.register(memory);
        };
        let handle = match device.register(memory.clone()) {
            Ok(handle) => handle,
            // A file may be copied instead; what is a copy already is left to TCP: the client's
            // queue pair fails on the name, and it asks for another link.
            Err(error) if matches!(memory, Memory::File(_)) => return Err(error),
            Err(error) => {
                tracing::warn!(%error, hint = error.hint(), "memory is offered over TCP only");
                return self.soft.register(memory);
            }
        };
        match self.soft.register_as(handle, memory) {
            Ok(()) => Ok(handle),
            Err(error) => {
                device.deregister(handle.key);
                Err(error)
            }
        }
    }

    fn deregister(&self, key: u64) {
        self.soft.deregister(key);
        if let Some(Device { domain, .. }) = self.device.get() {
            domain.deregister(key);
        }
        // Not under the lock: it rings bells.
        let pin = self.pins().remove(&key);
        drop(pin);
    }

    fn region_count(&self) -> usize {
        self.soft.region_count()
    }
}

/// Says what was chosen, and why.
fn tell(place: &Place) {
    let Place { device, port, gid, why, .. } = place;
    let (gid_index, address, kind) = (gid.index, gid.ip(), gid.kind);
    tracing::info!(device, port, gid_index, %address, %kind, why, "RDMA port chosen");
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_fabric::SharedSlot;

    #[test]
    fn without_a_device_a_session_registers_softly() {
        let domain = SessionDomain::default();
        let slot = SharedSlot::new(10).expect("slot");
        let pin = domain.pin(u64::MAX).expect("nothing is pinned");
        let handle = domain.register(Memory::Upload(slot)).expect("registers");
        domain.keep(handle.key, pin);
        assert_eq!((handle.base, domain.region_count()), (0, 1));
        let late = domain.connect(&Rdma::default(), (None, 1), &[], || ());
        assert!(late.is_err(), "an address that is none");
        domain.deregister(handle.key);
        assert_eq!((domain.region_count(), domain.pins().len()), (0, 0));
    }

    #[test]
    fn a_device_that_is_switched_off_is_said_to_be() {
        let error = Rdma::default().place(None).expect_err("off");
        assert!(error.to_string().contains("switched off"), "{error}");
        assert!(error.hint().expect("a hint").contains("rdma.enable"));
    }
}
