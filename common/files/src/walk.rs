//! Walks a folder and all below it, an entry at a time: memory grows with the
//! depth of the tree, not with its width. Links are reported, or followed where
//! that was asked for: then within the folder the walk was given, and a link to
//! a folder it is in is an error, so that no walk is endless.
//! Used by the server for scans and by the client for uploads.

use crate::folder::{Folder, entry_of, is_mount_point, stat_name};
use crate::identity::stat_open;
use crate::meta::{of_status, xattrs_at, xattrs_of};
use crate::ties::{named_at, ties_of};
use rustix::fs::{Dir, Mode, OFlags, openat};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Code, Fault, Meta, Ties, WirePath};

/// How deep a tree may be: each level holds a descriptor.
pub(crate) const DEPTH_MAX: usize = 512;

/// A walk in progress. Yields a folder before what is in it.
pub struct Walk {
    levels: Vec<Level>,
    recursive: bool,
    /// The folder links may not leave, and where in it the walk began.
    following: Option<(Folder, WirePath)>,
    /// Whether the last entry was a folder, and the walk is in it.
    entered: bool,
    describe: Option<Describe>,
    /// Whether what is mounted in it is told.
    crosses: bool,
    /// What comes before the next name.
    owed: VecDeque<Found>,
    /// Whether ties are told, and those of what came last.
    tells_ties: bool,
    ties: Option<Ties>,
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
    /// Which folder it is, where links are followed.
    identity: Option<(u32, u32, u64)>,
}

impl Walk {
    /// Begins at an open folder; paths are relative to it.
    pub fn new(folder: OwnedFd, recursive: bool) -> Result<Self, Fault> {
        let level = Level::new(folder, WirePath::root())?;
        Ok(Self {
            levels: vec![level],
            recursive,
            following: None,
            entered: false,
            describe: None,
            crosses: true,
            owed: VecDeque::new(),
            tells_ties: false,
            ties: None,
        })
    }

    /// Tells the metadata of folders and links, and first of all the folder it begins at.
    /// That of files is told by who opens them.
    pub fn describing(mut self, describe: Describe) -> Result<Self, Fault> {
        self.describe = Some(describe);
        if let Some(level) = self.levels.last() {
            let what = |e: std::io::Error| Fault::from_io("cannot look at the folder", &e);
            let stat = stat_open(level.fd()?).map_err(what)?;
            let entry = entry_of(level.fd()?, c"", WirePath::root(), &stat).map_err(what)?;
            // A folder has one name.
            self.ties = Some(ties_of(&stat, || Err(std::io::ErrorKind::IsADirectory.into())));
            self.owe_folder(entry)?;
        }
        Ok(self)
    }

    /// Leaves out what is mounted in the folder, and where, unless `crosses` says so.
    pub fn crossing(self, crosses: bool) -> Self {
        Self { crosses, ..self }
    }

    /// Tells whose things are, behind each of them.
    pub fn telling_ties(mut self) -> Self {
        self.tells_ties = true;
        self
    }

    /// Whether it does.
    pub fn tells_ties(&self) -> bool {
        self.tells_ties
    }

    /// Whose the entry is that came last, where that is told.
    pub fn ties(&self) -> Option<Ties> {
        self.ties
    }

    /// Owes the caller the folder that was entered last, with its metadata where that is told.
    /// Attributes that cannot be told are a fault, but no reason to leave out what is in the
    /// folder.
    fn owe_folder(&mut self, mut entry: Entry) -> Result<(), Fault> {
        let mut fault = None;
        if let (Some(level), Some(describe)) = (self.levels.last(), self.describe) {
            // Of what was opened: behind a link that is another folder than was looked at.
            let what = format!("folder {}", entry.path);
            let io = |e: std::io::Error| Fault::from_io(format!("cannot look at {what}"), &e);
            let stat = stat_open(level.fd()?).map_err(io)?;
            let xattrs = xattrs_of(level.fd()?, describe.trusted, &what).unwrap_or_else(|error| {
                fault = Some((entry.path.clone(), error));
                Vec::new()
            });
            entry.meta = Some(Box::new(Meta { xattrs, ..of_status(&stat) }));
        }
        self.owed.push_back(Ok(entry));
        self.owed.extend(fault.map(Err));
        Ok(())
    }

    /// Begins at `base` in a folder, and shows links as what they lead to in that folder.
    pub fn following(folder: Folder, base: WirePath, recursive: bool) -> Result<Self, Fault> {
        let mut walk = Self::new(folder.open_folder(&base)?, recursive)?;
        let level = &mut walk.levels[0];
        level.identity = Some(identity_of(level.fd()?, &level.path)?);
        walk.crosses = folder.crosses();
        walk.following = Some((folder, base));
        Ok(walk)
    }

    /// Does not go into the folder that came last.
    pub fn leave(&mut self) {
        if std::mem::take(&mut self.entered) {
            self.levels.pop();
            // What could not be told of it is nobody's business either.
            self.owed.clear();
        }
    }

