//! Work requests: how an operation becomes a chain of them, and how they are
//! numbered. Pure: nothing here posts, and the memory that is named is the
//! caller's to keep.

use super::counters::READ;
use super::ffi::{self, Plain as _};
use crate::link::{Op, RemoteRange};
use crate::memory::Buffer;

/// An operation taken apart.
pub(super) struct Parts {
    pub opcode: u32,
    pub range: RemoteRange,
    pub tag: u32,
    pub buffer: Buffer,
    /// What people call it.
    pub name: &'static str,
}

impl From<Op> for Parts {
    fn from(op: Op) -> Self {
        let (opcode, range, tag, buffer, name) = match op {
            Op::Read { from, into } => (ffi::IBV_WR_RDMA_READ, from, 0, into, READ),
            Op::Write { from, to } => (ffi::IBV_WR_RDMA_WRITE, to, 0, from, "WRITE"),
            Op::WriteNotify { from, to, tag } => {
                (ffi::IBV_WR_RDMA_WRITE_WITH_IMM, to, tag, from, "WRITE")
            }
        };
        Self { opcode, range, tag, buffer, name }
    }
}

pub(super) fn op_len(op: &Op) -> usize {
    match op {
        Op::Read { into, .. } => into.len(),
        Op::Write { from, .. } | Op::WriteNotify { from, .. } => from.len(),
    }
}

/// What all pieces of an operation have in common.
pub(super) struct Shape {
    pub opcode: u32,
    pub rkey: u32,
    pub lkey: u32,
    pub tag: u32,
    pub inline: bool,
    /// Where it begins on the peer.
    pub address: u64,
}

/// The number of every receive; requests have smaller ones.
pub(super) const RECEIVE: u64 = 1 << 63;

/// A request's number: its operation's above, its place among the pieces below.
const PIECE_BITS: u32 = 16;
const PIECE_MASK: u64 = (1 << PIECE_BITS) - 1;

/// The operation and the piece of a request, from its number.
pub(super) fn serial_and_piece(wr_id: u64) -> (u64, usize) {
    (wr_id >> PIECE_BITS, (wr_id & PIECE_MASK) as usize)
}

/// Cuts an operation into requests, of which the last is signalled and tells the peer.
pub(super) fn cut(
    local: u64,
    len: usize,
    piece_bytes: usize,
    shape: &Shape,
    serial: u64,
) -> (Vec<ffi::Sge>, Vec<ffi::SendWr>) {
    let count = len.div_ceil(piece_bytes);
    let pieces = (0..count).map(|piece| {
        let at = piece * piece_bytes;
        let length = (len - at).min(piece_bytes) as u32;
        let sge = ffi::Sge { addr: local + at as u64, length, lkey: shape.lkey };
        let mut wr = ffi::SendWr::zeroed();
        wr.wr_id = (serial << PIECE_BITS) | piece as u64;
        wr.num_sge = 1;
        wr.opcode = shape.opcode;
        // A peer could give any address; the device refuses what is outside the region.
        wr.remote_addr = shape.address.wrapping_add(at as u64);
        wr.rkey = shape.rkey;
        if shape.inline {
            wr.send_flags |= ffi::IBV_SEND_INLINE;
        }
        if piece + 1 == count {
            wr.send_flags |= ffi::IBV_SEND_SIGNALED;
            wr.imm_data = shape.tag.to_be();
        } else if shape.opcode == ffi::IBV_WR_RDMA_WRITE_WITH_IMM {
            wr.opcode = ffi::IBV_WR_RDMA_WRITE;
        }
        (sge, wr)
    });
    pieces.unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(opcode: u32) -> Shape {
        Shape { opcode, rkey: 7, lkey: 9, tag: 0x0102_0304, inline: false, address: 1000 }
    }

    #[test]
    fn only_the_last_piece_is_signalled_and_tells_the_peer() {
        let (sges, wrs) = cut(5000, 25, 10, &shape(ffi::IBV_WR_RDMA_WRITE_WITH_IMM), 3);
        let told: Vec<_> = wrs.iter().map(|wr| (wr.opcode, wr.send_flags, wr.imm_data)).collect();
        let plain = (ffi::IBV_WR_RDMA_WRITE, 0, 0);
        let last = (
            ffi::IBV_WR_RDMA_WRITE_WITH_IMM,
            ffi::IBV_SEND_SIGNALED,
            u32::from_ne_bytes([1, 2, 3, 4]),
        );
        assert_eq!(told, [plain, plain, last]);
        let places: Vec<_> = sges.iter().map(|sge| (sge.addr, sge.length)).collect();
        assert_eq!(places, [(5000, 10), (5010, 10), (5020, 5)]);
        let remote: Vec<_> = wrs.iter().map(|wr| (wr.remote_addr, wr.rkey)).collect();
        assert_eq!(remote, [(1000, 7), (1010, 7), (1020, 7)]);
        let numbers: Vec<_> = wrs.iter().map(|wr| wr.wr_id).collect();
        let numbers: Vec<_> = numbers.into_iter().map(serial_and_piece).collect();
        assert_eq!(numbers, [(3, 0), (3, 1), (3, 2)]);
    }

    #[test]
    fn a_read_of_one_piece_is_one_signalled_request() {
        let (sges, wrs) = cut(0, 10, 10, &shape(ffi::IBV_WR_RDMA_READ), 1);
        assert_eq!((sges.len(), wrs.len()), (1, 1));
        assert_eq!(wrs[0].opcode, ffi::IBV_WR_RDMA_READ);
        assert_eq!(wrs[0].send_flags, ffi::IBV_SEND_SIGNALED);
    }
}
