//! Ranges of a file, and sets of them. Pure arithmetic, used by the machines
//! to know what is still missing and to refuse what was never asked for.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A range of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Extent {
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub len: u64,
}

impl Extent {
    /// The range of `len` bytes from `offset`.
    pub const fn new(offset: u64, len: u64) -> Self {
        Self { offset, len }
    }

    /// The first byte behind the range, or `None` when that does not fit in a `u64`.
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }

    /// Whether the range lies within a file of `size` bytes.
    pub fn fits(&self, size: u64) -> bool {
        self.end().is_some_and(|end| end <= size)
    }
}

/// A set of bytes of a file, kept as sorted, disjoint, non-touching ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtentSet {
    ranges: Ranges,
}

/// Ranges by where they begin, each with its end. One alone takes no memory of its own: a file of
/// a tree has mostly one, or none.
#[derive(Clone, Debug, Default)]
struct Ranges {
    /// Used while there is at most one; `many` is empty then.
    one: Option<(u64, u64)>,
    many: BTreeMap<u64, u64>,
}

impl Ranges {
    fn len(&self) -> usize {
        usize::from(self.one.is_some()) + self.many.len()
    }

    fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.one.into_iter().chain(self.many.iter().map(|(&start, &end)| (start, end)))
    }

    /// The last range that begins before `below`.
    fn last_below(&self, below: u64) -> Option<(u64, u64)> {
        match self.one {
            Some(one) => Some(one).filter(|(start, _)| *start < below),
            None => self.many.range(..below).next_back().map(|(&start, &end)| (start, end)),
        }
    }

    /// The first range that begins at `at` or behind.
    fn first_from(&self, at: u64) -> Option<(u64, u64)> {
        match self.one {
            Some(one) => Some(one).filter(|(start, _)| *start >= at),
            None => self.many.range(at..).next().map(|(&start, &end)| (start, end)),
        }
    }

    /// Adds a range that begins where none does.
    fn insert(&mut self, start: u64, end: u64) {
        match self.one.take() {
            None if self.many.is_empty() => self.one = Some((start, end)),
            before => {
                self.many.extend(before);
                self.many.insert(start, end);
            }
        }
    }

    fn remove(&mut self, start: u64) {
        match self.one {
            Some((one, _)) if one == start => self.one = None,
            _ => drop(self.many.remove(&start)),
        }
    }
}

/// However they are kept.
impl PartialEq for Ranges {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Ranges {}

impl ExtentSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The set of all bytes of a file of `size` bytes.
    pub fn whole(size: u64) -> Self {
        let mut set = Self::new();
        set.insert(Extent::new(0, size));
        set
    }

    /// Whether no byte is in the set.
    pub fn is_empty(&self) -> bool {
        self.ranges.len() == 0
    }

    /// How many bytes are in the set.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }

    /// How many separate ranges the set has.
    pub fn range_count(&self) -> usize {
        self.ranges.len()
    }

    /// The ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        self.ranges.iter().map(|(start, end)| Extent::new(start, end - start))
    }

    /// Whether every byte of `extent` is in the set.
    pub fn contains(&self, extent: Extent) -> bool {
        let Some(end) = extent.end() else { return false };
        if extent.len == 0 {
            return true;
        }
        let before = self.ranges.last_below(extent.offset.saturating_add(1));
        before.is_some_and(|(_, range_end)| range_end >= end)
    }

    /// Whether any byte of `extent` is in the set.
    pub fn intersects(&self, extent: Extent) -> bool {
        let end = extent.offset.saturating_add(extent.len);
        let before = self.ranges.last_below(end);
        extent.len > 0 && before.is_some_and(|(_, range_end)| range_end > extent.offset)
    }

    /// Adds the bytes of `extent`; one that overflows is ignored.
    pub fn insert(&mut self, extent: Extent) {
        let Some(mut end) = extent.end() else { return };
        let mut start = extent.offset;
        if extent.len == 0 {
            return;
        }
        if let Some((before, before_end)) = self.ranges.last_below(start.saturating_add(1))
            && before_end >= start
        {
            start = before;
            end = end.max(before_end);
            self.ranges.remove(before);
        }
        while let Some((next, next_end)) = self.ranges.first_from(start)
            && next <= end
        {
            end = end.max(next_end);
            self.ranges.remove(next);
        }
        self.ranges.insert(start, end);
    }

    /// Takes the bytes of `extent` out. Returns whether all of them were in the set;
    /// when they were not, nothing changes.
    pub fn take(&mut self, extent: Extent) -> bool {
        if !self.contains(extent) {
            return false;
        }
        if extent.len == 0 {
            return true;
        }
        let end = extent.offset + extent.len;
        let Some((start, range_end)) = self.ranges.last_below(extent.offset.saturating_add(1))
        else {
            return false;
        };
        self.ranges.remove(start);
        if start < extent.offset {
            self.ranges.insert(start, extent.offset);
        }
        if range_end > end {
            self.ranges.insert(end, range_end);
        }
        true
    }

    /// Takes out what of `extent` is in the set, and returns it.
    pub fn take_common(&mut self, extent: Extent) -> Vec<Extent> {
        let end = extent.offset.saturating_add(extent.len);
        let mut common = Vec::new();
        let mut below = end;
        while let Some((start, range_end)) = self.ranges.last_below(below)
            && range_end > extent.offset
        {
            let from = start.max(extent.offset);
            common.push(Extent::new(from, range_end.min(end) - from));
            below = start;
        }
        common.reverse();
        common.iter().for_each(|part| assert!(self.take(*part), "the part was just listed"));
        common
    }

    /// Takes the first range out, cut at the next multiple of `grid` and at most that long.
    pub fn take_first(&mut self, grid: u64) -> Option<Extent> {
        self.take_first_below(grid, u64::MAX)
    }

    /// Takes the first range out as `take_first` does, and nothing from `below` on.
    pub fn take_first_below(&mut self, grid: u64, below: u64) -> Option<Extent> {
        let (start, end) = self.ranges.iter().next().filter(|(start, _)| *start < below)?;
        let cut = (start / grid + 1).saturating_mul(grid).min(end).min(below);
        self.ranges.remove(start);
        if cut < end {
            self.ranges.insert(cut, end);
        }
        Some(Extent::new(start, cut - start))
    }
}

