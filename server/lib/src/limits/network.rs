//! Which addresses count as one: limits are per network, so that a customer with many
//! addresses of IPv6 counts once. Pure.

use std::net::{IpAddr, Ipv6Addr};

/// What counts as one address: a network of IPv6 is one customer's.
pub(crate) fn network_of(peer: IpAddr) -> IpAddr {
    cut(peer, 64)
}

/// The network of an address: an address of IPv4 itself, or so many bits of one of IPv6.
pub(crate) fn cut(peer: IpAddr, bits: u32) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << (128 - bits))).into()
        }
    }
}
