//! Digests in grains that merge upward to the ordinary BLAKE3 root of a file,
//! the value `b3sum` prints. A grain's value depends on its offset and never
//! splits. A file of at most one grain has no tree: its one value is the root.

use crate::units::{GRAIN_BYTES, STREAM_BYTES_MAX, grain_count};
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A BLAKE3 value: of a grain (a chaining value) or of a whole file (its root).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The ordinary digest of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The value of the grain at `offset` of a file of `size` bytes. `bytes` must be the
    /// whole grain.
    ///
    /// # Panics
    /// When `offset` is not on the grain grid or the grain is not whole: a bug of the caller.
    pub fn of_grain(offset: u64, size: u64, bytes: &[u8]) -> Self {
        let mut hasher = GrainHasher::new(offset, size);
        hasher.update(bytes);
        hasher.finish()
    }

    /// The values of all grains of `bytes`, which begin at `offset` of a file of `size` bytes.
    pub fn of_grains(offset: u64, size: u64, bytes: &[u8]) -> Vec<Self> {
        if bytes.is_empty() {
            return vec![Self::of_grain(offset, size, bytes)];
        }
        let starts = (offset..).step_by(GRAIN_BYTES as usize);
        let grains = bytes.chunks(GRAIN_BYTES as usize);
        starts.zip(grains).map(|(start, grain)| Self::of_grain(start, size, grain)).collect()
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// Hashes one grain piece by piece, for callers that read into a small buffer.
pub struct GrainHasher {
    hasher: blake3::Hasher,
    is_root: bool,
    missing: u64,
}

impl GrainHasher {
    /// A hasher for the grain at `offset` of a file of `size` bytes.
    pub fn new(offset: u64, size: u64) -> Self {
        assert!(offset.is_multiple_of(GRAIN_BYTES), "grain offset {offset} is off the grid");
        assert!(offset < size || (offset == 0 && size == 0), "grain {offset} is behind {size}");
        let mut hasher = blake3::Hasher::new();
        let is_root = grain_count(size) == 1;
        if !is_root {
            hasher.set_input_offset(offset);
        }
        Self { hasher, is_root, missing: (size - offset).min(GRAIN_BYTES) }
    }

    /// Adds the next bytes of the grain.
    pub fn update(&mut self, bytes: &[u8]) {
        self.missing = self.missing.checked_sub(bytes.len() as u64).expect("bytes fit the grain");
        self.hasher.update(bytes);
    }

    /// The value of the grain, once all of it was added.
    pub fn finish(self) -> Digest {
        assert_eq!(self.missing, 0, "the grain is not whole");
        if self.is_root {
            Digest(*self.hasher.finalize().as_bytes())
        } else {
            Digest(self.hasher.finalize_non_root())
        }
    }
}

/// Merges grain values, in any order, to the root of the file. Siblings merge as soon as
/// both are there, so it holds as many values as there are gaps, not as there are grains.
#[derive(Clone, Debug)]
pub struct RootBuilder {
    grains: u64,
    /// (first grain, level) of a complete subtree of 2^level grains -> its value. The last
    /// subtrees of a file may be shorter than their level says.
    nodes: BTreeMap<u64, (u32, Digest)>,
    /// The value of the one grain of a file that has no more: there are many such files.
    only: Option<Digest>,
    seen: u64,
    /// Whether its size is not known yet.
    open: bool,
}

impl RootBuilder {
    /// A builder for a file of `size` bytes.
    pub fn new(size: u64) -> Self {
        let grains = grain_count(size);
        Self { grains, nodes: BTreeMap::new(), only: None, seen: 0, open: false }
    }

    /// A builder for a file of more than one grain whose size is told later, with `close`.
    pub fn open() -> Self {
        Self { open: true, ..Self::new(STREAM_BYTES_MAX) }
    }

    /// Says how long the file is.
    pub fn close(&mut self, size: u64) {
        self.open = false;
        self.grains = grain_count(size);
        for (first, (level, value)) in std::mem::take(&mut self.nodes) {
            self.merge(first, level, value);
        }
    }

    /// Adds the value of grain number `grain`. Each grain is added once.
    ///
    /// # Panics
    /// When the grain is not of this file: callers check extents first.
    pub fn insert(&mut self, grain: u64, value: Digest) {
        assert!(grain < self.grains, "grain {grain} of {}", self.grains);
        self.seen += 1;
        match self.grains {
            1 => self.only = Some(value),
            _ => self.merge(grain, 0, value),
        }
    }

    /// Adds a subtree, and merges it with its siblings as far as they are there.
    fn merge(&mut self, mut first: u64, mut level: u32, mut value: Digest) {
        loop {
            let width = 1_u64 << level;
            let sibling = first ^ width;
            // The last merge makes the root and belongs to `finish`. While the size is not known,
            // any merge with the first grain could be the last.
            let covers_all = match self.open {
                true => first.min(sibling) == 0,
                false => width * 2 >= self.grains,
            };
            let other = match self.nodes.get(&sibling) {
                Some(&(other_level, other)) if other_level == level && !covers_all => other,
                _ => break,
            };
            self.nodes.remove(&sibling);
            let (left, right) = if sibling < first { (other, value) } else { (value, other) };
            value = Digest(merge_subtrees_non_root(&left.0, &right.0, Mode::Hash));
            first = first.min(sibling);
            level += 1;
        }
        self.nodes.insert(first, (level, value));
    }

    /// Adds the values of consecutive grains from the one at `offset`.
    pub fn insert_run(&mut self, offset: u64, values: &[Digest]) {
        for (index, value) in (offset / GRAIN_BYTES..).zip(values) {
            self.insert(index, *value);
        }
    }

    /// The root, when every grain was added.
    pub fn finish(&self) -> Option<Digest> {
        if self.seen != self.grains {
            return None;
        }
        if self.only.is_some() {
            return self.only;
        }
        let mut values: Vec<Digest> = self.nodes.values().map(|&(_, value)| value).collect();
        let mut right = values.pop()?;
        while let Some(left) = values.pop() {
            right = if values.is_empty() {
                Digest(*merge_subtrees_root(&left.0, &right.0, Mode::Hash).as_bytes())
            } else {
                Digest(merge_subtrees_non_root(&left.0, &right.0, Mode::Hash))
            };
        }
        Some(right)
    }

    /// How many values are held just now.
    pub fn held(&self) -> usize {
        self.nodes.len() + usize::from(self.only.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn content(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i / 7 + i % 251) as u8).collect()
    }

    fn root_in_order(bytes: &[u8], order: &[usize]) -> Digest {
        let size = bytes.len() as u64;
        let values = Digest::of_grains(0, size, bytes);
        let mut builder = RootBuilder::new(size);
        for &grain in order {
            builder.insert(grain as u64, values[grain]);
        }
        builder.finish().expect("all grains were added")
    }

    #[test]
    fn every_size_around_the_grain_gives_the_ordinary_root() {
        let grain = GRAIN_BYTES as usize;
        for grains in 0..10 {
            for delta in [-1_i64, 0, 1] {
                let Ok(len) = usize::try_from(grains * grain as i64 + delta) else { continue };
                let bytes = content(len);
                let order: Vec<usize> = (0..grain_count(len as u64) as usize).collect();
                assert_eq!(root_in_order(&bytes, &order), Digest::of(&bytes), "size {len}");
            }
        }
    }

    #[test]
    fn a_size_that_is_told_last_gives_the_ordinary_root() {
        let grain = GRAIN_BYTES as usize;
        for grains in 1..18_usize {
            for tail in [1, grain / 2, grain] {
                let bytes = content(grains * grain + tail);
                let size = bytes.len() as u64;
                let values = Digest::of_grains(0, size, &bytes);
                for known in 0..=values.len() {
                    let mut builder = RootBuilder::open();
                    builder.insert_run(0, &values[..known]);
                    builder.close(size);
                    builder.insert_run((known * grain) as u64, &values[known..]);
                    assert_eq!(builder.finish(), Some(Digest::of(&bytes)), "{size} at {known}");
                }
            }
        }
        let mut builder = RootBuilder::open();
        (0..100_000).for_each(|grain| builder.insert(grain, Digest([grain as u8; 32])));
        assert!(builder.held() <= 40, "held {}", builder.held());
    }

    #[test]
    fn a_sequential_file_needs_few_values() {
        let mut builder = RootBuilder::new(GRAIN_BYTES << 20);
        let mut most = 0;
        for grain in 0..100_000 {
            builder.insert(grain, Digest([grain as u8; 32]));
            most = most.max(builder.held());
        }
        assert!(most <= 20, "held {most}");
    }

    #[test]
    fn a_missing_grain_gives_no_root() {
        let mut builder = RootBuilder::new(3 * GRAIN_BYTES);
        builder.insert(0, Digest([0; 32]));
        builder.insert(2, Digest([2; 32]));
        assert_eq!(builder.finish(), None);
    }

    #[test]
    #[should_panic(expected = "off the grid")]
    fn a_grain_off_the_grid_is_a_bug() {
        Digest::of_grain(1, 10, &[0; 9]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn any_order_gives_the_ordinary_root(
            order in (1..20_usize).prop_flat_map(|n| Just((0..n).collect::<Vec<_>>()).prop_shuffle()),
            tail in 1..=GRAIN_BYTES as usize,
        ) {
            let bytes = content((order.len() - 1) * GRAIN_BYTES as usize + tail);
            prop_assert_eq!(root_in_order(&bytes, &order), Digest::of(&bytes));
        }

        #[test]
        fn a_grain_hashed_in_pieces_is_the_grain(cut in 0..GRAIN_BYTES as usize) {
            let bytes = content(GRAIN_BYTES as usize);
            let mut hasher = GrainHasher::new(GRAIN_BYTES, 3 * GRAIN_BYTES);
            hasher.update(&bytes[..cut]);
            hasher.update(&bytes[cut..]);
            prop_assert_eq!(hasher.finish(), Digest::of_grain(GRAIN_BYTES, 3 * GRAIN_BYTES, &bytes));
        }
    }
}
