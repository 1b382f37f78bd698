//! What mounts that use one cache have in common: who is in, how much is kept, and
//! whose turn it is to give a name to something else. All of it is locks and eight
//! bytes in the folder of the cache, so that a process that dies lets go of everything.
//! Never touches what is kept; called by `Cache`.

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

/// Mounts that may use one cache at a time.
pub const MOUNTS_MAX: usize = 8;

/// How long a lock is waited for that others hold for a moment: who holds it longer was stopped.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);

/// How long a mount waits for a place: whoever wants to be alone has them all for a moment.
const JOIN_WAIT_MAX: Duration = Duration::from_secs(1);

/// How often it is tried.
const LOCK_RETRY: Duration = Duration::from_millis(1);

/// Where the number of bytes is, behind the boot it was counted in.
const TOTAL_AT: u64 = 64;

/// The boot of a number that is not all of what is kept: nobody has counted it to the end.
const UNCOUNTED: [u8; BOOT_BYTES] = [0; BOOT_BYTES];

/// One mount's part in a cache.
pub struct SharedState {
    /// The place of this mount, locked for as long as it is in.
    _own: File,
    /// The places of the others.
    places: Mutex<Vec<File>>,
    total: Mutex<File>,
    /// All that was ever taken here, and what of it is written or was given up.
    taken: AtomicU64,
    settled: AtomicU64,
    turn: Mutex<File>,
    /// Whether what is kept has to be counted.
    pub uncounted: bool,
}

/// Nobody else is in, and nobody comes in, until this is dropped.
pub struct ExclusiveUse<'a>(MutexGuard<'a, Vec<File>>);

/// Names in the cache are this process's until this is dropped.
pub struct NameLock<'a>(MutexGuard<'a, File>);

impl SharedState {
    /// Comes in; none when as many are in as may be.
    pub fn join(folder: &Path, plain: SafeOpener) -> io::Result<Option<Self>> {
        // Nobody removes what another mount has just made in the place of something damaged.
        let making = File::open(folder)?;
        let _ = within(LOCK_WAIT_MAX, || lock(&making).then_some(()));
        let open = |name: &str| plain.open_or_make(&folder.join(name));
        let mut files = vec![open("lock")?];
        for place in 1..MOUNTS_MAX {
            files.push(open(&format!("lock.{place}"))?);
        }
        let (total, turn) = (open("bytes")?, open("turn")?);
        drop(making);
        let found = within(JOIN_WAIT_MAX, || files.iter().position(lock));
        let Some(own) = found else { return Ok(None) };
        let _own = files.swap_remove(own);
        let mut share = Self {
            _own,
            places: Mutex::new(files),
            total: Mutex::new(total),
            taken: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            turn: Mutex::new(turn),
            uncounted: false,
        };
        share.uncounted = share.begin();
        Ok(Some(share))
    }

    /// Whether the number is of another boot, which may have ended before it was written. It is
    /// of no boot until somebody has counted: who begins may not get that far.
    fn begin(&self) -> bool {
        // One that was ended before it had counted may have brought something: who is the only one
        // counts that too.
        let alone = self.alone();
        self.locked(|total| {
            let boot = read_boot(total);
            let uncounted = !is_this(&boot);
            if uncounted && (boot != UNCOUNTED || alone.is_some()) {
                let _ = total.write_all_at(&UNCOUNTED, 0);
                let _ = total.write_all_at(&[0; 8], TOTAL_AT);
            }
            uncounted
        })
    }

    /// So much was there when it was counted; what comes is in the number. Who counts as the
    /// second finds it done.
    pub fn counted(&self, bytes: u64) {
        self.locked(|total| {
            if !is_this(&read_boot(total)) {
                let sum = read_total(total).saturating_add(bytes);
                let written = total.write_all_at(&sum.to_le_bytes(), TOTAL_AT);
                let _ = written.and_then(|()| total.write_all_at(&boot_id(), 0));
            }
        });
    }

