//! Holes: ranges of a file that were never written and read as zeros. Their
//! bytes are neither read, hashed nor moved by the side that has them; they are
//! named to the other side, which makes them zeros and hashes zeros for its own
//! root. Whole grains only, and a bounded number at a time.
//!
//! `Search` is what a machine knows of the holes of a source so far: the driver
//! looks for more when the data before them is used up. `Zeros` are the ranges
//! a machine has its driver zero, or hash as zeros, a step at a time.

use crate::units::{GRAIN_BYTES, HOLES_MAX, WINDOW_BYTES, ZEROING_MAX};
use crate::{Code, Extent, ExtentSet, Fault, FileId, WindowId};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Holes of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holes {
    /// The file.
    pub file: FileId,
    /// The ranges, whole grains each.
    pub extents: Vec<Extent>,
}

/// Holes of a file that is read. They are lent like a window: the client has so many lists at
/// a time, and gives one back when all of it is zeros in its target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowHoles {
    /// What stands for them among the windows.
    pub window: WindowId,
    /// The holes.
    pub holes: Holes,
}

impl Holes {
    /// Checks that there are some, not too many, and that each is whole grains of a file of
    /// `size` bytes.
    pub(crate) fn check(&self, size: u64) -> Result<(), Fault> {
        let some = (1..=HOLES_MAX).contains(&self.extents.len());
        if some && self.extents.iter().all(|extent| is_whole(*extent, size)) {
            return Ok(());
        }
        let text = format!("list of holes does not fit a file of {size} bytes");
        Err(Fault::new(Code::Protocol, text))
    }
}

/// Whether a range is whole grains of a file of `size` bytes, and not empty.
pub(crate) fn is_whole(extent: Extent, size: u64) -> bool {
    let Extent { offset, len } = extent;
    extent.fits(size)
        && len > 0
        && offset.is_multiple_of(GRAIN_BYTES)
        && (len.is_multiple_of(GRAIN_BYTES) || offset + len == size)
}

/// What a driver found when it looked for holes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// The holes, whole grains each, in order, at most `HOLES_MAX`.
    pub holes: Vec<Extent>,
    /// As far as it looked: the end of the file, or of a grain with data.
    pub until: u64,
}

impl Survey {
    /// A file of `size` bytes without holes.
    pub fn dense(size: u64) -> Self {
        Self { holes: Vec::new(), until: size }
    }
}

/// What is known of the holes of one source.
#[derive(Debug, Default)]
pub(crate) struct Search {
    until: u64,
    asked: bool,
    /// Not named to the other side yet.
    found: VecDeque<Extent>,
}

impl Search {
    /// How far data and holes are told apart.
    pub fn until(&self) -> u64 {
        self.until
    }

    /// Whether nothing is left to find or to name.
    pub fn is_over(&self, size: u64) -> bool {
        self.until >= size && self.found.is_empty()
    }

    /// Takes what the driver found; what of it is wanted leaves `wanted`.
    ///
    /// # Panics
    /// When the driver did not get on: a bug of the driver.
    pub fn answer(&mut self, survey: Survey, size: u64, wanted: &mut ExtentSet) {
        assert!(survey.until > self.until || survey.until >= size, "the search does not get on");
        for hole in survey.holes {
            assert!(is_whole(hole, size), "a hole of whole grains");
            self.found.extend(wanted.take_common(hole));
        }
        self.until = survey.until;
        self.asked = false;
    }

    /// Where the driver must look next, once: when all before it is used up.
    pub fn question(&mut self, size: u64) -> Option<u64> {
        let ask = !self.asked && self.until < size && self.found.is_empty();
        self.asked |= ask;
        ask.then_some(self.until)
    }

    /// The next holes to name, as many as fit a message.
    pub fn next_list(&mut self) -> Option<Vec<Extent>> {
        let count = self.found.len().min(HOLES_MAX);
        (count > 0).then(|| self.found.drain(..count).collect())
    }
}

/// Ranges to zero or to hash as zeros, each for somebody who counts them.
#[derive(Debug)]
pub(crate) struct Zeros<K> {
    parts: VecDeque<(K, Extent)>,
    running: usize,
}

impl<K> Default for Zeros<K> {
    fn default() -> Self {
        Self { parts: VecDeque::new(), running: 0 }
    }
}

/// A step that begins.
pub(crate) struct Step<K> {
    pub of: K,
    pub extent: Extent,
    /// Whether the range it was cut from goes on: one part became two.
    pub was_cut: bool,
}

