//! Memory that links move: private buffers, slots a peer may touch, windows of
//! mapped files. `domain` decides which peer may name which.
//!
//! Who owns what: a `Buffer` has one owner and moves into its operation; what it
//! is registered as goes before its mapping does. A `SharedSlot` is registered,
//! so a peer may change it between two calls, and a device at any time: it is
//! never borrowed beyond one call, and a slot that a device writes to is never
//! borrowed at all, only copied. Slots that no device knows may have their memory in
//! turns (`spare`). A `MappedFile` and a `MappedSpot` offer no bytes: a
//! truncated file would turn a borrow into SIGBUS. What a device will register comes
//! from huge pages where there are some (`pages`). All that is mapped here is left out
//! of core dumps: it has contents of files.

mod from_files;
mod heap;
mod pages;
mod spare;

use crate::error::FabricError;
use crate::verbs::LocalRegions;
pub(crate) use from_files::Part;
pub use from_files::{FROM_FILE_BYTES_MIN, FromFiles};
pub use heap::trim_heap;
use memmap2::{Advice, Mmap, MmapOptions, MmapRaw};
use pages::Pages;
pub use pages::{huge_page_bytes, huge_page_bytes_peak, huge_pages_free};
use spare::Held;
pub use spare::SparePages;
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A private, page-aligned buffer with a length of its own. Its bytes may be in files
/// instead, from which a link can send them without copying.
#[derive(Debug)]
pub struct Buffer {
    // Ended before `map` goes: no region may outlive its memory.
    registered: LocalRegions,
    map: Pages,
    len: usize,
    from_files: FromFiles,
}

impl Buffer {
    /// A buffer of `capacity` zero bytes, at least one.
    pub fn new(capacity: usize) -> Result<Self, FabricError> {
        Self::of(Pages::ordinary(capacity), capacity)
    }

    /// The same for links with a device, which will register it.
    pub fn for_device(capacity: usize) -> Result<Self, FabricError> {
        Self::of(Pages::huge_if_any(capacity), capacity)
    }

    fn of(pages: io::Result<Pages>, len: usize) -> Result<Self, FabricError> {
        let map = pages.map_err(|e| FabricError::system("cannot map a buffer", e))?;
        Ok(Self { registered: LocalRegions::default(), map, len, from_files: FromFiles::default() })
    }

    /// How long it can be.
    pub fn capacity(&self) -> usize {
        self.map.len()
    }

    /// Whether a device knows it. Whoever keeps such a one keeps what is pinned for it.
    pub fn is_registered(&self) -> bool {
        !self.registered.is_empty()
    }

