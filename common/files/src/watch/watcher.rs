//! A tree that is watched: every folder of it has a watch, and what the kernel
//! tells becomes signs for the coalescer. When the kernel lost count, all is
//! watched anew. Owns the watches; never follows a link. Driven by the thread in
//! `mod.rs`; `compare` looks for what no event told.
//!
//! A folder is watched before it is read, so what is made in it meanwhile is seen by
//! one or the other. One that is not ours to read is watched when it is. The events of
//! the kernel are older than what is found at a name: so after each, whatever it says,
//! the folder that has the name now is watched, and the one that had it is forgotten. A
//! folder that is found under the wrong name, because one above it was renamed again,
//! is found again with that: its event is still to come, and all below is looked at then.

use super::Room;
use super::coalesce::{Coalescer, Sign, Timing};
use super::comparison::Comparison;
use super::kernel::{Happened, Kernel, share_exhausted, watches_exhausted, watches_max};
use super::tree::Tree;
use crate::folder::{Folder, stat_name};
use crate::reap::is_leftover;
use crate::walk::{Walk, identity_of};
use rustix::fs::inotify::ReadFlags;
use rustix::fs::{FileType, Mode, OFlags, openat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use verbatim_proto::message::{Entry, EntryKind};
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

    /// Watches what could not be read before, here and below, if that is ours to read now.
    fn read_again(&mut self, path: &WirePath, now: Duration) -> Result<(), Fault> {
        let here = |unread: &WirePath| unread == path || unread.is_below(path);
        let again: Vec<WirePath> = self.unread.extract_if(here).collect();
        for path in again {
            // One whose folder went is found where that is now.
            let parent = self.tree.find(&path.parent());
            let (Some(parent), Some(name)) = (parent, path.name()) else { continue };
            if descend(&self.root, &path).is_ok() {
                self.pending.note(path.clone(), Sign::Below, now);
                self.look_again(parent, name, &path, Notice::None, now)?;
            } else {
                self.unread.insert(path);
            }
        }
        Ok(())
    }

    /// Notes a folder that cannot be read. All of it is looked at: whoever does so tells why not,
    /// or finds what is in it if that was a moment ago.
    fn leave_unread(&mut self, path: WirePath, now: Duration) -> Result<(), Fault> {
        self.pending.note(path.clone(), Sign::Below, now);
        self.unread.insert(path.clone());
        self.check_room(&path)
    }

    /// Looks at a name again: watches the folder that has it now, and all in it, and forgets the
    /// one that had it.
    pub(super) fn look_again(
        &mut self,
        parent: i32,
        name: &[u8],
        path: &WirePath,
        notice: Notice,
        now: Duration,
    ) -> Result<(), Fault> {
        self.unread.retain(|unread| unread != path && !unread.is_below(path));
        let fd = match descend(&self.root, path) {
            Ok(fd) => fd,
            Err(error) => {
                if let Some(gone) = self.tree.child(parent, name) {
                    self.forget(gone);
                }
                return match error {
                    // What is gone again is told by whoever looks at it.
                    Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Ok(()),
                    _ => self.leave_unread(path.clone(), now),
                };
            }
        };
        let Some(number) = self.watch(parent, name, fd.as_fd(), path, now)? else { return Ok(()) };
        self.plant(number, path, fd, notice, now)
    }

    /// Watches all below a folder that is watched.
    fn plant(
        &mut self,
        number: i32,
        base: &WirePath,
        folder: OwnedFd,
        notice: Notice,
        now: Duration,
    ) -> Result<(), Fault> {
        let mut walk = Walk::new(folder, true)?.crossing(self.watched.folder.crosses());
        let mut parents = vec![number];
        while let Some(found) = walk.next() {
            let Entry { path: below, kind, .. } = match found {
                Ok(entry) => entry,
                // What is gone again, or has a name that cannot be told: a scan tells.
                Err((_, fault)) if fault.code != Code::Denied => continue,
                Err((below, _)) => {
                    let (path, name) = (base.join(&below), below.name().unwrap_or_default());
                    let left_out = self.watched.excludes.excludes(&path, true)?;
                    if !left_out && !is_leftover(name) && self.tree.find(&path).is_none() {
                        self.leave_unread(path, now)?;
                    }
                    continue;
                }
            };
            let (path, is_folder) = (base.join(&below), kind == EntryKind::Folder);
            let name = below.name().unwrap_or_default();
            if is_leftover(name) || self.watched.excludes.excludes(&path, is_folder)? {
                walk.leave();
                continue;
            }
            if is_folder {
                parents.truncate(below.names().count());
                let parent = parents.last().copied().unwrap_or(number);
                let watched = match walk.entered() {
                    Some(fd) => self.watch(parent, name, fd, &path, now)?,
                    None => None,
                };
                match watched {
                    Some(number) => parents.push(number),
                    None => walk.leave(),
                }
            }
            if notice == Notice::Each {
                let sign = if kind == EntryKind::File { Sign::Found } else { Sign::Complete };
                self.pending.note(path, sign, now);
            }
        }
        Ok(())
    }

    /// Watches one open folder. None for one that went meanwhile, or is not ours to read, or is in
    /// a folder that is forgotten.
    fn watch(
        &mut self,
        parent: i32,
        name: &[u8],
        folder: BorrowedFd<'_>,
        path: &WirePath,
        now: Duration,
    ) -> Result<Option<i32>, Fault> {
        if !(self.going)() {
            return Err(Fault::new(Code::Interrupted, "watching was ended"));
        }
        while self.tree.has(parent) {
            let number = match self.kernel.watch(folder) {
                Ok(number) => number,
                Err(Errno::NOSPC | Errno::NOMEM) => {
                    return Err(watches_exhausted(path, watches_max()));
                }
                Err(Errno::NOENT) => return Ok(None),
                Err(_) => return self.leave_unread(path.clone(), now).map(|()| None),
            };
            if self.tree.has(number) && !self.tree.is_at(parent, name, number) {
                // It was renamed: what is excluded in it depends on its name. Its watch has no
                // number then, and is made anew.
                self.forget(number);
                continue;
            }
            let gone = self.tree.insert(parent, name, number);
            self.release(gone);
            self.compared.came(number);
            // Behind the one that had its name: that takes no room any more.
            return self.check_room(path).map(|()| Some(number));
        }
        Ok(None)
    }

    /// Whether a watch is that of an open folder.
    pub(super) fn is_watch_of(&self, number: i32, folder: BorrowedFd<'_>) -> bool {
        self.number_of(folder) == Some(number)
    }

    /// The number of the watch that an open folder has.
    pub(super) fn number_of(&self, folder: BorrowedFd<'_>) -> Option<i32> {
        // The kernel tells the number of a watch to whoever asks for it again.
        let found = self.kernel.watch(folder).ok()?;
        if self.tree.has(found) {
            return Some(found);
        }
        self.kernel.unwatch(found);
        None
    }

    /// Says if there are too many folders.
    fn check_room(&mut self, path: &WirePath) -> Result<(), Fault> {
        if !(self.watched.room)(self.tree.len()) {
            return Err(share_exhausted(path, self.tree.len() - 1, watches_max()));
        }
        if self.tree.len() + self.unread.len() <= self.folders_max {
            return Ok(());
        }
        let text = format!(
            "cannot watch {path}: more than {} folders; exclude some, or watch less",
            self.folders_max
        );
        Err(Fault::new(Code::Limit, text))
    }

    /// Watches a folder, and all below it, no longer.
    pub(super) fn forget(&mut self, folder: i32) {
        let gone = self.tree.remove(folder);
        self.release(gone);
    }

    /// Ends watches that the tree does not have any more.
    fn release(&mut self, gone: Vec<i32>) {
        for gone in gone {
            self.kernel.unwatch(gone);
            self.compared.went(gone);
            if self.recent.as_ref().is_some_and(|(number, _)| *number == gone) {
                self.recent = None;
            }
        }
        // For fewer there is room.
        (self.watched.room)(self.tree.len());
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

/// Opens a folder below another, name by name, and follows no link.
pub(super) fn descend(root: &OwnedFd, path: &WirePath) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = openat(root, c".", flags, Mode::empty())?;
    for name in path.names() {
        at = openat(&at, OsStr::from_bytes(name), flags, Mode::empty())?;
    }
    Ok(at)
}
