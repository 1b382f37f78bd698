//! A tree that is built beside its target and takes its place at once. It begins
//! as all that the target has (`sharing`), is changed as any target is, and is
//! exchanged with it by one rename: whoever looks sees the old tree or the new
//! one. What was the target is removed then.
//!
//! No list says how far an earlier run was. The name of the tree is made of what
//! is copied, of the inode of its target and of what that looked like (`stamp`),
//! so a tree of the right name is one to go on with, and any other beside the
//! target, also what was the target before an exchange, is nobody's and is removed.
//! While it is filled it has another name still. Held like any target, and so is
//! the target. Nobody else's work is lost: a target that changed meanwhile is not
//! exchanged, nor is one that something is mounted on or in. Both sides make theirs.

mod labels;
mod revert;
use crate::charge::Cost;
use crate::folder::{Folder, stat_name};
use crate::hold::{Hold, NotHeld};
use crate::identity::{stat_open, twin_of};
use crate::mounts;
use crate::opened::OpenFolder;
use crate::prune::{flush_folders, remove_tree};
use crate::sharing::{Filled, Kept, May, fill};
use crate::stamp::Stamp;
use crate::tree::FOLDER;
use labels::{Labels, State};
use rustix::fs::{AtFlags, Mode, RenameFlags, Statx, StatxAttributes, StatxFlags};
use rustix::fs::{fsync, mkdirat, openat, renameat, renameat_with, statx, syncfs, unlinkat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use verbatim_proto::{Code, Digest, Fault, Twin, WirePath};

/// A tree beside its target.
#[derive(Debug)]
pub struct Stage {
    parent: Arc<OpenFolder>,
    /// The name of the target.
    name: Vec<u8>,
    /// Where the tree is, below the folder it was made in.
    path: WirePath,
    /// The target, if there is one.
    old: Option<Old>,
    /// What takes its place.
    new: Hold,
    resumed: bool,
    /// Whether there may be reflinks in it, which flushing folders does not flush.
    reflinks: bool,
}

/// What is to be replaced.
#[derive(Debug)]
struct Old {
    hold: Hold,
    folder: Folder,
    /// What it looked like when the tree was filled.
    stamp: Stamp,
}

impl Stage {
    /// Makes the tree, or finds the one that a run with the same `key` left, and holds both it and
    /// the target at `path` below `folder`, which may be `held` already. Copies are asked for, and
    /// so is `room` in memory.
    pub fn prepare(
        folder: &Folder,
        path: &WirePath,
        key: &Digest,
        held: Option<Hold>,
        may: May<'_>,
        room: Kept<'_>,
    ) -> Result<Self, NotHeld> {
        let what = format!("cannot build a tree beside {path}");
        let fault = |e: Errno| NotHeld::Fault(Fault::from_io(&what, &e.into()));
        let refused = |code, why: &str| NotHeld::Fault(Fault::new(code, format!("{what}: {why}")));
        let name = path.name();
        let name = name.ok_or_else(|| refused(Code::BadPath, "it has no name to exchange"))?;
        let parent = folder.open_parent(path).map_err(NotHeld::Fault)?;
        let old = match open_tree(&parent, name) {
            Ok(fd) => Some(fd),
            Err(Errno::NOENT) => None,
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(refused(Code::NotFolder, "something that is no folder is there"));
            }
            Err(error) => return Err(fault(error)),
        };
        let stat = old.as_ref().map(|old| look(old, path)).transpose().map_err(NotHeld::Fault)?;
        let is_held = |held: &Hold| stat.is_some_and(|stat| twin_of(&stat) == held.folder);
        let old = match (old, held.filter(is_held)) {
            (Some(_), Some(held)) => Some(held),
            (old, _) => old.map(|fd| hold(&parent, name, fd, &what)).transpose()?,
        };
        let target = old.as_ref().map(|_| folder.below(path)).transpose();
        let target = target.map_err(NotHeld::Fault)?;
        let labels = Labels { name, key, target: stat };
        let found = take_up(&parent, &labels, target.as_ref()).map_err(NotHeld::Fault)?;
        let resumed = found.is_some();
        let ready = match (found, &target) {
            (Some(ready), _) => ready,
            (None, Some(target)) => {
                let to = |name: &[u8]| folder.below(&path.parent().with(name)?);
                let fill = |name: &[u8]| fill(target, &to(name)?, may, room);
                build((folder, &parent), &labels, fill, &what)?
            }
            (None, None) => {
                let stamp = Stamp::default();
                let charged = folder.charge(Cost::INODE).map_err(NotHeld::Fault)?;
                make(&parent, &labels.of(State::Filled(stamp))).map_err(fault)?;
                charged.keep();
                Ready { aside: labels.of(State::Filled(stamp)), stamp, reflinks: false }
            }
        };
        let Ready { aside, stamp, reflinks } = ready;
        let path = path.parent().with(&aside).map_err(NotHeld::Fault)?;
        let new = hold(&parent, &aside, open_tree(&parent, &aside).map_err(fault)?, &what)?;
        let old = old.zip(target).map(|(hold, folder)| Old { hold, folder, stamp });
        Ok(Self { parent, name: name.to_vec(), path, old, new, resumed, reflinks })
    }

    /// Where the tree is, below the folder it was made in.
    pub fn path(&self) -> &WirePath {
        &self.path
    }

    /// Whether an earlier run left it.
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// The target as it is, if there is one.
    pub fn target(&self) -> Option<&Hold> {
        self.old.as_ref().map(|old| &old.hold)
    }

    /// The target as it is, opened to be walked.
    pub fn open_target(&self) -> Option<OwnedFd> {
        self.target().and_then(|old| openat(old, c".", FOLDER, Mode::empty()).ok())
    }

    /// The tree, which is the target when it was published.
    pub fn tree(&self) -> &Hold {
        &self.new
    }

    /// What is the target now, still held.
    pub fn into_target(self) -> Option<Hold> {
        let is = twin_at(&self.parent, &self.name);
        let both = [Some(self.new), self.old.map(|old| old.hold)];
        both.into_iter().flatten().find(|hold| Some(hold.folder) == is)
    }

    /// Puts the tree in the place of the target, at once, and removes what was there.
    pub fn publish(&self) -> Result<(), Fault> {
        let what = format!("cannot put a new tree in place of {}", self.shown());
        let aside = self.path.name().unwrap_or_default();
        if !self.parent.is_in_memory() {
            flush_folders(&*self.parent, aside)?;
            if self.reflinks {
                syncfs(&self.new).map_err(|e| Fault::from_io(&what, &e.into()))?;
            }
        }
        let changed = || {
            let text = format!("{what}: somebody else changed it meanwhile; run it again");
            Fault::new(Code::Changed, text)
        };
        let is_old = |name: &[u8]| twin_at(&self.parent, name) == self.target().map(|o| o.folder);
        if !is_old(&self.name) || !self.parent.is_in_place() {
            return Err(changed());
        }
        match &self.old {
            None => rename(&self.parent, aside, &self.name).map_err(|e| explain(e, &what))?,
            Some(old) => {
                nothing_mounted(&old.hold, &what)?;
                if Stamp::of(&old.folder)? != old.stamp {
                    return Err(changed());
                }
                exchange(&self.parent, aside, &self.name).map_err(|e| explain(e, &what))?;
                if !is_old(aside) {
                    // Somebody replaced it just now: it is theirs, and goes back.
                    exchange(&self.parent, aside, &self.name).map_err(|e| explain(e, &what))?;
                    return Err(changed());
                }
            }
        }
        fsync(&*self.parent).map_err(|e| Fault::from_io(&what, &e.into()))?;
        match self.old {
            Some(_) => self.discard().map_err(|fault| {
                let text = format!("the new {} is in place, but: {}", self.shown(), fault.text);
                Fault::new(fault.code, text)
            }),
            None => Ok(()),
        }
    }

    /// Puts the tree in place if it differs from the target, else removes it.
    pub fn finish(&self, changed: bool) -> Result<(), Fault> {
        if changed || self.resumed || self.old.is_none() { self.publish() } else { self.discard() }
    }

    /// Removes what has the name of the tree: the tree itself, or the target that it replaced. What
    /// stays is removed by the next run.
    pub fn discard(&self) -> Result<(), Fault> {
        remove_tree(&*self.parent, self.path.name().unwrap_or_default())
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.name).into_owned()
    }
}

