//! The memory that one client may name, on each of its rails. Each device of the session registers
//! a window under its own key; the first key also names it for TCP links, so that a client whose
//! devices fail continues over TCP with the windows it has. A slot belongs to one link, and only
//! the device of that link registers it. The address of a client's port decides its rail, once.
//!
//! Sessions use it; `pin_budget` limits it.

use crate::rdma::pin_budget::{ClientPins, Pin, PinEvent};
use crate::rdma::rails::Rdma;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::Instant;
use verbatim_fabric::proof::{PROOF_PAGE_BYTES, Proof};
use verbatim_fabric::verbs::{Address, Place, VerbsDomain, VerbsEndpoint};
use verbatim_fabric::{Domain, FabricError, Link, Memory, RegionHandle, SoftDomain};
use verbatim_proto::message::Region;
use verbatim_proto::rails::RAILS_MAX;
use verbatim_proto::units::WINDOW_BYTES;
use verbatim_proto::{Code, Fault};

/// The domain of a session: the memory that its client may name.
#[derive(Default)]
pub struct SessionDomain {
    soft: Arc<SoftDomain>,
    /// The device of each rail, in the order of the client's ports.
    devices: RwLock<Vec<Device>>,
    /// The registrations. Dropped after `devices`: a pin is returned after its region is gone.
    regions: Mutex<Regions>,
    client_pins: OnceLock<ClientPins>,
}

/// A device that serves the session.
struct Device {
    place: Place,
    domain: Arc<VerbsDomain>,
    proof: Option<Proof>,
    /// The client's ports that it serves.
    peers: Vec<[u8; 16]>,
}

#[derive(Default)]
struct Regions {
    next: u64,
    registered: HashMap<u64, Registration>,
}

/// The keys of registered memory, and its pin.
struct Registration {
    soft_key: Option<u64>,
    /// Rail and key.
    keys: Vec<(usize, u64)>,
    _pin: Arc<Pin>,
}

/// Memory that a client may name.
pub struct Offered {
    /// The number of its registration.
    pub number: u64,
    /// Its key on the first rail.
    pub region: Region,
    /// Its keys on the others.
    pub rails: Vec<Region>,
}

/// What a link needs.
pub struct LinkRequirements {
    /// The server's address, as the client reached it.
    pub local: Option<IpAddr>,
    /// The length of its upload slots: if none can be pinned, the error says so.
    pub slot_bytes: u64,
    /// Whether the link must end at the very port that the client named.
    pub by_gid: bool,
}

/// The server's queue pair of a link.
pub struct ConnectedQp {
    /// The queue pair, connected to the client's.
    pub link: Box<dyn Link>,
    /// The address for the client.
    pub address: Vec<u8>,
    /// The rail that it ends at.
    pub rail: u16,
}

impl SessionDomain {
    /// The domain of links without a device.
    pub fn soft(&self) -> &Arc<SoftDomain> {
        &self.soft
    }

    /// Whether a device registers offered memory.
    pub fn has_device(&self) -> bool {
        !self.devices().is_empty()
    }

    /// Whether its devices page on demand, and so write to files on disks, whose pages cannot be
    /// pinned.
    pub fn pages_on_demand(&self) -> bool {
        let devices = self.devices();
        !devices.is_empty() && devices.iter().all(|device| device.domain.pages_on_demand())
    }

    /// The number of regions that the client may name.
    pub fn region_count(&self) -> u64 {
        let named = |registration: &&Registration| {
            registration.soft_key.is_some() || !registration.keys.is_empty()
        };
        self.regions().registered.values().filter(named).count() as u64
    }

    /// Bytes pinned for the client, counted once for each rail.
    pub fn pinned_bytes(&self) -> u64 {
        self.devices().iter().map(|device| device.domain.pinned_bytes()).sum()
    }

    /// Finds the rail for a port of the client, and opens its device if it is new. `on_pin_event`
    /// is called when a refused pin may succeed.
    pub fn join(
        &self,
        rdma: &Rdma,
        requirements: &LinkRequirements,
        gid: [u8; 16],
        on_pin_event: impl Fn(PinEvent) + Send + Sync + 'static,
    ) -> Result<u16, FabricError> {
        let serves = |device: &Device| device.peers.contains(&gid);
        if let Some(rail) = self.devices().iter().position(serves) {
            return Ok(rail as u16);
        }
        // Before the lock, which workers need: this reads all ports of the machine.
        let places = rdma.places(requirements.local)?;
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        let place = nearest_port(&places, &devices, &gid);
        let same = |it: &Device| (&it.place.device, it.place.port) == (&place.device, place.port);
        let rail = devices.iter().position(same).unwrap_or(devices.len());
        if rail == devices.len() {
            let pins = self.client_pins(rdma, requirements.slot_bytes, on_pin_event)?;
            devices.push(self.open(rdma, place.clone(), pins, rail + 1)?);
        }
        devices[rail].peers.push(gid);
        Ok(rail as u16)
    }

