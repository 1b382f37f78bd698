//! Bounds the file descriptors of a session's transfers. A file needs one for itself, one for the
//! journal or digests that let it resume, and one for its basis. A reservation returns them when it
//! is dropped. The session asks before it opens a file.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use verbatim_files::target::LASTING_BYTES_MIN;

/// The descriptors of a session and how many are reserved.
#[derive(Debug)]
pub(crate) struct FdBudget {
    reserved: Arc<AtomicUsize>,
    max: usize,
}

/// Reserved descriptors, returned on drop.
#[derive(Debug)]
pub(crate) struct FdReservation {
    budget: Arc<AtomicUsize>,
    count: usize,
}

impl FdBudget {
    /// A budget of `max` descriptors.
    pub fn new(max: usize) -> Self {
        Self { reserved: Arc::default(), max }
    }

    /// The size of the budget.
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

    /// Reserves the descriptors for a file of this size.
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
    fn a_large_file_with_a_basis_reserves_three_and_returns_them() {
        let fds = FdBudget::new(6);
        let files = [(1, false), (LASTING_BYTES_MIN, false), (LASTING_BYTES_MIN, true)];
        let reserved: Vec<FdReservation> =
            files.map(|(size, basis)| fds.reserve(size, basis)).into();
        assert_eq!(fds.reserved(), 6);
        drop(reserved);
        assert_eq!(fds.reserved(), 0);
    }
}
