//! Which device, port and address a link should use: a pure function of what
//! the machine has and what the user wishes. It looks at nothing itself; `device`
//! does. When nothing fits it says why, port by port, each with what to do.
//!
//! The rules: what the user names; then ports that are ACTIVE; then the address
//! that routes to the peer; RoCE v2 over v1; IPv4 over global IPv6 over
//! link-local. Among equals the first, so that both runs of a command agree.

use super::device::{DeviceInfo, GidInfo, GidKind, LinkLayer, PortInfo, Transport};
use crate::error::FabricError;
use std::net::{IpAddr, Ipv6Addr};

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
}

/// Where a link starts from.
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
    /// The largest packet in use there, as `IBV_MTU_*`.
    pub mtu: u32,
    /// Its local identifier: InfiniBand.
    pub lid: u16,
    /// The largest message it takes.
    pub message_bytes_max: u32,
}

/// Why RDMA is not used: a sentence, and a fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The library is not there.
    #[error("cannot open libibverbs: {cause}")]
    NoLibrary {
        /// What the loader said.
        cause: String,
    },
    /// No device at all.
    #[error("this machine has no RDMA device")]
    NoDevice,
    /// Not the device that was asked for.
    #[error("there is no RDMA device {name}; there are: {known}")]
    NoSuchDevice {
        /// The one asked for.
        name: String,
        /// Those there are.
        known: String,
    },
    /// A device that could not be asked.
    #[error("cannot use {device}: {cause}")]
    Unusable {
        /// Which one.
        device: String,
        /// What the system said.
        cause: String,
    },
    /// A device of another kind.
    #[error("{device} speaks iWARP, which needs the connection manager")]
    Iwarp {
        /// Which one.
        device: String,
    },
    /// A device of another kind.
    #[error("{device} has no reliable connections (EFA, usNIC)")]
    NoConnections {
        /// Which one.
        device: String,
    },
    /// Not the port that was asked for.
    #[error("{device} has no port {port}")]
    NoSuchPort {
        /// The device.
        device: String,
        /// The one asked for.
        port: u8,
    },
    /// The port is not up.
    #[error("port {port} of {device} is {state}, not ACTIVE")]
    NotActive {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The state it is in.
        state: &'static str,
    },
    /// The port has no address that can be used.
    #[error("port {port} of {device} has no address{wanted}")]
    NoGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// " 3" when one was asked for.
        wanted: String,
    },
}

impl From<Reason> for FabricError {
    fn from(reason: Reason) -> Self {
        Self::device("no RDMA", reason.to_string(), reason.hint())
    }
}

impl Reason {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoLibrary { .. } => "install rdma-core (Debian: apt install ibverbs-providers)",
            Self::NoDevice => "check that the card's driver is loaded: rdma link",
            Self::NoSuchDevice { .. } => "rdma link lists the devices",
            Self::Unusable { .. } => "check that /dev/infiniband/uverbs* may be opened",
            Self::Iwarp { .. } | Self::NoConnections { .. } => "TCP is used; that is expected here",
            Self::NoSuchPort { .. } => "ports are counted from 1: ibv_devinfo lists them",
            Self::NotActive { .. } => {
                "check the cable and: ip link set DEV up (InfiniBand: a subnet manager)"
            }
            Self::NoGid { .. } => "give the network device of the port an IP address",
        }
    }
}

/// Chooses, or says of every port why not.
pub fn choose(devices: &[DeviceInfo], wish: &Wish) -> Result<Place, Vec<Reason>> {
    let mut reasons = Vec::new();
    let mut best: Option<(Rank, Place)> = None;
    let wanted = |device: &&DeviceInfo| wish.device.as_ref().is_none_or(|it| *it == device.name);
    for device in devices.iter().filter(wanted) {
        if let Some(reason) = unfit(device) {
            reasons.push(reason);
            continue;
        }
        for port in device.ports.iter().filter(|port| wish.port.is_none_or(|it| it == port.number))
        {
            match best_of_port(device, port, wish) {
                // Only a better one replaces: among equals the first stays.
                Ok((rank, place)) if best.as_ref().is_none_or(|(found, _)| rank > *found) => {
                    best = Some((rank, place));
                }
                Ok(_) => {}
                Err(reason) => reasons.push(reason),
            }
        }
        if let Some(port) = wish.port
            && device.ports.iter().all(|it| it.number != port)
        {
            reasons.push(Reason::NoSuchPort { device: device.name.clone(), port });
        }
    }
    match best {
        Some((_, place)) => Ok(place),
        None if reasons.is_empty() => Err(vec![nothing(devices, wish)]),
        None => Err(reasons),
    }
}

