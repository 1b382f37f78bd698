//! Memory that links move: private buffers, slots a peer may touch, windows of
//! mapped files, and the domain that decides which peer may name which.
//!
//! Who owns what: a `Buffer` has one owner and moves into its operation. A
//! `SharedSlot` is registered, so a peer may change it between two calls: it is
//! never borrowed beyond one. A `MappedFile` offers no bytes at all: a truncated
//! file would turn a borrow into SIGBUS.

use crate::error::FabricError;
use memmap2::{Mmap, MmapMut, MmapOptions};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Regions one domain may have at a time.
pub const REGIONS_MAX: usize = 4096;

/// A private, page-aligned buffer with a length of its own. Its bytes may be in a file
/// instead, from which a link can send them without copying.
#[derive(Debug)]
pub struct Buffer {
    map: MmapMut,
    len: usize,
    origin: Option<(Arc<File>, u64)>,
}

impl Buffer {
    /// A buffer of `capacity` zero bytes, at least one.
    pub fn new(capacity: usize) -> Result<Self, FabricError> {
        let map = MmapMut::map_anon(capacity.max(1))
            .map_err(|e| FabricError::system("cannot map a buffer", e))?;
        Ok(Self { map, len: capacity, origin: None })
    }

    /// How long it can be.
    pub fn capacity(&self) -> usize {
        self.map.len()
    }

    /// Sets how much of it the next operation uses, and forgets where its bytes came from.
    ///
    /// # Panics
    /// When `len` is more than the capacity: a bug of the caller.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} bytes in a buffer of {}", self.capacity());
        self.len = len;
        self.origin = None;
    }

    /// Says that the bytes to send are in a file, from `offset`; what is in the buffer is of no
    /// use. They may change before they are sent: the peer has their digests, and asks again.
    pub fn set_origin(&mut self, file: Arc<File>, offset: u64) {
        self.origin = Some((file, offset));
    }

    /// The file that holds the bytes, and where.
    pub fn origin(&self) -> Option<(&File, u64)> {
        self.origin.as_ref().map(|(file, offset)| (&**file, *offset))
    }

    /// Brings the bytes into the buffer, for a link that cannot send from a file. A file that
    /// is shorter by now leaves something else there, which its digests tell.
    pub fn fill(&mut self) {
        if let Some((file, offset)) = self.origin.take() {
            // Too short, or unreadable: either way these are not the bytes, and it will show.
            let _ = file.read_exact_at(&mut self.map[..self.len], offset);
        }
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map[..self.len]
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map[..self.len]
    }
}

/// A registered slot that a peer may read or write: staging on the way out, uploads on the
/// way in. Its bytes are lent for one call at a time, and no peer changes them during it.
#[derive(Clone, Debug)]
pub struct SharedSlot {
    bytes: Arc<Mutex<MmapMut>>,
    len: usize,
}

impl SharedSlot {
    /// A slot of `len` zero bytes, at least one.
    pub fn new(len: usize) -> Result<Self, FabricError> {
        let map = MmapMut::map_anon(len.max(1))
            .map_err(|e| FabricError::system("cannot map a slot", e))?;
        Ok(Self { bytes: Arc::new(Mutex::new(map)), len })
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `into.len()` bytes from `offset` out of the slot.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        self.with(offset, into.len(), |bytes| into.copy_from_slice(bytes));
    }

    /// Copies bytes into the slot at `offset`.
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        self.with(offset, from.len(), |bytes| bytes.copy_from_slice(from));
    }

    /// Lends a range for the length of a call. A peer's write waits for its end, so what is
    /// checked in one call is what is used in it. (A slot that a device writes to, which waits
    /// for nobody, will have to lend a private copy.)
    ///
    /// # Panics
    /// When the range is outside the slot: ranges are checked when they arrive.
    pub fn with<T>(&self, offset: usize, len: usize, f: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut map = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        f(&mut map[..self.len][offset..][..len])
    }
}

/// A window of a file, mapped read-only so that a device can serve it. The processor never
/// looks through the mapping: soft links send from the file itself.
#[derive(Clone, Debug)]
pub struct MappedFile {
    file: Arc<File>,
    offset: u64,
    map: Arc<Mmap>,
}

impl MappedFile {
    /// Maps `len` bytes from `offset`, which must be a multiple of the page size.
    #[allow(unsafe_code)]
    pub fn new(file: Arc<File>, offset: u64, len: usize) -> Result<Self, FabricError> {
        let mut options = MmapOptions::new();
        options.offset(offset).len(len);
        // SAFETY: memmap2 asks that nobody changes the file under a borrow of the mapping. We
        // never borrow it: only its address and length leave this type, for registration.
        let map = unsafe { options.map(&*file) };
        let map = map.map_err(|e| FabricError::system("cannot map the file", e))?;
        Ok(Self { file, offset, map: Arc::new(map) })
    }

    /// The file it is a window of.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where in the file the window begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How long the window is.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the window has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of the mapping, for registering it with a device. Not for reading.
    pub fn address(&self) -> *const u8 {
        self.map.as_ptr()
    }
}

