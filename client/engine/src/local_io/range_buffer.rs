//! A range of a file in memory, for a mount. Workers fill it with verified bytes only. The session
//! hands it to the reader once the server has confirmed that the file did not change. A chunk that
//! lies in one range stays in the buffer that received it.

use crate::local_io::buffer_pool::{BufferPool, Bytes, ZEROS_MAX};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use verbatim_fabric::Buffer;
use verbatim_files::holes::hash_zeros;
use verbatim_proto::message::FileInfo;
use verbatim_proto::read::Part;
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::{Digest, Extent};

/// The longest range; bounds the memory of reads in flight.
pub const RANGE_BYTES_MAX: u64 = 4 << 20;

// A whole range may be a hole.
const _: () = assert!(RANGE_BYTES_MAX as usize <= ZEROS_MAX);

/// Whether a reader waits for a range in flight; readers may start to wait after it was requested.
#[derive(Clone, Debug, Default)]
pub struct Priority(Arc<AtomicBool>);

impl Priority {
    /// Marks the range as urgent: a reader waits.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether a reader waits.
    pub fn is_urgent(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A range that is being read.
pub struct RangeBuffer {
    /// The range, and the version of the file.
    pub part: Part,
    /// Whether a reader waits for it.
    pub priority: Priority,
    info: OnceLock<FileInfo>,
    landed: Mutex<VerifiedRange>,
}

/// Verified bytes of a file, with the digest of each grain.
#[derive(Default)]
pub struct VerifiedRange {
    /// The digests, by the offset of the grain in the file.
    pub digests: BTreeMap<u64, Digest>,
    /// The bytes, by their offset in the file; pieces do not overlap.
    pieces: BTreeMap<u64, Bytes>,
    pool: Option<Arc<BufferPool>>,
}

impl RangeBuffer {
    /// An empty buffer for this range.
    ///
    /// # Panics
    /// When the range is longer than `RANGE_BYTES_MAX`: a bug of the caller.
    pub fn new(part: Part, priority: Priority, pool: &Arc<BufferPool>) -> Self {
        assert!(part.want.len <= RANGE_BYTES_MAX, "a part has a bound");
        let (digests, pieces) = (BTreeMap::new(), BTreeMap::new());
        let landed = VerifiedRange { digests, pieces, pool: Some(pool.clone()) };
        Self { part, priority, info: OnceLock::new(), landed: Mutex::new(landed) }
    }

    /// Notes the attributes of the opened file.
    pub fn set_info(&self, info: FileInfo) {
        let _ = self.info.set(info);
    }

    /// The attributes of the file, once the server has sent them.
    pub fn info(&self) -> Option<FileInfo> {
        self.info.get().copied()
    }

    /// Stores verified bytes of the file with the digests of their grains.
    pub fn put(&self, offset: u64, bytes: &[u8], digests: &[Digest]) {
        let extent = Extent::new(offset, bytes.len() as u64);
        if let Some(mut landed) = self.lock_if_wanted(extent) {
            landed.insert(extent, Bytes::Copied(bytes.to_vec()), digests);
        }
    }

    /// Stores the bytes of a slot's buffer. May keep the buffer and put another one in its place.
    pub fn put_buffer(&self, offset: u64, buffer: &mut Buffer, digests: &[Digest]) {
        let extent = Extent::new(offset, buffer.len() as u64);
        let Some(mut landed) = self.lock_if_wanted(extent) else { return };
        let Some(bytes) = landed.pool.as_ref().map(|pool| pool.swap(buffer)) else { return };
        landed.insert(extent, bytes, digests);
    }

    /// Stores a hole. Returns the digests of its zeros.
    pub fn put_zeros(&self, extent: Extent, size: u64) -> Vec<Digest> {
        let digests = hash_zeros(size, extent);
        if let Some(mut landed) = self.lock_if_wanted(extent) {
            landed.insert(extent, Bytes::Zeros(extent.len as usize), &digests);
        }
        digests
    }

    /// Locks the range for writing; `None` if the extent lies outside it, or the range was already
    /// taken.
    fn lock_if_wanted(&self, extent: Extent) -> Option<MutexGuard<'_, VerifiedRange>> {
        let want = self.part.want;
        let inside = extent.offset >= want.offset && extent.end()? <= want.end()?;
        let landed = self.landed.lock().unwrap_or_else(PoisonError::into_inner);
        (inside && landed.pool.is_some()).then_some(landed)
    }

    /// Takes the bytes, if the range is complete. The buffer is empty afterwards.
    pub fn take(&self) -> Option<VerifiedRange> {
        let mut landed = self.landed.lock().unwrap_or_else(PoisonError::into_inner);
        let landed = std::mem::take(&mut *landed);
        let Extent { offset, len } = self.part.want;
        let mut grains = (offset..offset + len).step_by(GRAIN_BYTES as usize);
        grains.all(|grain| landed.digests.contains_key(&grain)).then_some(landed)
    }
}

impl VerifiedRange {
    /// These bytes of the file, if one piece contains them.
    pub fn at(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let (begin, bytes) = self.pieces.range(..=offset).next_back()?;
        let at = usize::try_from(offset - begin).ok()?;
        bytes.get(at..at.checked_add(len)?)
    }

