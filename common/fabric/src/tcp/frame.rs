//! The header of every frame on a TCP link: 40 bytes, little-endian, fixed.
//! Data follows `Data`, `Write` and `WriteNotify`, and nothing else.

use crate::error::FabricError;

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 40;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Send me this range.
    Read = 1,
    /// This goes there.
    Write = 2,
    /// This goes there, and tell whoever polls.
    WriteNotify = 3,
    /// The range you asked for.
    Data = 4,
    /// What you wrote is there.
    Done = 5,
    /// You may not: the link ends.
    Refused = 6,
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub kind: Kind,
    pub len: u32,
    pub tag: u32,
    pub ticket: u64,
    pub key: u64,
    pub address: u64,
}

impl Header {
    /// An answer to the operation `ticket`.
    pub fn answer(kind: Kind, ticket: u64, len: u32) -> Self {
        Self { kind, len, tag: 0, ticket, key: 0, address: 0 }
    }

    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.tag.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.ticket.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.key.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.address.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FabricError> {
        let kind = match bytes[0] {
            1 => Kind::Read,
            2 => Kind::Write,
            3 => Kind::WriteNotify,
            4 => Kind::Data,
            5 => Kind::Done,
            6 => Kind::Refused,
            other => return Err(FabricError::Protocol(format!("unknown frame kind {other}"))),
        };
        let reserved = [&bytes[1..4], &bytes[12..16]].concat();
        if reserved.iter().any(|&byte| byte != 0) {
            return Err(FabricError::Protocol("reserved bytes of a frame are not zero".into()));
        }
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Ok(Self {
            kind,
            len: u32_at(4),
            tag: u32_at(8),
            ticket: u64_at(16),
            key: u64_at(24),
            address: u64_at(32),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_forty_bytes_decode_to_what_encodes_to_them_or_to_an_error(bytes: [u8; 32], tail: [u8; 8]) {
            let mut whole = [0; HEADER_BYTES];
            whole[..32].copy_from_slice(&bytes);
            whole[32..].copy_from_slice(&tail);
            if let Ok(header) = Header::decode(&whole) {
                prop_assert_eq!(header.encode(), whole);
            }
        }
    }

    #[test]
    fn a_header_survives_the_wire() {
        let header =
            Header { kind: Kind::WriteNotify, len: 1, tag: 2, ticket: 3, key: 4, address: 5 };
        assert_eq!(Header::decode(&header.encode()), Ok(header));
    }
}
