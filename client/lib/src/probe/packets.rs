//! The largest packets that get to a server, as the kernel has learnt it from those
//! that came back as too large. Sends nothing: asked after something large was sent.

use rustix::net::sockopt::{ip_mtu, ipv6_mtu};
use std::net::{SocketAddr, UdpSocket};

/// Bytes of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packets {
    /// Of those that get there.
    pub path: u32,
    /// Of those that the network device takes.
    pub netdev: u32,
}

/// What is known of the way to this address by this network device.
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
