//! A folder that is open, where it was found, and what is known of its file system:
//! where files are nowhere but in memory, nothing waits for a disk, and a file
//! without a name is cheap to make. A few are kept for the next file in them, and
//! looked for again each time, because a folder that is open goes where it is moved.
//! Made by `folder`, used by `target` and `commit`.

use crate::beneath::open_beneath;
use crate::identity::kind_of_file_system;
use rustix::fs::{OFlags, ResolveFlags, fstat};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use verbatim_proto::WirePath;

/// The kinds of file systems that are in memory: tmpfs and ramfs.
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58F6];

/// An open folder.
#[derive(Debug)]
pub struct OpenFolder {
    fd: OwnedFd,
    in_memory: bool,
    found: Option<Found>,
}

/// Where a folder was found.
#[derive(Debug)]
struct Found {
    root: Arc<OpenFolder>,
    path: WirePath,
    resolve: ResolveFlags,
    /// Its device and inode.
    is: (u64, u64),
}

impl OpenFolder {
    /// Looks at what file system an open folder is on.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        let kind = kind_of_file_system(&fd);
        let in_memory = kind.is_some_and(|kind| IN_MEMORY.contains(&kind));
        Self { fd, in_memory, found: None }
    }

    /// The same of a folder that was found at `path` below another.
    pub(crate) fn below(
        fd: OwnedFd,
        root: &Arc<Self>,
        path: WirePath,
        resolve: ResolveFlags,
    ) -> Self {
        // One that cannot be looked at is nowhere.
        let is = fstat(&fd).map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
        let found = Some(Found { root: root.clone(), path, resolve, is });
        Self { found, ..Self::new(fd) }
    }

    /// Whether it is still where it was found. One that was moved or removed is not.
    pub(crate) fn is_in_place(&self) -> bool {
        let Some(Found { root, path, resolve, is }) = &self.found else { return true };
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        open_beneath(root.as_fd(), path.as_bytes(), flags, *resolve)
            .and_then(fstat)
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == *is)
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

/// Folders kept open.
const PARENTS_MAX: usize = 32;

/// How long one is kept.
const PARENT_LIFE: Duration = Duration::from_millis(500);

/// Folders of files, kept open for the next files in them; the oldest come first.
#[derive(Debug)]
pub(crate) struct Parents<T>(Mutex<Vec<Parent<T>>>);

#[derive(Debug)]
struct Parent<T> {
    path: WirePath,
    fd: Arc<T>,
    opened: Instant,
}

impl<T> Default for Parents<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Parents<T> {
    /// The folder that has this path, unless it was opened too long ago.
    pub fn find(&self, path: &[u8]) -> Option<Arc<T>> {
        let kept = self.without_old();
        let found = kept.iter().rfind(|parent| parent.path.as_bytes() == path);
        found.map(|parent| parent.fd.clone())
    }

    /// Keeps a folder that was just opened.
    pub fn keep(&self, path: WirePath, fd: &Arc<T>) {
        let mut kept = self.lock();
        if kept.len() == PARENTS_MAX {
            kept.remove(0);
        }
        kept.push(Parent { path, fd: fd.clone(), opened: Instant::now() });
    }

    /// Lets go of a folder.
    pub fn forget(&self, fd: &Arc<T>) {
        self.lock().retain(|parent| !Arc::ptr_eq(&parent.fd, fd));
    }

    /// Lets go of those that were opened too long ago.
    pub fn forget_old(&self) {
        drop(self.without_old());
    }

    fn without_old(&self) -> MutexGuard<'_, Vec<Parent<T>>> {
        let (mut kept, now) = (self.lock(), Instant::now());
        let is_old = |parent: &&Parent<T>| now.duration_since(parent.opened) >= PARENT_LIFE;
        let old = kept.iter().take_while(is_old).count();
        kept.drain(..old);
        kept
    }

    /// Lets go of all.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Parent<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_was_kept_for_too_long_is_closed_though_nobody_looks_for_it() {
        let (kept, fd) = (Parents::default(), Arc::new(7));
        kept.keep(WirePath::parse(b"a").expect("a path"), &fd);
        kept.forget_old();
        assert_eq!(Arc::strong_count(&fd), 2, "it is kept for a while");
        std::thread::sleep(PARENT_LIFE);
        kept.forget_old();
        assert_eq!(Arc::strong_count(&fd), 1);
    }
}
