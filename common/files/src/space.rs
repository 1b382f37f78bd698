//! Room on the target's file system, looked at before a file is begun: one that
//! cannot fit fails at once, not after an hour. Counts what other files of this
//! process still have to write, so that two files that fit one by one and not
//! together are told apart. Used by both sides, for what each of them writes.
//!
//! It must never refuse what would fit. So only what the source has allocated
//! counts (a sparse file takes no more than its data), small files and file
//! systems that do not tell their size are not looked at, and what was written
//! is no longer counted. What became a hole took none of the room, so the rest of
//! its file may still need it; but never more than the rest has bytes. What it cannot know:
//! quotas, compression, zeros that will become holes, and what others write
//! meanwhile; those end in the file system's own error, or are refused here
//! although compression might have made them fit.

use rustix::fs::{StatVfs, fstatvfs};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use verbatim_proto::{Code, Fault, WirePath};

/// Files that need less than this are not looked at: a full disk tells them itself.
const LOOK_BYTES_MIN: u64 = 1 << 20;

/// What unfinished files of this process need, by file system.
static NEEDED: Mutex<Vec<(u64, Weak<AtomicU64>)>> = Mutex::new(Vec::new());

/// Room set aside for one file until it is dropped.
#[derive(Debug)]
pub struct Room {
    left: Arc<AtomicU64>,
    /// How many bytes of the file are not there yet, holes among them.
    rest: AtomicU64,
}

impl Room {
    /// Whether a file that needs this much is looked at before it is begun.
    pub fn is_worth_a_look(bytes: u64) -> bool {
        bytes >= LOOK_BYTES_MIN
    }

    /// Sets `bytes` aside for the `rest` of `path` on the file system of an open folder; none where
    /// it does not say how much there is.
    pub fn take(
        folder: impl AsFd,
        path: &WirePath,
        bytes: u64,
        rest: u64,
    ) -> Result<Option<Self>, Fault> {
        let Ok(stat) = fstatvfs(folder) else { return Ok(None) };
        let Some(free) = free_bytes(&stat, rustix::process::geteuid().is_root()) else {
            return Ok(None);
        };
        let mut needed = NEEDED.lock().unwrap_or_else(PoisonError::into_inner);
        let mut others = 0_u64;
        needed.retain(|(file_system, left)| {
            let left = left.upgrade().map(|left| left.load(Ordering::Relaxed));
            if *file_system == stat.f_fsid {
                others = others.saturating_add(left.unwrap_or(0));
            }
            left.is_some()
        });
        if bytes > free.saturating_sub(others) {
            return Err(no_room(path, bytes, free, others));
        }
        let left = Arc::new(AtomicU64::new(bytes));
        needed.push((stat.f_fsid, Arc::downgrade(&left)));
        Ok(Some(Self { left, rest: AtomicU64::new(rest) }))
    }

    /// So much of it was written, and is counted by the file system from now on; `done` bytes of
    /// the file are there with that, holes among them.
    pub fn used(&self, stored: u64, done: u64) {
        let update = |number: &AtomicU64, less: &dyn Fn(u64) -> u64| {
            let less = |now| Some(less(now));
            // It always answers with some.
            number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).unwrap_or_default()
        };
        let before = update(&self.rest, &|rest| rest.saturating_sub(done));
        let rest = before.saturating_sub(done);
        update(&self.left, &|left| left.saturating_sub(stored).min(rest));
    }
}

fn no_room(path: &WirePath, bytes: u64, free: u64, others: u64) -> Fault {
    let also = match others {
        0 => String::new(),
        others => format!(", of which {} are for files that are being written", shown(others)),
    };
    let (needed, free) = (shown(bytes), shown(free));
    let text = format!("cannot create {path}: no space: it needs {needed}, {free} are free{also}");
    Fault::new(Code::NoSpace, text)
}

/// How much this user may write; none where the file system does not say.
fn free_bytes(stat: &StatVfs, root: bool) -> Option<u64> {
    let blocks = if root { stat.f_bfree } else { stat.f_bavail };
    (stat.f_blocks > 0).then(|| blocks.saturating_mul(stat.f_frsize))
}

/// Bytes for people, and exactly where it may matter.
fn shown(bytes: u64) -> String {
    let mut units = ["KiB", "MiB", "GiB", "TiB", "PiB"].iter();
    let (mut number, mut unit) = (bytes as f64 / 1024.0, units.next());
    while number >= 1024.0
        && let Some(next) = units.next()
    {
        (number, unit) = (number / 1024.0, Some(next));
    }
    format!("{number:.1} {} ({bytes} bytes)", unit.unwrap_or(&"KiB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_files_will_write_is_counted_until_it_is_written() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = std::fs::File::open(dir.path()).expect("opens");
        let path = WirePath::parse(b"a").expect("plain");
        let free = || {
            let stat = fstatvfs(&folder).expect("tells");
            free_bytes(&stat, rustix::process::geteuid().is_root()).expect("has a size")
        };
        // Others write here meanwhile: leave them room.
        let most = free() / 8 * 5;
        let first = Room::take(&folder, &path, most, most).expect("fits").expect("is looked at");
        let fault = Room::take(&folder, &path, most, most).expect_err("both do not fit");
        assert_eq!(fault.code, Code::NoSpace);
        let words = [&format!("({most} bytes)"), "no space: it needs ", " are free, of which "];
        assert!(words.iter().all(|words| fault.text.contains(*words)), "{fault}");
        first.used(most, most);
        let second = Room::take(&folder, &path, most, most).expect("the first is written");
        drop(second);
        drop(first);
        assert!(Room::take(&folder, &path, most, most).expect("fits again").is_some());
    }

    #[test]
    fn holes_of_a_file_leave_the_room_of_its_data_set_aside() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = std::fs::File::open(dir.path()).expect("opens");
        let path = WirePath::parse(b"a").expect("plain");
        let room = Room::take(&folder, &path, 100, 1000).expect("fits").expect("is looked at");
        let left = |stored, done| {
            room.used(stored, done);
            room.left.load(Ordering::Relaxed)
        };
        assert_eq!(left(0, 500), 100, "holes took nothing");
        assert_eq!(left(10, 300), 90);
        // Whatever the source takes, no more than this can be written.
        assert_eq!(left(0, 150), 50);
        assert_eq!(left(0, 50), 0);
    }

    #[test]
    fn bytes_are_shown_for_people_and_exactly() {
        assert_eq!(shown(1536), "1.5 KiB (1536 bytes)");
        assert_eq!(shown(5 << 40), "5.0 TiB (5497558138880 bytes)");
    }
}
