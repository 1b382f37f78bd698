//! Slot pool: the buffers of one link, lent to one operation at a time. A slot
//! is at home or out; only what took it out brings it back, with a completion,
//! because until then the device may still touch it. Used by the drivers'
//! workers; the machines of `proto` decide which slot is used when.

use crate::error::FabricError;
use crate::memory::Buffer;

/// The slots of one link. Their buffers are alike, and made when there is none at home: which
/// slot has which does not matter, so the one that came back last, which is in cache, goes first.
#[derive(Debug)]
pub struct SlotPool {
    /// Which slots are out.
    out: Vec<bool>,
    home: Vec<Buffer>,
    slot_bytes: usize,
    make: MakeBuffer,
}

/// What makes a buffer of so many bytes: `Buffer::new`, or `Buffer::for_device`.
pub type MakeBuffer = fn(usize) -> Result<Buffer, FabricError>;

impl SlotPool {
    /// A pool of `count` slots of `slot_bytes` each.
    pub fn new(count: usize, slot_bytes: usize, make: MakeBuffer) -> Self {
        Self { out: vec![false; count], home: Vec::new(), slot_bytes, make }
    }

    /// Takes a slot out.
    ///
    /// # Panics
    /// When it is out already: two operations would share a buffer.
    pub fn take(&mut self, index: u16) -> Result<Buffer, FabricError> {
        assert!(!self.out[usize::from(index)], "slot {index} is in use");
        let buffer = self.home.pop().map_or_else(|| (self.make)(self.slot_bytes), Ok)?;
        self.out[usize::from(index)] = true;
        Ok(buffer)
    }

    /// Brings a slot back.
    ///
    /// # Panics
    /// When it is not out: a completion was counted twice.
    pub fn put(&mut self, index: u16, buffer: Buffer) {
        let was_out = std::mem::replace(&mut self.out[usize::from(index)], false);
        assert!(was_out, "slot {index} came back twice");
        self.home.push(buffer);
    }

    /// How many slots are out.
    pub fn out(&self) -> usize {
        self.out.iter().filter(|out| **out).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_comes_back_with_its_bytes() {
        let mut pool = SlotPool::new(2, 16, Buffer::new);
        let mut buffer = pool.take(1).expect("free");
        buffer[0] = 7;
        assert_eq!(pool.out(), 1);
        pool.put(1, buffer);
        assert_eq!(pool.take(1).expect("free")[0], 7);
    }

    #[test]
    fn the_buffer_that_came_back_last_goes_first_whatever_slot_is_taken() {
        let mut pool = SlotPool::new(3, 16, Buffer::new);
        let [first, last] = [0, 1].map(|slot| pool.take(slot).expect("free"));
        let address = last.as_ptr();
        pool.put(0, first);
        pool.put(1, last);
        assert_eq!(pool.take(2).expect("free").as_ptr(), address);
        assert_eq!(pool.out(), 1);
    }

    #[test]
    #[should_panic(expected = "slot 0 is in use")]
    fn a_slot_in_flight_cannot_be_taken() {
        let mut pool = SlotPool::new(1, 16, Buffer::new);
        let _flying = pool.take(0).expect("free");
        let _second = pool.take(0);
    }

    #[test]
    #[should_panic(expected = "slot 0 came back twice")]
    fn a_slot_at_home_cannot_come_back() {
        let mut pool = SlotPool::new(1, 16, Buffer::new);
        pool.put(0, Buffer::new(16).expect("buffer"));
    }
}
