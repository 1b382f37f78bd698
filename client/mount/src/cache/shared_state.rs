//! State that mounts of one cache share: who uses it, the bytes stored, and the lock on
//! names. It consists of file locks and of eight bytes in a file, so the death of a
//! process releases everything. Never touches versions; called by `Cache`.

use super::safe_open::SafeOpener;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use verbatim_files::journal::{BOOT_BYTES, boot_id};

/// The most mounts that may use one cache.
pub const MOUNTS_MAX: usize = 8;

/// How long a mount waits for a short lock; a process that holds it longer was stopped.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);

/// How long a mount waits to join: exclusive use takes all locks for a moment.
const JOIN_WAIT_MAX: Duration = Duration::from_secs(1);

/// The pause between two tries to lock.
const LOCK_RETRY: Duration = Duration::from_millis(1);

/// The offset of the byte count, behind the boot id of the count.
const TOTAL_AT: u64 = 64;

/// The boot id of a count that is not complete.
const UNCOUNTED: [u8; BOOT_BYTES] = [0; BOOT_BYTES];

/// One mount's view of the shared state.
pub struct SharedState {
    /// The lock of this mount, held while it uses the cache.
    _own_lock: File,
    /// The lock files of other mounts.
    other_locks: Mutex<Vec<File>>,
    total: Mutex<File>,
    /// All bytes ever reserved by this mount, and those of them that are on disk or were given up.
    reserved: AtomicU64,
    settled: AtomicU64,
    names_lock: Mutex<File>,
    /// Whether the stored bytes must be counted by a scan.
    pub needs_count: bool,
}

/// Exclusive use: no other mount uses or joins the cache until this is dropped.
pub struct ExclusiveUse<'a>(MutexGuard<'a, Vec<File>>);

/// The lock on names in the cache, until this is dropped.
pub struct NameLock<'a>(MutexGuard<'a, File>);

impl SharedState {
    /// Joins the mounts of a cache; `None` if `MOUNTS_MAX` use it already.
    pub fn join(folder: &Path, opener: SafeOpener) -> io::Result<Option<Self>> {
        // Locks the folder, so that no mount removes a file that another has just created.
        let folder_lock = File::open(folder)?;
        let _ = retry_within(LOCK_WAIT_MAX, || lock(&folder_lock).then_some(()));
        let open = |name: &str| opener.open_or_make(&folder.join(name));
        let mut files = vec![open("lock")?];
        for place in 1..MOUNTS_MAX {
            files.push(open(&format!("lock.{place}"))?);
        }
        let (total, names_lock) = (open("bytes")?, open("turn")?);
        drop(folder_lock);
        let found = retry_within(JOIN_WAIT_MAX, || files.iter().position(lock));
        let Some(own_lock) = found else { return Ok(None) };
        let _own_lock = files.swap_remove(own_lock);
        let mut shared = Self {
            _own_lock,
            other_locks: Mutex::new(files),
            total: Mutex::new(total),
            reserved: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            names_lock: Mutex::new(names_lock),
            needs_count: false,
        };
        shared.needs_count = shared.check_boot();
        Ok(Some(shared))
    }

    /// Whether the count is of another boot, which may have ended before it was written. It is
    /// marked as incomplete until a scan is done, because this mount may fail before that.
    fn check_boot(&self) -> bool {
        // A mount that died before its scan may have stored blocks; a single mount counts them
        // anew.
        let alone = self.try_exclusive();
        self.with_total(|total| {
            let boot = read_boot(total);
            let needs_count = !is_this_boot(&boot);
            if needs_count && (boot != UNCOUNTED || alone.is_some()) {
                let _ = total.write_all_at(&UNCOUNTED, 0);
                let _ = total.write_all_at(&[0; 8], TOTAL_AT);
            }
            needs_count
        })
    }

    /// Adds the result of a scan; bytes stored since the start are in the count already. A second
    /// scan changes nothing.
    pub fn set_counted(&self, bytes: u64) {
        self.with_total(|total| {
            if !is_this_boot(&read_boot(total)) {
                let sum = read_total(total).saturating_add(bytes);
                let written = total.write_all_at(&sum.to_le_bytes(), TOTAL_AT);
                let _ = written.and_then(|()| total.write_all_at(&boot_id(), 0));
            }
        });
    }