/// Memory to register.
#[derive(Clone, Debug)]
pub enum Memory {
    /// A window of a file; the peer may only read it.
    File(MappedFile),
    /// A staging slot; the peer may only read it.
    Staged(SharedSlot),
    /// An upload slot; the peer may only write it.
    Upload(SharedSlot),
}

impl Memory {
    /// How many bytes it has.
    pub fn len(&self) -> usize {
        match self {
            Self::File(window) => window.len(),
            Self::Staged(slot) | Self::Upload(slot) => slot.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a peer needs to address registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionHandle {
    /// The key.
    pub key: u64,
    /// The address of the first byte.
    pub base: u64,
}

/// The memory one peer may name: a protection domain. All links to that peer share it, and no
/// link to another peer knows its keys.
pub trait Domain: Send + Sync {
    /// Registers memory; the access follows from its kind.
    fn register(&self, memory: Memory) -> Result<RegionHandle, FabricError>;

    /// Takes a region back. Operations that name it later fail.
    fn deregister(&self, key: u64);

    /// How many regions are registered.
    fn region_count(&self) -> usize;
}

/// The domain of links without a device: a table of regions under random keys.
#[derive(Debug, Default)]
pub struct SoftDomain {
    regions: RwLock<HashMap<u64, Memory>>,
}

/// What a peer wants to do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it.
    Read,
    /// Write it.
    Write,
}

impl SoftDomain {
    /// An empty domain.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Finds the memory a peer names, when the peer may do this to all of the range.
    pub fn find(
        &self,
        key: u64,
        address: u64,
        len: usize,
        access: Access,
    ) -> Result<Memory, FabricError> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let memory =
            regions.get(&key).ok_or_else(|| FabricError::Access("no such region".into()))?;
        let allowed = match memory {
            Memory::File(_) | Memory::Staged(_) => access == Access::Read,
            Memory::Upload(_) => access == Access::Write,
        };
        if !allowed {
            return Err(FabricError::Access(format!("region does not allow {access:?}")));
        }
        let end = address.checked_add(len as u64);
        if end.is_none_or(|end| end > memory.len() as u64) {
            return Err(FabricError::Access("range is outside its region".into()));
        }
        Ok(memory.clone())
    }
}

impl Domain for SoftDomain {
    fn register(&self, memory: Memory) -> Result<RegionHandle, FabricError> {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        if regions.len() >= REGIONS_MAX {
            return Err(FabricError::Limit(format!("{REGIONS_MAX} regions are registered")));
        }
        let key = loop {
            let key = random_u64()?;
            if !regions.contains_key(&key) {
                break key;
            }
        };
        regions.insert(key, memory);
        Ok(RegionHandle { key, base: 0 })
    }

    fn deregister(&self, key: u64) {
        self.regions.write().unwrap_or_else(PoisonError::into_inner).remove(&key);
    }

    fn region_count(&self) -> usize {
        self.regions.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// A number nobody can guess.
pub(crate) fn random_u64() -> Result<u64, FabricError> {
    let mut bytes = [0_u8; 8];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| FabricError::system("cannot get random bytes", e))?;
    // The kernel answers requests of up to 256 bytes whole.
    assert_eq!(got, bytes.len(), "getrandom was cut short");
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_found_only_by_its_key_range_and_access() {
        let domain = SoftDomain::new();
        let slot = SharedSlot::new(100).expect("slot");
        let upload = domain.register(Memory::Upload(slot.clone())).expect("registers");
        let staged = domain.register(Memory::Staged(slot)).expect("registers");
        assert!(domain.find(upload.key, 0, 100, Access::Write).is_ok());
        assert!(domain.find(upload.key, 1, 100, Access::Write).is_err(), "past the end");
        assert!(domain.find(upload.key, u64::MAX, 2, Access::Write).is_err(), "overflow");
        assert!(domain.find(upload.key, 0, 1, Access::Read).is_err(), "uploads cannot be read");
        assert!(domain.find(staged.key, 0, 1, Access::Write).is_err(), "staging cannot be written");
        assert!(SoftDomain::new().find(upload.key, 0, 1, Access::Write).is_err(), "other domain");
        domain.deregister(upload.key);
        assert!(domain.find(upload.key, 0, 1, Access::Write).is_err(), "stale key");
    }

    #[test]
    fn what_goes_into_a_slot_comes_out() {
        let slot = SharedSlot::new(8).expect("slot");
        slot.copy_in(2, b"abc");
        let mut out = [0; 5];
        slot.copy_out(1, &mut out);
        assert_eq!(&out, b"\0abc\0");
    }

    #[test]
    fn a_window_maps_part_of_a_file() {
        let file = tempfile::tempfile().expect("file");
        file.set_len(3 << 12).expect("grows");
        let window = MappedFile::new(Arc::new(file), 1 << 12, 100).expect("maps");
        assert_eq!((window.offset(), window.len()), (4096, 100));
        assert!(!window.address().is_null());
    }
}
