//! Walks a folder and all below it, an entry at a time: memory grows with the
//! depth of the tree, not with its width. Links are reported, never followed.
//! Used by the server for scans and by the client for uploads.

use crate::folder::{entry_of, stat_name};
use crate::identity::stat_open;
use crate::meta::{of_status, xattrs_of};
use rustix::fs::{Dir, Mode, OFlags, Statx, openat};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Code, Fault, Meta, WirePath};

/// How deep a tree may be: each level holds a descriptor.
const DEPTH_MAX: usize = 512;

/// A walk in progress. Yields a folder before what is in it.
pub struct Walk {
    levels: Vec<Level>,
    recursive: bool,
    describe: Option<Describe>,
    /// What comes before the next name.
    owed: VecDeque<Found>,
}

/// Says how much of the metadata of folders and links is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Describe {
    /// Whether `trusted.*` is.
    pub trusted: bool,
}

type Found = Result<Entry, (WirePath, Fault)>;

struct Level {
    path: WirePath,
    dir: Dir,
}

impl Walk {
    /// Begins at an open folder; paths are relative to it.
    pub fn new(folder: OwnedFd, recursive: bool) -> Result<Self, Fault> {
        let level = Level::new(folder, WirePath::root())?;
        let owed = VecDeque::new();
        Ok(Self { levels: vec![level], recursive, describe: None, owed })
    }

    /// Tells the metadata of folders and links, and first of all the folder it begins at.
    /// That of files is told by who opens them.
    pub fn describing(mut self, describe: Describe) -> Result<Self, Fault> {
        self.describe = Some(describe);
        if let Some(level) = self.levels.last() {
            let what = |e: std::io::Error| Fault::from_io("cannot look at the folder", &e);
            let stat = stat_open(level.fd()?).map_err(what)?;
            let entry = entry_of(level.fd()?, c"", WirePath::root(), &stat).map_err(what)?;
            self.describe_folder(entry, &stat);
        }
        Ok(self)
    }

    /// Owes the caller the folder that was entered last, with its metadata. Attributes that
    /// cannot be told are a fault, but no reason to leave out what is in the folder.
    fn describe_folder(&mut self, mut entry: Entry, stat: &Statx) {
        let (Some(level), Some(describe)) = (self.levels.last(), self.describe) else {
            return self.owed.push_back(Ok(entry));
        };
        let what = format!("folder {}", entry.path);
        let xattrs = level.fd().and_then(|fd| xattrs_of(fd, describe.trusted, &what));
        let mut fault = None;
        let xattrs = xattrs.unwrap_or_else(|error| {
            fault = Some((entry.path.clone(), error));
            Vec::new()
        });
        entry.meta = Some(Box::new(Meta { xattrs, ..of_status(stat) }));
        self.owed.push_back(Ok(entry));
        self.owed.extend(fault.map(Err));
    }

    fn enter(&mut self, entry: &Entry, name: &OsStr) -> Result<(), Fault> {
        if self.levels.len() >= DEPTH_MAX {
            let text = format!("folder {} is deeper than {DEPTH_MAX} levels", entry.path);
            return Err(Fault::new(Code::Limit, text));
        }
        let Some(level) = self.levels.last() else { return Ok(()) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let what = || format!("cannot read folder {}", entry.path);
        let fd = openat(level.fd()?, name, flags, Mode::empty())
            .map_err(|e| Fault::from_io(what(), &e.into()))?;
        self.levels.push(Level::new(fd, entry.path.clone())?);
        Ok(())
    }
}

impl Level {
    fn new(fd: OwnedFd, path: WirePath) -> Result<Self, Fault> {
        let what = format!("cannot read folder {path}");
        let dir = Dir::new(fd).map_err(|e| Fault::from_io(&what, &e.into()))?;
        Ok(Self { path, dir })
    }

    fn fd(&self) -> Result<BorrowedFd<'_>, Fault> {
        let what = || format!("cannot read folder {}", self.path);
        self.dir.fd().map_err(|e| Fault::from_io(what(), &e.into()))
    }