    /// These bytes of the file; copied if they lie in several pieces.
    pub fn gather(&self, offset: u64, len: usize) -> Option<Cow<'_, [u8]>> {
        if let Some(bytes) = self.at(offset, len) {
            return Some(Cow::Borrowed(bytes));
        }
        let mut bytes = vec![0; len];
        (self.copy(offset, &mut bytes) == len).then_some(Cow::Owned(bytes))
    }

    /// Copies bytes of the file from an offset on. Returns how many contiguous bytes there were.
    pub fn copy(&self, offset: u64, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len() {
            let from = offset + done as u64;
            let Some((begin, bytes)) = self.pieces.range(..=from).next_back() else { break };
            let rest = bytes.get((from - begin) as usize..).unwrap_or_default();
            let len = rest.len().min(into.len() - done);
            if len == 0 {
                break;
            }
            into[done..done + len].copy_from_slice(&rest[..len]);
            done += len;
        }
        done
    }

    /// The bytes that a link carried and that occupy memory; holes do neither.
    pub fn byte_count(&self) -> u64 {
        let came = self.pieces.values().filter(|bytes| !matches!(bytes, Bytes::Zeros(_)));
        came.map(|bytes| bytes.len() as u64).sum()
    }

    /// Replaces older bytes: bytes and digests must come from the same transfer.
    fn insert(&mut self, extent: Extent, bytes: Bytes, digests: &[Digest]) {
        let Some(end) = extent.end().filter(|end| *end > extent.offset) else { return };
        let is_over = |begin: u64, it: &Bytes| begin + it.len() as u64 > extent.offset;
        let before = self.pieces.range(..end).filter(|(begin, it)| is_over(**begin, it));
        let over: Vec<u64> = before.map(|(begin, _)| *begin).collect();
        for begin in over {
            let Some(old) = self.pieces.remove(&begin) else { continue };
            if begin < extent.offset {
                self.pieces.insert(begin, old.part(0..(extent.offset - begin) as usize));
            }
            let tail = (end - begin) as usize..old.len();
            if !tail.is_empty() {
                self.pieces.insert(end, old.part(tail));
            }
        }
        self.pieces.insert(extent.offset, bytes);
        let grains = (extent.offset..).step_by(GRAIN_BYTES as usize);
        self.digests.extend(grains.zip(digests.iter().copied()));
    }
}

