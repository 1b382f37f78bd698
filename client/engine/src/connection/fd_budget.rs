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
    taken: Arc<AtomicUsize>,
    max: usize,
}

/// Some that are taken, until this is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    of: Arc<AtomicUsize>,
    count: usize,
}

impl FdBudget {
    /// A budget of so many.
    pub fn new(max: usize) -> Self {
        Self { taken: Arc::default(), max }
    }

    /// How many there are.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Whether another file may be opened.
    pub fn has_room(&self) -> bool {
        self.taken() < self.max
    }

    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes those of a file of this size.
    pub fn take(&self, size: u64, has_basis: bool) -> Taken {
        let count = 1 + usize::from(size >= LASTING_BYTES_MIN) + usize::from(has_basis);
        self.taken.fetch_add(count, Ordering::Relaxed);
        Taken { of: self.taken.clone(), count }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.of.fetch_sub(self.count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_that_replaces_another_takes_three_and_gives_them_back() {
        let fds = FdBudget::new(6);
        let files = [(1, false), (LASTING_BYTES_MIN, false), (LASTING_BYTES_MIN, true)];
        let taken: Vec<Taken> = files.map(|(size, basis)| fds.take(size, basis)).into();
        assert_eq!(fds.taken(), 6);
        drop(taken);
        assert_eq!(fds.taken(), 0);
    }
}