    /// Takes exclusive use if no other mount uses the cache.
    pub fn try_exclusive(&self) -> Option<ExclusiveUse<'_>> {
        let other_locks = self.other_locks.lock().unwrap_or_else(PoisonError::into_inner);
        let locked = other_locks.iter().take_while(|file| lock(file)).count();
        let all = locked == other_locks.len();
        let alone = ExclusiveUse(other_locks);
        all.then_some(alone)
    }

    /// Waits for the lock on names.
    pub fn lock_names(&self) -> io::Result<NameLock<'_>> {
        let names_lock = self.names_lock.lock().unwrap_or_else(PoisonError::into_inner);
        match retry_within(LOCK_WAIT_MAX, || lock(&names_lock).then_some(())) {
            Some(()) => Ok(NameLock(names_lock)),
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// The bytes stored in the cache.
    pub fn bytes(&self) -> u64 {
        read_total(&self.total.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reserves bytes, unless they exceed the limit. They count as on their way to the disk until
    /// `settle`.
    pub fn reserve(&self, bytes: u64, most: u64) -> bool {
        self.update_total(|total| {
            let sum = Some(total.saturating_add(bytes)).filter(|sum| *sum <= most)?;
            self.reserved.fetch_add(bytes, Ordering::Relaxed);
            Some(sum)
        })
    }

    /// Marks reserved bytes as written or given up.
    pub fn settle(&self, bytes: u64) {
        self.settled.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The bytes settled so far; read before a scan.
    pub fn settled(&self) -> u64 {
        self.settled.load(Ordering::Relaxed)
    }

    /// Adds to or subtracts from the count.
    pub fn adjust(&self, bytes: i64) {
        self.update_total(|total| Some(total.saturating_add_signed(bytes)));
    }

    /// Replaces the count by the result of a scan that began at `settled`. Bytes not settled then,
    /// or reserved since, may have escaped the scan and are added.
    pub fn correct(&self, bytes: u64, settled: u64) {
        self.update_total(|_| {
            Some(bytes + self.reserved.load(Ordering::Relaxed).saturating_sub(settled))
        });
    }

    fn update_total(&self, to: impl FnOnce(u64) -> Option<u64>) -> bool {
        self.with_total(|total| {
            let new = to(read_total(total));
            if let Some(new) = new {
                let _ = total.write_all_at(&new.to_le_bytes(), TOTAL_AT);
            }
            new.is_some()
        })
    }

    fn with_total<T>(&self, work: impl FnOnce(&File) -> T) -> T {
        let total = self.total.lock().unwrap_or_else(PoisonError::into_inner);
        // Without the lock another mount's update may be lost; the next scan corrects it.
        let locked = retry_within(LOCK_WAIT_MAX, || lock(&total).then_some(()));
        let done = work(&total);
        if locked.is_some() {
            unlock(&total);
        }
        done
    }
}

impl Drop for ExclusiveUse<'_> {
    fn drop(&mut self) {
        // Unlocking a file that was not locked does nothing.
        self.0.iter().for_each(unlock);
    }
}

impl Drop for NameLock<'_> {
    fn drop(&mut self) {
        unlock(&self.0);
    }
}

fn lock(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

fn unlock(file: &File) {
    let _ = flock(file, FlockOperation::Unlock);
}

/// The boot id of the count; `UNCOUNTED` if there is none yet.
fn read_boot(total: &File) -> [u8; BOOT_BYTES] {
    let mut boot = UNCOUNTED;
    let read = total.read_exact_at(&mut boot, 0);
    read.map_or(UNCOUNTED, |()| boot)
}

/// Whether this is the current boot; an unknown boot id never is.
fn is_this_boot(boot: &[u8; BOOT_BYTES]) -> bool {
    *boot == boot_id() && *boot != UNCOUNTED
}

fn read_total(total: &File) -> u64 {
    let mut bytes = [0; 8];
    let read = total.read_exact_at(&mut bytes, TOTAL_AT);
    read.map_or(0, |()| u64::from_le_bytes(bytes))
}

/// Retries until the attempt succeeds or the time is over.
fn retry_within<T>(limit: Duration, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    loop {
        match attempt() {
            Some(value) => return Some(value),
            None if Instant::now() >= deadline => return None,
            None => std::thread::sleep(LOCK_RETRY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_share_one_byte_count_and_exclusive_use_needs_all_other_locks() {
        let dir = tempfile::tempdir().expect("folder");
        let opener = SafeOpener::probe(dir.path());
        let join =
            || SharedState::join(dir.path(), opener).expect("joins").expect("there is a place");
        let one = join();
        assert!(one.needs_count && one.try_exclusive().is_some());
        assert!(join().needs_count, "who began it has not counted yet");
        one.set_counted(0);
        one.set_counted(5);
        assert_eq!(one.bytes(), 0, "it was counted already");
        let two = join();
        assert!(!two.needs_count, "it was counted in this boot");
        assert!(one.try_exclusive().is_none() && two.try_exclusive().is_none());
        assert!(one.reserve(60, 100) && !two.reserve(50, 100) && two.reserve(40, 100));
        one.adjust(-70);
        assert_eq!((one.bytes(), two.bytes()), (30, 30));
        two.adjust(-70);
        assert_eq!(one.bytes(), 0);
        // Bytes on their way to the disk escape a scan, and are added.
        one.settle(60);
        assert!(one.reserve(30, 100) && one.reserve(20, 100));
        one.settle(20);
        let settled = one.settled();
        assert!(one.reserve(7, 100));
        one.settle(7);
        one.correct(20, settled);
        assert_eq!(one.bytes(), 20 + 30 + 7, "found, on its way, and taken since");
        one.settle(30);
        one.correct(50, one.settled());
        assert_eq!(one.bytes(), 50, "nothing is on its way");
        // Dropping the lock on names releases it.
        drop(one.lock_names().expect("is free"));
        drop(two.lock_names().expect("is free"));
        drop(two);
        let alone = one.try_exclusive().expect("the other is gone");
        let came = std::thread::scope(|scope| {
            let late =
                scope.spawn(|| SharedState::join(dir.path(), opener).expect("joins").is_some());
            std::thread::sleep(Duration::from_millis(50));
            let waits = !late.is_finished();
            drop(alone);
            waits && late.join().expect("does not panic")
        });
        assert!(came, "it waits, and then comes in");
    }
}
