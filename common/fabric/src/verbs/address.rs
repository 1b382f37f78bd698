//! What one end of a link tells the other of itself, and how that travels: over the
//! control connection. Whether it makes sense, `endpoint` finds out.

use super::ffi;
use crate::error::FabricError;
use crate::ports::{GidKind, LinkLayer};

/// Numbers of queue pairs and packets have this many bits.
pub(super) const NUMBER_MASK: u32 = 0xff_ffff;

/// What a peer must know of an endpoint to connect to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// What runs on the cable.
    pub link_layer: LinkLayer,
    /// What its address is of: the versions of RoCE do not understand each other.
    pub gid_kind: GidKind,
    /// The port's address.
    pub gid: [u8; 16],
    /// The port's local identifier; 0 on RoCE.
    pub lid: u16,
    /// The partition; the same on both sides.
    pub pkey: u16,
    /// The number of the queue pair, 24 bits.
    pub queue_pair: u32,
    /// The number of its first packet, 24 bits, random: a late packet of an older connection
    /// must not fit.
    pub packet: u32,
    /// The largest packet of its port, as `IBV_MTU_*`.
    pub mtu: u8,
    /// Reads it can have in flight.
    pub reads_posted_max: u8,
    /// Reads of the peer it can serve at a time.
    pub reads_served_max: u8,
    /// Notifications of the peer that may be under way.
    pub receives: u32,
    /// Whether the peer should offer a proof that the link works.
    pub proves: bool,
    /// Whether it may be told of ranges of files to write to.
    pub spots: bool,
    /// Whether packets must name the ports' addresses also within a subnet of InfiniBand, so
    /// that the devices see to it that the other end is the port it says.
    pub by_gid: bool,
}

/// Bytes of an address on the wire.
pub const ADDRESS_BYTES: usize = 38;

impl Address {
    /// The address as it travels; numbers are big-endian.
    pub fn to_bytes(&self) -> [u8; ADDRESS_BYTES] {
        let mut bytes = [0; ADDRESS_BYTES];
        bytes[0] = match self.link_layer {
            LinkLayer::Infiniband => ffi::IBV_LINK_LAYER_INFINIBAND,
            LinkLayer::Ethernet => ffi::IBV_LINK_LAYER_ETHERNET,
        };
        bytes[1] = match self.gid_kind {
            GidKind::Ib => ffi::IBV_GID_TYPE_IB as u8,
            GidKind::RoceV1 => ffi::IBV_GID_TYPE_ROCE_V1 as u8,
            GidKind::RoceV2 => ffi::IBV_GID_TYPE_ROCE_V2 as u8,
        };
        bytes[2..18].copy_from_slice(&self.gid);
        bytes[18..20].copy_from_slice(&self.lid.to_be_bytes());
        bytes[20..22].copy_from_slice(&self.pkey.to_be_bytes());
        bytes[22..26].copy_from_slice(&self.queue_pair.to_be_bytes());
        bytes[26..30].copy_from_slice(&self.packet.to_be_bytes());
        bytes[30..34].copy_from_slice(&self.receives.to_be_bytes());
        bytes[34] = self.mtu;
        bytes[35] = self.reads_posted_max;
        bytes[36] = self.reads_served_max;
        let flags = [self.proves, self.spots, self.by_gid].map(u8::from);
        bytes[37] = flags[0] | flags[1] << 1 | flags[2] << 2;
        bytes
    }

    /// Reads an address that came from a peer. Whether it makes sense, `connect` finds out.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FabricError> {
        let wrong = || FabricError::Protocol("the address of a link cannot be read".into());
        let bytes: &[u8; ADDRESS_BYTES] = bytes.try_into().map_err(|_| wrong())?;
        let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let number =
            |at| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[2..18]);
        Ok(Self {
            link_layer: match bytes[0] {
                ffi::IBV_LINK_LAYER_INFINIBAND => LinkLayer::Infiniband,
                ffi::IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
                _ => return Err(wrong()),
            },
            gid_kind: match u32::from(bytes[1]) {
                ffi::IBV_GID_TYPE_IB => GidKind::Ib,
                ffi::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
                ffi::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
                _ => return Err(wrong()),
            },
            gid,
            lid: word(18),
            pkey: word(20),
            queue_pair: number(22),
            packet: number(26),
            receives: number(30),
            mtu: bytes[34],
            reads_posted_max: bytes[35],
            reads_served_max: bytes[36],
            proves: bytes[37] & 1 == 1,
            spots: bytes[37] & 2 == 2,
            by_gid: bytes[37] & 4 == 4,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::verbs) fn address() -> Address {
        Address {
            link_layer: LinkLayer::Ethernet,
            gid_kind: GidKind::RoceV2,
            gid: [1; 16],
            lid: 0,
            pkey: 0xffff,
            queue_pair: 17,
            packet: 5,
            mtu: 3,
            reads_posted_max: 16,
            reads_served_max: 16,
            receives: 128,
            proves: true,
            spots: false,
            by_gid: false,
        }
    }

    #[test]
    fn an_address_travels_as_these_bytes() {
        let sent =
            Address { lid: 0x0102, queue_pair: 0x0003_0405, packet: 0x0006_0708, ..address() };
        let bytes = sent.to_bytes();
        assert_eq!(bytes[..2], [2, 2]);
        assert_eq!(bytes[2..18], [1; 16]);
        let rest = [1, 2, 255, 255, 0, 3, 4, 5, 0, 6, 7, 8, 0, 0, 0, 128, 3, 16, 16, 1];
        assert_eq!(bytes[18..], rest);
        assert_eq!(Address::from_bytes(&bytes), Ok(sent));
        let knows_spots = Address { spots: true, proves: false, ..sent };
        assert_eq!(knows_spots.to_bytes()[37], 2);
        assert_eq!(Address::from_bytes(&knows_spots.to_bytes()), Ok(knows_spots));
        let by_gid = Address { by_gid: true, ..sent };
        assert_eq!(by_gid.to_bytes()[37], 5);
        assert_eq!(Address::from_bytes(&by_gid.to_bytes()), Ok(by_gid));
        assert!(Address::from_bytes(&bytes[1..]).is_err(), "too short");
        for (at, wrong) in [(0, 0), (0, 3), (1, 3)] {
            let mut other = bytes;
            other[at] = wrong;
            assert!(Address::from_bytes(&other).is_err(), "byte {at} is {wrong}");
        }
    }
}
