//! Which ports and addresses links should use: a pure function of what the machine
//! has, what the user wishes and what the environment hints. It looks at nothing
//! itself. When nothing fits it says why, port by port, each with what to do.
//!
//! The rules: what the user names; then ports that are ACTIVE; then the address
//! that routes to the peer; then what hints name; RoCE v2 over v1; IPv4 over global
//! IPv6 over link-local; the fastest; the nearest to the memory of this process. Among
//! equals the first by name, so that two runs of a command agree. One address of each port: the best.

use super::hints::Hints;
use super::machine::{
    Access, DeviceInfo, GidInfo, GidKind, LinkLayer, Machine, PortInfo, Transport,
};
use super::memory_nodes::DISTANCE_LOCAL;
use super::reason::Reason;
use std::cmp::Reverse;
use std::net::IpAddr;

/// What the user or the driver asks for. Nothing set means: choose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// The device, by the kernel's name: `mlx5_0`.
    pub device: Option<String>,
    /// The port, from 1.
    pub port: Option<u8>,
    /// The place in the port's table of addresses.
    pub gid_index: Option<u8>,
    /// Our address on the way to the peer.
    pub local: Option<IpAddr>,
    /// What the environment says.
    pub hints: Hints,
    /// Devices that this process has open: whether it might open them now does not matter.
    pub open: Vec<String>,
}

/// Where links start from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The device.
    pub device: String,
    /// The port, from 1.
    pub port: u8,
    /// Which of its addresses.
    pub gid: GidInfo,
    /// What runs on its cable.
    pub link_layer: LinkLayer,
    /// The network device on it, where one is known.
    pub netdev: Option<String>,
    /// How much its cable carries, in Mbit/s; 0 when unknown. What work is weighted by.
    pub rate_mbit: u32,
    /// The memory it is nearest to.
    pub numa_node: Option<u32>,
    /// How far that is from the memory this process uses, where the machine tells: 10 is local.
    pub numa_distance: Option<u32>,
    /// Why it is where it is in the list.
    pub why: String,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{} address {}", self.device, self.port, self.gid)
    }
}

/// Lists the places that links can start from, the best first; at least one. Else says of every
/// port why not.
pub fn choose(machine: &Machine, wish: &Wish) -> Result<Vec<Place>, Vec<Reason>> {
    let (mut found, mut reasons) = (Vec::new(), Vec::new());
    let wanted = |device: &&DeviceInfo| wish.device.as_ref().is_none_or(|it| *it == device.name);
    let netdev = wish.local.and_then(|local| machine.netdev_of(local));
    for device in machine.devices.iter().filter(wanted) {
        if let Some(reason) = unfit(device) {
            reasons.push(reason);
            continue;
        }
        let wanted = |port: &&PortInfo| wish.port.is_none_or(|it| it == port.number);
        let before = found.len() + reasons.len();
        for port in device.ports.iter().filter(wanted) {
            match Candidate::of(device, port, wish, netdev) {
                Ok(mut candidate) => {
                    let node = device.numa_node;
                    candidate.place.numa_distance =
                        node.and_then(|node| machine.memory.distance_to(node));
                    found.push(candidate);
                }
                Err(reason) => reasons.push(reason),
            }
        }
        if let Some(port) = wish.port
            && found.len() + reasons.len() == before
        {
            reasons.push(Reason::NoSuchPort { device: device.name.clone(), port });
        }
    }
    if found.is_empty() {
        let none = reasons.is_empty().then(|| nothing(machine, wish));
        return Err(none.into_iter().chain(reasons).collect());
    }
    Ok(ordered(found, wish))
}

fn nothing(machine: &Machine, wish: &Wish) -> Reason {
    match &wish.device {
        Some(name) if !machine.devices.is_empty() => {
            let known: Vec<_> = machine.devices.iter().map(|it| it.name.as_str()).collect();
            Reason::NoSuchDevice { name: name.clone(), known: known.join(", ") }
        }
        _ => Reason::NoDevice,
    }
}

/// Why nothing on this device can be used.
fn unfit(device: &DeviceInfo) -> Option<Reason> {
    let name = device.name.clone();
    match (&device.transport, &device.access) {
        (Transport::Iwarp, _) => Some(Reason::Iwarp { device: name }),
        (Transport::Other, _) => Some(Reason::NoConnections { device: name }),
        (Transport::Ib, Access::Missing(node)) => {
            Some(Reason::NotGiven { device: name, node: node.clone() })
        }
        (Transport::Ib, Access::Denied(node)) => {
            let cause = format!("{node} may not be opened by this user");
            Some(Reason::Unusable { device: name, cause })
        }
        (Transport::Ib, Access::Granted) => None,
    }
}

/// A port that can be used, with the best of its addresses.
struct Candidate {
    routes: bool,
    /// Hints that mean it, by how much they say: bit 1 a device plugin, bit 0 NCCL.
    hinted: u8,
    /// Which variables those are.
    variables: Vec<String>,
    address: AddressRank,
    place: Place,
}

