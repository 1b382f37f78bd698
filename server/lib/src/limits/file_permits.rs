//! The permits of an open file: descriptors and memory of its client's limits. Returned when
//! the file is closed: the owner of the file drops them after the descriptor.

use super::fair_pool::Permit;

/// The permits of one open file: descriptors, and memory for its state.
pub(crate) struct FilePermits {
    _descriptors: Permit,
    _memory: Permit,
}

impl FilePermits {
    /// Bundles the permits of one file.
    pub fn new(descriptors: Permit, memory: Permit) -> Self {
        Self { _descriptors: descriptors, _memory: memory }
    }

    /// Takes both permits from one share.
    #[cfg(test)]
    pub fn of(places: &std::sync::Arc<super::fair_pool::PoolShare>) -> Option<Self> {
        Some(Self { _descriptors: places.take(1)?, _memory: places.take(1)? })
    }
}