impl<K: Clone> Zeros<K> {
    pub fn push(&mut self, of: K, extent: Extent) {
        self.parts.push_back((of, extent));
    }

    /// Whether nothing waits and no step is under way.
    pub fn is_idle(&self) -> bool {
        self.parts.is_empty() && self.running == 0
    }

    /// The next step, of a window at most, while there is room for one.
    pub fn begin(&mut self) -> Option<Step<K>> {
        if self.running == ZEROING_MAX {
            return None;
        }
        let (of, whole) = self.parts.pop_front()?;
        let mut rest: ExtentSet = [whole].into_iter().collect();
        let extent = rest.take_first(WINDOW_BYTES)?;
        let left = rest.iter().next();
        if let Some(left) = left {
            self.parts.push_front((of.clone(), left));
        }
        self.running += 1;
        Some(Step { of, extent, was_cut: left.is_some() })
    }

    /// A step ended.
    pub fn ended(&mut self) {
        self.running -= 1;
    }

    /// Forgets what is not begun and not wanted; returns whose parts they were.
    pub fn forget(&mut self, unwanted: impl Fn(&K) -> bool) -> Vec<K> {
        let (dead, left): (VecDeque<_>, _) = self.parts.drain(..).partition(|(of, _)| unwanted(of));
        self.parts = left;
        dead.into_iter().map(|(of, _)| of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAIN: u64 = GRAIN_BYTES;

    #[test]
    fn a_search_asks_once_and_only_when_all_before_is_used() {
        let size = 100 * GRAIN;
        let (mut search, mut wanted) = (Search::default(), ExtentSet::whole(size));
        assert!(wanted.take(Extent::new(2 * GRAIN, GRAIN)));
        assert_eq!(search.question(size), Some(0));
        assert_eq!(search.question(size), None, "asked twice");
        let holes = vec![Extent::new(GRAIN, 3 * GRAIN)];
        search.answer(Survey { holes, until: 10 * GRAIN }, size, &mut wanted);
        assert_eq!(search.question(size), None, "some holes are not named");
        let named = [Extent::new(GRAIN, GRAIN), Extent::new(3 * GRAIN, GRAIN)];
        assert_eq!(search.next_list(), Some(named.to_vec()), "what was there is not named");
        assert_eq!(search.question(size), Some(10 * GRAIN));
        search.answer(Survey::dense(size), size, &mut wanted);
        assert!(search.is_over(size));
        assert_eq!(wanted.bytes(), size - 3 * GRAIN);
    }

    #[test]
    fn zeros_go_in_bounded_steps_and_every_byte_once() {
        let mut zeros = Zeros::default();
        let whole = Extent::new(GRAIN, 5 * WINDOW_BYTES);
        zeros.push('a', whole);
        zeros.push('b', Extent::new(0, GRAIN));
        let mut parts = 2;
        let mut seen = ExtentSet::new();
        while !zeros.is_idle() {
            let mut running = 0;
            while let Some(step) = zeros.begin() {
                assert!(step.extent.len <= WINDOW_BYTES);
                parts += usize::from(step.was_cut);
                if step.of == 'a' {
                    assert!(!seen.intersects(step.extent));
                    seen.insert(step.extent);
                }
                running += 1;
            }
            assert!((1..=ZEROING_MAX).contains(&running));
            (0..running).for_each(|_| zeros.ended());
            parts -= running;
        }
        assert_eq!(parts, 0);
        assert_eq!(seen.iter().collect::<Vec<_>>(), [whole]);
    }

    #[test]
    fn lists_of_holes_that_do_not_fit_are_refused() {
        let list = |extents: Vec<Extent>| Holes { file: FileId(1), extents }.check(5 * GRAIN + 7);
        assert!(list(vec![Extent::new(GRAIN, GRAIN), Extent::new(5 * GRAIN, 7)]).is_ok());
        assert!(list(vec![]).is_err(), "none");
        assert!(list(vec![Extent::new(0, GRAIN); HOLES_MAX + 1]).is_err(), "too many");
        assert!(list(vec![Extent::new(0, GRAIN - 1)]).is_err(), "half a grain");
        assert!(list(vec![Extent::new(0, 0)]).is_err(), "empty");
        assert!(list(vec![Extent::new(0, 6 * GRAIN)]).is_err(), "behind the end");
        assert!(list(vec![Extent::new(u64::MAX - 3, GRAIN)]).is_err(), "overflows");
    }
}
