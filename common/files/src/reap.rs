//! Leftovers of copies that were given up: partial files and journals of which
//! nobody will ever hear again. Tells them by their names, and removes one only
//! if it is an old, plain file of this user that no session holds, or a still
//! older one where nothing can be locked. What only looks alike, or is of anybody
//! else, is left alone. Called by the server, and for mirrors by both sides.

use crate::Folder;
use crate::folder::stat_name;
use crate::identity::nanoseconds;
use crate::naming::TEMPORARY_SUFFIX;
use crate::partial::{JOURNAL_SUFFIX, LOCK, Lock, NotHeld, open_held};
use rustix::fs::{AtFlags, OFlags, unlinkat};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use verbatim_proto::{Fault, WirePath};

/// A leftover that was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaped {
    /// How much it took.
    pub bytes: u64,
    /// How long nobody had written to it.
    pub age: Duration,
}

/// Whether a name is one that this crate gives to what it has not finished.
pub fn is_leftover(name: &[u8]) -> bool {
    let Some(name) = name.strip_prefix(b".") else { return false };
    let (rest, lasting_only) = match name.strip_suffix(TEMPORARY_SUFFIX) {
        Some(rest) => (rest, false),
        None => match name.strip_suffix(JOURNAL_SUFFIX) {
            Some(rest) => (rest, true),
            None => return false,
        },
    };
    // In front of it is the name of the target, cut short if it was long.
    let Some(dot) = rest.iter().rposition(|&byte| byte == b'.') else { return false };
    let unique = &rest[dot + 1..];
    is_hex(unique, 16) || (!lasting_only && is_temporary(unique))
}

/// How long one is kept at least where no lock tells whether somebody is at it. Who is writes to
/// it, or asks his peer for more, and gives up far sooner.
const UNLOCKED_KEEP: Duration = Duration::from_secs(24 * 3600);

/// Removes the file at `path` if it is a leftover that nobody wrote to for `keep`.
pub fn reap(
    folder: &Folder,
    path: &WirePath,
    keep: Duration,
    now: SystemTime,
) -> Result<Option<Reaped>, Fault> {
    reap_by(LOCK, folder, path, keep, now)
}

fn reap_by(
    lock: Lock,
    folder: &Folder,
    path: &WirePath,
    keep: Duration,
    now: SystemTime,
) -> Result<Option<Reaped>, Fault> {
    let Some(name) = path.name().filter(|name| is_leftover(name)) else { return Ok(None) };
    let parent = folder.open_parent(path)?;
    let name = OsStr::from_bytes(name);
    let what = || format!("cannot remove {path}");
    // Looked at before it is locked, so that a young one is never held back from its session.
    let stat = stat_name(&*parent, name).map_err(|e| Fault::from_io(what(), &e))?;
    let Some(age) = age(nanoseconds(&stat.stx_mtime), now).filter(|age| *age > keep) else {
        return Ok(None);
    };
    let open = |flags| open_held(&parent, name.as_bytes(), flags, 0, lock);
    let held = match open(OFlags::RDWR) {
        // As its source was: nobody may write it.
        Err(NotHeld::Denied) => open(OFlags::RDONLY),
        held => held,
    };
    // One that is about to get its name has the time of its source already; its inode has not.
    let changed_ns = nanoseconds(&stat.stx_mtime).max(nanoseconds(&stat.stx_ctime));
    let is_old = || self::age(changed_ns, now).is_some_and(|age| age > keep.max(UNLOCKED_KEEP));
    match held {
        Ok(_) => {}
        Err(NotHeld::NoLocks) if is_old() => {}
        Err(_) => return Ok(None),
    }
    unlinkat(&*parent, name, AtFlags::empty()).map_err(|e| Fault::from_io(what(), &e.into()))?;
    Ok(Some(Reaped { bytes: stat.stx_blocks * 512, age }))
}

/// How old a time stamp is; none if it is of the future.
fn age(stamp_ns: i64, now: SystemTime) -> Option<Duration> {
    let now_ns = now.duration_since(UNIX_EPOCH).ok()?.as_nanos() as i128;
    let age_ns = u64::try_from(now_ns - i128::from(stamp_ns)).ok()?;
    Some(Duration::from_nanos(age_ns))
}

/// A process, a count and a clock, as `target` makes them for what does not last.
fn is_temporary(unique: &[u8]) -> bool {
    let parts: Vec<&[u8]> = unique.split(|&byte| byte == b'-').collect();
    let is_number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    matches!(parts[..], [process, count, clock]
        if is_number(process) && is_number(count) && is_hex(clock, 8))
}

