//! What an interrupted run left in a hidden tree, and is no longer in the source:
//! it is removed, or the target's own version takes its place again. Never
//! removes what the target has. Called by both sides of a mirror, for their own
//! target, entry by entry.

use super::Stage;
use crate::folder::{Folder, stat_name};
use crate::identity::twin_of;
use crate::naming::temporary_name;
use crate::opened::OpenFolder;
use crate::reap::is_leftover;
use rustix::fs::{AtFlags, FileType, Statx, linkat, renameat, unlinkat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use verbatim_proto::{Code, Fault, WirePath};

impl Stage {
    /// Makes an entry of the hidden tree, at `path` of `folder`, what the target has at `below`,
    /// which is the same path from the root of either tree. A folder is removed if it is empty and
    /// the target has none; a partial file of a copy is removed unless somebody is at it.
    pub fn revert(&self, folder: &Folder, path: &WirePath, below: &WirePath) -> Result<(), Fault> {
        let Some(bytes) = path.name().filter(|_| !below.is_root()) else { return Ok(()) };
        if is_leftover(bytes) {
            return folder.sweep(path);
        }
        let name = OsStr::from_bytes(bytes);
        let old = self.old.as_ref().map(|old| &old.folder);
        let old = old.map(|old| find(old, below)).transpose()?.flatten();
        let Some((parent, is)) = find(folder, path)? else { return Ok(()) };
        let undo = |parent: BorrowedFd<'_>| match &old {
            None => unlinkat(parent, name, remove_flag(&is)),
            Some((_, was)) if is_same(&is, was) || is_folder(&is) => Ok(()),
            Some((_, was)) if is_folder(was) => unlinkat(parent, name, AtFlags::empty()),
            Some((from, _)) => {
                let temporary = temporary_name(bytes);
                let temporary = OsStr::from_bytes(&temporary);
                linkat(&**from, name, parent, temporary, AtFlags::empty())?;
                renameat(parent, temporary, parent, name).inspect_err(|_| {
                    // The first error is what matters; what may stay is swept away.
                    let _ = unlinkat(parent, temporary, AtFlags::empty());
                })
            }
        };
        match folder.within(path, &*parent, undo) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(error) => Err(Fault::from_io(format!("cannot remove {path}"), &error.into())),
        }
    }
}

/// The folder that a path is in, and what is at the path; none if nothing is.
fn find(folder: &Folder, path: &WirePath) -> Result<Option<(Arc<OpenFolder>, Statx)>, Fault> {
    let parent = match folder.open_parent(path) {
        // Something else may have the name of a folder above it.
        Err(fault) if matches!(fault.code, Code::NotFound | Code::NotFolder) => return Ok(None),
        parent => parent?,
    };
    match stat_name(&*parent, OsStr::from_bytes(path.name().unwrap_or_default())) {
        Ok(stat) => Ok(Some((parent, stat))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Fault::from_io(format!("cannot look at {path}"), &error)),
    }
}

fn kind_of(stat: &Statx) -> FileType {
    FileType::from_raw_mode(stat.stx_mode.into())
}

fn is_folder(stat: &Statx) -> bool {
    kind_of(stat) == FileType::Directory
}

fn remove_flag(stat: &Statx) -> AtFlags {
    if is_folder(stat) { AtFlags::REMOVEDIR } else { AtFlags::empty() }
}

/// Whether the hidden tree has the target's version: by another name, or by a reflink, which has
/// the size and time of its file.
fn is_same(is: &Statx, was: &Statx) -> bool {
    let looks = |stat: &Statx| {
        let mtime = (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec);
        (kind_of(stat), stat.stx_size, mtime)
    };
    twin_of(is) == twin_of(was) || looks(is) == looks(was)
}
