//! The pages behind buffers and slots: ordinary ones, or huge ones where the machine
//! has some free, which a device registers in a quarter of the time and finds with
//! fewer look-ups. A huge page is cut into parts of one length; a part has one owner,
//! is zero when it is lent, and the page goes with its last part. All of them are left
//! out of core dumps. Never waits for a huge page and never fails for want of one. Used
//! by `memory` alone.

use memmap2::{Advice, MmapMut, MmapOptions};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The length of a huge page, and the bits of it: the smallest there are on machines that have
/// RDMA devices. Larger ones are not for slots.
pub(super) const HUGE_PAGE_BYTES: usize = 1 << HUGE_PAGE_BITS;
const HUGE_PAGE_BITS: u8 = 21;

/// The shortest part of a huge page: what is shorter would waste it on little.
const PART_BYTES_MIN: usize = 256 << 10;

/// Huge pages that this process has now, in bytes, and the most it had.
static HUGE_BYTES: AtomicU64 = AtomicU64::new(0);
static HUGE_BYTES_PEAK: AtomicU64 = AtomicU64::new(0);

/// Pages that have parts to lend.
static ARENA: Arena = Arena(Mutex::new(Vec::new()));

/// Bytes of huge pages that this process has now.
pub fn huge_page_bytes() -> u64 {
    HUGE_BYTES.load(Ordering::Relaxed)
}

/// The most bytes of huge pages that this process had at a time.
pub fn huge_page_bytes_peak() -> u64 {
    HUGE_BYTES_PEAK.load(Ordering::Relaxed)
}

/// Huge pages of the machine that nobody has; none where its kernel has none at all.
pub fn huge_pages_free() -> Option<u64> {
    let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Zero bytes at first, at the start of a page, with one owner.
#[derive(Debug)]
pub(super) struct Pages {
    home: Home,
    len: usize,
}

#[derive(Debug)]
enum Home {
    Ordinary(MmapMut),
    Huge(HugeMap),
    Part(Part),
    /// Nowhere: a device has what was here.
    Left,
}

impl Pages {
    /// So many bytes of ordinary pages, at least one.
    pub fn ordinary(len: usize) -> io::Result<Self> {
        let len = len.max(1);
        let map = MmapMut::map_anon(len)?;
        map.advise(Advice::DontDump)?;
        Ok(Self { home: Home::Ordinary(map), len })
    }

    /// So many bytes of huge pages where there are some, and else of ordinary ones.
    pub fn huge_if_any(len: usize) -> io::Result<Self> {
        let home = match len {
            ..PART_BYTES_MIN => None,
            PART_BYTES_MIN..=HUGE_PAGE_BYTES => ARENA.take(len, map_huge).map(Home::Part),
            _ => map_huge(len.next_multiple_of(HUGE_PAGE_BYTES)).map(Home::Huge),
        };
        home.map_or_else(|| Self::ordinary(len), |home| Ok(Self { home, len }))
    }

    /// Leaves the memory as it is to the end of the process, and has no bytes from then on: a
    /// device does not let go of it.
    pub fn leave(&mut self) {
        std::mem::forget(std::mem::replace(&mut self.home, Home::Left));
        self.len = 0;
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn as_ptr(&self) -> *const u8 {
        match &self.home {
            Home::Ordinary(map) | Home::Huge(HugeMap(map)) => map.as_ptr(),
            Home::Part(part) => part.address(),
            Home::Left => NonNull::dangling().as_ptr(),
        }
    }

    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        match &mut self.home {
            Home::Ordinary(map) | Home::Huge(HugeMap(map)) => map.as_mut_ptr(),
            Home::Part(part) => part.address(),
            Home::Left => NonNull::dangling().as_ptr(),
        }
    }
}

impl std::ops::Deref for Pages {
    type Target = [u8];

    #[allow(unsafe_code)]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes from there are mapped as long as `self` lives, and are of `self`
        // alone: a mapping of its own, or a part that is lent to nobody else. Where it was left
        // `len` is zero.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for Pages {
    #[allow(unsafe_code)]
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        // SAFETY: the same, and `self` is borrowed for as long, so nobody else looks.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), len) }
    }
}

/// A mapping of huge pages, counted.
#[derive(Debug)]
struct HugeMap(MmapMut);

impl HugeMap {
    fn new(map: MmapMut) -> Self {
        let now = HUGE_BYTES.fetch_add(map.len() as u64, Ordering::Relaxed) + map.len() as u64;
        HUGE_BYTES_PEAK.fetch_max(now, Ordering::Relaxed);
        Self(map)
    }
}

impl Drop for HugeMap {
    fn drop(&mut self) {
        HUGE_BYTES.fetch_sub(self.0.len() as u64, Ordering::Relaxed);
    }
}

/// Maps huge pages of the machine, if so many are free. They are taken here and now: where a
/// control group allows fewer than the machine has, touching one later would be SIGBUS.
fn map_huge(len: usize) -> Option<HugeMap> {
    let map = MmapOptions::new().len(len).huge(Some(HUGE_PAGE_BITS)).map_anon().ok()?;
    map.advise(Advice::PopulateWrite).ok()?;
    map.advise(Advice::DontDump).ok()?;
    Some(HugeMap::new(map))
}

/// Huge pages that are cut into parts. Each is kept by its parts.
struct Arena(Mutex<Vec<Weak<CutPage>>>);