fn is_hex(text: &[u8], len: usize) -> bool {
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    text.len() == len && text.iter().all(is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Target;
    use crate::naming::temporary_name;
    use crate::partial::{Names, begin};
    use crate::target::LASTING_BYTES_MIN;
    use rustix::fs::fcntl_getfl;
    use rustix::io::Errno;
    use std::fs;
    use verbatim_proto::Digest;
    use verbatim_proto::message::FileInfo;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn path(text: &str) -> WirePath {
        WirePath::parse(text.as_bytes()).expect("plain")
    }

    /// Reaps everything in a folder as it will look in `later`; what is left, hidden or not.
    fn left(folder: &Folder, later: Duration) -> Vec<String> {
        left_by(LOCK, folder, later, 7 * DAY)
    }

    fn left_by(lock: Lock, folder: &Folder, later: Duration, keep: Duration) -> Vec<String> {
        let names = || -> Vec<String> {
            let entries = fs::read_dir(folder.path()).expect("lists");
            let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
            let mut names: Vec<String> = entries.map(|e| name(e.expect("entry"))).collect();
            names.sort();
            names
        };
        for name in names() {
            let now = SystemTime::now() + later;
            reap_by(lock, folder, &path(&name), keep, now).expect("looks");
        }
        names()
    }

    fn info(size: u64) -> FileInfo {
        FileInfo { size, mode: 0o644, mtime_ns: 5, allocated: size, version: None }
    }

    #[test]
    fn old_leftovers_go_and_young_ones_stay() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let key = Digest::of(b"a copy");
        drop(Target::create_lasting(&folder, &path("a"), &info(LASTING_BYTES_MIN), &key));
        // As kill -9 leaves it: nobody has it, and nobody removed it.
        let name = temporary_name(b"b");
        fs::write(dir.path().join(OsStr::from_bytes(&name)), b"12345").expect("writes");
        assert_eq!(left(&folder, 6 * DAY).len(), 3, "a part, its journal and a small part");
        assert_eq!(left(&folder, 8 * DAY), [""; 0]);
    }

    /// As NFS 4 does it: what is locked for one alone must be open for writing.
    const AS_NFS: Lock = |fd| match fcntl_getfl(fd)?.contains(OFlags::RDWR) {
        true => LOCK(fd),
        false => Err(Errno::BADF),
    };

    /// As a file system that has no locks.
    const NONE: Lock = |_| Err(Errno::OPNOTSUPP);

    #[test]
    fn leftovers_go_where_only_what_is_written_can_be_locked() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let key = Digest::of(b"a copy");
        let held = Target::create_lasting(&folder, &path("a"), &info(LASTING_BYTES_MIN), &key);
        let young = Duration::from_secs(1);
        assert_eq!(left_by(AS_NFS, &folder, young, Duration::ZERO).len(), 2, "somebody has them");
        drop(held);
        assert_eq!(left_by(AS_NFS, &folder, young, Duration::ZERO), [""; 0]);
    }

    #[test]
    fn where_nothing_can_be_locked_only_what_nobody_touched_for_a_day_goes() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let part = dir.path().join(OsStr::from_bytes(&temporary_name(b"b")));
        fs::write(&part, b"12345").expect("writes");
        // As one whose copy is done but for its name.
        let file = fs::File::options().write(true).open(&part).expect("opens");
        file.set_modified(UNIX_EPOCH + DAY).expect("sets its time");
        let left = |later, keep| left_by(NONE, &folder, later, keep).len();
        assert_eq!(left(DAY / 2, Duration::ZERO), 1);
        assert_eq!(left(6 * DAY, 7 * DAY), 1);
        assert_eq!(left(2 * DAY, Duration::ZERO), 0);
    }

    #[test]
    fn where_nothing_can_be_locked_nothing_is_left_beside_a_large_file() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let parent = folder.open_parent(&path("a")).expect("opens");
        let names = Names::new(b"a", &Digest::of(b"a copy"));
        assert!(begin(&parent, &names, 0o644, NONE).is_none());
        assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 0);
        // What is another's stays.
        let held = begin(&parent, &names, 0o644, LOCK).expect("begins");
        assert!(begin(&parent, &names, 0o644, LOCK).is_none());
        assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 2);
        drop(held);
    }

    #[test]
    fn a_leftover_of_the_future_is_left_alone() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let name = temporary_name(b"b");
        fs::write(dir.path().join(OsStr::from_bytes(&name)), b"12345").expect("writes");
        let part = WirePath::parse(&name).expect("plain");
        // The clock was set back behind it.
        let reaped = reap(&folder, &part, Duration::ZERO, SystemTime::now() - 8 * DAY);
        assert_eq!(reaped.expect("looks"), None);
        let reaped = reap(&folder, &part, Duration::ZERO, SystemTime::now() + DAY);
        assert_eq!(reaped.expect("looks").map(|reaped| reaped.bytes > 0), Some(true));
    }

    #[test]
    fn what_a_session_holds_stays_however_old() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let key = Digest::of(b"a copy");
        let large = Target::create_lasting(&folder, &path("a"), &info(LASTING_BYTES_MIN), &key);
        let small = Target::create(&folder, &path("b"), 5, 0o644).expect("makes");
        let unnamed = folder.open_parent(&path("b")).expect("opens").is_in_memory();
        assert_eq!(left(&folder, 800 * DAY).len(), if unnamed { 2 } else { 3 });
        drop((large, small));
        assert_eq!(left(&folder, 800 * DAY), [""; 0]);
    }

    #[test]
    fn what_only_looks_alike_stays() {
        let names = [
            "a.verbatim-part",
            ".verbatim-part",
            ".a.verbatim-part",
            ".a.0123456789abcde.verbatim-part",
            ".a.0123456789ABCDEF.verbatim-part",
            ".a.0123456789abcdef.verbatim-part.bak",
            ".a.1-2-345678.verbatim-part",
            ".a.1-2-34567890.verbatim-journal",
            "a.0123456789abcdef.verbatim-part",
        ];
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        for name in names {
            assert!(!is_leftover(name.as_bytes()), "{name}");
            fs::write(dir.path().join(name), b"of the user").expect("writes");
        }
        // The name is ours, but what has it is not a plain file of one name.
        std::os::unix::fs::symlink("a", dir.path().join(".l.0123456789abcdef.verbatim-part"))
            .expect("links");
        let linked = dir.path().join(".h.0123456789abcdef.verbatim-part");
        fs::hard_link(dir.path().join("a.verbatim-part"), linked).expect("links");
        fs::create_dir(dir.path().join(".d.0123456789abcdef.verbatim-part")).expect("makes");
        assert_eq!(left(&folder, 800 * DAY).len(), names.len() + 3);
    }
}
