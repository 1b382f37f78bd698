//! What RDMA devices a machine has, as plain data: their ports, the state of those,
//! the addresses each port has, and the networks the machine is in. `sysfs` fills
//! it, `choose` looks at it; neither a device nor a library is needed.

use super::memory_nodes::MemoryNodes;
use std::net::{IpAddr, Ipv6Addr};

/// What is known of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Its RDMA devices, in the order of their names.
    pub devices: Vec<DeviceInfo>,
    /// The IP networks it is in.
    pub networks: Vec<Network>,
    /// Its memory, as far as devices are nearer to some of it.
    pub memory: MemoryNodes,
}

impl Machine {
    /// The network device that has this address: of the networks that hold it the narrowest.
    pub fn netdev_of(&self, local: IpAddr) -> Option<&str> {
        let holds = |network: &&Network| network.holds(local.to_canonical());
        let narrowest = self.networks.iter().filter(holds).max_by_key(|network| network.bits);
        narrowest.map(|network| network.netdev.as_str())
    }
}

/// An IP network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The network device that leads there.
    pub netdev: String,
    /// Its first address.
    pub base: IpAddr,
    /// How many bits its addresses have in common.
    pub bits: u8,
}

impl Network {
    fn holds(&self, ip: IpAddr) -> bool {
        let (base, ip, length) = match (self.base, ip) {
            (IpAddr::V4(base), IpAddr::V4(ip)) => (base.to_bits().into(), ip.to_bits().into(), 32),
            (IpAddr::V6(base), IpAddr::V6(ip)) => (base.to_bits(), ip.to_bits(), 128),
            _ => return false,
        };
        let differing: u128 = base ^ ip;
        differing.checked_shr(length - u32::from(self.bits).min(length)).unwrap_or(0) == 0
    }
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The kernel's name: `mlx5_0`.
    pub name: String,
    /// What it speaks.
    pub transport: Transport,
    /// Where it is on the PCI bus: `0000:3b:00.0`. Software devices are not.
    pub pci: Option<String>,
    /// The memory it is nearest to.
    pub numa_node: Option<u32>,
    /// Whether this process may open it.
    pub access: Access,
    /// Its ports.
    pub ports: Vec<PortInfo>,
}

impl Machine {
    /// Lets devices be used that are open, whoever may open them now.
    pub fn with_open(mut self, open: &[String]) -> Self {
        for device in self.devices.iter_mut().filter(|device| open.contains(&device.name)) {
            device.access = Access::Granted;
        }
        self
    }
}

/// What a device speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// InfiniBand or RoCE.
    Ib,
    /// iWARP.
    Iwarp,
    /// Something without reliable connections.
    Other,
}

/// Whether the file behind a device can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// It can.
    Granted,
    /// It is not there: a container that was not given this device.
    Missing(String),
    /// It is there and may not be opened by this user.
    Denied(String),
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Its number, from 1.
    pub number: u8,
    /// Whether it is up.
    pub state: PortState,
    /// What runs on its cable.
    pub link_layer: LinkLayer,
    /// How much its cable carries, in Mbit/s; 0 when unknown.
    pub rate_mbit: u32,
    /// Its local identifier; 0 on Ethernet.
    pub lid: u16,
    /// The network devices on it.
    pub netdevs: Vec<String>,
    /// Its addresses; empty places are left out.
    pub gids: Vec<GidInfo>,
}

/// The state of a port, as the device tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortState(pub u32);

impl PortState {
    /// The state of a port that carries traffic.
    pub const ACTIVE: Self = Self(4);

    /// Whether it carries traffic.
    pub fn is_active(self) -> bool {
        self == Self::ACTIVE
    }

    /// What tools call it.
    pub fn name(self) -> &'static str {
        const NAMES: [&str; 6] = ["NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"];
        NAMES.get(self.0 as usize).copied().unwrap_or("in an unknown state")
    }
}

/// What runs on a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: addressed by LID, between subnets by GID.
    Infiniband,
    /// RoCE: addressed by GID.
    Ethernet,
}

impl LinkLayer {
    /// What tools call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Infiniband => "InfiniBand",
            Self::Ethernet => "Ethernet",
        }
    }
}

/// What an address is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    Ib,
    /// RoCE within one Ethernet segment.
    RoceV1,
    /// RoCE over UDP, which is routed.
    RoceV2,
}

impl std::fmt::Display for GidKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ib => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidInfo {
    /// Its place in the port's table.
    pub index: u8,
    /// The address itself.
    pub raw: [u8; 16],
    /// What it is of.
    pub kind: GidKind,
    /// The network device it comes from: on Ethernet.
    pub netdev: Option<String>,
}

impl GidInfo {
    /// The address as IP: RoCE addresses are the IP addresses of the network device.
    pub fn ip(&self) -> IpAddr {
        Ipv6Addr::from(self.raw).to_canonical()
    }

    /// Whether it ends at the switch.
    pub fn is_link_local(&self) -> bool {
        matches!(self.ip(), IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfe80)
    }
}

impl std::fmt::Display for GidInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}, {})", self.index, self.ip(), self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_state_has_its_usual_name() {
        assert_eq!((PortState(1).name(), PortState::ACTIVE.name()), ("DOWN", "ACTIVE"));
        assert_eq!(PortState(77).name(), "in an unknown state");
    }

    #[test]
    fn the_narrowest_network_that_holds_an_address_says_its_device() {
        let network = |netdev: &str, base: &str, bits| Network {
            netdev: netdev.into(),
            base: base.parse().expect("an address"),
            bits,
        };
        let networks = vec![
            network("eth0", "0.0.0.0", 0),
            network("ib0", "10.1.0.0", 16),
            network("ib1", "10.1.2.0", 24),
            network("ib6", "2001:db8::7", 128),
        ];
        let machine = Machine { networks, ..Machine::default() };
        let netdev = |ip: &str| machine.netdev_of(ip.parse().expect("an address"));
        assert_eq!(netdev("10.1.2.3"), Some("ib1"));
        assert_eq!(netdev("::ffff:10.1.3.3"), Some("ib0"), "also when a dual socket told it");
        assert_eq!(netdev("192.168.0.1"), Some("eth0"));
        assert_eq!(netdev("2001:db8::7"), Some("ib6"));
        assert_eq!(netdev("2001:db8::8"), None);
    }
}