    /// Sets how much of it the next operation uses, and forgets where its bytes came from.
    ///
    /// # Panics
    /// When `len` is more than the capacity: a bug of the caller.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} bytes in a buffer of {}", self.capacity());
        self.len = len;
        self.from_files.clear();
    }

    /// Says that the `len` bytes to send at `at` are in a file, from `offset`; what is in the
    /// buffer there is of no use.
    ///
    /// # Panics
    /// When they are outside the buffer, or not behind those said before.
    pub fn send_from(&mut self, at: usize, len: usize, file: Arc<File>, offset: u64) {
        assert_inside(at, len, self.len);
        self.from_files.push(at, len, file, offset);
    }

    /// What lies at `at`, as far as `end`.
    pub(crate) fn part(&self, at: usize, end: usize) -> Part<'_> {
        self.from_files.part(at, end)
    }

    /// Brings all bytes into the buffer, for a link that cannot send from files.
    pub fn fill(&mut self) {
        self.from_files.fill(&mut self.map[..self.len]);
        self.from_files.clear();
    }

    /// What the buffer is registered as, and the memory it is registered for: all of it, so
    /// that one registration does for every length.
    pub(crate) fn registered_and_memory(&mut self) -> (&mut LocalRegions, *mut u8, usize) {
        let (address, len) = (self.map.as_mut_ptr(), self.map.len());
        (&mut self.registered, address, len)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.registered.end() {
            self.map.leave();
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
    memory: Arc<SlotMemory>,
    len: usize,
}

#[derive(Debug)]
struct SlotMemory {
    held: Mutex<Held>,
    /// A device may write to it at any moment, and waits for no lock.
    device_writes: AtomicBool,
}

impl SharedSlot {
    /// A slot of `len` zero bytes, at least one.
    pub fn new(len: usize) -> Result<Self, FabricError> {
        Self::of(Pages::ordinary(len), len)
    }

    /// The same for a session with a device, which will register it.
    pub fn for_device(len: usize) -> Result<Self, FabricError> {
        Self::of(Pages::huge_if_any(len), len)
    }

    fn of(pages: io::Result<Pages>, len: usize) -> Result<Self, FabricError> {
        mapped(pages).map(|pages| Self::holding(Held::Own(pages), len))
    }

    fn holding(held: Held, len: usize) -> Self {
        let (held, device_writes) = (Mutex::new(held), AtomicBool::new(false));
        Self { memory: Arc::new(SlotMemory { held, device_writes }), len }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.memory.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was written is of no more use. The memory goes to the one of its kind that is
    /// written to next, unless it is this one's for good.
    pub fn give_back(&self) {
        self.held().give_back();
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
    #[allow(unsafe_code)]
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        assert_inside(offset, into.len(), self.len);
        let mut held = self.held();
        let from = held.pages().as_ptr().wrapping_add(offset);
        // SAFETY: the range is inside the mapping, which `held` keeps, and `into` is elsewhere. A
        // device may change the bytes meanwhile, so they are copied without a reference to them.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Copies bytes into the slot at `offset`.
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        self.fill_with(offset, from.len(), |bytes| bytes.copy_from_slice(from));
    }

    /// Lends a range for the length of a call. A peer's write waits for its end, so what is
    /// checked in one call is what is used in it. A device waits for nobody: of a slot that one
    /// may write to, a private copy is lent, and what is changed in that is forgotten.
    ///
    /// # Panics
    /// When the range is outside the slot: ranges are checked when they arrive.
    pub fn with<T>(&self, offset: usize, len: usize, f: impl FnOnce(&mut [u8]) -> T) -> T {
        if !self.memory.device_writes.load(Ordering::Acquire) {
            return self.fill_with(offset, len, f);
        }
        // Taken, not borrowed: `f` may use another slot.
        let mut scratch = SCRATCH.take();
        if scratch.len() < len {
            scratch.resize(len, 0);
        }
        self.copy_out(offset, &mut scratch[..len]);
        let answer = f(&mut scratch[..len]);
        SCRATCH.set(scratch);
        answer
    }

    /// Lends a range of the slot itself, to put bytes there.
    ///
    /// # Panics
    /// When the range is outside the slot.
    pub fn fill_with<T>(&self, offset: usize, len: usize, f: impl FnOnce(&mut [u8]) -> T) -> T {
        f(&mut self.held().pages()[..self.len][offset..][..len])
    }

    /// The address for a device, which from now on may write to the slot when it `writes`. The
    /// memory is this one's for good.
    pub(crate) fn lend_to_device(&self, writes: bool) -> *mut u8 {
        if writes {
            self.memory.device_writes.store(true, Ordering::Release);
        }
        self.held().keep().as_mut_ptr()
    }
}

thread_local! {
    /// Where `SharedSlot::with` copies to; as long as the longest range lent on this thread.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn mapped(pages: io::Result<Pages>) -> Result<Pages, FabricError> {
    pages.map_err(|e| FabricError::system("cannot map a slot", e))
}

fn assert_inside(offset: usize, len: usize, slot_len: usize) {
    let inside = offset.checked_add(len).is_some_and(|end| end <= slot_len);
    assert!(inside, "{len} bytes at {offset} of a slot of {slot_len}");
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
        let map = map.and_then(|map| map.advise(Advice::DontDump).map(|()| map));
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

/// A range of a file, mapped so that a device can write to it. The processor never looks through
/// the mapping: what landed is read from the file itself.
#[derive(Clone, Debug)]
pub struct MappedSpot {
    map: Arc<MmapRaw>,
    on_demand: bool,
}

impl MappedSpot {
    /// Maps `len` bytes from `offset`, which must be a multiple of the page size, of a file that
    /// is that long.
    pub fn new(file: &File, offset: u64, len: usize) -> Result<Self, FabricError> {
        let map = MmapOptions::new().offset(offset).len(len).map_raw(file);
        let map = map.and_then(|map| map.advise(Advice::DontDump).map(|()| map));
        let map = map.map_err(|e| FabricError::system("cannot map the file", e))?;
        Ok(Self { map: Arc::new(map), on_demand: false })
    }

    /// The same, of which nothing is pinned: the device asks for a page when it writes to it.
    /// The only way into a file on a disk, which writes its pages back when it likes. The pages
    /// are mapped now if the file has its blocks: a device that has to ask for one answers that
    /// it is not ready, and its peer waits much longer than the page takes.
    pub fn on_demand(self) -> Self {
        // Only for speed: kernels before 5.14 cannot, and what has no block stays as it is.
        let _ = self.map.advise(Advice::PopulateWrite);
        Self { on_demand: true, ..self }
    }

    /// The address of the mapping, for registering it with a device.
    pub(crate) fn address(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Whether its pages are looked for when they are wanted.
    pub(crate) fn is_on_demand(&self) -> bool {
        self.on_demand
    }
}

/// Memory to register.
#[derive(Clone, Debug)]
pub enum Memory {
    /// A window of a file; the peer may only read it.
    File(MappedFile),
    /// A staging slot; the peer may only read it.
    Staged(SharedSlot),
    /// A staging slot of which parts are in files; the peer may only read it, and only without
    /// a device.
    Gathered(SharedSlot, Arc<FromFiles>),
    /// An upload slot; the peer may only write it.
    Upload(SharedSlot),
    /// A range of a file; the peer may only write it, and only with a device.
    Spot(MappedSpot),
}

impl Memory {
    /// How many bytes it has.
    pub fn len(&self) -> usize {
        match self {
            Self::File(window) => window.len(),
            Self::Staged(slot) | Self::Gathered(slot, _) | Self::Upload(slot) => slot.len(),
            Self::Spot(spot) => spot.map.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
    fn what_goes_into_a_slot_comes_out() {
        let slot = SharedSlot::new(8).expect("slot");
        slot.copy_in(2, b"abc");
        let mut out = [0; 5];
        slot.copy_out(1, &mut out);
        assert_eq!(&out, b"\0abc\0");
    }

    #[test]
    #[allow(unsafe_code)]
    fn a_slot_that_a_device_writes_to_lends_a_private_copy() {
        let slot = SharedSlot::new(64).expect("slot");
        slot.with(0, 4, |bytes| bytes.copy_from_slice(b"soft"));
        let address = slot.lend_to_device(true);
        let other = SharedSlot::new(8).expect("slot");
        other.lend_to_device(true);
        let seen = slot.with(0, 4, |bytes| {
            // SAFETY: inside the slot, which has 64 bytes and lives. A device writes like this,
            // without a lock, while the bytes are checked.
            unsafe { std::ptr::copy_nonoverlapping(b"hard".as_ptr(), address, 4) };
            other.with(0, 8, |inner| inner.fill(9));
            bytes.to_vec()
        });
        assert_eq!(seen, b"soft", "what was lent stays as it was");
        slot.with(0, 4, |bytes| bytes.copy_from_slice(b"lost"));
        let mut out = [0; 4];
        slot.copy_out(0, &mut out);
        assert_eq!(&out, b"hard", "and only writes to the slot reach it");
    }

    #[test]
    fn a_slot_that_a_device_only_reads_is_lent_itself() {
        let slot = SharedSlot::new(8).expect("slot");
        slot.lend_to_device(false);
        slot.with(0, 4, |bytes| bytes.copy_from_slice(b"data"));
        let mut out = [0; 4];
        slot.copy_out(0, &mut out);
        assert_eq!(&out, b"data");
    }

    #[test]
    #[should_panic(expected = "2 bytes at 7 of a slot of 8")]
    fn nothing_outside_a_slot_is_copied() {
        SharedSlot::new(8).expect("slot").copy_out(7, &mut [0; 2]);
    }

    #[test]
    fn a_spot_on_demand_has_its_pages_before_a_device_asks_and_none_that_the_file_has_not() {
        use std::os::unix::fs::FileExt;
        const PAGE: usize = 4096;
        // The highest bit of a page's eight bytes tells that it is mapped.
        let is_mapped = |address: *mut u8| {
            let pages = File::open("/proc/self/pagemap").expect("it is there");
            let mut entry = [0; 8];
            pages.read_exact_at(&mut entry, (address as usize / PAGE * 8) as u64).expect("reads");
            u64::from_ne_bytes(entry) >> 63 == 1
        };
        let file = tempfile::tempfile().expect("file");
        file.set_len(2 * PAGE as u64).expect("grows");
        let spot = MappedSpot::new(&file, 0, 3 * PAGE).expect("maps");
        let pages = [0, 1, 2].map(|page| spot.address().wrapping_add(page * PAGE));
        assert_eq!(pages.map(is_mapped), [false; 3]);
        let spot = spot.on_demand();
        assert!(spot.is_on_demand());
        // Of the last, touching would be SIGBUS.
        assert_eq!(pages.map(is_mapped), [true, true, false]);
    }

    /// Whether the kernel leaves the area at an address out of core dumps: `dd` in its flags.
    fn is_left_out(address: *const u8) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("it is there");
        let mut is_inside = false;
        for line in maps.lines() {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let range =
                range.map(|(begin, end)| [begin, end].map(|n| usize::from_str_radix(n, 16)));
            match (range, line.strip_prefix("VmFlags:")) {
                (Some([Ok(begin), Ok(end)]), _) => {
                    is_inside = (begin..end).contains(&(address as usize));
                }
                (_, Some(flags)) if is_inside => {
                    return flags.split_whitespace().any(|flag| flag == "dd");
                }
                _ => {}
            }
        }
        panic!("{address:?} is mapped nowhere in {maps}");
    }

    #[test]
    fn buffers_slots_and_windows_are_left_out_of_core_dumps() {
        let file = tempfile::tempfile().expect("file");
        file.set_len(1 << 20).expect("grows");
        let spot = MappedSpot::new(&file, 0, 1 << 20).expect("maps");
        let window = MappedFile::new(Arc::new(file), 1 << 12, 100).expect("maps");
        let mut buffers = [Buffer::new(1), Buffer::new(1 << 20), Buffer::for_device(1 << 20)]
            .map(|buffer| buffer.expect("buffer"));
        let slots = [
            SharedSlot::new(1 << 20),
            SharedSlot::for_device(1 << 20),
            SharedSlot::for_device(4 << 20),
            SparePages::new(1 << 20).slot(),
        ];
        let slots = slots.map(|slot| slot.expect("slot"));
        let of_slot = |slot: &SharedSlot| slot.fill_with(0, 1, |bytes| bytes.as_ptr());
        let mut areas: Vec<_> = slots.iter().map(of_slot).collect();
        areas
            .extend(buffers.iter_mut().map(|buffer| buffer.registered_and_memory().1.cast_const()));
        areas.extend([spot.address().cast_const(), window.address()]);
        assert_eq!(areas.into_iter().map(is_left_out).collect::<Vec<_>>(), [true; 9]);
        let heap = Box::new(1_u8);
        assert!(!is_left_out(&*heap), "this test looks at the right flags");
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
