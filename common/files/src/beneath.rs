//! Opening a path beneath a folder that is open: the kernel refuses what would leave
//! it, whatever is renamed meanwhile. Owns the steps of a path that is longer than
//! the kernel takes at a time, and how often a look-up that raced is tried. Says
//! nothing of what may be done with what was opened.

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// The longest path that the kernel takes, without the zero behind it.
pub(crate) const PATH_STEP_MAX: usize = 4095;

/// How often a look-up that raced with a rename is tried.
const RESOLVE_TRIES_MAX: usize = 64;

/// Opens `path` from a folder, as `resolve` says.
pub(crate) fn open_beneath(
    from: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    if path.is_empty() {
        return openat(from, c".", flags | OFlags::CLOEXEC, Mode::empty());
    }
    // Longer than the kernel takes at a time: in steps, each beneath the folder reached so
    // far. A link that climbs out of its step is refused, even if it stays in the export.
    let mut rest = path;
    let mut reached: Option<OwnedFd> = None;
    while rest.len() > PATH_STEP_MAX {
        let cut = rest[..=PATH_STEP_MAX].iter().rposition(|&byte| byte == b'/');
        let cut = cut.ok_or(Errno::NAMETOOLONG)?;
        let at = reached.as_ref().map_or(from, AsFd::as_fd);
        reached = Some(open_step(at, &rest[..cut], OFlags::PATH | OFlags::DIRECTORY, resolve)?);
        rest = &rest[cut + 1..];
    }
    open_step(reached.as_ref().map_or(from, AsFd::as_fd), rest, flags, resolve)
}

/// Opens a path below what was reached so far.
fn open_step(
    at: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let (path, flags) = (OsStr::from_bytes(path), flags | OFlags::CLOEXEC);
    // The kernel asks to try again when a rename raced with the look-up.
    for _ in 0..RESOLVE_TRIES_MAX {
        match openat2(at, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN) => {}
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}
