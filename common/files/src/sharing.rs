//! A second tree that has all that a first one has, at little cost: files by
//! reflink where the file system can, else as another name of the same file, else
//! as a copy. A file that is shared like this must not be changed in place:
//! whoever gives it other metadata makes it its own first (`Folder::own`).
//! Called by `stage`; never touches the first tree.

use crate::charge::Cost;
use crate::folder::Folder;
use crate::identity::stat_open;
use crate::meta::{self, Kind, Rules, of_status, xattrs_of};
use crate::naming::{Over, create_new};
use crate::stamp::{Stamp, walk};
use rustix::fs::{AtFlags, SeekFrom, copy_file_range, ioctl_ficlone, linkat, seek, unlinkat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use verbatim_proto::message::EntryKind;
use verbatim_proto::{Code, Fault, Meta, Node, Twin, WirePath};

/// Files with several names that are told apart; those beyond are files of their own, until a
/// plan links them again.
const LINKED_MAX: usize = 1 << 18;

/// How many bytes their paths may have together: 128 for each, and one may have 32 KiB.
const LINKED_PATH_BYTES_MAX: usize = 32 << 20;

/// What each of them takes beside its path.
const LINKED_BYTES: usize = 64;

/// Room is asked for so many bytes at a time.
const ROOM_BYTES: usize = 64 << 10;

/// What is copied at a time where the kernel does not do it.
const STEP_BYTES: usize = 256 << 10;

/// Asked before so many bytes are written, which neither a reflink nor another name takes.
pub type May<'a> = &'a dyn Fn(u64) -> Result<(), Fault>;

/// Asked whether so many bytes may be kept in memory, in place of as many as it was last asked for.
pub type Kept<'a> = &'a mut dyn FnMut(usize) -> bool;

/// Fills an empty folder with all that is in another, and gives it the same metadata. What copies
/// that were cut short left is left out.
/// Names of files with several are kept as far as there is `room` for their bytes.
pub(crate) fn fill(
    from: &Folder,
    to: &Folder,
    may: May<'_>,
    room: Kept<'_>,
) -> Result<Filled, Fault> {
    let (twins, open) = (HashMap::new(), Vec::new());
    let (reflinks, made, twin_bytes) = (true, false, 0);
    let mut filling = Filling { from, to, may, room, reflinks, made, twins, twin_bytes, open };
    let mut stamp = Stamp::default();
    for found in walk(from)? {
        let node = found.map_err(|(_, fault)| fault)?;
        stamp.add(&node);
        filling.leave(Some(&node.path))?;
        filling.add(node)?;
    }
    filling.leave(None)?;
    Ok(Filled { stamp, reflinks: filling.made })
}

/// What a tree was filled with.
pub(crate) struct Filled {
    /// What the other tree looked like.
    pub stamp: Stamp,
    /// Whether there are reflinks, which nobody flushed yet.
    pub reflinks: bool,
}

struct Filling<'a> {
    from: &'a Folder,
    to: &'a Folder,
    may: May<'a>,
    room: Kept<'a>,
    /// Whether the file system may be able to.
    reflinks: bool,
    /// Whether it was.
    made: bool,
    /// The first name of files and links with several names, where they are not shared.
    twins: HashMap<Twin, WirePath>,
    /// How long these names are together.
    twin_bytes: usize,
    /// The folders it is in, the innermost last; they get their metadata when all is in them.
    open: Vec<Node>,
}

