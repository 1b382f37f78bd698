//! Ranges of addresses in CIDR notation: `10.0.0.0/8`, `fd00::/8`, or one address. IPv4 is
//! stored as IPv4-mapped IPv6 (::ffff:0:0/96), as RoCE writes it in a GID, so one rule matches
//! both. Pure; the access rules of exports are written in it.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// A network in CIDR notation: all addresses with the same prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct CidrRange {
    network: u128,
    bits: u8,
}

impl CidrRange {
    /// Whether an IP address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.contains_bits(mapped(address))
    }

    /// Whether the address of an RDMA port is in it.
    pub fn contains_gid(&self, gid: &[u8; 16]) -> bool {
        self.contains_bits(u128::from_be_bytes(*gid))
    }

    fn contains_bits(&self, address: u128) -> bool {
        address & mask(self.bits) == self.network
    }
}

impl FromStr for CidrRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let none = || {
            format!("{text:?} is not a range of addresses; write 10.0.0.0/8, fd00::/8 or 10.0.0.7")
        };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| none())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| none())?;
        let (bits_max, before) = if address.is_ipv4() { (32, V4_PREFIX_BITS) } else { (128, 0) };
        let bits = bits.unwrap_or(bits_max);
        if bits > bits_max {
            return Err(none());
        }
        let (range, whole) = (before + bits, mapped(address));
        if whole & mask(range) != whole {
            return Err(format!("{text:?} has more bits than the {bits} it counts"));
        }
        Ok(Self { network: whole, bits: range })
    }
}

impl fmt::Display for CidrRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from(self.network);
        match address.to_ipv4_mapped() {
            Some(address) if self.bits >= V4_PREFIX_BITS => {
                write!(f, "{address}/{}", self.bits - V4_PREFIX_BITS)
            }
            _ => write!(f, "{address}/{}", self.bits),
        }
    }
}

impl From<CidrRange> for String {
    fn from(range: CidrRange) -> Self {
        range.to_string()
    }
}

impl TryFrom<String> for CidrRange {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

fn mapped(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().into(),
        IpAddr::V6(address) => address.into(),
    }
}

fn mask(bits: u8) -> u128 {
    // A shift by 128 bits would overflow.
    if bits == 0 { 0 } else { u128::MAX << (128 - u32::from(bits)) }
}

/// The length of the prefix ::ffff:0:0 before an IPv4 address.
const V4_PREFIX_BITS: u8 = 96;

#[cfg(test)]
mod tests {
    use super::*;

    fn has(range: &str, address: &str) -> bool {
        range.parse::<CidrRange>().unwrap().contains(address.parse().unwrap())
    }

    #[test]
    fn an_address_is_in_the_ranges_that_begin_like_it() {
        assert!(has("10.0.0.0/8", "10.255.0.1") && !has("10.0.0.0/8", "11.0.0.1"));
        assert!(has("10.0.0.7", "10.0.0.7") && !has("10.0.0.7", "10.0.0.8"));
        assert!(has("fd00::/8", "fdab::1") && !has("fd00::/8", "fe80::1"));
        assert!(has("::1", "::1") && !has("::1", "127.0.0.1"));
        assert!(has("0.0.0.0/0", "1.2.3.4") && !has("0.0.0.0/0", "fe80::1"));
        assert!(has("::/0", "1.2.3.4") && has("::/0", "fe80::1"));
    }

    #[test]
    fn a_socket_of_both_kinds_and_a_gid_show_the_same_address() {
        assert!(has("10.0.0.0/8", "::ffff:10.0.0.1"));
        let gid = "::ffff:10.0.0.1".parse::<Ipv6Addr>().unwrap().octets();
        assert!("10.0.0.0/24".parse::<CidrRange>().unwrap().contains_gid(&gid));
        assert!(!"10.0.1.0/24".parse::<CidrRange>().unwrap().contains_gid(&gid));
    }

    #[test]
    fn ranges_are_written_as_they_are_read() {
        for text in ["10.0.0.0/8", "10.0.0.7/32", "fd00::/8", "::/0", "0.0.0.0/0"] {
            assert_eq!(text.parse::<CidrRange>().unwrap().to_string(), text);
        }
        for bad in ["", "10.0.0.0/33", "10.0.0", "host/8", "fe80::/129", "10.0.0.0/"] {
            assert!(
                bad.parse::<CidrRange>().unwrap_err().contains("not a range of addresses"),
                "{bad}"
            );
        }
        assert!("10.0.0.1/8".parse::<CidrRange>().unwrap_err().contains("more bits"));
    }
}
