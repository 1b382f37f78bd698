//! Which folders of a tree have a watch. A folder is watched before it is read, so
//! what is made in it meanwhile is seen by one or the other. One that is not ours
//! to read is watched when it is. The events of the kernel are older than what is
//! found at a name: so after each, whatever it says, the folder that has the name
//! now is watched, and the one that had it is forgotten. A folder that is found
//! under the wrong name, because one above it was renamed again, is found again
//! with that: its event is still to come, and all below is looked at then.
//! Never tells what changed. Called by `watcher`.

use super::coalesce::Sign;
use super::kernel::{share_exhausted, watches_exhausted, watches_max};
use super::watcher::{Notice, Watcher};
use crate::reap::is_leftover;
use crate::walk::Walk;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Code, Fault, WirePath};

impl Watcher {
    /// Watches what could not be read before, here and below, if that is ours to read now.
    pub(super) fn read_again(&mut self, path: &WirePath, now: Duration) -> Result<(), Fault> {
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
    pub(super) fn plant(
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

/// Opens a folder below another, name by name, and follows no link.
pub(super) fn descend(root: &OwnedFd, path: &WirePath) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = openat(root, c".", flags, Mode::empty())?;
    for name in path.names() {
        at = openat(&at, OsStr::from_bytes(name), flags, Mode::empty())?;
    }
    Ok(at)
}
