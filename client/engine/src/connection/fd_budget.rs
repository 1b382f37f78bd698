//! The descriptors that files of a session take, counted and bounded: a file takes one for
//! itself, one for its journal or memo where it may be gone on with, and one for
//! what it replaces where that is compared with it. They come back when the file
//! is let go of. Owned by the session; asked before a file is begun.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use verbatim_files::target::LASTING_BYTES_MIN;

/// How many are taken.
#[derive(Debug)]
pub(crate) struct FdBudget {
    reserved: Arc<AtomicUsize>,
    max: usize,
}

/// Some that are taken, until this is dropped.
#[derive(Debug)]
pub(crate) struct FdReservation {
    budget: Arc<AtomicUsize>,
    count: usize,
}

impl FdBudget {
    /// A budget of so many.
    pub fn new(max: usize) -> Self {
        Self { reserved: Arc::default(), max }
    }

    /// How many there are.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Whether another file may be opened.
    pub fn has_room(&self) -> bool {
        self.reserved() < self.max
    }

    pub fn reserved(&self) -> usize {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Takes those of a file of this size.
    pub fn reserve(&self, size: u64, has_basis: bool) -> FdReservation {
        let count = 1 + usize::from(size >= LASTING_BYTES_MIN) + usize::from(has_basis);
        self.reserved.fetch_add(count, Ordering::Relaxed);
        FdReservation { budget: self.reserved.clone(), count }
    }
}

impl Drop for FdReservation {
    fn drop(&mut self) {
        self.budget.fetch_sub(self.count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_that_replaces_another_takes_three_and_gives_them_back() {
        let fds = FdBudget::new(6);
        let files = [(1, false), (LASTING_BYTES_MIN, false), (LASTING_BYTES_MIN, true)];
        let reserved: Vec<FdReservation> =
            files.map(|(size, basis)| fds.reserve(size, basis)).into();
        assert_eq!(fds.reserved(), 6);
        drop(reserved);
        assert_eq!(fds.reserved(), 0);
    }
}
