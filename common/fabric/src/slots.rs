//! Slot pool: the buffers of one link, lent to one operation at a time. A slot
//! is at home or out; only what took it out brings it back, with a completion,
//! because until then the device may still touch it. Used by the drivers'
//! workers; the machines of `proto` decide which slot is used when.

use crate::error::FabricError;
use crate::memory::Buffer;

/// The slots of one link, made when they are first used.
#[derive(Debug)]
pub struct SlotPool {
    slots: Vec<Slot>,
    slot_bytes: usize,
    make: MakeBuffer,
}

/// What makes a buffer of so many bytes: `Buffer::new`, or `Buffer::for_device`.
pub type MakeBuffer = fn(usize) -> Result<Buffer, FabricError>;

#[derive(Debug)]
enum Slot {
    Unmade,
    Home(Buffer),
    Out,
}

impl SlotPool {
    /// A pool of `count` slots of `slot_bytes` each, each made when it is first used.
    pub fn new(count: usize, slot_bytes: usize, make: MakeBuffer) -> Self {
        Self { slots: (0..count).map(|_| Slot::Unmade).collect(), slot_bytes, make }
    }

    /// Takes a slot out.
    ///
    /// # Panics
    /// When it is out already: two operations would share a buffer.
    pub fn take(&mut self, index: u16) -> Result<Buffer, FabricError> {
        let slot = &mut self.slots[usize::from(index)];
        if matches!(slot, Slot::Unmade) {
            *slot = Slot::Home((self.make)(self.slot_bytes)?);
        }
        match std::mem::replace(slot, Slot::Out) {
            Slot::Home(buffer) => Ok(buffer),
            Slot::Out | Slot::Unmade => panic!("slot {index} is in use"),
        }
    }

    /// Brings a slot back.
    ///
    /// # Panics
    /// When it is not out: a completion was counted twice.
    pub fn put(&mut self, index: u16, buffer: Buffer) {
        let slot = &mut self.slots[usize::from(index)];
        assert!(matches!(slot, Slot::Out), "slot {index} came back twice");
        *slot = Slot::Home(buffer);
    }

    /// How many slots are out.
    pub fn out(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot, Slot::Out)).count()
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
