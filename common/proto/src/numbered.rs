//! Maps by the number of a file. Numbers are given out in order, and what is done to one
//! file is mostly done to its neighbours next, so neighbours lie beside each other: a
//! table of thousands of files does not fit into a cache that data streams through.
//!
//! A peer may choose numbers that fall onto one place. It has `OPEN_FILES_MAX` files at
//! most, so a look-up goes over that many at most.

use crate::FileId;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Values by the number of a file.
pub type FileMap<V> = HashMap<FileId, V, BuildHasherDefault<InOrder>>;

/// A hash that keeps numbers in order: a table takes its low bits for the place, and its
/// high bits to tell neighbours apart.
#[derive(Clone, Copy, Debug, Default)]
pub struct InOrder(u64);

impl Hasher for InOrder {
    fn write_u32(&mut self, number: u32) {
        self.0 = u64::from(number) | u64::from(number) << 57;
    }

    /// Nothing else is a number of a file; right all the same, only slow.
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{BuildHasher, Hash};

    fn hash(number: u32) -> u64 {
        BuildHasherDefault::<InOrder>::default().hash_one(FileId(number))
    }

    #[test]
    fn neighbours_lie_beside_each_other_and_are_told_apart() {
        for number in 0..1000 {
            assert_eq!(hash(number) % 2048, u64::from(number) % 2048);
            assert_ne!(hash(number) >> 57, hash(number + 1) >> 57, "{number}");
        }
    }

    #[test]
    fn what_is_no_number_has_a_hash_as_well() {
        let mut state = InOrder::default();
        "name".hash(&mut state);
        assert_ne!(state.finish(), InOrder::default().finish());
    }
}
