//! All of a tree at once: removed, or its folders made durable. Goes from folder
//! to folder by what is open, so that nothing that is renamed meanwhile leads it
//! elsewhere, follows no link, and goes into no other file system that is mounted
//! there. Called by `stage` for trees of its own.

use crate::names::Names;
use crate::tree::FOLDER;
use crate::walk::DEPTH_MAX;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::fs::{fchmod, fstat, fsync, openat2, unlinkat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use verbatim_proto::{Code, Fault};

/// A folder that is gone through.
struct Level {
    fd: OwnedFd,
    names: Names,
    /// Its name in the folder before.
    name: Vec<u8>,
}

/// Removes a folder and all in it. What is gone already is no fault.
pub(crate) fn remove_tree(parent: impl AsFd, name: &[u8]) -> Result<(), Fault> {
    let parent = parent.as_fd();
    let what = format!("cannot remove {}", String::from_utf8_lossy(name));
    let fault = |e: Errno| Fault::from_io(&what, &e.into());
    let removed = |done: Result<(), Errno>| match done {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(fault(error)),
    };
    let open = |at: BorrowedFd<'_>, name: &[u8]| open_level(at, name, true, &what);
    let Some(first) = open(parent, name)? else { return Ok(()) };
    let mut levels = vec![first];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.names.take() else {
            let done = levels.pop().map(|level| level.name).unwrap_or_default();
            let at = levels.last().map_or(parent, |level| level.fd.as_fd());
            removed(unlinkat(at, OsStr::from_bytes(&done), AtFlags::REMOVEDIR))?;
            continue;
        };
        match unlinkat(&level.fd, OsStr::from_bytes(&name), AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => {
                let next = open(level.fd.as_fd(), &name)?;
                enter(&mut levels, next, &what)?;
            }
            done => removed(done)?,
        }
    }
    Ok(())
}

/// Flushes every folder of a tree: then all its names survive a power cut.
pub(crate) fn flush_folders(parent: impl AsFd, name: &[u8]) -> Result<(), Fault> {
    let what = format!("cannot flush {}", String::from_utf8_lossy(name));
    let Some(first) = open_level(parent.as_fd(), name, false, &what)? else { return Ok(()) };
    let mut levels = vec![first];
    while let Some(level) = levels.last_mut() {
        match level.names.take() {
            Some(name) => {
                let next = open_level(level.fd.as_fd(), &name, false, &what)?;
                enter(&mut levels, next, &what)?;
            }
            None => {
                fsync(&level.fd).map_err(|e| Fault::from_io(&what, &e.into()))?;
                levels.pop();
            }
        }
    }
    Ok(())
}

fn enter(levels: &mut Vec<Level>, next: Option<Level>, what: &str) -> Result<(), Fault> {
    if next.is_some() && levels.len() >= DEPTH_MAX {
        return Err(Fault::new(Code::Limit, format!("{what}: deeper than {DEPTH_MAX} levels")));
    }
    levels.extend(next);
    Ok(())
}

/// Opens a folder to go through it; none if there is no folder of that name. One that is closed to
/// its owner is opened up for it, and stays so if it is to be emptied.
fn open_level(
    at: BorrowedFd<'_>,
    name: &[u8],
    empty: bool,
    what: &str,
) -> Result<Option<Level>, Fault> {
    let fault = |e: Errno| match e {
        Errno::XDEV => {
            let shown = String::from_utf8_lossy(name);
            let text = format!("{what}: another file system is mounted on {shown} in it");
            Fault::new(Code::Io, text)
        }
        other => Fault::from_io(what, &other.into()),
    };
    let mut opened = open_here(at, name, FOLDER);
    if matches!(opened, Err(Errno::ACCESS)) {
        let shut = open_here(at, name, FOLDER | OFlags::PATH).map_err(fault)?;
        let mode = fstat(&shut).map_err(fault)?.st_mode;
        // What is open is what must change; where it is not ours, opening it says so again.
        let set = |mode| rustix::fs::chmod(format!("/proc/self/fd/{}", shut.as_raw_fd()), mode);
        let _ = set(Mode::RWXU);
        opened = open_here(at, name, FOLDER);
        if !empty {
            set(Mode::from_raw_mode(mode & 0o7777)).map_err(fault)?;
        }
    }
    let fd = match opened {
        Ok(fd) => fd,
        Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => return Ok(None),
        Err(error) => return Err(fault(error)),
    };
    if empty && !rustix::process::geteuid().is_root() {
        // Where it is not ours to open, what is in it says why it stays.
        let _ = fchmod(&fd, Mode::RWXU);
    }
    let names = Names::read(&fd, what)?;
    Ok(Some(Level { fd, names, name: name.to_vec() }))
}

/// Opens a name in a folder, unless another file system is mounted there.
fn open_here(at: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    openat2(at, OsStr::from_bytes(name), flags, Mode::empty(), resolve)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_tree_goes_and_what_links_lead_to_stays() {
        let dir = tempfile::tempdir().expect("folder");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("gone/a/b/c")).expect("folders");
        fs::create_dir(at("stays")).expect("folder");
        fs::write(at("stays/file"), b"").expect("writes");
        fs::write(at("gone/a/b/file"), b"").expect("writes");
        symlink(at("stays"), at("gone/a/link")).expect("links");
        for (name, mode) in [("gone/a/b", 0o555), ("gone/a/b/c", 0o000)] {
            fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).expect("sets");
        }
        let parent = fs::File::open(dir.path()).expect("opens");
        flush_folders(&parent, b"stays").expect("flushes");
        remove_tree(&parent, b"gone").expect("removes");
        remove_tree(&parent, b"gone").expect("is gone");
        assert!(!at("gone").exists());
        assert!(at("stays/file").exists());
    }
}
