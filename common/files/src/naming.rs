//! How a temporary file is made and gets its names. Most have a hidden one beside
//! the final one from the beginning; one without a name gets its final one by a
//! link. Either way nothing is seen under the final name but all of the file.
//! Called by `target`.

use crate::opened::OpenFolder;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::fs::{flock, linkat, openat, renameat, renameat_with, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use verbatim_proto::units::NAME_BYTES_MAX;
use verbatim_proto::{Code, Fault};

/// What every temporary name ends with.
pub const TEMPORARY_SUFFIX: &[u8] = b".verbatim-part";

/// Makes a file without a name: nobody sees it, and it goes with whoever made it.
pub(crate) fn create_unnamed(folder: &OpenFolder, mode: u32) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    openat(folder, c".", flags, Mode::from_raw_mode(mode & 0o777)).map(File::from)
}

/// Makes a file that was not there.
pub(crate) fn create_new(folder: &OpenFolder, name: &[u8], mode: u32) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(mode & 0o777);
    let fd = openat(folder, OsStr::from_bytes(name), flags, mode)?;
    // Says that somebody is at work on it; it is new, so nobody else can have it. Where the file
    // system has no locks, its age says the same.
    let _ = flock(&fd, FlockOperation::NonBlockingLockExclusive);
    Ok(File::from(fd))
}

/// The mode that a file gets which is made here with this one: the umask says, or the folder.
pub(crate) fn mode_of_new(folder: &OpenFolder, name: &[u8], mode: u32) -> io::Result<u32> {
    let made = create_unnamed(folder, mode).or_else(|_| {
        let temporary = temporary_name(name);
        let made = create_new(folder, &temporary, mode)?;
        // It was for this alone; what may stay is reaped.
        let _ = unlinkat(folder, OsStr::from_bytes(&temporary), AtFlags::empty());
        Ok::<_, Errno>(made)
    })?;
    Ok(made.metadata()?.permissions().mode() & 0o777)
}

/// What may have a name that a file is about to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Over {
    /// Another file, which the new one replaces.
    #[default]
    Anything,
    /// Nothing: who comes first stays.
    Nothing,
}

impl Over {
    /// Why something could not take its name; `what` says what was tried.
    pub(crate) fn fault(self, what: impl std::fmt::Display, error: Errno) -> Fault {
        match (self, error) {
            (Self::Nothing, Errno::EXIST) => {
                Fault::new(Code::Exists, format!("{what}: it is there now"))
            }
            _ => Fault::from_io(what, &error.into()),
        }
    }
}

/// Gives a file another name in its folder.
pub(crate) fn rename(folder: &OpenFolder, from: &[u8], to: &[u8], over: Over) -> Result<(), Errno> {
    let (from, to) = (OsStr::from_bytes(from), OsStr::from_bytes(to));
    match over {
        Over::Anything => renameat(folder, from, folder, to),
        Over::Nothing => match renameat_with(folder, from, folder, to, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => rename_by_link(folder, from, to),
            renamed => renamed,
        },
    }
}

/// The same where the file system does not know of renaming over nothing: a link replaces nothing
/// either. Where it has no links, somebody may come between the look and the name.
fn rename_by_link(folder: &OpenFolder, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
    match linkat(folder, from, folder, to, AtFlags::empty()) {
        // It has its name; that it may keep the other one too takes nothing from it.
        Ok(()) => {
            let _ = unlinkat(folder, from, AtFlags::empty());
            Ok(())
        }
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {
            match statat(folder, to, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => renameat(folder, from, folder, to),
                found => Err(found.err().unwrap_or(Errno::EXIST)),
            }
        }
        Err(error) => Err(error),
    }
}

/// Gives a file that has none a name. A link replaces nothing, so where something has that name
/// already and may be replaced the file gets a temporary one first.
pub(crate) fn link(file: &File, folder: &OpenFolder, name: &[u8], over: Over) -> Result<(), Errno> {
    match link_new(file, folder, name) {
        Err(Errno::EXIST) if over == Over::Anything => {
            let temporary = temporary_name(name);
            link_new(file, folder, &temporary)?;
            rename(folder, &temporary, name, over).inspect_err(|_| {
                // The first error is what matters; what may stay is reaped.
                let _ = unlinkat(folder, OsStr::from_bytes(&temporary), AtFlags::empty());
            })
        }
        linked => linked,
    }
}

pub(crate) fn link_new(file: &File, folder: &OpenFolder, name: &[u8]) -> Result<(), Errno> {
    let name = OsStr::from_bytes(name);
    match linkat(file, c"", folder, name, AtFlags::EMPTY_PATH) {
        // Kernels before 6.10 let only root link what is open; this way is for everybody.
        Err(Errno::NOENT | Errno::PERM) => {
            let open = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(CWD, open, folder, name, AtFlags::SYMLINK_FOLLOW)
        }
        linked => linked,
    }
}

/// A hidden name beside `name` that no other process and no other target uses.
pub(crate) fn temporary_name(name: &[u8]) -> Vec<u8> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // When the first one was made: process numbers repeat, in containers above all.
    static CLOCK: OnceLock<u32> = OnceLock::new();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let clock = CLOCK.get_or_init(clock_bits);
    let unique = format!("{}-{count}-{clock:08x}", std::process::id());
    hidden_name(name, &unique, TEMPORARY_SUFFIX)
}

/// A hidden name beside `name`, short enough for any file system.
pub(crate) fn hidden_name(name: &[u8], unique: &str, suffix: &[u8]) -> Vec<u8> {
    let keep = NAME_BYTES_MAX - 2 - unique.len() - suffix.len();
    let kept = &name[..name.len().min(keep)];
    [b".", kept, b".", unique.as_bytes(), suffix].concat()
}

/// Tells processes of one number apart.
fn clock_bits() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.subsec_nanos() ^ since.as_secs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Folder;
    use std::fs;
    use verbatim_proto::WirePath;

    #[test]
    fn where_nothing_can_be_renamed_over_nothing_a_link_does_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let folder = folder.open_parent(&WirePath::parse(b"a").expect("plain")).expect("opens");
        let names = || fs::read_dir(dir.path()).expect("lists").count();
        let at = |name: &str| dir.path().join(name);
        for name in ["file", "folder"] {
            fs::write(at("from"), b"ours").expect("writes");
            match name {
                "file" => fs::write(at("to"), b"theirs").expect("writes"),
                // What cannot be linked: it is looked whether the name is free.
                _ => {
                    fs::remove_file(at("from")).expect("removes");
                    fs::create_dir(at("from")).expect("makes");
                }
            }
            let renamed = rename_by_link(&folder, OsStr::new("from"), OsStr::new("to"));
            assert_eq!(renamed, Err(Errno::EXIST), "{name}");
            assert_eq!(fs::read(at("to")).expect("reads"), b"theirs");
            rename_by_link(&folder, OsStr::new("from"), OsStr::new("free")).expect("it is free");
            assert_eq!(names(), 2, "{name}: it has one name");
            if name == "file" {
                assert_eq!(fs::read(at("free")).expect("reads"), b"ours");
                fs::remove_file(at("free")).expect("removes");
            }
        }
    }
}
