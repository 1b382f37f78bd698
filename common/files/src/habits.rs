//! What the file system of a folder does with names, times and attributes. Of names
//! and times it is found out by trying: with a file that is gone afterwards, and the
//! folder keeps its times. Where nothing may be written the times that are there tell.
//! Called by both sides of a mirror for their own target, and by copies that leave
//! alone what is as new.

use crate::folder::{Folder, stat_name};
use crate::identity::{kind_of_file_system, nanoseconds, stat_open};
use crate::meta::stamp;
use crate::naming::temporary_name;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, Timestamps};
use rustix::fs::{fgetxattr, futimens, openat, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use verbatim_proto::{Habits, Lacks, Resolution, WirePath};

/// Entries of a folder whose times are looked at.
const SEEN_MAX: usize = 64;

/// What statfs(2) says of FAT.
const FAT: u32 = 0x4d44;

impl Folder {
    /// Whether names that differ only in case are one in a folder. Found out by trying.
    pub fn folds_case(&self, path: &WirePath) -> bool {
        let folds = self.try_file(path, b"Case", |folder, name, _| {
            let other = name.as_bytes().to_ascii_lowercase();
            let seen = statat(folder, OsStr::from_bytes(&other), AtFlags::SYMLINK_NOFOLLOW);
            Ok(seen.is_ok())
        });
        folds.unwrap_or(false)
    }

    /// What can be kept in a folder, or in the one that something is in; `tries` says whether a
    /// file may be made there to find it out.
    pub fn habits(&self, path: &WirePath, tries: bool) -> Habits {
        let folder = self.open_folder(path).or_else(|_| self.open_folder(&path.parent()));
        let Ok(folder) = folder else { return Habits::default() };
        let lacks = lacks_in(&folder);
        let resolution = if tries { self.tried_resolution(path) } else { seen_resolution(folder) };
        Habits { resolution, lacks }
    }

    /// How finely times are kept in a folder. Found out by trying; where that cannot be, all of
    /// a time counts.
    fn tried_resolution(&self, path: &WirePath) -> Resolution {
        let kept = self.try_file(path, b"Time", |folder, name, file| {
            let time = stamp(Resolution::TRIED_NS);
            futimens(&file, &Timestamps { last_access: time, last_modification: time })?;
            // Closed first: who keeps files elsewhere may say what is kept only then.
            drop(file);
            let stat = stat_name(folder, name);
            Ok(stat.ok().map(|stat| nanoseconds(&stat.stx_mtime)))
        });
        kept.flatten().map(Resolution::of_tried).unwrap_or_default()
    }

    /// Looks at a new file of a folder, which is gone afterwards; none where there can be none.
    fn try_file<T>(
        &self,
        path: &WirePath,
        name: &[u8],
        mut look: impl FnMut(BorrowedFd<'_>, &OsStr, OwnedFd) -> Result<T, Errno>,
    ) -> Option<T> {
        let fd = self.open_folder(path).ok()?;
        let name = temporary_name(name);
        let name = OsStr::from_bytes(&name);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut looked = None;
        let tried = self.within(&WirePath::root(), &fd, |folder| {
            let file = openat(folder, name, flags, Mode::from_raw_mode(0o600))?;
            looked = look(folder, name, file).ok();
            unlinkat(folder, name, AtFlags::empty())
        });
        tried.ok().and(looked)
    }
}

/// The same without writing: by when the inodes of a folder and of what is in it changed, which
/// is a time that nobody sets.
fn seen_resolution(folder: OwnedFd) -> Resolution {
    // Its seconds are even, and half of all others are too.
    if kind_of_file_system(&folder) == Some(FAT) {
        return Resolution::TwoSeconds;
    }
    let (Ok(own), Ok(names)) = (stat_open(&folder), Dir::read_from(&folder)) else {
        return Resolution::default();
    };
    let device = (own.stx_dev_major, own.stx_dev_minor);
    let names = names.flatten().take(SEEN_MAX);
    let stats = names.filter_map(|name| {
        let name = OsStr::from_bytes(name.file_name().to_bytes());
        // Something else may be mounted there.
        let stat = stat_name(&folder, name).ok();
        stat.filter(|stat| (stat.stx_dev_major, stat.stx_dev_minor) == device)
    });
    let stats = std::iter::once(own).chain(stats);
    Resolution::of_seen(stats.map(|stat| nanoseconds(&stat.stx_ctime)))
}

/// Which attributes there are none of: asked for one, a file system says whether it has its kind.
fn lacks_in(folder: &OwnedFd) -> Lacks {
    let lacks = |name: &CStr| fgetxattr(folder, name, &mut [0_u8; 0]) == Err(Errno::OPNOTSUPP);
    Lacks {
        user: lacks(c"user.verbatim"),
        lists: lacks(c"system.posix_acl_access"),
        security: lacks(c"security.verbatim"),
        trusted: lacks(c"trusted.verbatim"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn what_is_tried_leaves_nothing_but_the_answer() {
        let dir = tempfile::tempdir().expect("folder");
        fs::create_dir(dir.path().join("sub")).expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let sub = WirePath::parse(b"sub").expect("plain");
        let times = || {
            let of = fs::metadata(dir.path().join("sub")).expect("there");
            (of.mtime(), of.mtime_nsec())
        };
        let before = times();
        assert!(!folder.folds_case(&sub), "no Linux file system folds case unless it is told to");
        // What tests are run on keeps nanoseconds.
        assert_eq!(folder.habits(&sub, true).resolution, Resolution::Nanosecond);
        assert_eq!(times(), before);
        assert_eq!(fs::read_dir(dir.path().join("sub")).expect("lists").count(), 0);
        let none = WirePath::parse(b"none").expect("plain");
        assert_eq!(folder.tried_resolution(&none), Resolution::Nanosecond, "it is not there");
        let attributes = fs::File::open("/proc/self").expect("opens");
        let all = Lacks { user: true, lists: true, security: true, trusted: true };
        assert_eq!(lacks_in(&attributes.into()), all, "procfs has none of any kind");
    }

    #[test]
    fn what_nobody_may_write_to_is_only_looked_at() {
        let dir = tempfile::tempdir().expect("folder");
        for name in ["a", "b", "c"] {
            fs::write(dir.path().join(name), name).expect("writes");
        }
        let closed = fs::Permissions::from_mode(0o500);
        fs::set_permissions(dir.path(), closed).expect("sets");
        let folder = Folder::open(dir.path()).expect("opens");
        let changed = || {
            let of = fs::metadata(dir.path()).expect("there");
            (of.ctime(), of.ctime_nsec())
        };
        let before = changed();
        // One clock in a hundred ends with two zeros, and then four of them would have to.
        let fine = [Resolution::Nanosecond, Resolution::HundredNanoseconds];
        for path in ["", "a", "none"] {
            let path = WirePath::parse(path.as_bytes()).unwrap_or(WirePath::root());
            assert!(fine.contains(&folder.habits(&path, false).resolution), "{path}");
        }
        assert_eq!(changed(), before);
    }
}