    /// Makes the server's queue pair of a link, one at a time. Takes a second if address resolution
    /// of the peer gets no answer, without holding a lock.
    pub fn connect(
        &self,
        rdma: &Rdma,
        requirements: &LinkRequirements,
        rail: u16,
        peer: &Address,
    ) -> Result<ConnectedQp, FabricError> {
        let at = |device: &Device| (device.domain.clone(), device.place.clone());
        let (domain, mut place) = at(&self.devices()[usize::from(rail)]);
        let find = |known: &Place| {
            let same = |it: &Place| (&it.device, it.port) == (&known.device, known.port);
            Ok(rdma.places(requirements.local)?.into_iter().find(same))
        };
        let endpoint = VerbsEndpoint::at(&domain, &mut place, rdma.options, find)?;
        let endpoint = endpoint.by_gid(requirements.by_gid);
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        let device = &mut devices[usize::from(rail)];
        device.place = place;
        let proof = if peer.proves { self.proof(device)? } else { None };
        drop(devices);
        let mut address = endpoint.address().to_bytes().to_vec();
        address.extend(proof.iter().flat_map(Proof::to_bytes));
        Ok(ConnectedQp { link: Box::new(endpoint.connect(peer)?), address, rail })
    }

    fn client_pins(
        &self,
        rdma: &Rdma,
        slot_bytes: u64,
        on_pin_event: impl Fn(PinEvent) + Send + Sync + 'static,
    ) -> Result<&ClientPins, FabricError> {
        if let Some(pins) = self.client_pins.get() {
            return Ok(pins);
        }
        let pins = rdma.pins()?.admit(slot_bytes, on_pin_event)?;
        Ok(self.client_pins.get_or_init(|| pins))
    }

    /// Opens the device of another rail.
    fn open(
        &self,
        rdma: &Rdma,
        place: Place,
        pins: &ClientPins,
        rails: usize,
    ) -> Result<Device, FabricError> {
        // Earlier regions have no key there.
        if self.soft.region_count() > 0 || rails > RAILS_MAX {
            return Err(FabricError::Limit("the session began without this device".into()));
        }
        pins.serve_rails(rails)?;
        let bytes = pins.floor() / rails as u64;
        let opened = rdma.devices.domain(&place, rdma.limits).and_then(|domain| {
            // If there is no room to try, other sessions have shown that it works.
            let trial = pins.pin(bytes).map(|pin| (domain.try_pinning(bytes as usize), pin));
            trial.map_or(Ok(()), |(tried, _pin)| tried).map(|()| domain)
        });
        match opened {
            Ok(domain) => {
                log_choice(&place);
                Ok(Device { place, domain, proof: None, peers: Vec::new() })
            }
            Err(error) => {
                // A lower floor always fits.
                let _ = pins.serve_rails(rails - 1);
                Err(error)
            }
        }
    }

    /// The page that the client reads to probe its links, one for all links of a rail. None while
    /// not even that may be pinned.
    fn proof(&self, device: &mut Device) -> Result<Option<Proof>, FabricError> {
        if device.proof.is_none()
            && let Some(pin) = self.client_pins.get().and_then(|it| it.pin(PROOF_PAGE_BYTES as u64))
        {
            device.proof = Some(Proof::offer(&*device.domain)?);
            // Registered until the domain is gone.
            self.record(None, Vec::new(), Arc::new(pin));
        }
        Ok(device.proof)
    }

    /// Pins what a window of so many bytes needs on all rails. None if the budget refuses:
    /// `PinEvent::Available` follows. Without a device nothing is pinned.
    pub fn pin_window(&self, bytes: u64) -> Option<Arc<Pin>> {
        let rails = self.devices().len() as u64;
        let pin =
            self.client_pins.get().map_or_else(|| Some(Pin::none()), |it| it.pin(bytes * rails));
        pin.map(Arc::new)
    }

