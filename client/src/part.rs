//! Where a part of a file lands that is read here and there: memory, until the server
//! has said that the file is still what it was. Filled by workers with verified bytes
//! alone; taken by whoever asked for it, once. Large ones are used again: fresh memory
//! has to be zeroed by the kernel, page by page.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use verbatim_files::holes::hash_zeros;
use verbatim_proto::message::FileInfo;
use verbatim_proto::read::Part;
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::{Digest, Extent};

/// The most that one part may be, so that what is under way is bounded.
pub(crate) const PART_BYTES_MAX: u64 = 4 << 20;

/// Buffers that are kept for the next parts.
const SPARES_MAX: usize = 4;

/// Parts from this size on are worth keeping a buffer for.
const SPARE_BYTES_MIN: u64 = 2 << 20;

/// Buffers of parts that are over.
#[derive(Default)]
pub(crate) struct Spares(Mutex<Vec<Vec<u8>>>);

impl Spares {
    fn list(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer for so many bytes, or longer; what is in it means nothing.
    fn take(&self, len: u64) -> Vec<u8> {
        match len < SPARE_BYTES_MIN {
            true => vec![0; len as usize],
            false => self.list().pop().unwrap_or_else(|| vec![0; PART_BYTES_MAX as usize]),
        }
    }

    fn put(&self, buffer: Vec<u8>) {
        let mut list = self.list();
        if buffer.len() as u64 == PART_BYTES_MAX && list.len() < SPARES_MAX {
            list.push(buffer);
        }
    }
}

/// Whether somebody waits for something on its way, who may come when it has long been asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Haste(Arc<AtomicBool>);

impl Haste {
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
pub(crate) struct PartBuffer {
    /// What is wanted, of which version.
    pub part: Part,
    /// Whether somebody waits for it.
    pub haste: Haste,
    info: OnceLock<FileInfo>,
    landed: Mutex<Landed>,
}

/// Verified bytes, and the digest of each of their grains.
#[derive(Default)]
pub(crate) struct Landed {
    /// The digests, by the offset of their grain in the file.
    pub digests: BTreeMap<u64, Digest>,
    buffer: Vec<u8>,
    len: usize,
    spares: Option<Arc<Spares>>,
}

impl PartBuffer {
    /// A place for this part.
    ///
    /// # Panics
    /// When it is longer than a part may be: a bug of the caller.
    pub fn new(part: Part, haste: Haste, spares: &Arc<Spares>) -> Self {
        assert!(part.want.len <= PART_BYTES_MAX, "a part has a bound");
        let landed = Mutex::new(Landed {
            digests: BTreeMap::new(),
            buffer: spares.take(part.want.len),
            len: part.want.len as usize,
            spares: Some(spares.clone()),
        });
        Self { part, haste, info: OnceLock::new(), landed }
    }

    /// The file was opened, and is this.
    pub fn opened(&self, info: FileInfo) {
        let _ = self.info.set(info);
    }

    /// What the file is, if the server said it.
    pub fn info(&self) -> Option<FileInfo> {
        self.info.get().copied()
    }

    /// Takes verified bytes of the file with the digests of their grains.
    pub fn put(&self, offset: u64, bytes: &[u8], digests: &[Digest]) {
        let mut landed = self.landed.lock().unwrap_or_else(PoisonError::into_inner);
        // What was taken already is whole: nobody needs it twice.
        let Some(place) = landed.place(self.part.want, Extent::new(offset, bytes.len() as u64))
        else {
            return;
        };
        place.copy_from_slice(bytes);
        let grains = (offset..).step_by(GRAIN_BYTES as usize);
        landed.digests.extend(grains.zip(digests.iter().copied()));
    }

    /// Takes a hole; returns the digests of zeros there.
    pub fn put_zeros(&self, extent: Extent, size: u64) -> Vec<Digest> {
        let digests = hash_zeros(size, extent);
        let mut landed = self.landed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = landed.place(self.part.want, extent) {
            // Whatever came before: bytes and digests are of one another.
            place.fill(0);
            let grains = (extent.offset..).step_by(GRAIN_BYTES as usize);
            landed.digests.extend(grains.zip(digests.iter().copied()));
        }
        digests
    }