    /// Looks at a name in it.
    fn look(&self, name: &OsStr, path: &WirePath) -> std::io::Result<(Entry, Statx)> {
        let fd = self.dir.fd()?;
        let stat = stat_name(fd, name)?;
        Ok((entry_of(fd, name, path.clone(), &stat)?, stat))
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
    type Item = Found;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(owed) = self.owed.pop_front() {
                return Some(owed);
            }
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
            let path = match level.path.with(name.as_bytes()) {
                Ok(path) => path,
                Err(fault) => return Some(Err((level.path.clone(), fault))),
            };
            let (mut entry, stat) = match level.look(&name, &path) {
                Ok(found) => found,
                // It was there a moment ago; nobody asked for this one.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => {
                    let fault = Fault::from_io(format!("cannot look at {path}"), &error);
                    return Some(Err((path, fault)));
                }
            };
            match entry.kind {
                EntryKind::Folder if self.recursive => match self.enter(&entry, &name) {
                    Ok(()) => self.describe_folder(entry, &stat),
                    Err(fault) => return Some(Err((path, fault))),
                },
                EntryKind::Symlink { .. } if self.describe.is_some() => {
                    entry.meta = Some(Box::new(of_status(&stat)));
                    return Some(Ok(entry));
                }
                _ => return Some(Ok(entry)),
            }
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

    /// Makes folders in each other, deeper than any path the kernel takes.
    fn dig(root: &std::path::Path, name: &str, depth: usize) {
        let mut at: OwnedFd = fs::File::open(root).expect("opens").into();
        for _ in 0..depth {
            rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755)).expect("makes");
            at = openat(&at, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
                .expect("opens");
        }
    }

    #[test]
    fn too_deep_a_tree_is_a_fault_and_the_rest_is_seen() {
        let dir = tempfile::tempdir().expect("folder");
        dig(dir.path(), "d", DEPTH_MAX + 10);
        fs::write(dir.path().join("z"), b"").expect("writes");
        let folder = Folder::open(dir.path()).expect("opens");
        let fd = folder.open_folder(&WirePath::root()).expect("opens");
        let (seen, faults): (Vec<_>, Vec<_>) =
            Walk::new(fd, true).expect("begins").partition(Result::is_ok);
        assert_eq!(seen.len(), DEPTH_MAX, "all but the deepest, and the file");
        let (_, fault) = faults[0].as_ref().expect_err("a fault");
        assert_eq!((faults.len(), fault.code), (1, Code::Limit), "{fault}");
        assert!(fault.text.ends_with("is deeper than 512 levels"), "{fault}");
    }

    #[test]
    fn a_path_too_long_for_the_wire_is_a_fault() {
        let dir = tempfile::tempdir().expect("folder");
        dig(dir.path(), &"n".repeat(250), 140);
        let folder = Folder::open(dir.path()).expect("opens");
        let fd = folder.open_folder(&WirePath::root()).expect("opens");
        let (seen, faults): (Vec<_>, Vec<_>) =
            Walk::new(fd, true).expect("begins").partition(Result::is_ok);
        assert_eq!(seen.len(), verbatim_proto::units::PATH_BYTES_MAX / 251);
        let (_, fault) = faults[0].as_ref().expect_err("a fault");
        assert_eq!((faults.len(), fault.code), (1, Code::Limit), "{fault}");
        let deepest = &seen.last().expect("some").as_ref().expect("seen").path;
        folder.open_folder(deepest).expect("a long path is resolved");
        assert_eq!(folder.stat(deepest, false).expect("there").kind, EntryKind::Folder);
    }

    #[test]
    fn a_describing_walk_begins_with_its_folder_and_tells_folders_and_links() {
        let dir = tempfile::tempdir().expect("folder");
        fs::create_dir(dir.path().join("a")).expect("folder");
        fs::write(dir.path().join("a/b"), b"").expect("writes");
        std::os::unix::fs::symlink("a", dir.path().join("link")).expect("links");
        let folder = Folder::open(dir.path()).expect("opens");
        let fd = folder.open_folder(&WirePath::root()).expect("opens");
        let walk = Walk::new(fd, true).expect("begins");
        let walk = walk.describing(Describe { trusted: true }).expect("begins");
        let told: Vec<Entry> = walk.map(|entry| entry.expect("readable")).collect();
        assert!(told[0].path.is_root());
        for entry in told {
            assert_eq!(entry.meta.is_some(), entry.kind != EntryKind::File, "{}", entry.path);
        }
    }
}
