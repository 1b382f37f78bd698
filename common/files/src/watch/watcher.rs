//! A tree that is watched: every folder of it has a watch, and what the kernel
//! tells becomes signs for the coalescer. When the kernel lost count, all is
//! watched anew. Owns the watches; never follows a link. Which folders have a
//! watch is decided in `folders`. Driven by the thread in `mod.rs`.

use super::Room;
use super::coalesce::{Coalescer, Sign, Timing};
use super::compare::Comparison;
use super::folders::descend;
use super::kernel::{Happened, Kernel, watches_exhausted, watches_max};
use super::tree::Tree;
use crate::folder::{Folder, stat_name};
use crate::reap::is_leftover;
use crate::walk::identity_of;
use rustix::fs::FileType;
use rustix::fs::inotify::ReadFlags;
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use verbatim_proto::{Code, Excludes, Fault, WirePath};

/// Folders that one watch may have: about 64 MiB here, and more in the kernel.
const FOLDERS_MAX: usize = 256 << 10;

/// What to watch.
pub(super) struct Watched {
    /// What the folder is in.
    pub folder: Folder,
    /// Where it is.
    pub base: WirePath,
    /// What is left out.
    pub excludes: Excludes,
    /// Whether there is room for so many folders.
    pub room: Room,
}

/// A watched tree.
pub(super) struct Watcher {
    pub(super) watched: Watched,
    pub(super) root: OwnedFd,
    identity: (u32, u32, u64),
    pub kernel: Kernel,
    pub(super) tree: Tree,
    pub pending: Coalescer,
    pub(super) compared: Comparison,
    /// Folders that could not be read when they were met. When that changes, their attributes
    /// do, or those of a folder that they are in.
    pub(super) unread: HashSet<WirePath>,
    /// The folder that was last looked into, by number: a burst is often in one folder.
    pub(super) recent: Option<(i32, OwnedFd)>,
    pub(super) folders_max: usize,
    pub(super) going: Going,
}

/// Says whether to go on.
pub(super) type Going = Box<dyn Fn() -> bool + Send>;

/// What is done with what is found in a folder that is watched from now on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// Nothing: everything is looked at anyway.
    None,
    /// Each entry is a sign.
    Each,
}

impl Watcher {
    /// Watches a tree. `going` is asked now and then; when it says no, all of it is given up.
    pub fn begin(watched: Watched, timing: Timing, going: Going) -> Result<Self, Fault> {
        let root = watched.folder.open_folder(&watched.base)?;
        let identity = identity_of(root.as_fd(), &watched.base)?;
        let kernel = Kernel::new()?;
        let number = watch_root(&kernel, &root, &watched.base)?;
        let mut watcher = Self {
            watched,
            root,
            identity,
            kernel,
            tree: Tree::new(number),
            pending: Coalescer::new(timing),
            compared: Comparison::new(&timing),
            unread: HashSet::new(),
            recent: None,
            folders_max: FOLDERS_MAX,
            going,
        };
        watcher.compared.came(number);
        watcher.plant_root(number)?;
        // All of it is looked at first, so nothing of this need be told.
        watcher.pending = Coalescer::new(timing);
        Ok(watcher)
    }

    /// Watches everything anew, after the kernel lost count.
    pub fn begin_again(&mut self) -> Result<(), Fault> {
        // What is watched is ended first: it counts against the same limit.
        self.recent = None;
        self.unread.clear();
        self.kernel = Kernel::new()?;
        let number = watch_root(&self.kernel, &self.root, &self.watched.base)?;
        self.tree = Tree::new(number);
        self.compared.begin_again();
        self.compared.came(number);
        self.pending.rescan();
        self.plant_root(number)
    }

    fn plant_root(&mut self, number: i32) -> Result<(), Fault> {
        // Opened anew: a descriptor that is only shared has been read to its end already.
        let root = descend(&self.root, &WirePath::root()).map_err(|error| {
            Fault::from_io(format!("cannot read folder {}", self.watched.base), &error.into())
        })?;
        self.plant(number, &WirePath::root(), root, Notice::None, Duration::ZERO)
    }

    /// Says if the folder is not where it was: it, or one it is in, was renamed or removed.
    pub fn check_place(&self) -> Result<(), Fault> {
        let there = match self.watched.folder.open_folder(&self.watched.base) {
            Err(fault) if fault.code == Code::NotFound => {
                return Err(self.vanished("it was removed, or renamed"));
            }
            there => there?,
        };
        if identity_of(there.as_fd(), &self.watched.base)? == self.identity {
            return Ok(());
        }
        Err(self.vanished("another folder is in its place"))
    }

    fn vanished(&self, how: &str) -> Fault {
        let text = format!("folder {} is gone: {how}", self.watched.base);
        Fault::new(Code::NotFound, text)
    }