impl Filling<'_> {
    fn leave(&mut self, path: Option<&WirePath>) -> Result<(), Fault> {
        let is_in = |node: &Node| path.is_some_and(|path| path.is_below(&node.path));
        while let Some(node) = self.open.pop_if(|node| !is_in(node)) {
            self.to.describe(&node.path, &node.meta, &Rules::of_user())?;
        }
        Ok(())
    }

    fn add(&mut self, node: Box<Node>) -> Result<(), Fault> {
        match &node.kind {
            EntryKind::Folder => {
                self.to.make_folder(&node.path, 0o700, true)?;
                self.open.push(*node);
                Ok(())
            }
            EntryKind::File => self.add_file(&node),
            EntryKind::Symlink { target } => self.add_link(&node, target),
            EntryKind::Special => self.share(self.from, &node.path, &node.path),
        }
    }

    fn add_file(&mut self, node: &Node) -> Result<(), Fault> {
        let first = node.twin.and_then(|twin| self.twins.get(&twin));
        if let Some(first) = first {
            return self.share(self.to, first, &node.path);
        }
        if self.reflinks {
            match copy((self.from, &node.path), (self.to, &node.path), Way::Reflink, self.may) {
                Ok(true) => {
                    self.made = true;
                    return self.remember(node);
                }
                Ok(false) => self.reflinks = false,
                // One's own, but not open to oneself: a name needs no reading.
                Err(fault) if fault.code == Code::Denied => {}
                Err(fault) => return Err(fault),
            }
        }
        // A file may have as many names as it can, or be none that this user may link.
        match self.share(self.from, &node.path, &node.path) {
            Ok(()) => Ok(()),
            Err(fault) if fault.code == Code::NoSpace => Err(fault),
            Err(_) => {
                copy((self.from, &node.path), (self.to, &node.path), Way::Any, self.may)?;
                self.remember(node)
            }
        }
    }

    fn add_link(&mut self, node: &Node, target: &[u8]) -> Result<(), Fault> {
        if let Some(first) = node.twin.and_then(|twin| self.twins.get(&twin)) {
            return self.share(self.to, first, &node.path);
        }
        if self.share(self.from, &node.path, &node.path).is_ok() {
            return Ok(());
        }
        let keep = Some((&node.meta, &Rules::of_user()));
        self.to.make_symlink(&node.path, target, keep, Over::Anything)?;
        self.remember(node)
    }

    fn remember(&mut self, node: &Node) -> Result<(), Fault> {
        let Some(twin) = node.twin else { return Ok(()) };
        let bytes = self.twin_bytes + node.path.as_bytes().len();
        let is_full = self.twins.len() >= LINKED_MAX || bytes > LINKED_PATH_BYTES_MAX;
        let places = (self.twins.len() + 1) * LINKED_BYTES;
        if !is_full && (self.room)((bytes + places).next_multiple_of(ROOM_BYTES)) {
            self.twins.insert(twin, node.path.clone());
            self.twin_bytes = bytes;
        }
        Ok(())
    }

    /// Gives a file another name.
    fn share(&self, of: &Folder, path: &WirePath, new: &WirePath) -> Result<(), Fault> {
        let (from, to) = (of.open_parent(path)?, self.to.open_parent(new)?);
        let name = |path: &WirePath| OsStr::from_bytes(path.name().unwrap_or_default()).to_owned();
        let charged = self.to.charge(Cost::NAME)?;
        linkat(&*from, name(path), &*to, name(new), AtFlags::empty())
            .map(|()| charged.keep())
            .map_err(|e| Fault::from_io(format!("cannot link {new}"), &e.into()))
    }
}

/// How the content of a file is had.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// By reflink, or not at all.
    Reflink,
    Any,
}

/// Makes a file with the content and metadata of another. False if it could only be copied, and
/// was not to be; nothing is there then.
pub(crate) fn copy(
    (from, path): (&Folder, &WirePath),
    (to, new): (&Folder, &WirePath),
    way: Way,
    may: May<'_>,
) -> Result<bool, Fault> {
    let what = format!("cannot copy {path}");
    let (file, _) = from.open_file(path)?;
    let rules = Rules::of_user();
    let parent = to.open_parent(new)?;
    let name = new.name().unwrap_or_default();
    let charged = to.charge(Cost::INODE)?;
    let made = create_new(&parent, name, 0o600).map_err(|e| Fault::from_io(&what, &e.into()))?;
    let copied = match ioctl_ficlone(&made, &file) {
        Ok(()) => Ok(true),
        Err(_) if way == Way::Reflink => Ok(false),
        Err(_) => copy_data(&file, &made, &what, may).map(|()| true),
    };
    let copied = copied.and_then(|copied| {
        let stat = stat_open(&file).map_err(|e| Fault::from_io(&what, &e))?;
        let xattrs = xattrs_of(&file, rules.privileged_xattrs, &what)?;
        let meta = Meta { xattrs, ..of_status(&stat) };
        meta::apply(&made, new, Kind::File, &meta, &rules)?;
        // What a tree is filled with is flushed with all of it, before it is seen.
        if copied && way == Way::Any && !parent.is_in_memory() {
            made.sync_all().map_err(|e| Fault::from_io(&what, &e))?;
        }
        Ok(copied)
    });
    // The first error is what matters; what may stay goes with all of the tree.
    let stays = || unlinkat(&*parent, OsStr::from_bytes(name), AtFlags::empty()).is_err();
    if matches!(copied, Ok(true)) || stays() {
        charged.keep();
    }
    copied
}

