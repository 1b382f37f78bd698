//! A folder that paths cannot leave. Every path below it is resolved by the
//! kernel with `openat2` and `RESOLVE_BENEATH`: a `..`, an absolute link or one
//! that escapes is refused, whatever is renamed meanwhile. Links that stay
//! below are followed. Used for exports on the server, targets on the client.
//! One folder is free: that of a user who has links of his own tree followed.
//! Below another, the target of a mirror, no link is followed at all: what is
//! written there stays under the name it was meant for.
//!
//! A file is looked at before it is opened, and compared with that (`regular`). Folders
//! and links are made here: what is in their place is kept where it will do, replaced
//! where that was asked for, and else named in the error. Who bounds what may be made
//! is asked first (`charge`). Files are made by `target`.

use crate::beneath::open_beneath;
use crate::charge::{Charge, Charged, Cost};
use crate::identity::{file_system_of, nanoseconds, stat_open};
use crate::meta::{self, Kind, Rules};
use crate::naming::{Over, rename, temporary_name};
use crate::opened::{OpenFolder, Parents};
use crate::regular::{LOOKS_MAX, is_regular, is_same, require_regular};
use crate::ties::{named_of, ties_of};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Statx, StatxAttributes, StatxFlags};
use rustix::fs::{mkdirat, readlinkat, statx, symlinkat, unlinkat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Code, Dropped, Fault, Meta, Ties, WirePath};

/// A folder, held open.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    fd: Arc<OpenFolder>,
    beneath: bool,
    /// Whether what is mounted in it is part of it.
    crosses: bool,
    /// Below this no link is followed.
    plain: Option<(WirePath, OwnedFd)>,
    parents: Parents<OpenFolder>,
    /// Asked before anything is made in it.
    bound: Option<Arc<dyn Charge>>,
    /// Folders in which names are looked at before they are opened.
    looked_in: Parents<OwnedFd>,
    /// The device number and the id of its own file system.
    file_system: OnceLock<Option<((u32, u32), u64)>>,
}

