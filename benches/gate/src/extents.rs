//! What has landed of a file whose chunks come in any order, and what is missing:
//! the books that every copy keeps of each file.

use std::hint::black_box;
use verbatim_proto::{Extent, ExtentSet};

const CHUNKS: u64 = 1 << 14;
const CHUNK_BYTES: u64 = 1 << 20;

/// A step that meets every chunk once: odd, and the number of chunks is a power of two.
const STRIDE: u64 = 6_151;

/// Chunks land one by one, far apart first, and are taken in order from what is missing.
pub fn run() {
    let mut landed = ExtentSet::new();
    for number in 0..CHUNKS {
        let at = number.wrapping_mul(STRIDE) % CHUNKS;
        let extent = Extent { offset: at * CHUNK_BYTES, len: CHUNK_BYTES };
        assert!(!landed.intersects(extent), "once each");
        landed.insert(black_box(extent));
        assert!(landed.contains(extent), "it landed");
    }
    assert_eq!((landed.bytes(), landed.range_count()), (CHUNKS * CHUNK_BYTES, 1));
    let mut missing = landed;
    let mut taken = 0;
    while let Some(extent) = missing.take_first(CHUNK_BYTES) {
        taken += extent.len;
    }
    assert_eq!(taken, CHUNKS * CHUNK_BYTES);
}