    /// What landed, if it is all that was wanted; nothing is left then.
    pub fn take(&self) -> Option<Landed> {
        let mut landed = self.landed.lock().unwrap_or_else(PoisonError::into_inner);
        let landed = std::mem::take(&mut *landed);
        let Extent { offset, len } = self.part.want;
        let mut grains = (offset..offset + len).step_by(GRAIN_BYTES as usize);
        // Where nothing landed are the bytes of another part.
        grains.all(|grain| landed.digests.contains_key(&grain)).then_some(landed)
    }
}

impl Landed {
    /// The bytes that were wanted.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    /// The bytes of an extent, if it is in what was wanted and nobody has taken that yet.
    fn place(&mut self, want: Extent, extent: Extent) -> Option<&mut [u8]> {
        let at = usize::try_from(extent.offset.checked_sub(want.offset)?).ok()?;
        self.buffer[..self.len].get_mut(at..at.checked_add(extent.len as usize)?)
    }
}

impl Drop for Landed {
    fn drop(&mut self) {
        if let Some(spares) = self.spares.take() {
            spares.put(std::mem::take(&mut self.buffer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 3 * GRAIN_BYTES;

    fn buffer() -> PartBuffer {
        let want = Extent::new(GRAIN_BYTES, GRAIN_BYTES);
        PartBuffer::new(Part { size: SIZE, version: None, want }, Haste::default(), &Arc::default())
    }

    #[test]
    fn bytes_and_digests_that_are_taken_are_of_one_another() {
        let (buffer, bytes) = (buffer(), vec![7; GRAIN_BYTES as usize]);
        buffer.put(GRAIN_BYTES, &bytes, &[Digest::of_grain(GRAIN_BYTES, SIZE, &bytes)]);
        buffer.put_zeros(Extent::new(GRAIN_BYTES, GRAIN_BYTES), SIZE);
        let landed = buffer.take().expect("all of it landed");
        let digest = Digest::of_grain(GRAIN_BYTES, SIZE, landed.bytes());
        assert_eq!(landed.digests[&GRAIN_BYTES], digest);
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
    fn a_buffer_is_used_again_and_nobody_gets_what_was_in_it() {
        let (spares, size) = (Arc::<Spares>::default(), 2 * PART_BYTES_MAX);
        let part = |len| {
            let part = Part { size, version: None, want: Extent::new(0, len) };
            PartBuffer::new(part, Haste::default(), &spares)
        };
        let put = |buffer: &PartBuffer, grain: u64, byte: u8| {
            let bytes = vec![byte; GRAIN_BYTES as usize];
            let offset = grain * GRAIN_BYTES;
            buffer.put(offset, &bytes, &[Digest::of_grain(offset, size, &bytes)]);
        };
        let first = part(PART_BYTES_MAX);
        (0..PART_BYTES_MAX / GRAIN_BYTES).for_each(|grain| put(&first, grain, 7));
        let landed = first.take().expect("all of it landed");
        assert!(landed.bytes().iter().all(|byte| *byte == 7));
        drop(landed);
        assert_eq!(spares.list().len(), 1);
        let second = part(SPARE_BYTES_MIN);
        assert!(spares.list().is_empty(), "it is in use again");
        let grains = SPARE_BYTES_MIN / GRAIN_BYTES;
        (1..grains).for_each(|grain| put(&second, grain, 9));
        assert!(second.take().is_none(), "one grain is still of the first");
        let third = part(SPARE_BYTES_MIN);
        (0..grains).for_each(|grain| put(&third, grain, 9));
        let landed = third.take().expect("all of it landed");
        assert!(landed.bytes().len() as u64 == SPARE_BYTES_MIN);
        assert!(landed.bytes().iter().all(|byte| *byte == 9));
        // No more are kept than may be.
        let many: Vec<_> = (0..2 * SPARES_MAX).map(|_| part(PART_BYTES_MAX)).collect();
        drop((many, landed));
        assert_eq!(spares.list().len(), SPARES_MAX);
    }
}