impl Drop for VerifiedRange {
    fn drop(&mut self) {
        let Some(pool) = self.pool.take() else { return };
        std::mem::take(&mut self.pieces).into_values().for_each(|bytes| pool.give_back(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 3 * GRAIN_BYTES;

    fn buffer() -> RangeBuffer {
        let want = Extent::new(GRAIN_BYTES, GRAIN_BYTES);
        RangeBuffer::new(
            Part { size: SIZE, version: None, want },
            Priority::default(),
            &Arc::default(),
        )
    }

    #[test]
    fn bytes_and_digests_come_from_the_same_transfer() {
        let (buffer, bytes) = (buffer(), vec![7; GRAIN_BYTES as usize]);
        buffer.put(GRAIN_BYTES, &bytes, &[Digest::of_grain(GRAIN_BYTES, SIZE, &bytes)]);
        buffer.put_zeros(Extent::new(GRAIN_BYTES, GRAIN_BYTES), SIZE);
        let landed = buffer.take().expect("all of it landed");
        let bytes = landed.at(GRAIN_BYTES, GRAIN_BYTES as usize).expect("they are here");
        let digest = Digest::of_grain(GRAIN_BYTES, SIZE, bytes);
        assert_eq!(landed.digests[&GRAIN_BYTES], digest);
    }

    #[test]
    fn holes_read_as_zeros_with_digests_and_occupy_no_memory() {
        let (pool, size) = (Arc::<BufferPool>::default(), RANGE_BYTES_MAX);
        let want = Extent::new(0, size);
        let part = RangeBuffer::new(Part { size, version: None, want }, Priority::default(), &pool);
        let digests = part.put_zeros(want, size);
        assert_eq!(digests, Digest::of_grains(0, size, &vec![0; size as usize]));
        let bytes = vec![7; GRAIN_BYTES as usize];
        part.put(GRAIN_BYTES, &bytes, &Digest::of_grains(GRAIN_BYTES, size, &bytes));
        let landed = part.take().expect("all of it landed");
        assert_eq!(landed.byte_count(), GRAIN_BYTES, "the rest is two holes");
        let all = landed.gather(0, size as usize).expect("all of it is here");
        let (head, rest) = all.split_at(GRAIN_BYTES as usize);
        let (data, tail) = rest.split_at(GRAIN_BYTES as usize);
        assert!(data == bytes && [head, tail].concat().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn late_and_unrequested_bytes_are_ignored() {
        let (buffer, bytes) = (buffer(), vec![7; GRAIN_BYTES as usize]);
        let digest = Digest::of(&bytes);
        for offset in [0, 2 * GRAIN_BYTES] {
            buffer.put(offset, &bytes, &[digest]);
            buffer.put_zeros(Extent::new(offset, GRAIN_BYTES), SIZE);
        }
        assert!(buffer.take().is_none(), "nothing that was wanted");
        buffer.put(GRAIN_BYTES, &bytes, &[digest]);
        assert!(buffer.take().is_none(), "it was taken");
    }

    #[test]
    fn the_last_bytes_win_wherever_pieces_overlap() {
        let (pool, size) = (Arc::<BufferPool>::default(), RANGE_BYTES_MAX);
        let want = Extent::new(0, 8 * GRAIN_BYTES);
        let part = RangeBuffer::new(Part { size, version: None, want }, Priority::default(), &pool);
        let mut model = vec![0; want.len as usize];
        let mut put = |first: u64, grains: u64, byte: u8| {
            let (offset, bytes) =
                (first * GRAIN_BYTES, vec![byte; (grains * GRAIN_BYTES) as usize]);
            part.put(offset, &bytes, &Digest::of_grains(offset, size, &bytes));
            model[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        };
        // An exact fit, inside one, over the end of one, and over several.
        let all = [(0, 4, 1), (1, 2, 2), (2, 3, 3), (5, 3, 4), (0, 6, 5), (3, 1, 6), (7, 1, 7)];
        all.into_iter().for_each(|(first, grains, byte)| put(first, grains, byte));
        let landed = part.take().expect("all of it landed");
        let mut bytes = vec![9; want.len as usize];
        assert_eq!(landed.copy(0, &mut bytes), bytes.len());
        assert!(bytes == model && landed.byte_count() == want.len);
        for (at, grain) in
            (0..).step_by(GRAIN_BYTES as usize).zip(model.chunks(GRAIN_BYTES as usize))
        {
            assert_eq!(landed.at(at, grain.len()), Some(grain), "at {at}");
            assert_eq!(landed.digests[&at], Digest::of_grain(at, size, grain), "at {at}");
        }
        assert_eq!(landed.at(2 * GRAIN_BYTES, 2 * GRAIN_BYTES as usize), None, "two pieces");
        assert_eq!(landed.copy(want.len - 1, &mut [0; 2]), 1, "and no more");
        assert_eq!((landed.at(want.len, 1), landed.copy(want.len, &mut [0])), (None, 0));
    }

    #[test]
    fn a_recycled_buffer_never_leaks_its_old_bytes() {
        const CHUNK: usize = 1 << 20;
        let (pool, size) = (Arc::<BufferPool>::default(), 2 * RANGE_BYTES_MAX);
        let part = |len| {
            let part = Part { size, version: None, want: Extent::new(0, len) };
            RangeBuffer::new(part, Priority::default(), &pool)
        };
        let digests = |offset: u64, bytes: &[u8]| Digest::of_grains(offset, size, bytes);
        let put = |part: &RangeBuffer, buffer: &mut Buffer, chunk: u64, byte: u8| {
            let (offset, capacity) = (chunk * CHUNK as u64, buffer.capacity());
            buffer.set_len(CHUNK);
            buffer[..].fill(byte);
            part.put_buffer(offset, buffer, &digests(offset, &[byte; CHUNK]));
            assert_eq!(buffer.capacity(), capacity, "a link's slots stay as long as they are");
        };
        let mut slot = Buffer::new(CHUNK).expect("there is memory");
        let first = part(RANGE_BYTES_MAX);
        (0..4).for_each(|chunk| put(&first, &mut slot, chunk, 7 + chunk as u8));
        let landed = first.take().expect("all of it landed");
        for chunk in 0..4 {
            let bytes = landed.at(chunk * CHUNK as u64, CHUNK).expect("in the buffer it came in");
            assert!(bytes.iter().all(|byte| *byte == 7 + chunk as u8), "another's slot");
        }
        assert!(landed.at(1, CHUNK).is_none() && pool.count() == 0);
        drop(landed);
        assert_eq!(pool.count(), 4);
        // Buffers of the pool contain bytes of the first range; an incomplete range must not be
        // returned.
        let second = part(RANGE_BYTES_MAX);
        (1..4).for_each(|chunk| put(&second, &mut slot, chunk, 1));
        assert!(second.take().is_none(), "a chunk did not land");
        assert_eq!(pool.count(), 4);
        // The bytes of a mostly empty buffer are copied, and it stays in its slot.
        let third = part(GRAIN_BYTES);
        slot.set_len(GRAIN_BYTES as usize);
        slot[..].fill(5);
        third.put_buffer(0, &mut slot, &digests(0, &[5; GRAIN_BYTES as usize]));
        assert_eq!(pool.count(), 4, "nobody took one");
        slot[..].fill(6);
        let landed = third.take().expect("all of it landed");
        assert!(landed.at(0, GRAIN_BYTES as usize).expect("is here").iter().all(|it| *it == 5));
    }
}