    /// The folder that came last, open and not yet read; none if the last was no folder.
    pub(crate) fn entered(&self) -> Option<BorrowedFd<'_>> {
        self.levels.last().filter(|_| self.entered).and_then(|level| level.fd().ok())
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
                openat(level.fd()?, name, flags, Mode::empty())
                    .map_err(|e| Fault::from_io(what(), &e.into()))?
            }
        };
        let mut level = Level::new(fd, entry.path.clone())?;
        if self.following.is_some() {
            let identity = identity_of(level.fd()?, &entry.path)?;
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
    fn look(&mut self, name: &OsStr, path: &WirePath) -> Result<Option<(Entry, bool)>, Fault> {
        let Some(level) = self.levels.last() else { return Ok(None) };
        let fd = level.fd()?;
        let mut ties = None;
        let found = stat_name(fd, name).and_then(|stat| {
            if !self.crosses && is_mount_point(&stat) {
                return Err(std::io::ErrorKind::NotFound.into());
            }
            let mut entry = entry_of(fd, name, path.clone(), &stat)?;
            let is_link = matches!(entry.kind, EntryKind::Symlink { .. });
            if let Some(describe) = self.describe.filter(|_| is_link && self.following.is_none()) {
                // Told to be counted as not kept; where they cannot be read, the link is copied.
                let xattrs = xattrs_at(Some(fd), name, describe.trusted, path);
                let xattrs = xattrs.ok().flatten().unwrap_or_default();
                entry.meta = Some(Box::new(Meta { xattrs, ..of_status(&stat) }));
            }
            ties = self.tells_ties.then(|| ties_of(&stat, || named_at(fd, name)));
            Ok(entry)
        });
        let entry = match found {
            Ok(entry) => entry,
            // It was there a moment ago, or is left out; nobody asked for this one.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Fault::from_io(format!("cannot look at {path}"), &error)),
        };
        match &self.following {
            // What is behind a link has metadata of its own: of a folder it is told when that is
            // entered.
            Some((folder, base)) if matches!(entry.kind, EntryKind::Symlink { .. }) => {
                let (behind, its) = folder.look(&base.join(path), true)?;
                self.ties = self.tells_ties.then_some(its);
                Ok(Some((Entry { path: path.clone(), ..behind }, true)))
            }
            _ => {
                self.ties = ties;
                Ok(Some((entry, false)))
            }
        }
    }
}

/// What tells one folder from all others.
pub(crate) fn identity_of(fd: BorrowedFd<'_>, path: &WirePath) -> Result<(u32, u32, u64), Fault> {
    let what = || format!("cannot look at {path}");
    let stat = stat_open(fd).map_err(|e| Fault::from_io(what(), &e))?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
}

impl Level {
    fn new(fd: OwnedFd, path: WirePath) -> Result<Self, Fault> {
        let what = format!("cannot read folder {path}");
        let dir = Dir::new(fd).map_err(|e| Fault::from_io(&what, &e.into()))?;
        Ok(Self { path, dir, identity: None })
    }

    fn fd(&self) -> Result<BorrowedFd<'_>, Fault> {
        let what = || format!("cannot read folder {}", self.path);
        self.dir.fd().map_err(|e| Fault::from_io(what(), &e.into()))
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
        self.entered = false;
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
            let (entry, is_link) = match self.look(&name, &path) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(fault) => return Some(Err((path, fault))),
            };
            if !self.recursive || entry.kind != EntryKind::Folder {
                return Some(Ok(entry));
            }
            let entered = self.enter(&entry, &name, is_link);
            if let Err(fault) = entered.and_then(|()| self.owe_folder(entry)) {
                return Some(Err((path, fault)));
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
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

    #[test]
    fn a_walk_that_follows_tells_the_metadata_of_what_is_behind_links() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("folder");
        fs::create_dir_all(dir.path().join("a/b")).expect("folders");
        fs::set_permissions(dir.path().join("a"), fs::Permissions::from_mode(0o2711)).expect("own");
        symlink("a", dir.path().join("link")).expect("links");
        let folder = Folder::open(dir.path()).expect("opens");
        let mut walk = Walk::following(folder, WirePath::root(), true)
            .and_then(|walk| walk.describing(Describe { trusted: false }))
            .expect("begins");
        let mut told = Vec::new();
        while let Some(entry) = walk.next() {
            let entry = entry.expect("readable");
            let meta = entry.meta.expect("all are folders");
            if entry.path.name() == Some(b"link") {
                assert_eq!(meta.mode & 0o7777, 0o2711, "not that of the link");
                walk.leave();
            }
            told.push(entry.path.to_string());
        }
        told.sort();
        assert_eq!(told, ["", "a", "a/b", "link"]);
    }

    /// Makes folders in each other, deeper than any path the kernel takes.
    pub(crate) fn dig(root: &std::path::Path, name: &str, depth: usize) {
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
        symlink("a", dir.path().join("link")).expect("links");
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
