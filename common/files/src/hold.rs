//! A folder that one mirror at a time may change. The hold is a lock of the
//! kernel on the folder itself: nothing is written, it works for every process
//! of the machine, and it ends with whoever has it, however that ends. Who that
//! is, the kernel tells. Called by both sides for their own target.

use crate::identity::{stat_open, twin_of};
use rustix::fs::{FlockOperation, Mode, OFlags, Statx, flock, openat};
use rustix::io::Errno;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use verbatim_proto::mirror::ABOVE_MAX;
use verbatim_proto::{Fault, Twin};

/// What the kernel says where nothing can be locked. NFS also says one of it of what is open for
/// reading alone.
pub(crate) const NO_LOCKS: [Errno; 4] = [Errno::NOLCK, Errno::OPNOTSUPP, Errno::BADF, Errno::NOSYS];

/// A folder that is held, until this is dropped.
#[derive(Debug)]
pub struct Hold {
    fd: OwnedFd,
    /// Which folder it is.
    pub folder: Twin,
}

/// Why a folder is not held.
#[derive(Debug)]
pub enum NotHeld {
    /// Somebody has it: this process, where the kernel tells.
    By(Option<u32>),
    /// It cannot be.
    Fault(Fault),
}

impl Hold {
    /// Holds an open folder; `what` is for messages.
    pub fn take(fd: OwnedFd, what: &str) -> Result<Self, NotHeld> {
        let stat = stat_open(&fd).map_err(|e| NotHeld::Fault(Fault::from_io(what, &e)))?;
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { fd, folder: twin_of(&stat) }),
            Err(Errno::WOULDBLOCK) => Err(NotHeld::By(holder(&stat))),
            // Some network file systems lock no folders: two mirrors are then not told apart.
            Err(error) if NO_LOCKS.contains(&error) => Ok(Self { fd, folder: twin_of(&stat) }),
            Err(error) => Err(NotHeld::Fault(Fault::from_io(what, &error.into()))),
        }
    }
}

impl AsFd for Hold {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Says who a process is, for people and for clients: its number and the name of its program.
/// Nothing of its arguments, which may have secrets in them: the kernel keeps the name apart from
/// the arguments, and 15 bytes of it.
pub fn describe_process(id: u32) -> String {
    let name = fs::read(format!("/proc/{id}/comm")).unwrap_or_default();
    match name.trim_ascii() {
        [] => format!("process {id}"),
        name => format!("process {id} ({})", String::from_utf8_lossy(name)),
    }
}

/// The process that holds a folder, as the kernel lists its locks.
fn holder(stat: &Statx) -> Option<u32> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let (major, minor, inode) = (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino);
    let folder = format!("{major:02x}:{minor:02x}:{inode}");
    let of_folder = |line: &&str| {
        line.contains(" FLOCK ") && line.split_whitespace().any(|word| word == folder)
    };
    let line = locks.lines().find(of_folder)?;
    line.split_whitespace().nth(4)?.parse().ok().filter(|id| *id > 0)
}

/// The folder that is at a path, as `Hold` tells it.
pub fn which(fd: impl AsFd) -> std::io::Result<Twin> {
    Ok(twin_of(&stat_open(fd)?))
}

/// The folders that a folder is in, the nearest first.
pub fn above(fd: impl AsFd) -> Vec<Twin> {
    let fd = fd.as_fd();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let up = |fd: BorrowedFd<'_>| openat(fd, c"..", flags, Mode::empty()).ok();
    let mut found: Vec<Twin> = Vec::new();
    let (mut at, mut last) = (up(fd), which(fd).ok());
    while let Some(twin) = at.as_ref().and_then(|at| which(at).ok()) {
        // The root of a file system tree is in itself.
        if last.replace(twin) == Some(twin) || found.len() == ABOVE_MAX {
            break;
        }
        found.push(twin);
        at = at.as_ref().and_then(|at| up(at.as_fd()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Folder;
    use verbatim_proto::WirePath;

    #[test]
    fn a_folder_is_held_once_and_the_holder_is_known() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let open = || folder.open_folder(&WirePath::root()).expect("opens");
        let hold = Hold::take(open(), "cannot hold").expect("free");
        match Hold::take(open(), "cannot hold") {
            Err(NotHeld::By(Some(id))) => {
                assert_eq!(id, std::process::id());
                assert!(describe_process(id).starts_with(&format!("process {id} (")));
            }
            other => panic!("{other:?}"),
        }
        let outer = Folder::open(dir.path().parent().expect("a folder")).expect("opens");
        assert_eq!(above(open()).first(), which(&**outer.fd()).ok().as_ref());
        drop(hold);
        assert!(Hold::take(open(), "cannot hold").is_ok());
    }

    #[test]
    fn a_process_is_described_without_its_arguments() {
        use std::io::{Read, Write};
        use std::os::unix::process::CommandExt;
        use std::process::{Command, Stdio};
        // As programs do that show in their first argument what they are at.
        for shown in ["cat --token secret", "/usr/bin/cat --token secret/abc"] {
            let mut cat = Command::new("cat");
            let child = cat.arg0(shown).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
            let mut child = child.expect("starts");
            // One that answers has the name of its program.
            child.stdin.as_mut().expect("piped").write_all(b"x").expect("listens");
            child.stdout.as_mut().expect("piped").read_exact(&mut [0]).expect("answers");
            let described = describe_process(child.id());
            drop(child.stdin.take());
            child.wait().expect("ends");
            assert_eq!(described, format!("process {} (cat)", child.id()));
        }
    }
}