    /// Takes what happened. Returns whether the kernel lost count.
    pub fn take(&mut self, happened: Vec<Happened>, now: Duration) -> Result<bool, Fault> {
        let mut lost = false;
        for happened in happened {
            if happened.what.contains(ReadFlags::QUEUE_OVERFLOW) {
                lost = true;
            } else if let Some(name) = &happened.name {
                self.happened_in(happened.folder, name, happened.what, now)?;
            } else {
                self.happened_to(happened.folder, happened.what, now)?;
            }
        }
        Ok(lost)
    }

    /// Something happened to a folder itself. Its parent tells the rest, but for the root.
    fn happened_to(&mut self, folder: i32, what: ReadFlags, now: Duration) -> Result<(), Fault> {
        let gone = ReadFlags::DELETE_SELF | ReadFlags::UNMOUNT | ReadFlags::IGNORED;
        if self.tree.is_root(folder) {
            if what.intersects(gone | ReadFlags::MOVE_SELF) {
                return Err(self.vanished("it was removed, or renamed"));
            }
            // A folder that is held open is told to be changed when it is removed.
            self.check_place()?;
            self.pending.note(WirePath::root(), Sign::Touched, now);
            self.read_again(&WirePath::root(), now)?;
        } else if what.intersects(gone) {
            self.forget(folder);
        }
        Ok(())
    }

    /// Something happened to a name in a folder.
    fn happened_in(
        &mut self,
        folder: i32,
        name: &[u8],
        what: ReadFlags,
        now: Duration,
    ) -> Result<(), Fault> {
        // A folder that is not watched any more, or a name too long for the wire: a scan tells.
        let Some(parent) = self.tree.path(folder) else { return Ok(()) };
        let Ok(path) = parent.with(name) else { return Ok(()) };
        let is_folder = what.contains(ReadFlags::ISDIR);
        if is_leftover(name) || self.watched.excludes.excludes(&path, is_folder)? {
            return Ok(());
        }
        let came = ReadFlags::CREATE | ReadFlags::MOVED_TO;
        let went = ReadFlags::DELETE | ReadFlags::MOVED_FROM;
        if what.intersects(came | went) {
            self.pending.note(parent, Sign::Touched, now);
            self.compared.stir(folder);
        }
        let sign = if what.contains(ReadFlags::MODIFY) {
            Sign::Written
        } else if what.contains(ReadFlags::ATTRIB) {
            Sign::Touched
        } else if what.contains(ReadFlags::CREATE) && !is_folder {
            self.sign_of_new(folder, name)
        } else if is_folder && what.intersects(went | ReadFlags::MOVED_TO) {
            // What is in it came or went with it; another may be in its place by now.
            Sign::Below
        } else {
            Sign::Complete
        };
        self.pending.note(path.clone(), sign, now);
        if is_folder && what.intersects(came | went) {
            // Behind a folder that left, too: two folders that are exchanged both come first, and
            // the second then leaves the name that the first one has.
            let notice = if sign == Sign::Below { Notice::None } else { Notice::Each };
            self.look_again(folder, name, &path, notice, now)?;
        }
        if is_folder && what.contains(ReadFlags::ATTRIB) {
            self.read_again(&path, now)?;
        }
        Ok(())
    }

    /// A file that was just made is being written, unless it is another name of one, or no file.
    fn sign_of_new(&mut self, folder: i32, name: &[u8]) -> Sign {
        let stat =
            self.open(folder).and_then(|parent| stat_name(parent, OsStr::from_bytes(name)).ok());
        match stat {
            Some(stat) if stat.stx_nlink == 1 && is_file(stat.stx_mode) => Sign::Written,
            _ => Sign::Complete,
        }
    }

    /// Opens a watched folder, if it is still where it was.
    pub(super) fn open(&mut self, folder: i32) -> Option<&OwnedFd> {
        if self.recent.as_ref().is_none_or(|(number, _)| *number != folder) {
            let fd = descend(&self.root, &self.tree.path(folder)?).ok()?;
            if !self.is_watch_of(folder, fd.as_fd()) {
                return None;
            }
            self.recent = Some((folder, fd));
        }
        self.recent.as_ref().map(|(_, fd)| fd)
    }
}

fn watch_root(kernel: &Kernel, root: &OwnedFd, base: &WirePath) -> Result<i32, Fault> {
    kernel.watch(root.as_fd()).map_err(|error| match error {
        Errno::NOSPC | Errno::NOMEM => watches_exhausted(base, watches_max()),
        other => Fault::from_io(format!("cannot watch folder {base}"), &other.into()),
    })
}

fn is_file(mode: u16) -> bool {
    FileType::from_raw_mode(mode.into()) == FileType::RegularFile
}