/// What makes an address better, the most telling first: whether NCCL is told to use it,
/// whether it is routed at all, how far it reaches.
type AddressRank = (bool, bool, u8);

impl Candidate {
    fn of(
        device: &DeviceInfo,
        port: &PortInfo,
        wish: &Wish,
        way: Option<&str>,
    ) -> Result<Self, Reason> {
        let (name, number) = (device.name.clone(), port.number);
        let netdev = port.netdevs.first().cloned();
        if !port.state.is_active() {
            let netdev = netdev.filter(|_| port.link_layer == LinkLayer::Ethernet);
            let state = port.state.name();
            return Err(Reason::NotActive { device: name, port: number, state, netdev });
        }
        // InfiniBand is not addressed by IP: there the network device on the port tells.
        let by_netdev = port.link_layer == LinkLayer::Infiniband
            && way.is_some_and(|way| port.netdevs.iter().any(|it| it == way));
        let ranked = port.gids.iter().filter(|gid| may_use(port, gid, wish)).map(|gid| {
            let local = wish.local.is_some_and(|local| local.to_canonical() == gid.ip());
            let hinted = wish.hints.gid_index() == Some(gid.index);
            let rank = (hinted, gid.kind != GidKind::RoceV1, reach(gid));
            ((local || by_netdev, rank), gid)
        });
        // Of equals the first, whereas the last is what the library takes.
        let best = ranked.rev().max_by_key(|(rank, _)| *rank);
        let Some(((routes, address), gid)) = best else {
            let known: Vec<_> = port.gids.iter().map(ToString::to_string).collect();
            return Err(match wish.gid_index {
                Some(index) => Reason::NoSuchGid { device: name, port: number, index, known },
                None => Reason::NoGid { device: name, port: number, netdev },
            });
        };
        let given = wish.hints.given(device.pci.as_deref());
        let named = wish.hints.names(&name, number);
        let place = Place {
            device: name,
            port: number,
            gid: gid.clone(),
            link_layer: port.link_layer,
            netdev: gid.netdev.clone().or(netdev),
            rate_mbit: port.rate_mbit,
            numa_node: device.numa_node,
            numa_distance: None,
            why: String::new(),
        };
        Ok(Self {
            routes,
            hinted: u8::from(given.is_some()) << 1 | u8::from(named.is_some()),
            variables: given.into_iter().chain(named).map(str::to_owned).collect(),
            address,
            place,
        })
    }

    fn rank(&self) -> (bool, u8, AddressRank, u32, Reverse<u32>) {
        // Where the machine does not tell, all are local.
        let far = Reverse(self.place.numa_distance.unwrap_or(DISTANCE_LOCAL));
        (self.routes, self.hinted, self.address, self.place.rate_mbit, far)
    }

    /// Why it is used, being one of so many.
    fn why(&self, wish: &Wish, count: usize) -> String {
        let named = [
            wish.device.as_ref().map(|_| "device"),
            wish.port.map(|_| "port"),
            wish.gid_index.map(|_| "address"),
        ];
        let named: Vec<_> = named.into_iter().flatten().collect();
        let gid = &self.place.gid;
        let mut why = if !named.is_empty() {
            format!("asked for by {}", named.join(", "))
        } else if self.routes {
            "its address routes to the peer".into()
        } else if !self.variables.is_empty() {
            format!("{} names it", self.variables.join(" and "))
        } else if count == 1 {
            "it is the only port that can be used".into()
        } else {
            let rate = self.place.rate_mbit as f64 / 1000.0;
            format!("the best of {count} ports: {}, {rate} Gb/s", gid.kind)
        };
        if self.address.0 && wish.gid_index.is_none() {
            why.push_str("; the address is that of NCCL_IB_GID_INDEX");
        }
        if gid.is_link_local() && gid.kind != GidKind::Ib {
            why.push_str("; it has link-local addresses only, which end at the switch");
        }
        why
    }
}

/// Sorts, and leaves out what hints leave out, unless it routes to the peer.
fn ordered(mut found: Vec<Candidate>, wish: &Wish) -> Vec<Place> {
    // Stable: of equals the first by name stays the first.
    found.sort_by_key(|candidate| Reverse(candidate.rank()));
    let hinted = found.iter().map(|candidate| candidate.hinted).max().unwrap_or(0);
    found.retain(|candidate| candidate.routes || candidate.hinted == hinted);
    let count = found.len();
    let finished = found.into_iter().map(|candidate| {
        let why = candidate.why(wish, count);
        Place { why, ..candidate.place }
    });
    finished.collect()
}

fn may_use(port: &PortInfo, gid: &GidInfo, wish: &Wish) -> bool {
    match wish.gid_index {
        Some(index) => gid.index == index,
        None => port.link_layer == LinkLayer::Infiniband || gid.kind != GidKind::Ib,
    }
}

/// How far an address reaches: IPv4 is what clusters route, link-local ends at the switch.
fn reach(gid: &GidInfo) -> u8 {
    match gid.ip() {
        IpAddr::V4(_) => 2,
        IpAddr::V6(_) if gid.is_link_local() => 0,
        IpAddr::V6(_) => 1,
    }
}