impl Folder {
    /// Opens the folder at `path`, following links to it.
    pub fn open(path: &Path) -> Result<Self, Fault> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| {
            Fault::from_io(format!("cannot open folder {}", path.display()), &e.into())
        })?;
        let (path, fd) = (path.to_owned(), Arc::new(OpenFolder::new(fd)));
        Ok(Self::of(path, fd, true))
    }

    /// Opens a folder whose links may lead anywhere. Only for what a user has read of his own
    /// files, with `-L` or named by himself: never for what a peer names.
    pub fn open_free(path: &Path) -> Result<Self, Fault> {
        Ok(Self { beneath: false, ..Self::open(path)? })
    }

    /// A folder below this one, that paths cannot leave, and where no link is followed.
    pub fn below(&self, path: &WirePath) -> Result<Self, Fault> {
        let fd = Arc::new(OpenFolder::new(self.open_folder(path)?));
        let path = self.path.join(OsStr::from_bytes(path.as_bytes()));
        let anew = Self::of(path, fd, self.beneath).crossing(self.crosses);
        anew.charging(self.bound.clone()).plain_below(&WirePath::root())
    }

    /// The same folder for another owner.
    pub fn share(&self) -> Self {
        let (path, fd) = (self.path.clone(), self.fd.clone());
        let anew = Self::of(path, fd, self.beneath).crossing(self.crosses);
        anew.charging(self.bound.clone())
    }

    /// The same folder, where this is asked before anything is made.
    pub fn charging(self, bound: Option<Arc<dyn Charge>>) -> Self {
        Self { bound, ..self }
    }

    /// Takes the cost of what is about to be made in it.
    pub(crate) fn charge(&self, cost: Cost) -> Result<Charged, Fault> {
        Charged::take(self.bound.clone(), cost)
    }

    /// The same folder; unless `crosses` says so, nothing that is mounted in it is part of it.
    pub fn crossing(self, crosses: bool) -> Self {
        Self { crosses, ..self }
    }

    /// Whether what is mounted in it is part of it.
    pub fn crosses(&self) -> bool {
        self.crosses
    }

    fn of(path: PathBuf, fd: Arc<OpenFolder>, beneath: bool) -> Self {
        let (parents, looked_in) = (Parents::default(), Parents::default());
        let file_system = OnceLock::new();
        let (crosses, plain, bound) = (true, None, None);
        Self { path, fd, beneath, crosses, plain, parents, looked_in, bound, file_system }
    }

    /// The same folder, where no link below `base` is followed. Links that lead to `base` are,
    /// now and not again. For targets of mirrors.
    pub fn plain_below(&self, base: &WirePath) -> Result<Self, Fault> {
        let plain = Some((base.clone(), self.open_folder(base)?));
        Ok(Self { plain, ..self.share() })
    }

    /// Whether a link at `path` is followed.
    pub(crate) fn follows(&self, path: &WirePath) -> bool {
        self.plain.as_ref().is_none_or(|(base, _)| !path.is_below(base))
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where something below it is, for people.
    pub fn shown(&self, path: &WirePath) -> String {
        self.path.join(OsStr::from_bytes(path.as_bytes())).display().to_string()
    }

    /// The folder itself, open.
    pub fn fd(&self) -> &Arc<OpenFolder> {
        &self.fd
    }

    /// The id of the file system of a file in this folder that was looked at. As long as the
    /// folder is open no other file system gets its device number, so it is asked for once.
    pub(crate) fn file_system_of(&self, file: &File, stat: &Statx) -> io::Result<u64> {
        let device = |stat: &Statx| (stat.stx_dev_major, stat.stx_dev_minor);
        let own = self.file_system.get_or_init(|| {
            let of = stat_open(&*self.fd).ok()?;
            Some((device(&of), file_system_of(&*self.fd).ok()?))
        });
        match own {
            Some((own, id)) if *own == device(stat) => Ok(*id),
            _ => file_system_of(file),
        }
    }

    /// Opens a folder below.
    pub fn open_folder(&self, path: &WirePath) -> Result<OwnedFd, Fault> {
        let what = format!("cannot open folder {path}");
        self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(|e| self.refused(&what, path, e))
    }

    /// Opens the folder that `path` is in, from a few kept open. Each is looked for under its path
    /// again: between that and a change in it are one or two system calls.
    pub fn open_parent(&self, path: &WirePath) -> Result<Arc<OpenFolder>, Fault> {
        // One that was moved may have left this folder, and what others put there with it.
        self.parent_if(path, OpenFolder::is_in_place)
    }

    /// The same for a temporary file: whoever gives it its name looks where its folder is then.
    pub(crate) fn open_parent_of_temporary(
        &self,
        path: &WirePath,
    ) -> Result<Arc<OpenFolder>, Fault> {
        // One that was removed has no name, and takes none.
        self.parent_if(path, |kept| rustix::fs::fstat(kept).is_ok_and(|stat| stat.st_nlink > 0))
    }

    fn parent_if(
        &self,
        path: &WirePath,
        is_good: impl FnOnce(&OpenFolder) -> bool,
    ) -> Result<Arc<OpenFolder>, Fault> {
        let parent = path.parent_bytes();
        if parent.is_empty() {
            return Ok(self.fd.clone());
        }
        if let Some(kept) = self.parents.find(parent) {
            if is_good(&kept) {
                return Ok(kept);
            }
            self.parents.forget(&kept);
        }
        let parent = path.parent();
        let fd = self.open_folder(&parent)?;
        let way = self.way(ResolveFlags::empty());
        let fd = Arc::new(OpenFolder::below(fd, &self.fd, parent.clone(), way));
        self.parents.keep(parent, &fd);
        Ok(fd)
    }

    /// Looks folders up anew from now on: what has their names may be another tree.
    pub fn forget_parents(&self) {
        self.parents.clear();
        self.looked_in.clear();
    }

    /// Lets go of folders that were kept open for files that did not come.
    pub fn forget_old_parents(&self) {
        self.parents.forget_old();
        self.looked_in.forget_old();
    }

    /// Says what is at `path`; links on the way are followed, and `follow` says whether the
    /// last one is.
    pub fn stat(&self, path: &WirePath, follow: bool) -> Result<Entry, Fault> {
        self.look(path, follow).map(|(entry, _)| entry)
    }

    /// The same, and whose it is.
    pub fn look(&self, path: &WirePath, follow: bool) -> Result<(Entry, Ties), Fault> {
        let what = format!("cannot look at {path}");
        let mut flags = OFlags::PATH;
        flags.set(OFlags::NOFOLLOW, !follow);
        let fd = self.resolve(path, flags).map_err(|e| self.refused(&what, path, e))?;
        let stat = stat_open(&fd).map_err(|e| Fault::from_io(&what, &e))?;
        let entry = entry_of(&fd, c"", path.clone(), &stat);
        let entry = entry.map_err(|e| Fault::from_io(&what, &e))?;
        Ok((entry, ties_of(&stat, || named_of(&fd))))
    }

    /// Lets the owner of a folder or file, if that is this user, read and write it. Root need not ask.
    pub fn open_up(&self, path: &WirePath) -> Result<(), rustix::io::Errno> {
        let fd = self.resolve(path, OFlags::PATH)?;
        let stat = rustix::fs::fstat(&fd)?;
        let user = rustix::process::geteuid();
        if user.is_root() || stat.st_uid != user.as_raw() || stat.st_mode & 0o700 == 0o700 {
            return Ok(());
        }
        // It may not be open to reading, and what was resolved is what must change.
        let name = format!("/proc/self/fd/{}", fd.as_raw_fd());
        rustix::fs::chmod(name, Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o700))
    }

    /// Gives a folder what the rules allow of this metadata; says what was not kept.
    pub fn describe(&self, path: &WirePath, meta: &Meta, rules: &Rules) -> Result<Dropped, Fault> {
        let fd = self.open_folder(path)?;
        meta::apply(fd, format_args!("folder {path}"), Kind::Folder, meta, rules)
    }

    pub(crate) fn resolve(
        &self,
        path: &WirePath,
        flags: OFlags,
    ) -> Result<OwnedFd, rustix::io::Errno> {
        self.resolve_by(path, flags, ResolveFlags::empty())
    }

    /// The same, and refused where `more` says so.
    pub(crate) fn resolve_by(
        &self,
        path: &WirePath,
        flags: OFlags,
        more: ResolveFlags,
    ) -> Result<OwnedFd, rustix::io::Errno> {
        let (from, rest, links) = self.begin_at(path);
        open_beneath(from, rest, flags, self.way(links | more))
    }

    /// The open folder that a path is looked up from, the rest of the path, and what of links.
    fn begin_at<'a>(&'a self, path: &'a WirePath) -> (BorrowedFd<'a>, &'a [u8], ResolveFlags) {
        let bytes = path.as_bytes();
        match &self.plain {
            Some((base, fd)) if path == base || path.is_below(base) => {
                let rest = bytes.get(base.as_bytes().len()..).unwrap_or_default();
                let rest = rest.strip_prefix(b"/").unwrap_or(rest);
                (fd.as_fd(), rest, ResolveFlags::NO_SYMLINKS)
            }
            _ => (self.fd.as_fd(), bytes, ResolveFlags::empty()),
        }
    }

    /// How a path is resolved: beneath the folder, unless that is free.
    fn way(&self, links: ResolveFlags) -> ResolveFlags {
        let mut way = links;
        way.set(ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS, self.beneath);
        way.set(ResolveFlags::NO_XDEV, !self.crosses || links.contains(ResolveFlags::NO_XDEV));
        way
    }

    /// Says why a path was not resolved.
    pub(crate) fn refused(&self, what: &str, path: &WirePath, error: rustix::io::Errno) -> Fault {
        let why = match error {
            rustix::io::Errno::XDEV if self.crosses => "leads out of its export",
            rustix::io::Errno::XDEV => {
                "leads out of its export, or into what is mounted in it, which the export leaves \
                 out (cross_mounts = false)"
            }
            rustix::io::Errno::LOOP => {
                "leads out of its export or in a circle, or through a link where none is followed"
            }
            other => return Fault::from_io(what, &other.into()),
        };
        Fault::new(Code::BadPath, format!("{what}: {path} {why}"))
    }

    /// Opens a regular file for reading, and looks at it. Anything else is refused, and not opened
    /// unless it takes the place of a file in the moment before.
    pub(crate) fn open_file(&self, path: &WirePath) -> Result<(File, Statx), Fault> {
        let what = || format!("cannot open {path}");
        let cannot = |error: Errno| self.refused(&what(), path, error);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let mut seen = self.glance(path);
        for _ in 0..LOOKS_MAX {
            let looked = match seen.take() {
                Some(looked) => looked,
                None => self.look_closely(path).map_err(cannot)?,
            };
            require_regular(&looked, what)?;
            let fd = self.resolve(path, flags).map_err(cannot)?;
            let stat = stat_open(&fd).map_err(|e| Fault::from_io(what(), &e))?;
            if is_same(&looked, &stat) {
                return Ok((File::from(fd), stat));
            }
        }
        Err(Fault::new(Code::Changed, format!("{}: it is replaced all the time", what())))
    }

    /// Looks at a name in a folder that is kept, which costs a third of opening its whole path to
    /// look; none unless it is a regular file there. The folder may have been moved, so this only
    /// says what may be opened: what is opened is resolved beneath this folder.
    fn glance(&self, path: &WirePath) -> Option<Statx> {
        let parent = path.parent_bytes();
        let kept = match parent.is_empty() {
            true => None,
            false => Some(self.looked_in.find(parent).or_else(|| self.keep_looking_in(path))?),
        };
        let at = kept.as_ref().map_or(self.fd().as_fd(), |kept| kept.as_fd());
        // No link is followed, nothing is mounted, and no server of a network file system asked.
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let name = OsStr::from_bytes(path.name()?);
        let stat = statx(at, name, flags, StatxFlags::TYPE | StatxFlags::INO).ok()?;
        is_regular(&stat).then_some(stat)
    }

    /// Keeps a folder to look in, unless it is on another mount: that could not be unmounted then.
    fn keep_looking_in(&self, path: &WirePath) -> Option<Arc<OwnedFd>> {
        let parent = path.parent();
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let fd = Arc::new(self.resolve_by(&parent, flags, ResolveFlags::NO_XDEV).ok()?);
        self.looked_in.keep(parent, &fd);
        Some(fd)
    }

    /// Looks at what would be opened, links and all.
    fn look_closely(&self, path: &WirePath) -> Result<Statx, Errno> {
        let fd = self.resolve(path, OFlags::PATH)?;
        statx(&fd, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE | StatxFlags::INO)
    }

    /// Makes a folder; an existing one is fine. One that is `unfinished` gets its metadata
    /// later: until then its owner may use it, also if it was there and said otherwise.
    pub fn make_folder(&self, path: &WirePath, mode: u32, unfinished: bool) -> Result<(), Fault> {
        let Some(name) = path.name() else { return Ok(()) };
        let what = format!("cannot make folder {path}");
        let parent = self.open_parent(path)?;
        let charged = match self.charge(Cost::INODE) {
            Ok(charged) => charged,
            // One that is there costs nothing.
            Err(full) => match stat_name(&*parent, OsStr::from_bytes(name)) {
                Ok(_) => return self.use_folder(path, unfinished),
                Err(_) => return Err(full),
            },
        };
        let mode = Mode::from_raw_mode(mode & 0o777 | 0o700);
        match mkdirat(&*parent, OsStr::from_bytes(name), mode) {
            Ok(()) => {
                charged.keep();
                Ok(())
            }
            Err(rustix::io::Errno::EXIST) => self.use_folder(path, unfinished),
            Err(error) => Err(Fault::from_io(&what, &error.into())),
        }
    }

    /// Takes the folder that is at a path for one that was to be made there.
    fn use_folder(&self, path: &WirePath, unfinished: bool) -> Result<(), Fault> {
        let what = || format!("cannot make folder {path}");
        match self.stat(path, self.follows(path)) {
            Ok(Entry { kind: EntryKind::Folder, .. }) => {
                if unfinished {
                    // Where it cannot be opened up, what is made in it says why.
                    let _ = self.open_up(path);
                }
                Ok(())
            }
            // A link may lead to a folder elsewhere: it is not in the way, it is refused.
            Err(fault) if fault.code != Code::NotFound => Err(fault),
            Ok(Entry { kind: EntryKind::Symlink { .. }, .. }) => {
                Err(Fault::new(Code::NotFolder, format!("{}: a link is in its place", what())))
            }
            _ => Err(Fault::new(Code::NotFolder, format!("{}: a file is in its place", what()))),
        }
    }

    /// Makes a folder, in place of a file or a link that is no folder. A folder is never
    /// removed, and nothing is that cannot be replaced.
    pub fn force_folder(&self, path: &WirePath, mode: u32, unfinished: bool) -> Result<(), Fault> {
        match self.make_folder(path, mode, unfinished) {
            Err(fault) if fault.code == Code::NotFolder => {
                let Some(name) = path.name() else { return Err(fault) };
                let parent = self.open_parent(path)?;
                // Nothing is removed for a folder that would be one too many.
                drop(self.charge(Cost::INODE)?);
                unlinkat(&*parent, OsStr::from_bytes(name), AtFlags::empty()).map_err(|e| {
                    Fault::from_io(format!("cannot remove {path} for a folder"), &e.into())
                })?;
                self.make_folder(path, mode, unfinished)
            }
            made => made,
        }
    }

    /// Makes a symbolic link in place of what may be there, but not of a folder. Its owner and
    /// times are set before it takes its name; says what was not kept.
    pub fn make_symlink(
        &self,
        path: &WirePath,
        target: &[u8],
        keep: Option<(&Meta, &Rules)>,
        over: Over,
    ) -> Result<Dropped, Fault> {
        let what = format!("cannot make link {path}");
        let name = path.name();
        let name = name.ok_or_else(|| Fault::new(Code::BadPath, format!("{what}: no name")))?;
        let parent = self.open_parent(path)?;
        let hidden = temporary_name(name);
        let temporary = OsStr::from_bytes(&hidden);
        let charged = self.charge(Cost::INODE.and(Cost::of_bytes(target.len() as u64)))?;
        symlinkat(OsStr::from_bytes(target), &*parent, temporary)
            .map_err(|error| Fault::from_io(&what, &error.into()))?;
        let kept = keep.map_or(Ok(Dropped::default()), |(meta, rules)| {
            meta::apply_to_link(&*parent, temporary, meta, rules)
        });
        let renamed =
            kept.and_then(|dropped| rename(&parent, &hidden, name, over).map(|()| dropped));
        // The first error is what matters; the link may stay if removing it fails too.
        if renamed.is_ok() || unlinkat(&*parent, temporary, AtFlags::empty()).is_err() {
            charged.keep();
        }
        renamed.map_err(|error| over.fault(&what, error))
    }
}

