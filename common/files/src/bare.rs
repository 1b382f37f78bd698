//! Which files have no extended attributes, asked once of each that stays as it is: a
//! walk has to ask for them by name, which costs half as much as finding the file does.
//! Bounded: a file whose place another takes is asked again. Kept by whoever walks often;
//! used by `sight`. An attribute that is set changes the time stamp of the inode, on file
//! systems of which that is known: older ZFS, and some in user space, do not do it. A stamp
//! that may hide a later change is not taken.

mod kept;

pub(crate) use kept::Kept;

use crate::identity::{is_young, kind_of_file_system, nanoseconds, twin_of};
use rustix::fs::Statx;
use std::fs::read_to_string;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use verbatim_proto::Twin;

/// Parts that are locked by themselves.
const PARTS: usize = 1 << 10;

/// Files of a part, of which all that are kept take 24 bytes. Those that were made one after the
/// other are in one part, beside each other.
const PART_FILES: usize = 1 << 10;

/// File systems on which setting an attribute changes the time stamp of the inode: ext2 to ext4,
/// xfs and btrfs, by the numbers that statfs(2) has for them.
const STAMPING: [u32; 3] = [0xEF53, 0x5846_5342, 0x9123_683E];

/// tmpfs, and the Linux from which on it does so too.
const TMPFS: u32 = 0x0102_1994;
const TMPFS_STAMPS_SINCE: (u32, u32) = (6, 1);

/// Whether a new attribute of a file in this folder is seen by the time stamp.
pub(crate) fn is_stamped(folder: &OwnedFd) -> bool {
    static RELEASE: LazyLock<String> =
        LazyLock::new(|| read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default());
    kind_of_file_system(folder).is_some_and(|kind| stamps(kind, &RELEASE))
}

/// The same of a kind of file system, of this release of Linux.
fn stamps(kind: u32, release: &str) -> bool {
    let mut numbers = release.split(|it: char| !it.is_ascii_digit()).map(str::parse);
    let release = numbers.next().zip(numbers.next());
    let is_new = || matches!(release, Some((Ok(a), Ok(b))) if (a, b) >= TMPFS_STAMPS_SINCE);
    STAMPING.contains(&kind) || (kind == TMPFS && is_new())
}

/// Files that are known to have none, at most a million.
#[derive(Debug)]
pub struct Bare {
    parts: Vec<Mutex<Vec<Mark>>>,
    /// How many looks found what they asked for.
    known: AtomicUsize,
    /// How many files were noted.
    noted: AtomicUsize,
}

/// A file, and when its inode changed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    device: u64,
    inode: u64,
    ctime_ns: i64,
}

/// No file: nothing changed then.
const NOBODY: Mark = Mark { device: 0, inode: 0, ctime_ns: i64::MIN };

impl Default for Bare {
    fn default() -> Self {
        let parts = (0..PARTS).map(|_| Mutex::default()).collect();
        Self { parts, known: AtomicUsize::new(0), noted: AtomicUsize::new(0) }
    }
}

impl Bare {
    /// Whether the file of this status is known to have none.
    pub(crate) fn knows(&self, stat: &Statx) -> bool {
        let mark = Mark::of(stat);
        let knows = self.part(&mark).get(mark.place()) == Some(&mark);
        self.known.fetch_add(usize::from(knows), Relaxed);
        knows
    }

    /// The file of this status had none when it was asked after `now`.
    pub(crate) fn note(&self, stat: &Statx, now: SystemTime) {
        let mark = Mark::of(stat);
        if is_young(mark.ctime_ns, now) {
            return;
        }
        let mut part = self.part(&mark);
        if part.is_empty() {
            part.resize(PART_FILES, NOBODY);
        }
        part[mark.place()] = mark;
        self.noted.fetch_add(1, Relaxed);
    }

    /// How many files are known, those that are gone among them.
    fn count(&self) -> usize {
        let part = |part: &Mutex<Vec<Mark>>| {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            part.iter().filter(|mark| **mark != NOBODY).count()
        };
        self.parts.iter().map(part).sum()
    }

    fn part(&self, mark: &Mark) -> MutexGuard<'_, Vec<Mark>> {
        // The bits above those of the place, spread: file systems leave gaps in their numbers.
        let above = mark.inode / PART_FILES as u64;
        let spread = (above ^ mark.device).wrapping_mul(SPREAD);
        let part = &self.parts[(spread >> (u64::BITS - PARTS.ilog2())) as usize];
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An odd number near 2^64 by the golden ratio, which spreads numbers that lie close together.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

impl Mark {
    fn of(stat: &Statx) -> Self {
        let Twin { device, inode } = twin_of(stat);
        Self { device, inode, ctime_ns: nanoseconds(&stat.stx_ctime) }
    }

