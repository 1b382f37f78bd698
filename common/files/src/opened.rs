//! A folder that is open, and what is known of its file system: where files are
//! nowhere but in memory, nothing waits for a disk, and a file without a name is
//! cheap to make. Made by `folder`, used by `target` and `commit`.

use rustix::fs::fstatfs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What `fstatfs` says of file systems that are in memory: tmpfs and ramfs.
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58F6];

/// An open folder.
#[derive(Debug)]
pub struct OpenFolder {
    fd: OwnedFd,
    in_memory: bool,
}

impl OpenFolder {
    /// Looks at what file system an open folder is on.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        let stat = fstatfs(&fd);
        let in_memory = stat.is_ok_and(|stat| IN_MEMORY.contains(&(stat.f_type as u32)));
        Self { fd, in_memory }
    }

    /// Whether what is in it is in memory alone.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.in_memory
    }
}

impl AsFd for OpenFolder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