    /// The same for a slot of a link that ends at this rail, or at none.
    pub fn pin_slot(&self, rail: Option<u16>, bytes: u64) -> Option<Arc<Pin>> {
        let pin = match (self.client_pins.get(), rail) {
            (Some(pins), Some(_)) => pins.pin(bytes),
            _ => Some(Pin::none()),
        };
        pin.map(Arc::new)
    }

    /// The client used one of its slots: so it is not hoarding.
    pub fn used_slot(&self) {
        if let Some(pins) = self.client_pins.get() {
            pins.used(Instant::now());
        }
    }

    /// The client has waited for a while with nothing: a hoarding client may have to end.
    pub fn evict(&self) {
        if let Some(pins) = self.client_pins.get() {
            pins.evict(Instant::now());
        }
    }

    /// The length of windows that the pin budget allows now.
    pub fn window_bytes(&self) -> u64 {
        let rails = self.devices().len().max(1) as u64;
        self.client_pins.get().map_or(WINDOW_BYTES, |pins| pins.window_bytes(rails))
    }

    /// Registers memory for links of all rails, and for those without a device.
    pub fn offer(&self, memory: Memory, pin: Arc<Pin>) -> Result<Offered, FabricError> {
        let devices = self.devices();
        let mut names: Vec<RegionHandle> = Vec::new();
        for device in devices.iter() {
            match device.domain.register(memory.clone()) {
                Ok(handle) => names.push(handle),
                Err(error) => {
                    deregister_names(&devices, &names);
                    // A file may be copied instead. A copy is left to TCP: the client's queue pairs
                    // fail on its key, and it asks for other links.
                    if matches!(memory, Memory::File(_)) {
                        return Err(error);
                    }
                    tracing::warn!(%error, hint = error.hint(), "memory is offered over TCP only");
                    names.clear();
                    break;
                }
            }
        }
        let first = match names.first() {
            None => self.soft.register(memory)?,
            Some(&first) => {
                if let Err(error) = self.soft.register_as(first, memory) {
                    deregister_names(&devices, &names);
                    return Err(error);
                }
                first
            }
        };
        let name = |rail: usize| region(*names.get(rail).unwrap_or(&first));
        let rails = (1..devices.len()).map(name).collect();
        let keys = names.iter().map(|handle| handle.key).enumerate().collect();
        let number = self.record(Some(first.key), keys, pin);
        Ok(Offered { number, region: region(first), rails })
    }

    /// Registers memory for links of one rail, or for those without a device.
    pub fn offer_on(
        &self,
        rail: Option<u16>,
        memory: Memory,
        pin: Arc<Pin>,
    ) -> Result<Offered, FabricError> {
        let devices = self.devices();
        let device = rail.map(usize::from).and_then(|rail| Some((rail, devices.get(rail)?)));
        let (handle, soft_key, keys) = match device {
            Some((rail, device)) => {
                let handle = device.domain.register(memory)?;
                (handle, None, vec![(rail, handle.key)])
            }
            None => {
                let handle = self.soft.register(memory)?;
                (handle, Some(handle.key), Vec::new())
            }
        };
        let number = self.record(soft_key, keys, pin);
        Ok(Offered { number, region: region(handle), rails: Vec::new() })
    }

    /// Deregisters memory; returns whether every device released it.
    pub fn take_back(&self, number: u64) -> bool {
        let registration = self.regions().registered.remove(&number);
        let Some(registration) = registration else { return true };
        if let Some(key) = registration.soft_key {
            self.soft.deregister(key);
        }
        let devices = self.devices();
        let end = |&(rail, key): &(usize, u64)| devices[rail].domain.end_region(key);
        // All of them, even after one that failed.
        registration.keys.iter().filter(|named| !end(named)).count() == 0
    }

    fn record(&self, soft_key: Option<u64>, keys: Vec<(usize, u64)>, pin: Arc<Pin>) -> u64 {
        let mut regions = self.regions();
        regions.next += 1;
        let number = regions.next;
        regions.registered.insert(number, Registration { soft_key, keys, _pin: pin });
        number
    }

