//! Where a part of a file lands that is read here and there: memory, until the server
//! has said that the file is still what it was. Filled by workers with verified bytes
//! alone; taken by whoever asked for it, once. A chunk that is all of this part stays in
//! the buffer that it came in.

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

/// The most that one part may be, so that what is under way is bounded.
pub const RANGE_BYTES_MAX: u64 = 4 << 20;

// All of a part may be a hole.
const _: () = assert!(RANGE_BYTES_MAX as usize <= ZEROS_MAX);

/// Whether somebody waits for something on its way, who may come when it has long been asked for.
#[derive(Clone, Debug, Default)]
pub struct Priority(Arc<AtomicBool>);

impl Priority {
    /// Somebody waits from here on.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody does.
    pub fn is_urgent(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A part that lands.
pub struct RangeBuffer {
    /// What is wanted, of which version.
    pub part: Part,
    /// Whether somebody waits for it.
    pub priority: Priority,
    info: OnceLock<FileInfo>,
    landed: Mutex<VerifiedRange>,
}

/// Verified bytes, and the digest of each of their grains.
#[derive(Default)]
pub struct VerifiedRange {
    /// The digests, by the offset of their grain in the file.
    pub digests: BTreeMap<u64, Digest>,
    /// The bytes, by where in the file they begin; no two have a byte in common.
    pieces: BTreeMap<u64, Bytes>,
    pool: Option<Arc<BufferPool>>,
}

impl RangeBuffer {
    /// A place for this part.
    ///
    /// # Panics
    /// When it is longer than a part may be: a bug of the caller.
    pub fn new(part: Part, priority: Priority, pool: &Arc<BufferPool>) -> Self {
        assert!(part.want.len <= RANGE_BYTES_MAX, "a part has a bound");
        let (digests, pieces) = (BTreeMap::new(), BTreeMap::new());
        let landed = VerifiedRange { digests, pieces, pool: Some(pool.clone()) };
        Self { part, priority, info: OnceLock::new(), landed: Mutex::new(landed) }
    }

    /// The file was opened, and is this.
    pub fn set_info(&self, info: FileInfo) {
        let _ = self.info.set(info);
    }

    /// What the file is, if the server said it.
    pub fn info(&self) -> Option<FileInfo> {
        self.info.get().copied()
    }

    /// Takes verified bytes of the file with the digests of their grains.
    pub fn put(&self, offset: u64, bytes: &[u8], digests: &[Digest]) {
        let extent = Extent::new(offset, bytes.len() as u64);
        if let Some(mut landed) = self.lock_if_wanted(extent) {
            landed.insert(extent, Bytes::Copied(bytes.to_vec()), digests);
        }
    }

    /// The same of all that is in a buffer, which may stay here: another one is in its place then.
    pub fn put_buffer(&self, offset: u64, buffer: &mut Buffer, digests: &[Digest]) {
        let extent = Extent::new(offset, buffer.len() as u64);
        let Some(mut landed) = self.lock_if_wanted(extent) else { return };
        let Some(bytes) = landed.pool.as_ref().map(|pool| pool.swap(buffer)) else { return };
        landed.insert(extent, bytes, digests);
    }

    /// Takes a hole; returns the digests of zeros there.
    pub fn put_zeros(&self, extent: Extent, size: u64) -> Vec<Digest> {
        let digests = hash_zeros(size, extent);
        if let Some(mut landed) = self.lock_if_wanted(extent) {
            landed.insert(extent, Bytes::Zeros(extent.len as usize), &digests);
        }
        digests
    }

    /// Where an extent goes; nowhere if it is not of this part, or all of it was taken already:
    /// nobody needs it twice.
    fn lock_if_wanted(&self, extent: Extent) -> Option<MutexGuard<'_, VerifiedRange>> {
        let want = self.part.want;
        let inside = extent.offset >= want.offset && extent.end()? <= want.end()?;
        let landed = self.landed.lock().unwrap_or_else(PoisonError::into_inner);
        (inside && landed.pool.is_some()).then_some(landed)
    }

    /// What landed, if it is all that was wanted; nothing is left then.
    pub fn take(&self) -> Option<VerifiedRange> {
        let mut landed = self.landed.lock().unwrap_or_else(PoisonError::into_inner);
        let landed = std::mem::take(&mut *landed);
        let Extent { offset, len } = self.part.want;
        let mut grains = (offset..offset + len).step_by(GRAIN_BYTES as usize);
        grains.all(|grain| landed.digests.contains_key(&grain)).then_some(landed)
    }
}

impl VerifiedRange {
    /// These bytes of the file, if they are here and follow one another.
    pub fn at(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let (begin, bytes) = self.pieces.range(..=offset).next_back()?;
        let at = usize::try_from(offset - begin).ok()?;
        bytes.get(at..at.checked_add(len)?)
    }

    /// The same, in memory of their own where they do not follow one another.
    pub fn gather(&self, offset: u64, len: usize) -> Option<Cow<'_, [u8]>> {
        if let Some(bytes) = self.at(offset, len) {
            return Some(Cow::Borrowed(bytes));
        }
        let mut bytes = vec![0; len];
        (self.copy(offset, &mut bytes) == len).then_some(Cow::Owned(bytes))
    }

    /// Copies bytes of the file from an offset on; says how many were here in a row.
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

    /// How many bytes came, and take memory: those of holes do neither.
    pub fn byte_count(&self) -> u64 {
        let came = self.pieces.values().filter(|bytes| !matches!(bytes, Bytes::Zeros(_)));
        came.map(|bytes| bytes.len() as u64).sum()
    }

    /// What came last is what is there: bytes and digests are of one another.
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
    fn bytes_and_digests_that_are_taken_are_of_one_another() {
        let (buffer, bytes) = (buffer(), vec![7; GRAIN_BYTES as usize]);
        buffer.put(GRAIN_BYTES, &bytes, &[Digest::of_grain(GRAIN_BYTES, SIZE, &bytes)]);
        buffer.put_zeros(Extent::new(GRAIN_BYTES, GRAIN_BYTES), SIZE);
        let landed = buffer.take().expect("all of it landed");
        let bytes = landed.at(GRAIN_BYTES, GRAIN_BYTES as usize).expect("they are here");
        let digest = Digest::of_grain(GRAIN_BYTES, SIZE, bytes);
        assert_eq!(landed.digests[&GRAIN_BYTES], digest);
    }

    #[test]
    fn holes_are_zeros_with_their_digests_and_take_no_memory() {
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
    fn what_comes_late_or_was_not_wanted_changes_nothing() {
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
    fn what_came_last_is_there_wherever_pieces_begin() {
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
        // Whole, inside, over the end of one, over several, and exactly one.
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
    fn a_buffer_is_used_again_and_nobody_gets_what_was_in_it() {
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
        // What is in a spare is of the first; a part is all there, or nobody gets it.
        let second = part(RANGE_BYTES_MAX);
        (1..4).for_each(|chunk| put(&second, &mut slot, chunk, 1));
        assert!(second.take().is_none(), "a chunk did not land");
        assert_eq!(pool.count(), 4);
        // One that is mostly empty is copied, and stays where it was.
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
