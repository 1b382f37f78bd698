//! A tree that is built beside its target and takes its place at once. It begins
//! as all that the target has (`sharing`), is changed as any target is, and is
//! exchanged with it by one rename: whoever looks sees the old tree or the new
//! one. What was the target is removed then.
//!
//! No list says how far an earlier run was. The name of the tree is made of what
//! is copied and of the inode of its target, so a tree of the right name is one
//! to go on with, and any other beside the target, also what was the target
//! before an exchange, is nobody's and is removed. While it is filled it has
//! another name still. Held like any target, and so is the target. Made by both
//! sides for their own target.

use crate::folder::{Folder, stat_name};
use crate::hold::{Hold, NotHeld};
use crate::identity::{nanoseconds, stat_open};
use crate::names::Names;
use crate::naming::{TEMPORARY_SUFFIX, hidden_name, temporary_name};
use crate::opened::OpenFolder;
use crate::prune::{flush_folders, remove_tree};
use crate::reap::is_leftover;
use crate::sharing::fill;
use crate::tree::{FOLDER, twin_of};
use rustix::fs::{AtFlags, Mode, RenameFlags, Statx, StatxAttributes, StatxFlags};
use rustix::fs::{fsync, mkdirat, openat, renameat, renameat_with, statx, unlinkat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
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
    /// The target, if there is one, and what takes its place.
    old: Option<Hold>,
    new: Hold,
    resumed: bool,
}

impl Stage {
    /// Makes the tree, or finds the one that a run with the same `key` left, and holds both it and
    /// the target at `path` below `folder`, which may be `held` already.
    pub fn prepare(
        folder: &Folder,
        path: &WirePath,
        key: &Digest,
        held: Option<Hold>,
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
        let [aside, filling] =
            [0, 1].map(|state| hidden_name(name, &unique(key, state, &stat), TEMPORARY_SUFFIX));
        clear(&parent, name, &aside).map_err(NotHeld::Fault)?;
        let path = path.parent().with(&aside).map_err(NotHeld::Fault)?;
        let resumed = match (open_tree(&parent, &aside), &old) {
            (Ok(_), _) => true,
            (Err(Errno::NOENT), None) => {
                make(&parent, &aside).map_err(fault)?;
                false
            }
            (Err(Errno::NOENT), Some(_)) => {
                make(&parent, &filling).map_err(fault)?;
                can_exchange(&parent, &filling).map_err(|e| NotHeld::Fault(explain(e, &what)))?;
                let at = |name: &[u8]| folder.below(&path.parent().with(name)?);
                let filled = at(name).and_then(|old| fill(&old, &at(&filling)?));
                filled.map_err(NotHeld::Fault)?;
                rename(&parent, &filling, &aside).map_err(fault)?;
                false
            }
            (Err(error), _) => return Err(fault(error)),
        };
        let new = hold(&parent, &aside, open_tree(&parent, &aside).map_err(fault)?, &what)?;
        Ok(Self { parent, name: name.to_vec(), path, old, new, resumed })
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
        self.old.as_ref()
    }

    /// The target as it is, opened to be walked.
    pub fn open_target(&self) -> Option<OwnedFd> {
        self.old.as_ref().and_then(|old| openat(old, c".", FOLDER, Mode::empty()).ok())
    }

    /// The tree, which is the target when it was published.
    pub fn tree(&self) -> &Hold {
        &self.new
    }

    /// What is the target now, still held.
    pub fn into_target(self) -> Option<Hold> {
        let is = twin_at(&self.parent, &self.name);
        [Some(self.new), self.old].into_iter().flatten().find(|hold| Some(hold.folder) == is)
    }

    /// Puts the tree in the place of the target, at once, and removes what was there.
    pub fn publish(&self) -> Result<(), Fault> {
        let what = format!("cannot put a new tree in place of {}", self.shown());
        let aside = self.path.name().unwrap_or_default();
        if !self.parent.is_in_memory() {
            flush_folders(&*self.parent, aside)?;
        }
        let is_there = twin_at(&self.parent, &self.name);
        if is_there != self.old.as_ref().map(|old| old.folder) {
            let text = format!("{what}: somebody else put something there; run it again");
            return Err(Fault::new(Code::Changed, text));
        }
        let exchanged = match self.old {
            Some(_) => {
                let [from, to] = [aside, &self.name].map(OsStr::from_bytes);
                let flags = RenameFlags::EXCHANGE;
                renameat_with(&*self.parent, from, &*self.parent, to, flags)
            }
            None => rename(&self.parent, aside, &self.name),
        };
        exchanged.map_err(|e| explain(e, &what))?;
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

/// Removes trees beside a target that nobody is at, but for one.
fn clear(parent: &OpenFolder, name: &[u8], keep: &[u8]) -> Result<(), Fault> {
    let what = "cannot look for what earlier runs left";
    let fd = openat(parent, c".", FOLDER, Mode::empty());
    let fd = fd.map_err(|e| Fault::from_io(what, &e.into()))?;
    let mut names = Names::read(&fd, what)?;
    // All but the part that tells them apart.
    let like = hidden_name(name, &"0".repeat(UNIQUE_BYTES), TEMPORARY_SUFFIX);
    let front = &like[..like.len() - UNIQUE_BYTES - TEMPORARY_SUFFIX.len()];
    while let Some(found) = names.take() {
        let ours = is_leftover(&found) && found.len() == like.len() && found.starts_with(front);
        if !ours || found == keep {
            continue;
        }
        let Ok(tree) = open_tree(parent, &found) else { continue };
        if let Ok(_held) = Hold::take(tree, what) {
            remove_tree(parent, &found)?;
        }
    }
    Ok(())
}

/// What tells the trees beside a target apart: what is copied, the state of the tree, and which
/// folder the target is. Not its device, which has another number after a boot.
fn unique(key: &Digest, state: u8, target: &Option<Statx>) -> String {
    let which = target.map_or((0, 0), |stat| (stat.stx_ino, nanoseconds(&stat.stx_btime)));
    let mut bytes = key.0.to_vec();
    bytes.push(state);
    bytes.extend(which.0.to_le_bytes());
    bytes.extend(which.1.to_le_bytes());
    Digest::of(&bytes).to_string()[..UNIQUE_BYTES].to_owned()
}

/// How long that is.
const UNIQUE_BYTES: usize = 16;

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
    if attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return Err(explain(Errno::BUSY, &format!("cannot exchange {path}")));
    }
    Ok(stat)
}

/// Finds out whether two folders can be exchanged here, by doing it to two empty ones.
fn can_exchange(parent: &OpenFolder, name: &[u8]) -> Result<(), Errno> {
    let other = temporary_name(b"exchange");
    make(parent, &other)?;
    let [name, other] = [name, &other].map(OsStr::from_bytes);
    let tried = renameat_with(parent, name, parent, other, RenameFlags::EXCHANGE);
    unlinkat(parent, other, AtFlags::REMOVEDIR)?;
    if tried.is_err() {
        // What it was tried for is not wanted any more.
        let _ = unlinkat(parent, name, AtFlags::REMOVEDIR);
    }
    tried
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
