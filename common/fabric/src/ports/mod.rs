//! The RDMA ports of a machine, and which of them links should use. `sysfs` reads
//! what the kernel tells below a root that is a parameter, `choose` is a pure
//! function of that, of a `Wish` and of `Hints`, and `Reason` says what is in the way.
//! Nothing here opens a device or libibverbs: the drivers ask before they do, and a
//! recorded machine can be asked as well as this one.

mod choose;
mod hints;
mod machine;
mod memory_nodes;
mod reason;
mod sysfs;
#[cfg(test)]
mod tests;

pub use choose::{Place, Wish, choose};
pub use hints::Hints;
pub use machine::{
    Access, DeviceInfo, GidInfo, GidKind, LinkLayer, Machine, Network, PortInfo, PortState,
    Transport,
};
pub use memory_nodes::{DISTANCE_LOCAL, MemoryNodes};
pub use reason::Reason;

use std::net::{IpAddr, SocketAddr, UdpSocket};

/// The address this machine would send from to reach a peer. Nothing is sent.
pub fn local_address_towards(peer: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = match peer {
        SocketAddr::V4(_) => "0.0.0.0:0".parse().ok()?,
        SocketAddr::V6(_) => "[::]:0".parse().ok()?,
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(peer).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
