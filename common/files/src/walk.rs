//! Walks a folder and all below it, an entry at a time: memory grows with the
//! depth of the tree, not with its width. Links are reported, never followed.
//! Used by the server for scans and by the client for uploads.

use crate::folder::{entry_of, stat_name};
use rustix::fs::{Dir, Mode, OFlags, openat};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Code, Fault, WirePath};

/// How deep a tree may be: each level holds a descriptor.
const DEPTH_MAX: usize = 256;

/// A walk in progress. Yields a folder before what is in it.
pub struct Walk {
    levels: Vec<Level>,
    recursive: bool,
}

struct Level {
    path: WirePath,
    fd: OwnedFd,
    dir: Dir,
}

impl Walk {
    /// Begins at an open folder; paths are relative to it.
    pub fn new(folder: OwnedFd, recursive: bool) -> Result<Self, Fault> {
        let level = Level::new(folder, WirePath::root())?;
        Ok(Self { levels: vec![level], recursive })
    }

    fn enter(&mut self, entry: &Entry, name: &OsStr) -> Result<(), Fault> {
        if self.levels.len() >= DEPTH_MAX {
            let text = format!("folder {} is deeper than {DEPTH_MAX} levels", entry.path);
            return Err(Fault::new(Code::Limit, text));
        }
        let Some(level) = self.levels.last() else { return Ok(()) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let what = || format!("cannot read folder {}", entry.path);
        let fd = openat(&level.fd, name, flags, Mode::empty())
            .map_err(|e| Fault::from_io(what(), &e.into()))?;
        self.levels.push(Level::new(fd, entry.path.clone())?);
        Ok(())
    }
}

impl Level {
    fn new(fd: OwnedFd, path: WirePath) -> Result<Self, Fault> {
        let what = format!("cannot read folder {path}");
        let dir = Dir::read_from(&fd).map_err(|e| Fault::from_io(&what, &e.into()))?;
        Ok(Self { path, fd, dir })
    }

    /// The next name, or `None` at the end.
    fn next_name(&mut self) -> Option<Result<OsString, Fault>> {
        loop {
            let entry = match self.dir.next()? {
                Ok(entry) => entry,
                Err(error) => {
                    let what = format!("cannot read folder {}", self.path);
                    return Some(Err(Fault::from_io(what, &error.into())));
                }
            };
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                return Some(Ok(OsString::from_vec(name.to_vec())));
            }
        }
    }
}

impl Iterator for Walk {
    type Item = Result<Entry, (WirePath, Fault)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let level = self.levels.last_mut()?;
            let name = match level.next_name() {
                None => {
                    self.levels.pop();
                    continue;
                }
                Some(Err(fault)) => {
                    let path = level.path.clone();
                    self.levels.pop();
                    return Some(Err((path, fault)));
                }
                Some(Ok(name)) => name,
            };
            let below = match WirePath::parse(name.as_bytes()) {
                Ok(below) => below,
                Err(fault) => return Some(Err((level.path.clone(), fault))),
            };
            let path = level.path.join(&below);
            let found = stat_name(&level.fd, &name)
                .and_then(|stat| entry_of(&level.fd, &name, path.clone(), &stat));
            let entry = match found {
                Ok(entry) => entry,
                // It was there a moment ago; nobody asked for this one.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => {
                    let fault = Fault::from_io(format!("cannot look at {path}"), &error);
                    return Some(Err((path, fault)));
                }
            };
            if self.recursive
                && entry.kind == EntryKind::Folder
                && let Err(fault) = self.enter(&entry, &name)
            {
                return Some(Err((path, fault)));
            }
            return Some(Ok(entry));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Folder;
    use std::fs;

    fn names(root: &std::path::Path, recursive: bool) -> Vec<String> {
        let folder = Folder::open(root).expect("opens");
        let fd = folder.open_folder(&WirePath::root()).expect("opens");
        let walk = Walk::new(fd, recursive).expect("begins");
        let mut names: Vec<String> =
            walk.map(|entry| entry.expect("readable").path.to_string()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_walk_sees_everything_and_follows_no_link() {
        let dir = tempfile::tempdir().expect("folder");
        fs::create_dir_all(dir.path().join("a/b")).expect("folders");
        fs::write(dir.path().join("a/b/c"), b"").expect("writes");
        std::os::unix::fs::symlink("a", dir.path().join("link")).expect("links");
        assert_eq!(names(dir.path(), true), ["a", "a/b", "a/b/c", "link"]);
        assert_eq!(names(dir.path(), false), ["a", "link"]);
    }
}
