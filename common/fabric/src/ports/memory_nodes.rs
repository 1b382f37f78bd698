//! How far a machine's memory nodes are from each other, and which of them this
//! process uses: plain data, filled by `sysfs`. `choose` asks it how far a device is
//! from the memory that will be moved. Knows no device and opens nothing.

use std::collections::BTreeMap;

/// The distance of a node from itself, in the unit of the kernel.
pub const DISTANCE_LOCAL: u32 = 10;

/// The memory nodes of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryNodes {
    /// The nodes whose memory this process will get: those it may use and runs on, and those
    /// it may use where it runs on none of them.
    pub used: Vec<u32>,
    /// How far it is from each node to each, as the firmware tells it.
    pub distances: BTreeMap<(u32, u32), u32>,
}

impl MemoryNodes {
    /// How far it is to a node from the memory this process uses: the mean over its nodes.
    /// None where the machine does not tell.
    pub fn distance_to(&self, node: u32) -> Option<u32> {
        let told = |from: &u32| self.distances.get(&(*from, node)).copied();
        let known: Vec<u32> = self.used.iter().filter_map(told).collect();
        let sum: u64 = known.iter().map(|&distance| u64::from(distance)).sum();
        let mean = sum.checked_div(known.len() as u64)?;
        Some((mean as u32).max(DISTANCE_LOCAL))
    }
}

/// The numbers of a list as the kernel writes it: `0-3,8`. At most so many, and none of a list
/// that is not one.
pub(super) fn numbers(list: &str, count_max: usize) -> Vec<u32> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<u32>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    let ranges: Option<Vec<_>> = list.split(',').map(range).collect();
    ranges.unwrap_or_default().into_iter().flatten().take(count_max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_the_kernel_is_read() {
        assert_eq!(numbers("0-2,7", 9), [0, 1, 2, 7]);
        assert_eq!(numbers("5", 9), [5]);
        assert_eq!(numbers("0-4294967295", 3), [0, 1, 2], "bounded");
        assert!(numbers("", 9).is_empty() && numbers("0,x", 9).is_empty());
        assert!(numbers("3-1", 9).is_empty());
    }

    #[test]
    fn the_distance_is_the_mean_over_the_nodes_in_use() {
        let distances = [((0, 0), 10), ((0, 1), 32), ((1, 0), 32), ((1, 1), 10)];
        let mut nodes = MemoryNodes { used: vec![0], distances: distances.into() };
        assert_eq!((nodes.distance_to(0), nodes.distance_to(1)), (Some(10), Some(32)));
        nodes.used = vec![0, 1];
        assert_eq!((nodes.distance_to(0), nodes.distance_to(1)), (Some(21), Some(21)));
        assert_eq!(nodes.distance_to(7), None, "a node that nobody told of");
        nodes.distances.insert((0, 1), 0);
        nodes.used = vec![0];
        assert_eq!(nodes.distance_to(1), Some(DISTANCE_LOCAL), "nothing is nearer than itself");
    }
}
