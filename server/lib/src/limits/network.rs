//! Which addresses count as one client: an IPv4 address, or a /64 of IPv6, because one
//! customer has many IPv6 addresses. Pure.

use std::net::{IpAddr, Ipv6Addr};

/// The address itself for IPv4, its /64 for IPv6: one customer has all of that.
pub(crate) fn network_of(peer: IpAddr) -> IpAddr {
    prefix_of(peer, 64)
}

/// The network of an address: an IPv4 address itself, or the first `bits` of an IPv6 address.
pub(crate) fn prefix_of(peer: IpAddr, bits: u32) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << (128 - bits))).into()
        }
    }
}
