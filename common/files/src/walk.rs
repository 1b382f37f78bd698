//! Walks a folder and all below it, an entry at a time: memory grows with the
//! depth of the tree, not with its width. Links are reported, or followed where
//! that was asked for: then within the folder the walk was given, and a link to
//! a folder it is in is an error, so that no walk is endless.
//! Used by the server for scans and by the client for uploads.

use crate::folder::{Folder, entry_of, stat_name};
use crate::identity::stat_open;
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
    /// The folder links may not leave, and where in it the walk began.
    following: Option<(Folder, WirePath)>,
    /// Whether the last entry was a folder, and the walk is in it.
    entered: bool,
}

struct Level {
    path: WirePath,
    fd: OwnedFd,
    dir: Dir,
    /// Which folder it is, where links are followed.
    identity: Option<(u32, u32, u64)>,
}

impl Walk {
    /// Begins at an open folder; paths are relative to it.
    pub fn new(folder: OwnedFd, recursive: bool) -> Result<Self, Fault> {
        let level = Level::new(folder, WirePath::root())?;
        Ok(Self { levels: vec![level], recursive, following: None, entered: false })
    }

    /// Begins at `base` in a folder, and shows links as what they lead to in that folder.
    pub fn following(folder: Folder, base: WirePath, recursive: bool) -> Result<Self, Fault> {
        let mut walk = Self::new(folder.open_folder(&base)?, recursive)?;
        let level = &mut walk.levels[0];
        level.identity = Some(identity_of(&level.fd, &level.path)?);
        walk.following = Some((folder, base));
        Ok(walk)
    }

    /// Does not go into the folder that came last.
    pub fn leave(&mut self) {
        if std::mem::take(&mut self.entered) {
            self.levels.pop();
        }
    }

    fn enter(&mut self, entry: &Entry, name: &OsStr, is_link: bool) -> Result<(), Fault> {
        if self.levels.len() >= DEPTH_MAX {
            let text = format!("folder {} is deeper than {DEPTH_MAX} levels", entry.path);
            return Err(Fault::new(Code::Limit, text));
        }
        let Some(level) = self.levels.last() else { return Ok(()) };
        let fd = match &self.following {
            Some((folder, base)) if is_link => folder.open_folder(&base.join(&entry.path))?,
            _ => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let what = || format!("cannot read folder {}", entry.path);
                openat(&level.fd, name, flags, Mode::empty())
                    .map_err(|e| Fault::from_io(what(), &e.into()))?
            }
        };
        let mut level = Level::new(fd, entry.path.clone())?;
        if self.following.is_some() {
            let identity = identity_of(&level.fd, &entry.path)?;
            if self.levels.iter().any(|above| above.identity == Some(identity)) {
                let text = format!("{} leads in a circle: it is a folder it is in", entry.path);
                return Err(Fault::new(Code::Limit, text));
            }
            level.identity = Some(identity);
        }
        self.levels.push(level);
        self.entered = true;
        Ok(())
    }

    /// What a name of the last level is, and whether it is a link that was followed.
    fn look(&self, name: &OsStr, path: &WirePath) -> Result<Option<(Entry, bool)>, Fault> {
        let Some(level) = self.levels.last() else { return Ok(None) };
        let found = stat_name(&level.fd, name)
            .and_then(|stat| entry_of(&level.fd, name, path.clone(), &stat));
        let entry = match found {
            Ok(entry) => entry,
            // It was there a moment ago; nobody asked for this one.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Fault::from_io(format!("cannot look at {path}"), &error)),
        };
        match &self.following {
            Some((folder, base)) if matches!(entry.kind, EntryKind::Symlink { .. }) => {
                let behind = folder.stat(&base.join(path), true)?;
                Ok(Some((Entry { path: path.clone(), ..behind }, true)))
            }
            _ => Ok(Some((entry, false))),
        }
    }
}

/// What tells one folder from all others.
fn identity_of(fd: &OwnedFd, path: &WirePath) -> Result<(u32, u32, u64), Fault> {
    let what = || format!("cannot look at {path}");
    let stat = stat_open(fd).map_err(|e| Fault::from_io(what(), &e))?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
}

