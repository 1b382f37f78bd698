//! Ranges of addresses, as people write them: `10.0.0.0/8`, `fd00::/8`, or one
//! address. IPv4 is held as IPv6 does it (::ffff:0:0/96), which is also how RoCE
//! writes it in a GID, so one rule fits both. Pure; exports are configured in it.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// All addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Range {
    network: u128,
    bits: u8,
}

impl Range {
    /// Whether an IP address is in it.
    pub fn has(&self, address: IpAddr) -> bool {
        self.has_bits(mapped(address))
    }

    /// Whether the address of an RDMA port is in it.
    pub fn has_gid(&self, gid: &[u8; 16]) -> bool {
        self.has_bits(u128::from_be_bytes(*gid))
    }

    fn has_bits(&self, address: u128) -> bool {
        address & mask(self.bits) == self.network
    }
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let none =
            || format!("{text:?} is no range of addresses; write 10.0.0.0/8, fd00::/8 or 10.0.0.7");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| none())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| none())?;
        let (most, before) = if address.is_ipv4() { (32, V4_BITS) } else { (128, 0) };
        let bits = bits.unwrap_or(most);
        if bits > most {
            return Err(none());
        }
        let (range, whole) = (before + bits, mapped(address));
        if whole & mask(range) != whole {
            return Err(format!("{text:?} has more bits than the {bits} it counts"));
        }
        Ok(Self { network: whole, bits: range })
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from(self.network);
        match address.to_ipv4_mapped() {
            Some(address) if self.bits >= V4_BITS => write!(f, "{address}/{}", self.bits - V4_BITS),
            _ => write!(f, "{address}/{}", self.bits),
        }
    }
}

impl From<Range> for String {
    fn from(range: Range) -> Self {
        range.to_string()
    }
}

impl TryFrom<String> for Range {
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
    // Shifting by all of them is not defined.
    if bits == 0 { 0 } else { u128::MAX << (128 - u32::from(bits)) }
}

/// How many bits come before an IPv4 address in IPv6.
const V4_BITS: u8 = 96;

#[cfg(test)]
mod tests {
    use super::*;

    fn has(range: &str, address: &str) -> bool {
        range.parse::<Range>().unwrap().has(address.parse().unwrap())
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
        assert!("10.0.0.0/24".parse::<Range>().unwrap().has_gid(&gid));
        assert!(!"10.0.1.0/24".parse::<Range>().unwrap().has_gid(&gid));
    }

    #[test]
    fn ranges_are_written_as_they_are_read() {
        for text in ["10.0.0.0/8", "10.0.0.7/32", "fd00::/8", "::/0", "0.0.0.0/0"] {
            assert_eq!(text.parse::<Range>().unwrap().to_string(), text);
        }
        for bad in ["", "10.0.0.0/33", "10.0.0", "host/8", "fe80::/129", "10.0.0.0/"] {
            assert!(bad.parse::<Range>().unwrap_err().contains("no range"), "{bad}");
        }
        assert!("10.0.0.1/8".parse::<Range>().unwrap_err().contains("more bits"));
    }
}
