//! The wire form of an endpoint's address: what the two sides of a link tell
//! each other over the control connection. A fixed layout of its own, because
//! the messages around it carry it without looking inside.

use super::device::LinkLayer;
use super::endpoint::Address;
use crate::error::FabricError;

/// A version byte, then the fields of `Address` in order, little-endian.
pub const ADDRESS_BYTES: usize = 37;

/// The layout below.
const VERSION: u8 = 1;

impl Address {
    /// Its wire form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ADDRESS_BYTES);
        bytes.extend([VERSION, u8::from(self.link_layer == LinkLayer::Ethernet)]);
        bytes.extend(self.gid);
        bytes.extend(self.lid.to_le_bytes());
        bytes.extend(self.pkey.to_le_bytes());
        bytes.extend(self.queue_pair.to_le_bytes());
        bytes.extend(self.packet.to_le_bytes());
        bytes.extend([self.mtu, self.reads_posted_max, self.reads_served_max]);
        bytes.extend(self.receives.to_le_bytes());
        bytes
    }

    /// Reads what `to_bytes` wrote. Whether such an address can be is looked at by `connect`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FabricError> {
        let wrong = || FabricError::Protocol("the address of a link has another form".into());
        let bytes: &[u8; ADDRESS_BYTES] = bytes.try_into().map_err(|_| wrong())?;
        let at = |from: usize| [bytes[from], bytes[from + 1], bytes[from + 2], bytes[from + 3]];
        let link_layer = match (bytes[0], bytes[1]) {
            (VERSION, 0) => LinkLayer::Infiniband,
            (VERSION, 1) => LinkLayer::Ethernet,
            _ => return Err(wrong()),
        };
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[2..18]);
        Ok(Self {
            link_layer,
            gid,
            lid: u16::from_le_bytes([bytes[18], bytes[19]]),
            pkey: u16::from_le_bytes([bytes[20], bytes[21]]),
            queue_pair: u32::from_le_bytes(at(22)),
            packet: u32::from_le_bytes(at(26)),
            mtu: bytes[30],
            reads_posted_max: bytes[31],
            reads_served_max: bytes[32],
            receives: u32::from_le_bytes(at(33)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_as_it_was_and_nothing_else_is_taken() {
        let address = Address {
            link_layer: LinkLayer::Ethernet,
            gid: *b"0123456789abcdef",
            lid: 0x1234,
            pkey: 0xffff,
            queue_pair: 0x00ab_cdef,
            packet: 0x0012_3456,
            mtu: 5,
            reads_posted_max: 16,
            reads_served_max: 4,
            receives: 128,
        };
        let bytes = address.to_bytes();
        assert_eq!(bytes.len(), ADDRESS_BYTES);
        assert_eq!(Address::from_bytes(&bytes), Ok(address));
        let infiniband = Address { link_layer: LinkLayer::Infiniband, ..address };
        assert_eq!(Address::from_bytes(&infiniband.to_bytes()), Ok(infiniband));
        for wrong in [&bytes[1..], &[bytes.clone(), vec![0]].concat()[..], b""] {
            assert!(Address::from_bytes(wrong).is_err());
        }
        for (place, value) in [(0, 2), (1, 2)] {
            let mut other = bytes.clone();
            other[place] = value;
            assert!(Address::from_bytes(&other).is_err(), "byte {place} as {value}");
        }
    }
}