fn nothing(devices: &[DeviceInfo], wish: &Wish) -> Reason {
    match &wish.device {
        Some(name) if !devices.is_empty() => {
            let known: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
            Reason::NoSuchDevice { name: name.clone(), known: known.join(", ") }
        }
        _ => Reason::NoDevice,
    }
}

/// Why nothing on this device can be used.
fn unfit(device: &DeviceInfo) -> Option<Reason> {
    let name = device.name.clone();
    match &device.transport {
        Transport::Ib => None,
        Transport::Iwarp => Some(Reason::Iwarp { device: name }),
        Transport::Other => Some(Reason::NoConnections { device: name }),
        Transport::Unknown(cause) => Some(Reason::Unusable { device: name, cause: cause.clone() }),
    }
}

/// What makes an address better, the most telling first.
type Rank = (bool, bool, u8);

fn best_of_port(
    device: &DeviceInfo,
    port: &PortInfo,
    wish: &Wish,
) -> Result<(Rank, Place), Reason> {
    let name = device.name.clone();
    if !port.state.is_active() {
        let state = port.state.name();
        return Err(Reason::NotActive { device: name, port: port.number, state });
    }
    let wanted = |gid: &&GidInfo| match wish.gid_index {
        Some(index) => gid.index == index,
        None => port.link_layer == LinkLayer::Infiniband || gid.kind != GidKind::Ib,
    };
    let mut best: Option<(Rank, GidInfo)> = None;
    for gid in port.gids.iter().filter(wanted) {
        let routes = wish.local.is_some_and(|local| local.to_canonical() == gid.ip());
        let rank = (routes, gid.kind != GidKind::RoceV1, reach(gid));
        if best.as_ref().is_none_or(|(found, _)| rank > *found) {
            best = Some((rank, *gid));
        }
    }
    let Some((rank, gid)) = best else {
        let wanted = wish.gid_index.map(|index| format!(" {index}")).unwrap_or_default();
        return Err(Reason::NoGid { device: name, port: port.number, wanted });
    };
    let place = Place {
        device: name,
        port: port.number,
        gid,
        link_layer: port.link_layer,
        mtu: port.mtu,
        lid: port.lid,
        message_bytes_max: port.message_bytes_max,
    };
    Ok((rank, place))
}

/// How far an address reaches: IPv4 is what clusters route, link-local ends at the switch.
fn reach(gid: &GidInfo) -> u8 {
    match gid.ip() {
        IpAddr::V4(_) => 2,
        IpAddr::V6(ip) if is_link_local(ip) => 0,
        IpAddr::V6(_) => 1,
    }
}