    /// Whether this mount is the only one, which it stays as long as the answer is kept.
    pub fn alone(&self) -> Option<ExclusiveUse<'_>> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = places.iter().take_while(|file| lock(file)).count();
        let all = taken == places.len();
        let alone = ExclusiveUse(places);
        all.then_some(alone)
    }

    /// Waits until names are this process's.
    pub fn turn(&self) -> io::Result<NameLock<'_>> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        match within(LOCK_WAIT_MAX, || lock(&turn).then_some(())) {
            Some(()) => Ok(NameLock(turn)),
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// How many bytes are kept.
    pub fn bytes(&self) -> u64 {
        read_total(&self.total.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts so many more as kept, if that is not too much. They are on their way to the disk
    /// until they are `settle`d.
    pub fn take(&self, bytes: u64, most: u64) -> bool {
        self.change(|total| {
            let sum = Some(total.saturating_add(bytes)).filter(|sum| *sum <= most)?;
            self.taken.fetch_add(bytes, Ordering::Relaxed);
            Some(sum)
        })
    }

    /// So many that were taken are on the disk, or will not be.
    pub fn settle(&self, bytes: u64) {
        self.settled.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What was settled so far; asked before what is there is looked at.
    pub fn settled(&self) -> u64 {
        self.settled.load(Ordering::Relaxed)
    }

    /// Counts so many more or fewer.
    pub fn add(&self, bytes: i64) {
        self.change(|total| Some(total.saturating_add_signed(bytes)));
    }

    /// So many were found, by a look that began when so much was `settled`. What was on its way
    /// then, or has been taken since, may not have been there to be found, and counts.
    pub fn found(&self, bytes: u64, settled: u64) {
        self.change(|_| Some(bytes + self.taken.load(Ordering::Relaxed).saturating_sub(settled)));
    }

    fn change(&self, to: impl FnOnce(u64) -> Option<u64>) -> bool {
        self.locked(|total| {
            let new = to(read_total(total));
            if let Some(new) = new {
                let _ = total.write_all_at(&new.to_le_bytes(), TOTAL_AT);
            }
            new.is_some()
        })
    }

    fn locked<T>(&self, work: impl FnOnce(&File) -> T) -> T {
        let total = self.total.lock().unwrap_or_else(PoisonError::into_inner);
        // Without the lock another's number may be lost; the next count finds it.
        let locked = within(LOCK_WAIT_MAX, || lock(&total).then_some(()));
        let done = work(&total);
        if locked.is_some() {
            unlock(&total);
        }
        done
    }
}

impl Drop for ExclusiveUse<'_> {
    fn drop(&mut self) {
        // Those that were not locked are not hurt.
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

/// The boot of the number; none where there is no number yet.
fn read_boot(total: &File) -> [u8; BOOT_BYTES] {
    let mut boot = UNCOUNTED;
    let read = total.read_exact_at(&mut boot, 0);
    read.map_or(UNCOUNTED, |()| boot)
}

/// Whether it is this boot; one that has no name is none.
fn is_this(boot: &[u8; BOOT_BYTES]) -> bool {
    *boot == boot_id() && *boot != UNCOUNTED
}

fn read_total(total: &File) -> u64 {
    let mut bytes = [0; 8];
    let read = total.read_exact_at(&mut bytes, TOTAL_AT);
    read.map_or(0, |()| u64::from_le_bytes(bytes))
}

/// Tries until there is something, or it takes too long.
fn within<T>(limit: Duration, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
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
    fn several_count_together_and_one_is_alone_only_when_it_is() {
        let dir = tempfile::tempdir().expect("folder");
        let plain = SafeOpener::learn(dir.path());
        let join =
            || SharedState::join(dir.path(), plain).expect("joins").expect("there is a place");
        let one = join();
        assert!(one.uncounted && one.alone().is_some());
        assert!(join().uncounted, "who began it has not counted yet");
        one.counted(0);
        one.counted(5);
        assert_eq!(one.bytes(), 0, "it was counted already");
        let two = join();
        assert!(!two.uncounted, "it was counted in this boot");
        assert!(one.alone().is_none() && two.alone().is_none());
        assert!(one.take(60, 100) && !two.take(50, 100) && two.take(40, 100));
        one.add(-70);
        assert_eq!((one.bytes(), two.bytes()), (30, 30));
        two.add(-70);
        assert_eq!(one.bytes(), 0);
        // What is on its way to the disk cannot be found there yet, and counts.
        one.settle(60);
        assert!(one.take(30, 100) && one.take(20, 100));
        one.settle(20);
        let settled = one.settled();
        assert!(one.take(7, 100));
        one.settle(7);
        one.found(20, settled);
        assert_eq!(one.bytes(), 20 + 30 + 7, "found, on its way, and taken since");
        one.settle(30);
        one.found(50, one.settled());
        assert_eq!(one.bytes(), 50, "nothing is on its way");
        // A turn ends with whoever has it.
        drop(one.turn().expect("is free"));
        drop(two.turn().expect("is free"));
        drop(two);
        let alone = one.alone().expect("the other is gone");
        let came = std::thread::scope(|scope| {
            let late =
                scope.spawn(|| SharedState::join(dir.path(), plain).expect("joins").is_some());
            std::thread::sleep(Duration::from_millis(50));
            let waits = !late.is_finished();
            drop(alone);
            waits && late.join().expect("does not panic")
        });
        assert!(came, "it waits, and then comes in");
    }
}