/// Describes what a status was taken of.
pub(crate) fn entry_of(
    at: impl AsFd,
    name: impl rustix::path::Arg,
    path: WirePath,
    stat: &Statx,
) -> io::Result<Entry> {
    use rustix::fs::FileType;
    let kind = match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Folder,
        FileType::Symlink => {
            let target = readlinkat(at, name, Vec::new())?.into_bytes();
            EntryKind::Symlink { target }
        }
        _ => EntryKind::Special,
    };
    let size = if kind == EntryKind::File { stat.stx_size } else { 0 };
    let mode = u32::from(stat.stx_mode) & 0o7777;
    Ok(Entry { path, kind, size, mode, mtime_ns: nanoseconds(&stat.stx_mtime), meta: None })
}

/// Whether something is mounted at a name that was looked at.
pub(crate) fn is_mount_point(stat: &Statx) -> bool {
    stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
}

/// The status of a name in an open folder, of the link itself where it is one.
pub(crate) fn stat_name(folder: impl AsFd, name: &OsStr) -> io::Result<Statx> {
    Ok(statx(folder, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naming::Over;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn path(text: &str) -> WirePath {
        WirePath::parse(text.as_bytes()).expect("plain")
    }

    fn sample() -> (tempfile::TempDir, Folder) {
        let outside = tempfile::tempdir().expect("folder");
        fs::create_dir_all(outside.path().join("export/sub")).expect("folder");
        fs::write(outside.path().join("secret"), b"secret").expect("writes");
        fs::write(outside.path().join("export/a"), b"inside").expect("writes");
        symlink("../secret", outside.path().join("export/escape")).expect("links");
        symlink("/etc/passwd", outside.path().join("export/absolute")).expect("links");
        symlink("../a", outside.path().join("export/sub/inner")).expect("links");
        symlink("loop", outside.path().join("export/loop")).expect("links");
        let folder = Folder::open(&outside.path().join("export")).expect("opens");
        (outside, folder)
    }

    #[test]
    fn links_that_leave_are_refused_and_links_that_stay_are_followed() {
        let (_keep, folder) = sample();
        assert!(folder.open_file(&path("a")).is_ok());
        assert!(folder.open_file(&path("sub/inner")).is_ok());
        for bad in ["escape", "absolute", "loop"] {
            let fault = folder.open_file(&path(bad)).expect_err("refused");
            assert_eq!(fault.code, Code::BadPath, "{bad}: {fault}");
            assert!(fault.text.contains("leads out of its export"), "{fault}");
        }
    }

    #[test]
    fn folders_and_special_files_are_not_opened_as_files() {
        let (keep, folder) = sample();
        assert_eq!(folder.open_file(&path("sub")).expect_err("folder").code, Code::IsFolder);
        let fifo = keep.path().join("export/fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .expect("makes a fifo");
        assert_eq!(folder.open_file(&path("fifo")).expect_err("fifo").code, Code::Special);
        assert_eq!(folder.open_file(&path("nothing")).expect_err("none").code, Code::NotFound);
    }

    #[test]
    fn a_folder_that_was_moved_away_is_not_written_to_under_its_old_path() {
        let (keep, folder) = sample();
        folder.open_parent(&path("sub/new")).expect("opens");
        fs::rename(keep.path().join("export/sub"), keep.path().join("moved")).expect("renames");
        let fault = folder.open_parent(&path("sub/new")).expect_err("it is gone");
        assert_eq!(fault.code, Code::NotFound);
        // Another may have its path.
        fs::create_dir(keep.path().join("export/sub")).expect("makes");
        folder.make_folder(&path("sub/made"), 0o700, false).expect("makes");
        assert!(keep.path().join("export/sub/made").exists());
        assert!(!keep.path().join("moved/made").exists(), "outside of the folder");
    }

    #[test]
    fn what_others_put_into_a_folder_that_was_moved_away_is_not_linked_back() {
        let (keep, folder) = sample();
        let (secret, link) = (path("sub/secret"), path("link to it"));
        folder.open_parent(&secret).expect("opens");
        fs::rename(keep.path().join("export/sub"), keep.path().join("moved")).expect("renames");
        fs::write(keep.path().join("moved/secret"), b"of others").expect("writes");
        assert_eq!(folder.link(&link, &secret).expect_err("gone").code, Code::NotFound);
        assert!(!keep.path().join("export/link to it").exists());
    }

    #[test]
    fn making_a_folder_twice_is_fine_and_over_a_file_is_not() {
        let (_keep, folder) = sample();
        folder.make_folder(&path("sub/new"), 0o755, false).expect("makes");
        folder.make_folder(&path("sub/new"), 0o755, false).expect("is there");
        assert_eq!(
            folder.make_folder(&path("a"), 0o755, false).expect_err("file").code,
            Code::NotFolder
        );
    }

    #[test]
    fn force_makes_a_folder_of_a_file_and_of_a_link_that_leads_nowhere() {
        let (keep, folder) = sample();
        fs::write(keep.path().join("export/sub/kept"), b"").expect("writes");
        symlink("nothing", keep.path().join("export/dangling")).expect("links");
        for name in ["a", "dangling", "sub"] {
            folder.force_folder(&path(name), 0o755, false).expect("makes");
            assert!(keep.path().join("export").join(name).is_dir());
        }
        assert!(keep.path().join("export/sub/kept").exists(), "a folder stays as it is");
        let made = folder.force_folder(&path("absolute"), 0o755, false);
        assert!(made.is_err(), "it may lead to a folder");
        assert!(keep.path().join("export/absolute").is_symlink());
    }

    #[test]
    fn only_a_free_folder_has_links_that_leave() {
        let (keep, folder) = sample();
        let free = Folder::open_free(&keep.path().join("export")).expect("opens");
        assert!(
            free.open_file(&path("escape")).is_ok()
                && free.share().open_file(&path("escape")).is_ok()
        );
        assert!(folder.share().open_file(&path("escape")).is_err(), "it stays confined");
        assert!(free.open_file(&path("loop")).is_err());
    }

    #[test]
    fn a_symlink_replaces_a_file_but_not_a_folder() {
        let (_keep, folder) = sample();
        folder.make_symlink(&path("a"), b"sub", None, Over::Anything).expect("links");
        let entry = folder.stat(&path("a"), false).expect("there");
        assert_eq!(entry.kind, EntryKind::Symlink { target: b"sub".to_vec() });
        assert!(folder.make_symlink(&path("sub"), b"a", None, Over::Anything).is_err());
        let late = folder.make_symlink(&path("a"), b"b", None, Over::Nothing);
        assert_eq!(late.expect_err("it is there").code, Code::Exists);
        folder.make_symlink(&path("new"), b"b", None, Over::Nothing).expect("links");
        let left = fs::read_dir(folder.path()).expect("lists").count();
        assert_eq!(left, 6, "no temporary link is left");
    }

    #[test]
    fn below_a_plain_folder_no_link_is_followed_and_one_is_replaced() {
        let (keep, folder) = sample();
        let export = keep.path().join("export");
        symlink("sub", export.join("to")).expect("links");
        symlink("..", export.join("sub/up")).expect("links");
        fs::create_dir(export.join("real")).expect("makes");
        fs::write(export.join("real/x"), b"untouched").expect("writes");
        symlink("../real", export.join("sub/d")).expect("links");
        let plain = folder.plain_below(&path("to")).expect("links to it are followed");
        for name in ["to/d/x", "to/up/a", "to/inner"] {
            assert_eq!(plain.open_file(&path(name)).expect_err("refused").code, Code::BadPath);
        }
        assert_eq!(plain.open_parent(&path("to/d/x")).expect_err("refused").code, Code::BadPath);
        plain.open_file(&path("sub/inner")).expect("elsewhere they are");
        let fault = plain.make_folder(&path("to/d"), 0o700, true).expect_err("refused");
        assert_eq!(fault.code, Code::NotFolder, "{fault}");
        plain.force_folder(&path("to/d"), 0o700, true).expect("replaces it");
        let kind = fs::symlink_metadata(export.join("sub/d")).expect("there").file_type();
        assert!(kind.is_dir() && fs::read(export.join("real/x")).expect("reads") == b"untouched");
        plain.open_parent(&path("to/d/x")).expect("it is a folder now");
    }
}
