//! A pool of chunk buffers, and verified bytes on their way to a reader. Verified bytes stay in the
//! buffer that received them, and the worker gets a free buffer for its slot, so no byte is copied.
//! The pool recycles buffers: the kernel zeroes fresh memory page by page. Range reads and pipes
//! use it.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use verbatim_fabric::Buffer;

/// The most bytes of free buffers in the pool.
const POOL_BYTES_MAX: usize = 16 << 20;

/// The longest run of zeros that one [`Bytes`] represents.
pub const ZEROS_MAX: usize = 4 << 20;

/// Zeros that are never written: the kernel maps all of them to one page.
static ZEROS: [u8; ZEROS_MAX] = [0; ZEROS_MAX];

/// Contiguous bytes.
pub enum Bytes {
    /// In a buffer of the pool.
    Buffered(Buffer),
    /// In an allocation of their own.
    Copied(Vec<u8>),
    /// This many zeros, `ZEROS_MAX` at most; they occupy no memory.
    Zeros(usize),
}

impl Bytes {
    /// Copies a range of these bytes.
    pub fn part(&self, range: Range<usize>) -> Self {
        match self {
            Self::Zeros(_) => Self::Zeros(range.len()),
            Self::Buffered(_) | Self::Copied(_) => Self::Copied(self[range].to_vec()),
        }
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Buffered(buffer) => buffer,
            Self::Copied(bytes) => bytes,
            Self::Zeros(len) => &ZEROS[..*len],
        }
    }
}

/// Free buffers for reuse.
#[derive(Default)]
pub struct BufferPool(Mutex<Vec<Buffer>>);

impl BufferPool {
    fn list(&self) -> MutexGuard<'_, Vec<Buffer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the bytes out of a slot's buffer and replaces the buffer with a free one. Copies the
    /// bytes instead if a device may write to the buffer, or if it is mostly empty.
    pub fn swap(&self, buffer: &mut Buffer) -> Bytes {
        let stays = buffer.is_registered();
        self.swap_unless(stays, buffer)
    }

    fn swap_unless(&self, stays: bool, buffer: &mut Buffer) -> Bytes {
        if buffer.len() <= buffer.capacity() / 2 {
            return Bytes::Copied(buffer.to_vec());
        }
        match self.take(buffer.capacity()) {
            Some(mut spare) if stays => {
                spare.set_len(buffer.len());
                spare.copy_from_slice(buffer);
                Bytes::Buffered(spare)
            }
            Some(spare) => Bytes::Buffered(std::mem::replace(buffer, spare)),
            None => Bytes::Copied(buffer.to_vec()),
        }
    }

    /// Returns the buffer of these bytes to the pool.
    pub fn give_back(&self, bytes: Bytes) {
        if let Bytes::Buffered(buffer) = bytes {
            self.put(buffer);
        }
    }

    /// Takes a buffer of this capacity, with arbitrary content. `None` if memory is short.
    pub fn take(&self, capacity: usize) -> Option<Buffer> {
        let mut list = self.list();
        // Another session may have used another chunk size.
        list.retain(|it| it.capacity() == capacity);
        // The buffer that was used last is the most likely to be in cache.
        let spare = list.pop();
        drop(list);
        spare.or_else(|| Buffer::new(capacity).ok())
    }

    /// Adds a free buffer, or drops it if the pool is full.
    pub fn put(&self, buffer: Buffer) {
        let mut list = self.list();
        let held: usize = list.iter().map(Buffer::capacity).sum();
        if held + buffer.capacity() <= POOL_BYTES_MAX {
            list.push(buffer);
        }
    }

    /// The number of free buffers.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.list().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 1 << 20;

    fn filled(len: usize, byte: u8) -> Buffer {
        let mut buffer = Buffer::new(SIZE).expect("there is memory");
        buffer.set_len(len);
        buffer[..].fill(byte);
        buffer
    }

    #[test]
    fn received_bytes_keep_their_buffer_and_the_pool_recycles_it() {
        let (pool, mut slot) = (BufferPool::default(), filled(SIZE, 7));
        let came = slot.as_ptr();
        let bytes = pool.swap(&mut slot);
        assert!(bytes.as_ptr() == came && slot.capacity() == SIZE, "not copied, one in its place");
        slot[..].fill(9);
        assert!(bytes.iter().all(|byte| *byte == 7), "another's slot");
        assert_eq!(pool.count(), 0);
        pool.give_back(bytes);
        let next = pool.swap(&mut slot);
        assert!(slot.as_ptr() == came && next.iter().all(|byte| *byte == 9));
    }

    #[test]
    fn a_registered_buffer_stays_and_its_bytes_are_copied_to_a_free_one() {
        let (pool, mut slot) = (BufferPool::default(), filled(SIZE - 1, 5));
        let came = slot.as_ptr();
        let bytes = pool.swap_unless(true, &mut slot);
        let copied = bytes.as_ptr();
        slot[..].fill(6);
        assert!(slot.as_ptr() == came && copied != came && bytes.len() == SIZE - 1);
        assert!(bytes.iter().all(|byte| *byte == 5));
        pool.give_back(bytes);
        let next = pool.swap_unless(true, &mut slot);
        assert!(next.as_ptr() == copied && next.iter().all(|byte| *byte == 6));
    }

    #[test]
    fn a_mostly_empty_buffer_stays_and_its_bytes_are_copied() {
        let (pool, mut slot) = (BufferPool::default(), filled(SIZE / 2, 5));
        let came = slot.as_ptr();
        let bytes = pool.swap(&mut slot);
        slot[..].fill(6);
        assert!(slot.as_ptr() == came && bytes.len() == SIZE / 2);
        assert!(bytes.iter().all(|byte| *byte == 5));
        pool.give_back(bytes);
        assert_eq!(pool.count(), 0, "it is no buffer");
    }

    #[test]
    fn the_pool_is_bounded_and_drops_buffers_of_another_size() {
        let pool = BufferPool::default();
        let many: Vec<_> = (0..2 * POOL_BYTES_MAX / SIZE).map(|_| pool.take(SIZE)).collect();
        many.into_iter().flatten().for_each(|buffer| pool.put(buffer));
        assert_eq!(pool.count(), POOL_BYTES_MAX / SIZE);
        assert!(pool.take(2 * SIZE).is_some_and(|it| it.capacity() == 2 * SIZE));
        assert_eq!(pool.count(), 0, "nobody asks for those any more");
    }
}