fn is_link_local(ip: Ipv6Addr) -> bool {
    ip.segments()[0] & 0xffc0 == 0xfe80
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::device::PortState;

    fn gid(index: u8, ip: &str, kind: GidKind) -> GidInfo {
        let ip: IpAddr = ip.parse().expect("an address");
        let raw = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        GidInfo { index, raw, kind }
    }

    fn port(number: u8, gids: Vec<GidInfo>) -> PortInfo {
        PortInfo {
            number,
            state: PortState::ACTIVE,
            link_layer: LinkLayer::Ethernet,
            mtu: 5,
            lid: 0,
            message_bytes_max: 1 << 30,
            gids,
        }
    }

    fn device(name: &str, ports: Vec<PortInfo>) -> DeviceInfo {
        DeviceInfo { name: name.into(), transport: Transport::Ib, ports }
    }

    /// A table as a RoCE port has it: link-local and IPv4, each as v1 and v2.
    fn table(ip: &str) -> Vec<GidInfo> {
        vec![
            gid(0, "fe80::1", GidKind::RoceV1),
            gid(1, "fe80::1", GidKind::RoceV2),
            gid(2, ip, GidKind::RoceV1),
            gid(3, ip, GidKind::RoceV2),
            gid(7, "2001:db8::1", GidKind::RoceV2),
        ]
    }

    #[test]
    fn version_two_over_ipv4_is_preferred() {
        let devices = [device("mlx5_0", vec![port(1, table("10.0.0.1"))])];
        let place = choose(&devices, &Wish::default()).expect("chosen");
        assert_eq!((place.device.as_str(), place.port, place.gid.index), ("mlx5_0", 1, 3));
    }

    #[test]
    fn the_address_that_routes_to_the_peer_comes_first() {
        let devices = [
            device("mlx5_0", vec![port(1, table("10.0.0.1"))]),
            device("mlx5_1", vec![port(1, table("10.1.0.1"))]),
        ];
        let wish = |local: &str| Wish {
            local: Some(local.parse().expect("an address")),
            ..Wish::default()
        };
        assert_eq!(choose(&devices, &wish("10.1.0.1")).expect("chosen").device, "mlx5_1");
        let ipv6 = choose(&devices, &wish("2001:db8::1")).expect("chosen");
        assert_eq!(ipv6.gid.index, 7, "also when it is IPv6");
        let mapped = choose(&devices, &wish("::ffff:10.1.0.1")).expect("chosen");
        assert_eq!(mapped.device, "mlx5_1", "also when a dual socket told it");
        assert_eq!(choose(&devices, &wish("127.0.0.1")).expect("chosen").device, "mlx5_0");
    }

    #[test]
    fn what_the_user_names_is_used_or_refused() {
        let devices = [
            device("mlx5_0", vec![port(1, table("10.0.0.1"))]),
            device("mlx5_1", vec![port(1, table("10.1.0.1")), port(2, table("10.2.0.1"))]),
        ];
        let wish = Wish {
            device: Some("mlx5_1".into()),
            port: Some(2),
            gid_index: Some(0),
            local: Some("10.0.0.1".parse().expect("an address")),
        };
        let place = choose(&devices, &wish).expect("chosen");
        assert_eq!((place.device.as_str(), place.port, place.gid.index), ("mlx5_1", 2, 0));

        let none = |wish: Wish| choose(&devices, &wish).expect_err("refused")[0].to_string();
        let text = none(Wish { device: Some("mlx4_0".into()), ..Wish::default() });
        assert_eq!(text, "there is no RDMA device mlx4_0; there are: mlx5_0, mlx5_1");
        let text = none(Wish { port: Some(9), ..wish.clone() });
        assert_eq!(text, "mlx5_1 has no port 9");
        let text = none(Wish { gid_index: Some(5), ..wish });
        assert_eq!(text, "port 2 of mlx5_1 has no address 5");
    }

    #[test]
    fn every_port_that_cannot_be_used_says_why() {
        let mut down = port(1, table("10.0.0.1"));
        down.state = PortState(1);
        let devices = [
            device("mlx5_0", vec![down, port(2, Vec::new())]),
            DeviceInfo { name: "siw0".into(), transport: Transport::Iwarp, ports: Vec::new() },
            DeviceInfo { name: "efa0".into(), transport: Transport::Other, ports: Vec::new() },
        ];
        let reasons = choose(&devices, &Wish::default()).expect_err("nothing fits");
        let texts: Vec<_> = reasons.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "port 1 of mlx5_0 is DOWN, not ACTIVE",
                "port 2 of mlx5_0 has no address",
                "siw0 speaks iWARP, which needs the connection manager",
                "efa0 has no reliable connections (EFA, usNIC)",
            ]
        );
        assert!(reasons.iter().all(|reason| !reason.hint().is_empty()));
        assert_eq!(choose(&[], &Wish::default()), Err(vec![Reason::NoDevice]));
    }

    #[test]
    fn an_infiniband_port_is_chosen_by_its_own_address() {
        let mut infiniband = port(1, vec![gid(0, "fe80::2:c903:1", GidKind::Ib)]);
        (infiniband.link_layer, infiniband.lid) = (LinkLayer::Infiniband, 17);
        let devices = [device("mlx5_0", vec![infiniband])];
        let place = choose(&devices, &Wish::default()).expect("chosen");
        assert_eq!((place.gid.index, place.lid), (0, 17));
    }
}