/// A tree that is complete, as far as its target is concerned.
struct Ready {
    aside: Vec<u8>,
    stamp: Stamp,
    reflinks: bool,
}

/// Finds the tree to go on with, if one was left that fits the target as it is, and removes all
/// others that nobody is at. One that cannot be removed is told by the run that leaves it.
fn take_up(
    parent: &OpenFolder,
    labels: &Labels<'_>,
    target: Option<&Folder>,
) -> Result<Option<Ready>, Fault> {
    let left = labels.left(parent)?;
    if left.is_empty() {
        return Ok(None);
    }
    let stamp = target.map_or(Ok(Stamp::default()), Stamp::of)?;
    let aside = labels.of(State::Filled(stamp));
    for found in left.iter().filter(|found| **found != aside) {
        let Ok(tree) = open_tree(parent, found) else { continue };
        if let Ok(_held) = Hold::take(tree, "cannot remove what an earlier run left") {
            let _ = remove_tree(parent, found);
        }
    }
    Ok(left.contains(&aside).then_some(Ready { aside, stamp, reflinks: true }))
}

/// Makes a tree that has all that the target has.
fn build(
    (folder, parent): (&Folder, &OpenFolder),
    labels: &Labels<'_>,
    mut fill: impl FnMut(&[u8]) -> Result<Filled, Fault>,
    what: &str,
) -> Result<Ready, NotHeld> {
    let fault = |e: Errno| NotHeld::Fault(Fault::from_io(what, &e.into()));
    let filling = labels.of(State::Filling);
    let charged = folder.charge(Cost::INODE).map_err(NotHeld::Fault)?;
    make(parent, &filling).map_err(fault)?;
    charged.keep();
    can_exchange(parent, &filling, &labels.of(State::Trying))
        .map_err(|e| NotHeld::Fault(explain(e, what)))?;
    let _held = hold(parent, &filling, open_tree(parent, &filling).map_err(fault)?, what)?;
    let filled = fill(&filling).map_err(NotHeld::Fault)?;
    let aside = labels.of(State::Filled(filled.stamp));
    rename(parent, &filling, &aside).map_err(fault)?;
    Ok(Ready { aside, stamp: filled.stamp, reflinks: filled.reflinks })
}