impl Arena {
    /// Lends a part of at least `len` bytes, of a page that has one, or of a new one.
    fn take(&self, len: usize, map: impl Fn(usize) -> Option<HugeMap>) -> Option<Part> {
        let part_bytes = len.next_power_of_two();
        let mut pages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pages.retain(|page| page.strong_count() > 0);
        let fitting = pages.iter().filter_map(Weak::upgrade);
        let fitting = fitting.filter(|page| page.part_bytes == part_bytes);
        let found = fitting.into_iter().find_map(CutPage::lend);
        let part = match found {
            Some(part) => part,
            None => {
                let page = Arc::new(CutPage::new(map(HUGE_PAGE_BYTES)?, part_bytes));
                pages.push(Arc::downgrade(&page));
                CutPage::lend(page).expect("a new page has a part")
            }
        };
        drop(pages);
        part.clear();
        Some(part)
    }
}

/// A huge page and which of its parts are lent.
#[derive(Debug)]
struct CutPage {
    base: AtomicPtr<u8>,
    part_bytes: usize,
    parts: Mutex<Parts>,
    _map: HugeMap,
}

/// A bit for each part, the first the lowest.
#[derive(Debug, Default)]
struct Parts {
    lent: u64,
    /// Lent before, so that something may be in them.
    used: u64,
}

impl CutPage {
    fn new(mut map: HugeMap, part_bytes: usize) -> Self {
        let base = AtomicPtr::new(map.0.as_mut_ptr());
        Self { base, part_bytes, parts: Mutex::default(), _map: map }
    }

    fn lend(page: Arc<Self>) -> Option<Part> {
        let mut parts = page.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let number = parts.lent.trailing_ones() as usize;
        if number >= HUGE_PAGE_BYTES / page.part_bytes {
            return None;
        }
        parts.lent |= 1 << number;
        let was_used = parts.used & 1 << number != 0;
        parts.used |= 1 << number;
        drop(parts);
        Some(Part { page, number, was_used })
    }
}

/// A part of a huge page, lent to whoever has this.
#[derive(Debug)]
struct Part {
    page: Arc<CutPage>,
    number: usize,
    was_used: bool,
}

impl Part {
    fn address(&self) -> *mut u8 {
        let base = self.page.base.load(Ordering::Relaxed);
        base.wrapping_add(self.number * self.page.part_bytes)
    }

    /// Makes it zero again: what another had there is nobody's business.
    #[allow(unsafe_code)]
    fn clear(&self) {
        if self.was_used {
            // SAFETY: the part is inside the page, which `self.page` keeps, and is lent to `self`
            // alone, which was just made: no reference into it exists.
            unsafe { std::ptr::write_bytes(self.address(), 0, self.page.part_bytes) };
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut parts = self.page.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.lent &= !(1 << self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Buffer;
    use super::*;
    use crate::verbs::LocalRegions;

    /// What a machine with huge pages would give, of ordinary ones.
    fn map_some(len: usize) -> Option<HugeMap> {
        Some(HugeMap::new(MmapMut::map_anon(len).expect("maps")))
    }

    fn pages(arena: &Arena, len: usize) -> Pages {
        Pages { home: Home::Part(arena.take(len, map_some).expect("a part")), len }
    }

    fn page_count(arena: &Arena) -> usize {
        arena.0.lock().unwrap().iter().filter(|page| page.strong_count() > 0).count()
    }

    #[test]
    fn parts_of_a_page_are_apart_and_the_page_goes_with_the_last() {
        let arena = Arena(Mutex::default());
        let len = HUGE_PAGE_BYTES / 4;
        let mut parts: Vec<_> = (0..5).map(|_| pages(&arena, len - 1)).collect();
        for (value, part) in (1..).zip(&mut parts) {
            part.fill(value);
        }
        for (value, part) in (1..).zip(&parts) {
            assert!(part.len() == len - 1 && part.iter().all(|byte| *byte == value), "{value}");
        }
        assert_eq!(page_count(&arena), 2, "four parts a page");
        let another = pages(&arena, HUGE_PAGE_BYTES / 2);
        assert_eq!(page_count(&arena), 3, "parts of a page are of one length");
        drop((parts, another));
        assert_eq!(page_count(&arena), 0);
    }

    #[test]
    fn what_was_in_a_part_is_not_seen_by_the_next() {
        let arena = Arena(Mutex::default());
        let _kept = pages(&arena, PART_BYTES_MIN);
        let mut secret = pages(&arena, PART_BYTES_MIN);
        let address = secret.as_ptr();
        secret.fill(7);
        drop(secret);
        let next = pages(&arena, PART_BYTES_MIN);
        assert_eq!(next.as_ptr(), address, "the same part again");
        assert!(next.iter().all(|byte| *byte == 0), "bytes of another");
    }

    #[test]
    fn a_part_that_a_device_keeps_is_never_lent_again() {
        let arena = Arena(Mutex::default());
        let _kept = pages(&arena, PART_BYTES_MIN);
        let of = |registered| {
            let some = pages(&arena, PART_BYTES_MIN);
            let mut buffer = Buffer::of(Ok(some), PART_BYTES_MIN).expect("a buffer");
            buffer.registered = registered;
            buffer
        };
        let returned = of(LocalRegions::default());
        let address = returned.as_ptr();
        drop(returned);
        let stuck = of(LocalRegions::stuck());
        assert_eq!(stuck.as_ptr(), address, "one that was let go is lent again");
        drop(stuck);
        let next = pages(&arena, PART_BYTES_MIN);
        assert_ne!(next.as_ptr(), address, "a device may still write there");
    }

    #[test]
    fn without_huge_pages_there_are_ordinary_ones() {
        let arena = Arena(Mutex::default());
        assert!(arena.take(1 << 20, |_| None).is_none());
        for len in [0, 1, PART_BYTES_MIN, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1] {
            let mut some = Pages::huge_if_any(len).expect("pages");
            assert_eq!(some.len(), len.max(usize::from(len < PART_BYTES_MIN)));
            some.fill(1);
        }
    }
}
