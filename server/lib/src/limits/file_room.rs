//! What an open file takes of the limits of its client. Given back when the file is closed;
//! whoever has the file open keeps it behind the descriptor.

use super::fair_pool::Place;

/// What an open file has: descriptors, and memory for what is known of it.
pub(crate) struct Room {
    _descriptors: Place,
    _memory: Place,
}

impl Room {
    /// Takes these places for one file.
    pub fn new(descriptors: Place, memory: Place) -> Self {
        Self { _descriptors: descriptors, _memory: memory }
    }

    /// Two of these places.
    #[cfg(test)]
    pub fn of(places: &std::sync::Arc<super::fair_pool::Taker>) -> Option<Self> {
        Some(Self { _descriptors: places.take(1)?, _memory: places.take(1)? })
    }
}
