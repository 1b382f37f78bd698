//! What files of this world hold: a grain's content is a function of file,
//! place and version, or zeros where the version has a hole. No bytes.

use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::{Digest, Extent, ExtentSet, FileId, RootBuilder, Survey};

/// Holes told at a time: few, so that files have to be looked at more than once.
const HOLES_TOLD: usize = 3;

pub fn grains(extent: Extent) -> std::ops::Range<u64> {
    extent.offset / GRAIN_BYTES..(extent.offset + extent.len).div_ceil(GRAIN_BYTES)
}

/// Whether a grain is a hole, in the files that have some: pairs of grains are or are not.
pub fn is_hole(id: FileId, grain: u64, version: u32) -> bool {
    let mixed = ((u64::from(id.0) << 40) ^ (grain / 2) << 8 ^ u64::from(version))
        .wrapping_mul(0x9E37_79B9_7F4A_7C15);
    id.0.is_multiple_of(3) && (mixed >> 33).is_multiple_of(2)
}

/// What a driver finds when it looks for holes.
pub fn survey(id: FileId, size: u64, version: u32, from: u64) -> Survey {
    if size <= GRAIN_BYTES {
        return Survey::dense(size);
    }
    let mut holes = ExtentSet::new();
    let mut until = from;
    while until < size && (holes.range_count() < HOLES_TOLD || until == from) {
        let extent = Extent::new(until, GRAIN_BYTES.min(size - until));
        if is_hole(id, until / GRAIN_BYTES, version) {
            holes.insert(extent);
        }
        until += extent.len;
    }
    Survey { holes: holes.iter().collect(), until }
}

/// The value of zeros at a grain: the same in every file and version.
pub fn zeros_at(grain: u64) -> Digest {
    let mut value = [0; 32];
    value[4..12].copy_from_slice(&grain.to_le_bytes());
    value[16] = 1;
    Digest(value)
}

/// The value of a grain is a function of file, place and version.
pub fn value_of(id: FileId, grain: u64, version: u32) -> Digest {
    if is_hole(id, grain, version) {
        return zeros_at(grain);
    }
    let mut value = [0; 32];
    value[..4].copy_from_slice(&id.0.to_le_bytes());
    value[4..12].copy_from_slice(&grain.to_le_bytes());
    value[12..16].copy_from_slice(&version.to_le_bytes());
    Digest(value)
}

pub fn digests_of(id: FileId, extent: Extent, version: u32) -> Vec<Digest> {
    grains(extent).map(|grain| value_of(id, grain, version)).collect()
}

pub fn root_of(id: FileId, size: u64, version: u32) -> Digest {
    let mut builder = RootBuilder::new(size);
    if size == 0 {
        builder.insert(0, Digest::of(b""));
    } else {
        builder.insert_run(0, &digests_of(id, Extent::new(0, size), version));
    }
    builder.finish().expect("holds in this world")
}