    fn place(&self) -> usize {
        (self.inode % PART_FILES as u64) as usize
    }
}

/// A look at the files of one folder, whose time stamps are to be trusted.
#[derive(Clone, Copy)]
pub(crate) struct Look<'a> {
    pub bare: &'a Bare,
    /// The file system of the folder: another may be mounted on a file in it.
    pub device: u64,
    /// When it began.
    pub now: SystemTime,
}

impl Look<'_> {
    /// Whether the file of this status is known to have none.
    pub fn knows(&self, stat: &Statx) -> bool {
        self.is_here(stat) && self.bare.knows(stat)
    }

    /// The file of this status was asked, and has none.
    pub fn note(&self, stat: &Statx) {
        if self.is_here(stat) {
            self.bare.note(stat, self.now);
        }
    }

    fn is_here(&self, stat: &Statx) -> bool {
        twin_of(stat).device == self.device
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::stat_open;
    use std::time::Duration;

    fn status() -> Statx {
        stat_open(tempfile::tempfile().expect("a file")).expect("its status")
    }

    fn later(seconds: u64) -> SystemTime {
        SystemTime::now() + Duration::from_secs(seconds)
    }

    #[test]
    fn a_file_is_known_until_its_inode_changes() {
        let (bare, stat) = (Bare::default(), status());
        assert!(!bare.knows(&stat));
        bare.note(&stat, later(3));
        assert!(bare.knows(&stat));
        let mut changed = stat;
        changed.stx_ctime.tv_nsec ^= 1;
        let mut other = stat;
        other.stx_ino += 1;
        let mut elsewhere = stat;
        elsewhere.stx_dev_minor ^= 1;
        for stranger in [changed, other, elsewhere] {
            assert!(!bare.knows(&stranger), "{stranger:?}");
        }
    }

    #[test]
    fn what_may_change_behind_its_time_stamp_is_not_kept() {
        let (bare, stat) = (Bare::default(), status());
        bare.note(&stat, later(1));
        assert!(!bare.knows(&stat), "younger than two seconds");
        bare.note(&stat, SystemTime::now() - Duration::from_secs(100));
        assert!(!bare.knows(&stat), "from the future");
    }

    #[test]
    fn a_file_system_of_which_nothing_is_known_is_not_trusted() {
        let open = |path: &str| std::fs::File::open(path).expect("it is there").into();
        assert!(!is_stamped(&open("/proc")));
        assert!(!is_stamped(&open("/sys")));
    }

    #[test]
    fn tmpfs_is_trusted_from_the_linux_on_that_stamps_there() {
        for new in ["6.1.0-13-amd64", "6.12.3", "7.2", "10.0-rc1"] {
            assert!(stamps(TMPFS, new), "{new}");
        }
        for old in ["6.0.19", "5.15.0-91-generic", "5.14.0-427.el9.x86_64", "6", "", "six.one"] {
            assert!(!stamps(TMPFS, old) && STAMPING.iter().all(|&kind| stamps(kind, old)));
        }
    }

    #[test]
    fn a_file_that_is_mounted_into_a_folder_is_not_of_it() {
        let (bare, stat, now) = (Bare::default(), status(), later(3));
        let here = Look { bare: &bare, device: twin_of(&stat).device, now };
        let elsewhere = Look { device: here.device ^ 1, ..here };
        elsewhere.note(&stat);
        assert!(!here.knows(&stat));
        here.note(&stat);
        assert_eq!((here.knows(&stat), elsewhere.knows(&stat)), (true, false));
    }

    #[test]
    fn it_has_an_end_and_who_comes_last_has_the_place() {
        let bare = Bare::default();
        let mut stat = status();
        let files = 4 * PARTS * PART_FILES;
        for inode in 0..files as u64 {
            stat.stx_ino = inode;
            bare.note(&stat, later(3));
            assert!(inode % 997 != 0 || bare.knows(&stat));
        }
        let kept: usize = bare.parts.iter().map(|part| part.lock().expect("mine").capacity()).sum();
        assert_eq!(kept, PARTS * PART_FILES);
        stat.stx_ino = 0;
        assert!(!bare.knows(&stat), "another has its place");
    }

    #[test]
    fn a_folder_of_files_made_in_order_loses_few() {
        let bare = Bare::default();
        let mut stat = status();
        let inodes = 1_234_567..1_234_567 + 100_000;
        for inode in inodes.clone() {
            stat.stx_ino = inode;
            bare.note(&stat, later(3));
        }
        let known = inodes.filter(|inode| {
            stat.stx_ino = *inode;
            bare.knows(&stat)
        });
        assert!(known.count() > 95_000);
    }
}