/// Copies what is data in a file, and leaves holes.
fn copy_data(from: &File, to: &File, what: &str, may: May<'_>) -> Result<(), Fault> {
    let fault = |e: std::io::Error| Fault::from_io(what, &e);
    let size = from.metadata().map_err(fault)?.len();
    let mut at = 0;
    while at < size {
        let data = match seek(from, SeekFrom::Data(at)) {
            Ok(data) => data.max(at),
            Err(Errno::NXIO) => break,
            // What a file system does not tell is data.
            Err(_) => at,
        };
        let end = seek(from, SeekFrom::Hole(data)).map_or(size, |hole| hole.clamp(data, size));
        may(end - data)?;
        copy_range(from, to, data, end).map_err(fault)?;
        at = end.max(data + 1);
    }
    to.set_len(size).map_err(fault)
}

fn copy_range(from: &File, to: &File, start: u64, end: u64) -> std::io::Result<()> {
    let (mut at, mut buffer) = (start, Vec::new());
    while at < end {
        let len = usize::try_from(end - at).unwrap_or(usize::MAX);
        let (mut read, mut written) = (at, at);
        match copy_file_range(from, Some(&mut read), to, Some(&mut written), len) {
            Ok(moved @ 1..) => at += moved as u64,
            // Some file systems say that nothing is left where they cannot do it.
            Ok(0) | Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                buffer.resize(STEP_BYTES, 0);
                let count = from.read_at(&mut buffer[..len.min(STEP_BYTES)], at)?;
                if count == 0 {
                    // It became shorter: zeros must not take the place of what was there.
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
                to.write_all_at(&buffer[..count], at)?;
                at += count as u64;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    const FREELY: May<'_> = &|_| Ok(());

    fn path(text: &str) -> WirePath {
        WirePath::parse(text.as_bytes()).expect("plain")
    }

    #[test]
    fn all_of_a_tree_is_there_and_shared_until_it_is_owned() {
        let dir = tempfile::tempdir().expect("folder");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("old/sub/shut")).expect("folders");
        fs::create_dir(at("new")).expect("folder");
        fs::write(at("old/a"), b"one file").expect("writes");
        fs::hard_link(at("old/a"), at("old/sub/b")).expect("links");
        fs::write(at("old/sub/shut/c"), b"3").expect("writes");
        fs::write(at("old/.x.0123456789abcdef.verbatim-part"), b"").expect("writes");
        symlink("nowhere", at("old/link")).expect("links");
        fs::set_permissions(at("old/sub/shut"), fs::Permissions::from_mode(0o555)).expect("sets");
        let (old, new) = (Folder::open(&at("old")).expect("opens"), Folder::open(&at("new")));
        let new = new.expect("opens");
        fill(&old, &new, FREELY, &mut |_| true).expect("fills");
        let of = |name: &str| fs::symlink_metadata(at(name)).expect("there");
        for name in ["", "a", "link", "sub", "sub/b", "sub/shut", "sub/shut/c"] {
            let (was, is) = (of(&format!("old/{name}")), of(&format!("new/{name}")));
            let all = |meta: &fs::Metadata| (meta.mode(), meta.mtime(), meta.mtime_nsec());
            assert_eq!(all(&was), all(&is), "{name}");
        }
        assert!(!at("new/.x.0123456789abcdef.verbatim-part").exists(), "a leftover is nobody's");
        assert_eq!(of("new/a").ino(), of("new/sub/b").ino());
        new.own(&path("a"), FREELY).expect("owns");
        new.own(&path("sub"), FREELY).expect("a folder is its own");
        assert_ne!(of("new/a").ino(), of("old/a").ino());
        assert_eq!((of("new/a").nlink(), of("new/a").mode()), (1, of("old/a").mode()));
        fs::write(at("new/a"), b"other").expect("writes");
        assert_eq!(fs::read(at("old/a")).expect("reads"), b"one file");
        fs::set_permissions(at("old/sub/shut"), fs::Permissions::from_mode(0o755)).expect("sets");
        fs::set_permissions(at("new/sub/shut"), fs::Permissions::from_mode(0o755)).expect("sets");
    }

    #[test]
    fn a_copy_has_the_holes_of_its_file() {
        let dir = tempfile::tempdir().expect("folder");
        let file = File::create_new(dir.path().join("a")).expect("makes");
        file.set_len(20 << 20).expect("grows");
        file.write_all_at(&[7; 5000], 9 << 20).expect("writes");
        fs::hard_link(dir.path().join("a"), dir.path().join("b")).expect("links");
        let folder = Folder::open(dir.path()).expect("opens");
        // Where there are no reflinks, what is data is asked for; a hole is not.
        let wanted = Cell::new(0);
        let refuse = |bytes| {
            wanted.set(wanted.get() + bytes);
            Err(Fault::new(Code::NoSpace, "no more"))
        };
        let refused = folder.own(&path("b"), &refuse);
        let names = fs::metadata(dir.path().join("b")).expect("there").nlink();
        let other = File::create_new(dir.path().join("c")).expect("makes");
        let copies = ioctl_ficlone(other, &file).is_err();
        assert_eq!((5000..1 << 20).contains(&wanted.get()), copies, "{wanted:?} were asked for");
        assert!(refused.is_err() == copies && (names == 2) == copies, "{refused:?}");
        folder.own(&path("b"), FREELY).expect("owns");
        let copy = fs::metadata(dir.path().join("b")).expect("there");
        assert!(copy.blocks() * 512 < 1 << 20, "{} blocks", copy.blocks());
        let read = |name: &str| fs::read(dir.path().join(name)).expect("reads");
        assert!(read("a") == read("b"));
    }

    /// How many bytes of names of files with several are kept, where there is room for so many.
    fn bytes_of_names_within(most: usize) -> usize {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        let (twins, open) = (HashMap::new(), Vec::new());
        let (from, to, may, reflinks, made) = (&folder, &folder, FREELY, false, false);
        let room: Kept<'_> = &mut |bytes| bytes <= most;
        let twin_bytes = 0;
        let mut filling = Filling { from, to, may, room, reflinks, made, twins, twin_bytes, open };
        let name = "n".repeat(255);
        let long = vec![name.as_str(); 120].join("/");
        for inode in 0..2000 {
            let (kind, meta, digest) = (EntryKind::File, Meta::default(), None);
            let twin = Some(Twin { device: 1, inode });
            let node = Node { path: path(&long), kind, size: 0, meta, twin, digest };
            filling.remember(&node).expect("remembers, or does not");
        }
        filling.twins.values().map(|path| path.as_bytes().len()).sum()
    }

    #[test]
    fn the_names_of_files_with_several_take_no_more_memory_however_long_they_are() {
        let bytes = bytes_of_names_within(usize::MAX);
        assert!(bytes <= LINKED_PATH_BYTES_MAX, "{bytes} bytes of paths");
        assert!(bytes > LINKED_PATH_BYTES_MAX / 2, "{bytes} bytes are few");
    }

    #[test]
    fn the_names_of_files_with_several_are_kept_as_far_as_there_is_room() {
        let bytes = bytes_of_names_within(1 << 20);
        assert!(bytes <= 1 << 20, "{bytes} bytes of paths");
        assert!(bytes > 1 << 19, "{bytes} bytes are few");
    }
}