impl Level {
    fn new(fd: OwnedFd, path: WirePath) -> Result<Self, Fault> {
        let what = format!("cannot read folder {path}");
        let dir = Dir::read_from(&fd).map_err(|e| Fault::from_io(&what, &e.into()))?;
        Ok(Self { path, fd, dir, identity: None })
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
        self.entered = false;
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
            let (entry, is_link) = match self.look(&name, &path) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(fault) => return Some(Err((path, fault))),
            };
            if self.recursive
                && entry.kind == EntryKind::Folder
                && let Err(fault) = self.enter(&entry, &name, is_link)
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
    use std::fs;
    use std::os::unix::fs::symlink;

    fn names(root: &std::path::Path, recursive: bool) -> Vec<String> {
        let folder = Folder::open(root).expect("opens");
        let fd = folder.open_folder(&WirePath::root()).expect("opens");
        sorted(Walk::new(fd, recursive).expect("begins"))
    }

    /// What a walk finds: names, and in brackets what it cannot go into.
    fn sorted(walk: Walk) -> Vec<String> {
        let mut names: Vec<String> = walk
            .map(|entry| match entry {
                Ok(entry) => entry.path.to_string(),
                Err((path, _)) => format!("({path})"),
            })
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_walk_sees_everything_and_follows_no_link() {
        let dir = tempfile::tempdir().expect("folder");
        fs::create_dir_all(dir.path().join("a/b")).expect("folders");
        fs::write(dir.path().join("a/b/c"), b"").expect("writes");
        symlink("a", dir.path().join("link")).expect("links");
        assert_eq!(names(dir.path(), true), ["a", "a/b", "a/b/c", "link"]);
        assert_eq!(names(dir.path(), false), ["a", "link"]);
    }

    #[test]
    fn a_walk_that_follows_shows_what_is_behind_links_and_ends_at_circles() {
        let dir = tempfile::tempdir().expect("folder");
        fs::create_dir_all(dir.path().join("root/a/b")).expect("folders");
        fs::create_dir_all(dir.path().join("outside")).expect("folders");
        fs::write(dir.path().join("outside/x"), b"").expect("writes");
        fs::write(dir.path().join("root/a/b/c"), b"12345").expect("writes");
        let root = dir.path().join("root");
        symlink("a/b", root.join("inner")).expect("links");
        symlink("a/b/c", root.join("file")).expect("links");
        symlink("..", root.join("a/up")).expect("links");
        symlink("self", root.join("self")).expect("links");
        symlink("../outside", root.join("leaves")).expect("links");
        symlink("nothing", root.join("dangling")).expect("links");
        let walk =
            |folder: Folder| Walk::following(folder, WirePath::root(), true).expect("begins");
        let common = ["(a/up)", "(dangling)", "(self)", "a", "a/b", "a/b/c"];
        let inner = ["file", "inner", "inner/c"];
        let found = sorted(walk(Folder::open(&root).expect("opens")));
        let mut expected = [&common[..], &inner, &["(leaves)"]].concat();
        expected.sort_unstable();
        assert_eq!(found, expected);
        let found = sorted(walk(Folder::open_free(&root).expect("opens")));
        let mut expected = [&common[..], &inner, &["leaves", "leaves/x"]].concat();
        expected.sort_unstable();
        assert_eq!(found, expected);
        let sizes: Vec<u64> = walk(Folder::open(&root).expect("opens"))
            .filter_map(Result::ok)
            .filter(|entry| entry.path.name() == Some(b"file"))
            .map(|entry| entry.size)
            .collect();
        assert_eq!(sizes, [5], "a link is shown as its file");
    }

    #[test]
    fn a_folder_that_is_left_is_not_walked() {
        let dir = tempfile::tempdir().expect("folder");
        fs::create_dir_all(dir.path().join("a/b")).expect("folders");
        fs::create_dir_all(dir.path().join("x/y")).expect("folders");
        let folder = Folder::open(dir.path()).expect("opens");
        let fd = folder.open_folder(&WirePath::root()).expect("opens");
        let mut walk = Walk::new(fd, true).expect("begins");
        let mut names = Vec::new();
        while let Some(entry) = walk.next() {
            let path = entry.expect("readable").path.to_string();
            if path == "a" {
                walk.leave();
                // Only what came last is left.
                walk.leave();
            }
            names.push(path);
        }
        names.sort();
        assert_eq!(names, ["a", "x", "x/y"]);
    }
}
