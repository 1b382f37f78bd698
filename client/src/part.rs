//! Where a part of a file lands that is read here and there: memory, until the server
//! has said that the file is still what it was. Filled by workers with verified bytes
//! alone; taken by whoever asked for it, once.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use verbatim_files::holes::hash_zeros;
use verbatim_proto::message::FileInfo;
use verbatim_proto::read::Part;
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::{Digest, Extent};

/// The most that one part may be, so that what is under way is bounded.
pub(crate) const PART_BYTES_MAX: u64 = 4 << 20;

/// A part that lands.
pub(crate) struct PartBuffer {
    /// What is wanted, of which version.
    pub part: Part,
    info: OnceLock<FileInfo>,
    landed: Mutex<Landed>,
}

/// Verified bytes, and the digest of each of their grains.
#[derive(Default)]
pub(crate) struct Landed {
    /// The bytes that were wanted.
    pub bytes: Vec<u8>,
    /// The digests, by the offset of their grain in the file.
    pub digests: BTreeMap<u64, Digest>,
}

impl PartBuffer {
    /// A place for this part.
    ///
    /// # Panics
    /// When it is longer than a part may be: a bug of the caller.
    pub fn new(part: Part) -> Self {
        assert!(part.want.len <= PART_BYTES_MAX, "a part has a bound");
        let bytes = vec![0; part.want.len as usize];
        let landed = Mutex::new(Landed { bytes, digests: BTreeMap::new() });
        Self { part, info: OnceLock::new(), landed }
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

    /// What landed; the buffer is empty then.
    pub fn take(&self) -> Landed {
        std::mem::take(&mut *self.landed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Landed {
    /// The bytes of an extent, if it is in what was wanted and nobody has taken that yet.
    fn place(&mut self, want: Extent, extent: Extent) -> Option<&mut [u8]> {
        let at = usize::try_from(extent.offset.checked_sub(want.offset)?).ok()?;
        self.bytes.get_mut(at..at.checked_add(extent.len as usize)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 3 * GRAIN_BYTES;

    fn buffer() -> PartBuffer {
        PartBuffer::new(Part {
            size: SIZE,
            version: None,
            want: Extent::new(GRAIN_BYTES, GRAIN_BYTES),
        })
    }

    #[test]
    fn bytes_and_digests_that_are_taken_are_of_one_another() {
        let (buffer, bytes) = (buffer(), vec![7; GRAIN_BYTES as usize]);
        buffer.put(GRAIN_BYTES, &bytes, &[Digest::of_grain(GRAIN_BYTES, SIZE, &bytes)]);
        buffer.put_zeros(Extent::new(GRAIN_BYTES, GRAIN_BYTES), SIZE);
        let Landed { bytes, digests } = buffer.take();
        assert_eq!(digests[&GRAIN_BYTES], Digest::of_grain(GRAIN_BYTES, SIZE, &bytes));
    }

    #[test]
    fn what_comes_late_or_was_not_wanted_changes_nothing() {
        let (buffer, bytes) = (buffer(), vec![7; GRAIN_BYTES as usize]);
        let digest = Digest::of(&bytes);
        for offset in [0, 2 * GRAIN_BYTES] {
            buffer.put(offset, &bytes, &[digest]);
            buffer.put_zeros(Extent::new(offset, GRAIN_BYTES), SIZE);
        }
        let landed = buffer.take();
        assert!(landed.digests.is_empty() && landed.bytes.iter().all(|byte| *byte == 0));
        buffer.put(GRAIN_BYTES, &bytes, &[digest]);
        assert!(buffer.take().bytes.is_empty(), "it was taken");
    }
}
