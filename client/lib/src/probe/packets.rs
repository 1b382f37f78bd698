//! Reads the path MTU to a server from the kernel, which learns it from packets that were too
//! large. Sends nothing, so large packets must have been sent before.

use rustix::net::sockopt::{ip_mtu, ipv6_mtu};
use std::net::{SocketAddr, UdpSocket};

/// Packet sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packets {
    /// The path MTU.
    pub path: u32,
    /// The MTU of the network device.
    pub netdev: u32,
}

/// The packet sizes towards this address, over this network device.
pub fn towards(peer: SocketAddr, netdev: &str) -> Option<Packets> {
    let any: SocketAddr = match peer {
        SocketAddr::V4(_) => "0.0.0.0:0".parse().ok()?,
        SocketAddr::V6(_) => "[::]:0".parse().ok()?,
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(peer).ok()?;
    let path = if peer.is_ipv4() { ip_mtu(&socket) } else { ipv6_mtu(&socket) };
    let own = std::fs::read_to_string(format!("/sys/class/net/{netdev}/mtu")).ok()?;
    Some(Packets { path: path.ok()?, netdev: own.trim().parse().ok()? })
}
