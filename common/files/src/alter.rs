//! Changes of a tree that are neither a copy nor a new folder: another name for
//! a file, metadata of what is there, a file made its own, removing. Each leaves the times of the
//! folder it is done in as they were, because that folder was finished before.
//! Called by both sides of a mirror for their own target.

use crate::charge::Cost;
use crate::folder::{Folder, stat_name};
use crate::meta::{self, Kind, Rules};
use crate::naming::{Over, rename, temporary_name};
use crate::reap::{is_leftover, reap};
use crate::sharing::{May, Way, copy};
use rustix::fs::{AtFlags, FileType, Mode, Timestamps, linkat, renameat, unlinkat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime};
use verbatim_proto::{Code, Dropped, Fault, Meta, WirePath};

impl Folder {
    /// Gives the file at `to` the name `path` as well, in place of what is there, which must not
    /// be a folder.
    pub fn link(&self, path: &WirePath, to: &WirePath) -> Result<(), Fault> {
        let what = format!("cannot link {path} to {to}");
        let fault = |e: Errno| Fault::from_io(&what, &e.into());
        let no_name = || Fault::new(Code::BadPath, format!("{what}: no name"));
        let (name, file) = (path.name().ok_or_else(no_name)?, to.name().ok_or_else(no_name)?);
        let (parent, origin) = (self.open_parent(path)?, self.open_parent(to)?);
        let charged = self.charge(Cost::NAME)?;
        let linked = self.within(path, &*parent, |parent| {
            let temporary = temporary_name(name);
            let (temporary, name) = (OsStr::from_bytes(&temporary), OsStr::from_bytes(name));
            // The name itself, not what it leads to: a link in its place is none of ours.
            linkat(&*origin, OsStr::from_bytes(file), parent, temporary, AtFlags::empty())?;
            let renamed = renameat(parent, temporary, parent, name);
            // Of two names of one file the first stays where it was.
            let _ = unlinkat(parent, temporary, AtFlags::empty());
            renamed
        });
        linked.map(|()| charged.keep()).map_err(fault)
    }

