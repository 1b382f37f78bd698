//! Cuts a leased window into chunks, and checks that its pieces are what they
//! must be. Called by the read client alone.

use crate::holes::is_whole;
use crate::message::{Lease, Piece, WindowId};
use crate::units::GRAIN_BYTES;
use crate::{Extent, Fault, fault::Code};

/// One read: a range of a window, and the pieces of files in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The window it is in.
    pub window: WindowId,
    /// The key of the window's region.
    pub key: u64,
    /// The address of its first byte.
    pub address: u64,
    /// How long it is.
    pub bytes: u32,
    /// Its pieces, one behind the other.
    pub pieces: Vec<Piece>,
}

impl Chunk {
    /// Cuts a lease into chunks of at most `chunk_bytes`: large pieces on the grid of the
    /// file, small ones together.
    pub fn cut(lease: &Lease, chunk_bytes: u32) -> Vec<Self> {
        let mut chunks = Vec::new();
        let mut address = lease.region.base;
        let start = |address| Self {
            window: lease.window,
            key: lease.region.key,
            address,
            bytes: 0,
            pieces: Vec::new(),
        };
        let mut open = start(address);
        for piece in &lease.pieces {
            for part in parts(piece, u64::from(chunk_bytes)) {
                let bytes = part.extent.len as u32;
                if open.bytes > 0 && open.bytes + bytes > chunk_bytes {
                    chunks.push(std::mem::replace(&mut open, start(address)));
                }
                open.bytes += bytes;
                // The server's own addresses: one that cannot be is for its device to refuse.
                address = address.wrapping_add(u64::from(bytes));
                open.pieces.push(part);
            }
        }
        if !open.pieces.is_empty() {
            chunks.push(open);
        }
        chunks
    }

    /// The chunk of piece number `index` alone.
    pub fn only(&self, index: usize) -> Self {
        let before: u64 = self.pieces[..index].iter().map(|piece| piece.extent.len).sum();
        Self {
            address: self.address.wrapping_add(before),
            bytes: self.pieces[index].extent.len as u32,
            pieces: vec![self.pieces[index].clone()],
            ..*self
        }
    }
}

/// A piece cut on the chunk grid of its file.
fn parts(piece: &Piece, chunk_bytes: u64) -> impl Iterator<Item = Piece> + '_ {
    let end = piece.extent.offset + piece.extent.len;
    let mut offset = piece.extent.offset;
    std::iter::from_fn(move || {
        if offset >= end {
            return None;
        }
        let cut = ((offset / chunk_bytes + 1) * chunk_bytes).min(end);
        let grain = |at: u64| ((at - piece.extent.offset) / GRAIN_BYTES) as usize;
        let last = grain(cut - 1);
        let digests = piece.digests[grain(offset)..=last].to_vec();
        let part = Piece { file: piece.file, extent: Extent::new(offset, cut - offset), digests };
        offset = cut;
        Some(part)
    })
}

/// Checks that a piece is whole grains of a file of `size` bytes, with a digest for each.
pub(crate) fn check_piece(piece: &Piece, size: u64) -> Result<(), Fault> {
    let Extent { offset, len } = piece.extent;
    let whole =
        is_whole(piece.extent, size) && piece.digests.len() as u64 == len.div_ceil(GRAIN_BYTES);
    if whole {
        return Ok(());
    }
    let text = format!(
        "piece of {len} bytes at {offset} with {} digests is not of a file of {size} bytes",
        piece.digests.len()
    );
    Err(Fault::new(Code::Protocol, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{FileId, Region};
    use crate::units::CHUNK_BYTES_DEFAULT;
    use crate::{Digest, ExtentSet};
    use proptest::prelude::*;

    fn piece(file: u32, offset: u64, len: u64) -> Piece {
        let digests = (0..len.div_ceil(GRAIN_BYTES))
            .map(|i| Digest([(offset / GRAIN_BYTES + i) as u8; 32]))
            .collect();
        Piece { file: FileId(file), extent: Extent::new(offset, len), digests }
    }

    proptest! {
        #[test]
        fn chunks_cover_the_lease_once_in_order_and_within_their_size(
            sizes in prop::collection::vec(1_u64..(3 << 20), 1..20),
            first_grain in 0_u64..9,
        ) {
            let pieces: Vec<Piece> = sizes.iter().enumerate()
                .map(|(i, &len)| piece(i as u32, first_grain * GRAIN_BYTES, len)).collect();
            let region = Region { key: 7, base: 1000 };
            let lease = Lease { window: WindowId(1), region, pieces };
            let mut address = 1000;
            let mut seen = vec![ExtentSet::new(); sizes.len()];
            for chunk in Chunk::cut(&lease, CHUNK_BYTES_DEFAULT) {
                prop_assert!(chunk.bytes <= CHUNK_BYTES_DEFAULT);
                prop_assert_eq!(chunk.address, address);
                let total: u64 = chunk.pieces.iter().map(|p| p.extent.len).sum();
                prop_assert_eq!(total, u64::from(chunk.bytes));
                address += total;
                for part in chunk.pieces {
                    let index = part.file.0 as usize;
                    prop_assert!(!seen[index].intersects(part.extent));
                    seen[index].insert(part.extent);
                    let size = lease.pieces[index].extent.offset + sizes[index];
                    prop_assert!(check_piece(&part, size).is_ok());
                    prop_assert_eq!(part.digests[0].0[0], (part.extent.offset / GRAIN_BYTES) as u8);
                }
            }
            for (index, set) in seen.iter().enumerate() {
                prop_assert_eq!(set.bytes(), sizes[index]);
            }
        }
    }

    #[test]
    fn pieces_that_are_not_whole_grains_are_refused() {
        let size = 3 * GRAIN_BYTES + 5;
        assert!(check_piece(&piece(0, 0, size), size).is_ok());
        assert!(check_piece(&piece(0, 3 * GRAIN_BYTES, 5), size).is_ok());
        assert!(check_piece(&piece(0, 3 * GRAIN_BYTES, 4), size).is_err(), "short tail");
        assert!(check_piece(&piece(0, 1, GRAIN_BYTES), size).is_err(), "off the grid");
        assert!(check_piece(&piece(0, 0, size + 1), size).is_err(), "behind the end");
        assert!(check_piece(&piece(0, 0, 0), size).is_err(), "empty");
        let mut missing = piece(0, 0, size);
        missing.digests.pop();
        assert!(check_piece(&missing, size).is_err(), "a digest too few");
    }
}