impl FromIterator<Extent> for ExtentSet {
    fn from_iter<I: IntoIterator<Item = Extent>>(extents: I) -> Self {
        let mut set = Self::new();
        for extent in extents {
            set.insert(extent);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const SPAN: u64 = 64;

    fn bytes_of(set: &ExtentSet) -> BTreeSet<u64> {
        set.iter().flat_map(|extent| extent.offset..extent.offset + extent.len).collect()
    }

    proptest! {
        #[test]
        fn a_set_behaves_as_a_set_of_bytes(steps in prop::collection::vec((any::<bool>(), 0..SPAN, 0..SPAN), 0..40)) {
            let (mut set, mut model) = (ExtentSet::new(), BTreeSet::new());
            for (add, offset, len) in steps {
                let extent = Extent::new(offset, len);
                let range: BTreeSet<u64> = (offset..offset + len).collect();
                prop_assert_eq!(set.contains(extent), range.is_subset(&model));
                prop_assert_eq!(set.intersects(extent), !range.is_disjoint(&model));
                if add {
                    set.insert(extent);
                    model.extend(&range);
                } else if set.take(extent) {
                    prop_assert!(range.is_subset(&model));
                    model = model.difference(&range).copied().collect();
                } else {
                    prop_assert!(!range.is_subset(&model));
                }
                prop_assert_eq!(bytes_of(&set), model.clone());
                prop_assert_eq!(set.bytes(), model.len() as u64);
            }
            let ranges: Vec<Extent> = set.iter().collect();
            for pair in ranges.windows(2) {
                prop_assert!(pair[0].offset + pair[0].len < pair[1].offset, "ranges touch");
            }
        }

        #[test]
        fn take_common_is_the_intersection(
            extents in prop::collection::vec((0..SPAN, 1..SPAN), 0..8), offset in 0..SPAN, len in 0..SPAN,
        ) {
            let mut set: ExtentSet = extents.iter().map(|&(o, l)| Extent::new(o, l)).collect();
            let (before, range) = (bytes_of(&set), (offset..offset + len).collect::<BTreeSet<u64>>());
            let common: ExtentSet = set.take_common(Extent::new(offset, len)).into_iter().collect();
            prop_assert_eq!(bytes_of(&common), before.intersection(&range).copied().collect());
            prop_assert_eq!(bytes_of(&set), before.difference(&range).copied().collect());
        }

        #[test]
        fn take_first_cuts_on_the_grid_and_yields_every_byte_once(
            extents in prop::collection::vec((0..SPAN, 1..SPAN), 1..8), grid in 1..SPAN,
        ) {
            let mut set: ExtentSet = extents.iter().map(|&(o, l)| Extent::new(o, l)).collect();
            let expected = bytes_of(&set);
            let mut seen = Vec::new();
            while let Some(extent) = set.take_first(grid) {
                prop_assert_eq!(extent.offset / grid, (extent.offset + extent.len - 1) / grid);
                seen.extend(extent.offset..extent.offset + extent.len);
            }
            prop_assert_eq!(seen, expected.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn ranges_that_overflow_are_never_inside() {
        let huge = Extent::new(u64::MAX, 2);
        assert!(!huge.fits(u64::MAX));
        assert!(!ExtentSet::whole(u64::MAX).contains(huge));
    }
}