    /// Removes something; a folder only if it is empty. What is gone already is no fault.
    pub fn remove(&self, path: &WirePath, is_folder: bool) -> Result<(), Fault> {
        let what = format!("cannot remove {path}");
        let no_name = || Fault::new(Code::BadPath, format!("{what}: no name"));
        let name = OsStr::from_bytes(path.name().ok_or_else(no_name)?);
        let parent = match self.open_parent(path) {
            Err(fault) if fault.code == Code::NotFound => return Ok(()),
            parent => parent?,
        };
        let flags = if is_folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let removed = self.within(path, &*parent, |parent| unlinkat(parent, name, flags));
        match removed {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                let text = format!("{what}: something in it is left out, or new");
                Err(Fault::new(Code::IsFolder, text))
            }
            Err(error) => Err(Fault::from_io(&what, &error.into())),
        }
    }

    /// Removes what a copy that was cut short left, unless somebody goes on with it. What is gone
    /// already is no fault.
    pub fn sweep(&self, path: &WirePath) -> Result<(), Fault> {
        let parent = match self.open_parent(path) {
            Err(fault) if fault.code == Code::NotFound => return Ok(()),
            parent => parent?,
        };
        let Some(name) = path.name().filter(|name| is_leftover(name)) else { return Ok(()) };
        let name = OsStr::from_bytes(name);
        let mut swept = Ok(None);
        let within = self.within(path, &*parent, |parent| {
            // A link, or another name of a file, that was about to take its place.
            let is_name = stat_name(parent, name).is_ok_and(|stat| {
                let kind = FileType::from_raw_mode(stat.stx_mode.into());
                kind == FileType::Symlink || kind == FileType::RegularFile && stat.stx_nlink > 1
            });
            if is_name {
                return unlinkat(parent, name, AtFlags::empty());
            }
            swept = reap(self, path, Duration::ZERO, SystemTime::now());
            Ok(())
        });
        within.map_err(|e| Fault::from_io(format!("cannot remove {path}"), &e.into()))?;
        match swept {
            Err(fault) if fault.code == Code::NotFound => Ok(()),
            swept => swept.map(drop),
        }
    }

    /// Gives what is at `path`, a file or a folder, what the rules allow of this metadata; says
    /// what was not kept.
    pub fn describe_any(
        &self,
        path: &WirePath,
        meta: &Meta,
        rules: &Rules,
    ) -> Result<Dropped, Fault> {
        let describe = |fd: &OwnedFd, kind| {
            let what = path.to_string();
            meta::remove_other_xattrs(fd, meta, kind, rules, &what)?;
            meta::apply(fd, &what, kind, meta, rules)
        };
        match self.open_file(path) {
            Ok((file, _)) => describe(&file.into(), Kind::File),
            Err(fault) if fault.code == Code::IsFolder => {
                describe(&self.open_folder(path)?, Kind::Folder)
            }
            Err(fault) if fault.code == Code::Denied => {
                // One's own, but not open to oneself: what it gets says what it will be.
                self.open_up(path).map_err(|_| fault)?;
                describe(&self.open_file(path)?.0.into(), Kind::File)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Does something in a folder, and gives the folder its times back. One that is closed to
    /// its owner is opened for it.
    pub(crate) fn within(
        &self,
        path: &WirePath,
        parent: impl AsFd,
        mut change: impl FnMut(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let parent = parent.as_fd();
        let before = rustix::fs::fstat(parent)?;
        let mut done = change(parent);
        if done == Err(Errno::ACCESS) && self.open_up(&path.parent()).is_ok() {
            done = change(parent);
            let mode = Mode::from_raw_mode(before.st_mode & 0o7777);
            rustix::fs::fchmod(parent, mode)?;
        }
        let stamp = |tv_sec, tv_nsec| rustix::fs::Timespec { tv_sec, tv_nsec };
        let times = Timestamps {
            last_access: stamp(before.st_atime, before.st_atime_nsec as _),
            last_modification: stamp(before.st_mtime, before.st_mtime_nsec as _),
        };
        // Not ours to set where the folder is not ours: then it is as any change leaves it.
        let _ = rustix::fs::futimens(parent, &times);
        done
    }

    /// Makes a file that has other names, in this tree or elsewhere, one that has none: what it is
    /// given from then on, the others do not get.
    pub fn own(&self, path: &WirePath, may: May<'_>) -> Result<(), Fault> {
        let (file, stat) = match self.open_file(path) {
            Err(fault) if fault.code == Code::IsFolder => return Ok(()),
            opened => opened?,
        };
        drop(file);
        let (Some(name), true) = (path.name(), stat.stx_nlink > 1) else { return Ok(()) };
        let temporary = temporary_name(name);
        let aside = path.parent().with(&temporary)?;
        copy((self, path), (self, &aside), Way::Any, may)?;
        let parent = self.open_parent(path)?;
        rename(&parent, &temporary, name, Over::Anything).map_err(|e| {
            // The first error is what matters; what may stay is swept away.
            let _ = unlinkat(&*parent, OsStr::from_bytes(&temporary), AtFlags::empty());
            Fault::from_io(format!("cannot replace {path}"), &e.into())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn path(text: &str) -> WirePath {
        WirePath::parse(text.as_bytes()).expect("plain")
    }

    #[test]
    fn changes_leave_the_times_of_their_folder() {
        let dir = tempfile::tempdir().expect("folder");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("sub/empty")).expect("folders");
        for name in ["a", "sub/b", "sub/c"] {
            fs::write(at(name), name).expect("writes");
        }
        let folder = Folder::open(dir.path()).expect("opens");
        let times = || {
            let of = |name: &str| fs::metadata(at(name)).expect("there");
            [".", "sub"].map(|name| (of(name).mtime(), of(name).mtime_nsec()))
        };
        let before = times();
        folder.link(&path("sub/b"), &path("a")).expect("links");
        folder.link(&path("sub/new"), &path("a")).expect("links");
        folder.link(&path("sub/b"), &path("a")).expect("is the same file already");
        folder.remove(&path("sub/c"), false).expect("removes");
        folder.remove(&path("sub/empty"), true).expect("removes");
        folder.remove(&path("sub/empty"), true).expect("is gone");
        folder.remove(&path("nowhere/x"), true).expect("is gone");
        assert_eq!(times(), before);
        assert_eq!(fs::read(at("sub/b")).expect("reads"), b"a");
        assert_eq!(fs::metadata(at("a")).expect("there").nlink(), 3);
        std::os::unix::fs::symlink("x", at("sub/.l.1-2-0123abcd.verbatim-part")).expect("links");
        fs::hard_link(at("a"), at("sub/.a.1-3-0123abcd.verbatim-part")).expect("links");
        fs::write(at("sub/.b.1-4-0123abcd.verbatim-part"), b"").expect("writes");
        for number in 2..=5 {
            let names = ["l", "a", "b", "gone"];
            let name = format!("sub/.{}.1-{number}-0123abcd.verbatim-part", names[number - 2]);
            folder.sweep(&path(&name)).expect("sweeps");
        }
        folder.sweep(&path("sub/b")).expect("is no leftover");
        assert_eq!(fs::read(at("sub/b")).expect("reads"), b"a");
        let mut names: Vec<_> = fs::read_dir(at("sub")).expect("lists").collect();
        assert_eq!(names.len(), 2, "{:?}", names.drain(..).map(Result::unwrap));
        let fault = folder.remove(&path("sub"), true).expect_err("it is not empty");
        assert_eq!(fault.code, Code::IsFolder, "{fault}");
    }

    #[test]
    fn a_file_and_a_folder_get_their_metadata() {
        let dir = tempfile::tempdir().expect("folder");
        fs::create_dir(dir.path().join("sub")).expect("folder");
        fs::write(dir.path().join("a"), b"").expect("writes");
        fs::set_permissions(dir.path().join("a"), fs::Permissions::from_mode(0o0)).expect("sets");
        let folder = Folder::open(dir.path()).expect("opens");
        for name in ["a", "sub"] {
            let meta = Meta { mode: 0o750, mtime_ns: 7_000_000_123, ..Meta::default() };
            folder.describe_any(&path(name), &meta, &Rules::of_user()).expect("describes");
            let is = fs::metadata(dir.path().join(name)).expect("there");
            assert_eq!(
                (is.mode() & 0o7777, is.mtime(), is.mtime_nsec()),
                (0o750, 7, 123),
                "{name}"
            );
        }
    }
}