    fn devices(&self) -> RwLockReadGuard<'_, Vec<Device>> {
        self.devices.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn regions(&self) -> MutexGuard<'_, Regions> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fails if a device did not release memory. Its client can still reach that memory, and only the
/// end of the session, with every queue pair, revokes it. The client may reconnect: a failed device
/// is opened again, or left for TCP.
pub fn check_released(released: bool) -> Result<(), Fault> {
    let text = "the device does not let go of memory; see dmesg of the server";
    released.then_some(()).ok_or_else(|| Fault::new(Code::LinkLost, text))
}

/// Deregisters memory from the first devices.
fn deregister_names(devices: &[Device], names: &[RegionHandle]) {
    for (device, handle) in devices.iter().zip(names) {
        device.domain.deregister(handle.key);
    }
}

fn region(handle: RegionHandle) -> Region {
    Region { key: handle.key, base: handle.base }
}

/// The server's port for a port of the client: the same port, else one of the same network, and of
/// those the one that serves the fewest; then the best.
fn nearest_port<'p>(places: &'p [Place], devices: &[Device], peer: &[u8; 16]) -> &'p Place {
    let serves = |place: &Place| {
        let same = |it: &&Device| (&it.place.device, it.place.port) == (&place.device, place.port);
        devices.iter().find(same).map_or(0, |device| device.peers.len())
    };
    let rank = |place: &&Place| (3 - nearness(&place.gid.raw, peer), serves(place));
    places.iter().min_by_key(rank).expect("there is a place at least")
}

/// How near two ports are by address: 2 the same, 1 the same network, 0 neither.
fn nearness(ours: &[u8; 16], peer: &[u8; 16]) -> u8 {
    let is_v4 = |gid: &[u8; 16]| Ipv6Addr::from(*gid).to_ipv4_mapped().is_some();
    // The usual network of a rail: a /24 of IPv4, a /64 of IPv6, a subnet of InfiniBand.
    let prefix = if is_v4(ours) && is_v4(peer) { 15 } else { 8 };
    if ours == peer { 2 } else { u8::from(ours[..prefix] == peer[..prefix]) }
}

/// Logs the chosen port, and the reason.
fn log_choice(place: &Place) {
    let Place { device, port, gid, why, .. } = place;
    let (gid_index, address, kind) = (gid.index, gid.ip(), gid.kind);
    tracing::info!(device, port, gid_index, %address, %kind, why, "RDMA port chosen");
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_fabric::SharedSlot;
    use verbatim_fabric::verbs::{GidInfo, GidKind, LinkLayer};

    #[test]
    fn without_a_device_a_session_registers_softly() {
        let domain = SessionDomain::default();
        let slot = SharedSlot::new(10).expect("slot");
        let pin = domain.pin_window(u64::MAX).expect("nothing is pinned");
        let offered = domain.offer(Memory::Staged(slot.clone()), pin).expect("registers");
        assert_eq!((offered.region.base, offered.rails.len()), (0, 0));
        let upload =
            domain.offer_on(None, Memory::Upload(slot), Arc::new(Pin::none())).expect("registers");
        assert_eq!(domain.soft.region_count(), 2);
        domain.take_back(offered.number);
        domain.take_back(upload.number);
        assert_eq!((domain.soft.region_count(), domain.regions().registered.len()), (0, 0));
    }

    fn gid(ip: &str) -> [u8; 16] {
        match ip.parse().expect("an address") {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        }
    }

    fn place(device: &str, ip: &str) -> Place {
        Place {
            device: device.into(),
            port: 1,
            gid: GidInfo { index: 3, raw: gid(ip), kind: GidKind::RoceV2, netdev: None },
            link_layer: LinkLayer::Ethernet,
            netdev: None,
            rate_mbit: 400_000,
            numa_node: None,
            numa_distance: None,
            why: String::new(),
        }
    }

    #[test]
    fn a_port_is_served_from_its_own_network() {
        let places = [place("mlx5_0", "10.0.0.1"), place("mlx5_1", "10.0.1.1")];
        let served = |ip: &str| nearest_port(&places, &[], &gid(ip)).device.clone();
        assert_eq!(served("10.0.1.77"), "mlx5_1");
        assert_eq!(served("10.0.0.77"), "mlx5_0");
        assert_eq!(served("10.0.1.1"), "mlx5_1", "one machine, one port");
        assert_eq!(served("192.168.0.1"), "mlx5_0", "another network: the best");
        assert_eq!(nearness(&gid("fe80::1"), &gid("fe80::2")), 1);
        assert_eq!(nearness(&gid("2001:db8::1"), &gid("2001:db9::1")), 0);
    }
}