fn open_tree(parent: &OpenFolder, name: &[u8]) -> Result<OwnedFd, Errno> {
    openat(parent, OsStr::from_bytes(name), FOLDER, Mode::empty())
}

fn make(parent: &OpenFolder, name: &[u8]) -> Result<(), Errno> {
    mkdirat(parent, OsStr::from_bytes(name), Mode::RWXU)
}

fn rename(parent: &OpenFolder, from: &[u8], to: &[u8]) -> Result<(), Errno> {
    renameat(parent, OsStr::from_bytes(from), parent, OsStr::from_bytes(to))
}

fn twin_at(parent: &OpenFolder, name: &[u8]) -> Option<Twin> {
    stat_name(parent, OsStr::from_bytes(name)).ok().map(|stat| twin_of(&stat))
}

/// Holds a folder, which must still have its name then: another run may have exchanged it.
fn hold(parent: &OpenFolder, name: &[u8], fd: OwnedFd, what: &str) -> Result<Hold, NotHeld> {
    let hold = Hold::take(fd, what)?;
    if twin_at(parent, name) == Some(hold.folder) {
        return Ok(hold);
    }
    let text = format!("{what}: another run finished just now; run it again");
    Err(NotHeld::Fault(Fault::new(Code::Limit, text)))
}

/// Looks at a target; one that something is mounted on cannot be renamed.
fn look(fd: &OwnedFd, path: &WirePath) -> Result<Statx, Fault> {
    let what = format!("cannot look at {path}");
    let stat = stat_open(fd).map_err(|e| Fault::from_io(&what, &e))?;
    let more = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME);
    let attributes = more.map_or(StatxAttributes::empty(), |stat| stat.stx_attributes);
    let what = format!("cannot exchange {path}");
    if attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return Err(explain(Errno::BUSY, &what));
    }
    nothing_mounted(fd, &what)?;
    Ok(stat)
}

/// A file system that is mounted in a folder would move with it, and be emptied with it.
fn nothing_mounted(folder: impl AsFd, what: &str) -> Result<(), Fault> {
    let found = mounts::below(folder).map_err(|e| {
        Fault::from_io(format!("{what}: cannot read /proc, which says what is mounted"), &e)
    })?;
    match found {
        None => Ok(()),
        Some(point) => {
            let text = format!(
                "{what}: a file system is mounted in it, on {}; unmount it, or run it without \
                 --atomic",
                point.display()
            );
            Err(Fault::new(Code::Io, text))
        }
    }
}

/// Finds out whether two folders can be exchanged here, by doing it to two empty ones.
fn can_exchange(parent: &OpenFolder, name: &[u8], other: &[u8]) -> Result<(), Errno> {
    make(parent, other)?;
    let tried = exchange(parent, name, other);
    let [name, other] = [name, other].map(OsStr::from_bytes);
    unlinkat(parent, other, AtFlags::REMOVEDIR)?;
    if tried.is_err() {
        // What it was tried for is not wanted any more.
        let _ = unlinkat(parent, name, AtFlags::REMOVEDIR);
    }
    tried
}

fn exchange(parent: &OpenFolder, name: &[u8], other: &[u8]) -> Result<(), Errno> {
    let [name, other] = [name, other].map(OsStr::from_bytes);
    renameat_with(parent, name, parent, other, RenameFlags::EXCHANGE)
}

/// Says why two folders cannot be exchanged, and what to do.
fn explain(error: Errno, what: &str) -> Fault {
    let why = match error {
        Errno::BUSY => "it is a mount point, which no rename moves; name a folder in it",
        Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP => {
            "its file system cannot exchange two folders; run it without --atomic"
        }
        Errno::XDEV => {
            "it is in a lower layer, or another file system; run it without --atomic, or name a \
             folder that was made here"
        }
        other => return Fault::from_io(what, &other.into()),
    };
    Fault::new(Code::Io, format!("{what}: {why}"))
}

#[cfg(test)]
mod tests;
