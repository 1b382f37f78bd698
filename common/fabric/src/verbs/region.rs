//! Registered memory. A region keeps its protection domain, the domain its
//! device; whoever makes a region keeps the memory until the region is dropped.
//! Counted and bounded per domain: a peer cannot make us pin without end.
//!
//! A region that could not be taken back has a key that still works. Its domain and
//! its memory are left to the end of the process then, and counted: a part of a huge
//! page would be lent again, and another's bytes would come to lie under that key.

use super::context::Context;
use super::counters::Counters;
use super::ffi;
use crate::error::FabricError;
use crate::region::REGIONS_MAX;
use rustix::process::{Resource, getrlimit};
use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Domains one buffer stays registered in; a buffer serves one link after another, rarely two.
const REGISTERED_MAX: usize = 4;

/// What could not be given back to a device and is left to the end of the process.
static LEAKED: AtomicU64 = AtomicU64::new(0);

/// How many regions, queue pairs and buffers could not be given back since the process began.
pub fn leaked_count() -> u64 {
    LEAKED.load(Ordering::Relaxed)
}

pub(super) fn count_leaks(count: u64) {
    LEAKED.fetch_add(count, Ordering::Relaxed);
}

/// What one domain may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainLimits {
    /// Regions at a time, local buffers among them.
    pub regions_max: usize,
    /// Bytes at a time.
    pub pinned_bytes_max: u64,
}

impl Default for DomainLimits {
    fn default() -> Self {
        Self { regions_max: REGIONS_MAX, pinned_bytes_max: 4 << 30 }
    }
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    raw: NonNull<ffi::Pd>,
    context: Arc<Context>,
    limits: DomainLimits,
    regions: AtomicU64,
    pinned_bytes: AtomicU64,
    pub(super) counters: Counters,
}

// SAFETY: libibverbs may be called from any thread; what we count is atomic.
unsafe impl Send for Pd {}
// SAFETY: the same.
unsafe impl Sync for Pd {}

impl Pd {
    pub fn new(context: &Arc<Context>, limits: DomainLimits) -> Result<Arc<Self>, FabricError> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library().ibv_alloc_pd)(context.raw()) };
        let error = io::Error::last_os_error();
        let raw = NonNull::new(raw).ok_or_else(|| {
            let what = format!("cannot make a protection domain on {}", context.name());
            FabricError::device(what, error.to_string(), "end clients or other users of the device")
        })?;
        let (regions, pinned_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let (context, counters) = (context.clone(), Counters::default());
        Ok(Arc::new(Self { raw, context, limits, regions, pinned_bytes, counters }))
    }

    pub fn raw(&self) -> *mut ffi::Pd {
        self.raw.as_ptr()
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub fn region_count(&self) -> u64 {
        self.regions.load(Ordering::Relaxed)
    }

    pub fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes.load(Ordering::Relaxed)
    }

    /// Counts a region to be; takes it back when a bound is passed.
    fn reserve(&self, bytes: u64) -> Result<(), FabricError> {
        let regions = self.regions.fetch_add(1, Ordering::Relaxed) + 1;
        let pinned = self.pinned_bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let DomainLimits { regions_max, pinned_bytes_max } = self.limits;
        let refused = if regions > regions_max as u64 {
            Some(format!("{regions_max} regions are registered"))
        } else if pinned > pinned_bytes_max {
            Some(format!("{} would be pinned, at most {}", size(pinned), size(pinned_bytes_max)))
        } else {
            None
        };
        refused.map_or(Ok(()), |text| {
            self.release(bytes);
            Err(FabricError::Limit(text))
        })
    }

    fn release(&self, bytes: u64) {
        self.regions.fetch_sub(1, Ordering::Relaxed);
        self.pinned_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: everything in the domain held it, so nothing is left in it.
        let code = unsafe { (self.context.library().ibv_dealloc_pd)(self.raw()) };
        count_leaks(u64::from(code != 0));
    }
}

/// Memory registered with a device.
#[derive(Debug)]
pub(crate) struct Region {
    raw: NonNull<ffi::Mr>,
    bytes: u64,
    pd: Arc<Pd>,
    /// Whether the device has let go of it, once it was asked to.
    let_go: Option<bool>,
}

// SAFETY: libibverbs may be called from any thread, and nothing in a region changes.
unsafe impl Send for Region {}
// SAFETY: the same.
unsafe impl Sync for Region {}

impl Region {
    /// Registers memory.
    ///
    /// # Safety
    /// The memory must stay mapped until the region is dropped, writable where `access` says so.
    /// Nothing may rely on its contents while a device that may write to it is at work.
    pub(super) unsafe fn register(
        pd: &Arc<Pd>,
        address: *mut u8,
        len: usize,
        access: c_int,
        what: &str,
    ) -> Result<Self, FabricError> {
        let bytes = len as u64;
        pd.reserve(bytes)?;
        let library = pd.context.library();
        let start = address.cast();
        let raw = match library.reg_mr_iova2 {
            Some(register) => {
                let access = (access | ffi::IBV_ACCESS_RELAXED_ORDERING) as u32;
                // SAFETY: the domain is alive, the caller vouches for the memory.
                unsafe { register(pd.raw(), start, len, address as u64, access) }
            }
            // SAFETY: the same.
            None => unsafe { (library.ibv_reg_mr)(pd.raw(), start, len, access) },
        };
        let error = io::Error::last_os_error();
        let Some(raw) = NonNull::new(raw) else {
            pd.release(bytes);
            return Err(refusal(&error, bytes, what));
        };
        Ok(Self { raw, bytes, pd: pd.clone(), let_go: None })
    }

