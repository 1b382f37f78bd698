//! A queue that returns the largest file first, so that a copy does not end with one large file on
//! one stream. Small files keep their order: they travel packed, and files of one folder are
//! cheapest to open together.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use verbatim_proto::units::PACKED_FILE_BYTES_MAX;

/// Items with a size, the largest first; items of one size in order.
pub(crate) struct LargestFirst<T> {
    large: BTreeMap<(Reverse<u64>, u64), T>,
    next: u64,
    /// Files that travel packed, whatever their size.
    small: VecDeque<T>,
}

impl<T> Default for LargestFirst<T> {
    fn default() -> Self {
        Self { large: BTreeMap::new(), next: 0, small: VecDeque::new() }
    }
}

impl<T> LargestFirst<T> {
    pub fn push(&mut self, bytes: u64, item: T) {
        if bytes <= PACKED_FILE_BYTES_MAX {
            return self.small.push_back(item);
        }
        self.large.insert((Reverse(bytes), self.next), item);
        self.next += 1;
    }

    pub fn pop(&mut self) -> Option<T> {
        let large = self.large.pop_first().map(|(_, item)| item);
        large.or_else(|| self.small.pop_front())
    }

    pub fn len(&self) -> usize {
        self.large.len() + self.small.len()
    }

    pub fn is_empty(&self) -> bool {
        self.large.is_empty() && self.small.is_empty()
    }

    /// The remaining items, in order.
    pub fn into_items(self) -> impl Iterator<Item = T> {
        self.large.into_values().chain(self.small)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_file_comes_first_and_small_files_keep_their_order() {
        let mut queue = LargestFirst::default();
        for (bytes, name) in
            [(3, "a"), (1 << 20, "b"), (7, "c"), (1 << 30, "d"), (1 << 20, "e"), (5, "f")]
        {
            queue.push(bytes, name);
        }
        assert_eq!(queue.len(), 6);
        assert_eq!((queue.pop(), queue.pop()), (Some("d"), Some("b")));
        queue.push(1 << 40, "late and large");
        assert_eq!(queue.pop(), Some("late and large"), "what comes later is ordered too");
        assert_eq!(queue.into_items().collect::<Vec<_>>(), ["e", "a", "c", "f"]);
    }
}
