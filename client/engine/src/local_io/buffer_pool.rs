//! Memory that bytes on their way stay in: verified ones in the buffer they came in, for
//! which a worker gets another one, so that nothing is copied. Buffers are used again: fresh
//! memory has to be zeroed by the kernel, page by page. Used by parts of files and by pipes.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use verbatim_fabric::Buffer;

/// What buffers that wait to be used again may take.
const POOL_BYTES_MAX: usize = 16 << 20;

/// The longest run of zeros that `Bytes` stand for.
pub const ZEROS_MAX: usize = 4 << 20;

/// Zeros that nobody writes to: the kernel gives all of them the same page.
static ZEROS: [u8; ZEROS_MAX] = [0; ZEROS_MAX];

/// Bytes that follow one another.
pub enum Bytes {
    /// In a buffer, which is used again.
    Buffered(Buffer),
    /// In memory of their own.
    Copied(Vec<u8>),
    /// So many zeros, `ZEROS_MAX` at most, which take no memory.
    Zeros(usize),
}

impl Bytes {
    /// Some of these bytes, in memory of their own.
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

/// Buffers that were used and may be again.
#[derive(Default)]
pub struct BufferPool(Mutex<Vec<Buffer>>);

impl BufferPool {
    fn list(&self) -> MutexGuard<'_, Vec<Buffer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all that is in a buffer, and puts another one in its place. Of one that a device may
    /// write to the bytes are copied, and of one that would be mostly empty.
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

    /// Nobody needs these bytes any more.
    pub fn give_back(&self, bytes: Bytes) {
        if let Bytes::Buffered(buffer) = bytes {
            self.put(buffer);
        }
    }

    /// A buffer of this capacity; what is in it means nothing. None when there is no memory.
    pub fn take(&self, capacity: usize) -> Option<Buffer> {
        let mut list = self.list();
        // Those of another session may have had another size.
        list.retain(|it| it.capacity() == capacity);
        // The one that was used last is the most likely to be in cache.
        let spare = list.pop();
        drop(list);
        spare.or_else(|| Buffer::new(capacity).ok())
    }

    /// Keeps a buffer for the next, unless there are enough.
    pub fn put(&self, buffer: Buffer) {
        let mut list = self.list();
        let held: usize = list.iter().map(Buffer::capacity).sum();
        if held + buffer.capacity() <= POOL_BYTES_MAX {
            list.push(buffer);
        }
    }

    /// How many wait.
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
    fn bytes_stay_in_the_buffer_they_came_in_which_is_used_again() {
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
    fn a_buffer_that_a_device_knows_stays_and_its_bytes_are_in_one_that_is_used_again() {
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
    fn a_buffer_that_is_mostly_empty_is_copied_and_stays() {
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
    fn no_more_are_kept_than_may_be_and_none_of_another_size() {
        let pool = BufferPool::default();
        let many: Vec<_> = (0..2 * POOL_BYTES_MAX / SIZE).map(|_| pool.take(SIZE)).collect();
        many.into_iter().flatten().for_each(|buffer| pool.put(buffer));
        assert_eq!(pool.count(), POOL_BYTES_MAX / SIZE);
        assert!(pool.take(2 * SIZE).is_some_and(|it| it.capacity() == 2 * SIZE));
        assert_eq!(pool.count(), 0, "nobody asks for those any more");
    }
}
