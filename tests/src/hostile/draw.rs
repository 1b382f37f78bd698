//! Draws values from the input of a target: mostly such as make sense, so that
//! a machine gets somewhere, with the edges of every range among them.

use arbitrary::Unstructured;
use verbatim_proto::message::FileInfo;
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::{Code, Digest, Extent, Fault, FileId, LinkId, Region, Tag, WindowId};

/// Files, links and windows are numbered below this, so that they meet again.
const NUMBERS: u64 = 6;

/// The input, from its beginning. When it is used up, zeros follow.
pub struct Draw<'a>(Unstructured<'a>);

impl<'a> Draw<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(Unstructured::new(bytes))
    }

    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// A number from 0 to `max`.
    pub fn up_to(&mut self, max: u64) -> u64 {
        self.0.int_in_range(0..=max).unwrap_or(0)
    }

    /// Whether something happens that does once in so many times.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.up_to(times - 1) == 1
    }

    /// How rarely this peer says something wild: often, or hardly ever, so that the other side gets
    /// somewhere before it ends the session.
    pub fn wildness(&mut self) -> u64 {
        if self.once_in(2) { 64 } else { 2 }
    }

    /// Any number at all, more often one at an edge.
    pub fn any(&mut self) -> u64 {
        let edges = [0, 1, GRAIN_BYTES - 1, GRAIN_BYTES, 1 << 32, 1 << 62, i64::MAX as u64];
        match self.up_to(9) {
            place @ 0..7 => edges[place as usize],
            7 => u64::MAX - self.up_to(GRAIN_BYTES),
            _ => self.0.arbitrary().unwrap_or(0),
        }
    }

    /// One of those that wait, any of them.
    pub fn take<T>(&mut self, waiting: &mut Vec<T>) -> Option<T> {
        let last = waiting.len().checked_sub(1)?;
        Some(waiting.swap_remove(self.up_to(last as u64) as usize))
    }

    pub fn file(&mut self) -> FileId {
        FileId(self.up_to(NUMBERS) as u32)
    }

    pub fn link(&mut self) -> LinkId {
        LinkId { index: self.up_to(2) as u16, epoch: self.up_to(2) as u16 }
    }

    pub fn window(&mut self) -> WindowId {
        WindowId(if self.once_in(8) { self.any() } else { self.up_to(NUMBERS) })
    }

    pub fn tag(&mut self) -> Tag {
        Tag(if self.once_in(8) { self.any() as u32 } else { self.up_to(3 * NUMBERS) as u32 })
    }

    pub fn region(&mut self) -> Region {
        let base = if self.once_in(8) { self.any() } else { 1 << 20 };
        Region { key: self.up_to(NUMBERS), base }
    }

    /// The size of a file: of a few grains, or anything.
    pub fn size(&mut self) -> u64 {
        match self.up_to(7) {
            0 => 0,
            1 => self.any(),
            2 => self.up_to(GRAIN_BYTES),
            _ => self.up_to(9 * GRAIN_BYTES),
        }
    }

    pub fn info(&mut self) -> FileInfo {
        let size = self.size();
        let (mode, mtime_ns) = (self.up_to(0o7777) as u32, self.up_to(1) as i64);
        FileInfo { size, mode, mtime_ns, allocated: size, version: Some(self.up_to(1)) }
    }

    /// A range: whole grains, mostly.
    pub fn extent(&mut self) -> Extent {
        match self.up_to(5) {
            0 => Extent { offset: self.any(), len: self.any() },
            1 => Extent { offset: self.up_to(9) * GRAIN_BYTES, len: self.up_to(GRAIN_BYTES) },
            _ => {
                let (offset, len) = (self.up_to(9), self.up_to(9));
                Extent { offset: offset * GRAIN_BYTES, len: len * GRAIN_BYTES }
            }
        }
    }

    /// A digest for each grain of a range; now and then for another number of them.
    pub fn digests(&mut self, extent: Extent) -> Vec<Digest> {
        let grains = extent.len.div_ceil(GRAIN_BYTES).min(64);
        let count = if self.once_in(12) { self.up_to(64) } else { grains };
        vec![self.digest(); count as usize]
    }

    pub fn digest(&mut self) -> Digest {
        Digest([self.up_to(3) as u8; 32])
    }

    pub fn fault(&mut self) -> Fault {
        let codes = [Code::NotFound, Code::Denied, Code::Changed, Code::Mismatch, Code::Limit];
        Fault::new(codes[self.up_to(codes.len() as u64 - 1) as usize], "drawn")
    }

    /// Up to `max` of something.
    pub fn list<T>(&mut self, max: u64, mut each: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.up_to(max);
        (0..count).map(|_| each(self)).collect()
    }

    /// One or the other.
    pub fn result<T>(&mut self, value: T) -> Result<T, Fault> {
        if self.once_in(6) { Err(self.fault()) } else { Ok(value) }
    }

    /// Bytes as they are.
    pub fn bytes(&mut self, max: u64) -> Vec<u8> {
        let count = self.up_to(max) as usize;
        let count = count.min(self.0.len());
        self.0.bytes(count).unwrap_or_default().to_vec()
    }
}

/// Whether a range is whole grains of a file of `size` bytes, and not empty: what can be hashed.
pub(super) fn is_whole(extent: Extent, size: u64) -> bool {
    let whole = |at: u64| at.is_multiple_of(GRAIN_BYTES);
    let ends = whole(extent.len) || extent.end() == Some(size);
    extent.fits(size) && extent.len > 0 && whole(extent.offset) && ends
}