    pub fn rkey(&self) -> u32 {
        // SAFETY: the region is registered as long as `self` lives.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    pub fn lkey(&self) -> u32 {
        // SAFETY: the region is registered as long as `self` lives.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    pub fn base(&self) -> u64 {
        // SAFETY: the region is registered as long as `self` lives.
        unsafe { (*self.raw.as_ptr()).addr as u64 }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.take_back();
    }
}

impl Region {
    /// Takes it back from the device, once; whether the device has let go of the memory. Once it
    /// has, no peer reaches it. Where it has not, the memory must never be used again.
    pub(super) fn take_back(&mut self) -> bool {
        if let Some(let_go) = self.let_go {
            return let_go;
        }
        // SAFETY: the region was registered by us and is taken back once.
        let code = unsafe { (self.pd.context.library().ibv_dereg_mr)(self.raw.as_ptr()) };
        let let_go = code == 0;
        if let_go {
            self.pd.release(self.bytes);
        } else {
            // The domain cannot be freed either, so it stays: see the head of this file.
            std::mem::forget(self.pd.clone());
            count_leaks(1);
        }
        self.let_go = Some(let_go);
        let_go
    }
}

/// What a buffer is registered as, for this side's own requests: a region per domain it was used
/// in. Kept in the buffer and ended before its mapping, so that memory mapped there later can
/// never be reached through it.
#[derive(Debug, Default)]
pub(crate) struct LocalRegions {
    regions: Vec<Region>,
    /// Whether a device did not let go of the buffer.
    stuck: bool,
}

impl LocalRegions {
    /// The key of a buffer in this domain; registers it the first time.
    ///
    /// # Safety
    /// The memory is that of the buffer in which these regions are kept. While a request that may
    /// write to it is posted, nobody else looks at its bytes.
    pub(super) unsafe fn key_in(
        &mut self,
        pd: &Arc<Pd>,
        address: *mut u8,
        len: usize,
    ) -> Result<u32, FabricError> {
        let Self { regions, stuck } = self;
        if let Some(region) = regions.iter().find(|region| Arc::ptr_eq(&region.pd, pd)) {
            return Ok(region.lkey());
        }
        let access = ffi::IBV_ACCESS_LOCAL_WRITE;
        // SAFETY: the region is kept in the buffer and ended before its mapping. The caller
        // vouches for the rest.
        let region = unsafe { Region::register(pd, address, len, access, "a buffer") }?;
        if regions.len() >= REGISTERED_MAX {
            // The buffer is not in flight, so no request can name the oldest.
            *stuck |= !regions.remove(0).take_back();
        }
        let key = region.lkey();
        regions.push(region);
        Ok(key)
    }

    /// Ends all of them; whether every device has let go of the buffer.
    pub fn end(&mut self) -> bool {
        self.regions.drain(..).for_each(|mut region| self.stuck |= !region.take_back());
        !self.stuck
    }

    /// Whether no device knows the buffer.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty() && !self.stuck
    }

    /// What a device leaves behind that does not let go.
    #[cfg(test)]
    pub fn stuck() -> Self {
        Self { regions: Vec::new(), stuck: true }
    }
}

/// What memory is called that is a window of a file.
pub(super) const FILE_WINDOW: &str = "a window of a file";

/// Why the kernel does not register memory, and what to do.
fn refusal(error: &io::Error, bytes: u64, what: &str) -> FabricError {
    let task = format!("cannot register {} for {what}", size(bytes));
    match rustix::io::Errno::from_io_error(error) {
        Some(rustix::io::Errno::NOMEM) => {
            let limit = getrlimit(Resource::Memlock).current;
            let cause = match limit {
                Some(limit) => format!("memlock limit is {}", size(limit)),
                None => "no memory to pin".to_owned(),
            };
            let hint = "raise it: ulimit -l unlimited, or LimitMEMLOCK=infinity in the service";
            FabricError::device(task, cause, hint)
        }
        Some(rustix::io::Errno::FAULT) if what == FILE_WINDOW => {
            let cause = "the kernel does not pin read-only mappings of this file system, or the \
                         file became shorter";
            let hint = "its bytes are staged instead; kernel 6.12 pins them, 6.1 does not";
            FabricError::device(task, cause, hint)
        }
        _ => {
            let cause = error.to_string();
            let cause = cause.split(" (os error").next().unwrap_or(&cause).to_owned();
            FabricError::device(task, cause, "see dmesg for what the driver says")
        }
    }
}

/// A size as people write it.
fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) if bytes.is_multiple_of(*unit) => format!("{} {name}", bytes / unit),
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_to_do() {
        let refused = |errno: rustix::io::Errno, what| {
            let error = io::Error::from_raw_os_error(errno.raw_os_error());
            refusal(&error, 3 << 19, what)
        };
        let memlock = refused(rustix::io::Errno::NOMEM, "a buffer");
        assert!(memlock.to_string().starts_with("cannot register 1.5 MiB for a buffer: "));
        assert!(
            memlock.hint().expect("hint").contains("memlock")
                || memlock.hint().expect("hint").contains("ulimit -l")
        );
        let old_kernel = refused(rustix::io::Errno::FAULT, FILE_WINDOW);
        assert!(old_kernel.to_string().contains("read-only mappings"), "{old_kernel}");
        assert!(old_kernel.hint().expect("hint").contains("staged"));
        let other = refused(rustix::io::Errno::INVAL, "a buffer");
        assert!(other.to_string().ends_with("Invalid argument"), "{other}");
    }

    #[test]
    fn sizes_read_as_people_write_them() {
        assert_eq!([size(10), size(64 << 10), size(3 << 29)], ["10 B", "64 KiB", "1.5 GiB"]);
    }
}
