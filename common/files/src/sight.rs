//! What the names of a folder are, with all that is compared of them. Many are
//! looked at by threads of their own, which are in that folder while they do: extended
//! attributes can be asked for only by a path, and the one through /proc takes longer.
//! Called by the walk of a tree that is mirrored, which tells them in order.

use crate::bare::Look;
use crate::folder::{entry_of, is_mount_point, stat_name};
use crate::identity::twin_of;
use crate::limit::processors;
use crate::meta::{of_status, xattrs_at};
use rustix::fs::CWD;
use rustix::process::fchdir;
use rustix::thread::UnshareFlags;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, scope};
use verbatim_proto::message::EntryKind;
use verbatim_proto::{Code, Fault, Filter, Node, WirePath};

/// The most threads that look at the names of one folder: one more than half of the processors.
const LOOKERS_MAX: usize = 4;

/// Names that a thread takes at a time: many looks for the start of a thread.
const SHARE: usize = 64;

/// An open folder, and what is to be seen of it.
pub(crate) struct Sight<'a> {
    pub folder: &'a OwnedFd,
    /// The same folder of a tree that this one shares files with.
    pub beside: Option<&'a OwnedFd>,
    pub filter: &'a Filter,
    /// Whether `trusted.*` attributes are told.
    pub trusted: bool,
    /// Whether files are told without attributes.
    pub plain: bool,
    /// Whether what is mounted there is told.
    pub crosses: bool,
    /// Which files need not be asked for theirs.
    pub bare: Option<Look<'a>>,
}

/// What a name is.
pub(crate) enum Seen {
    /// It is gone, or left out.
    Nothing,
    /// A folder, which is told when it is entered.
    Folder,
    /// Anything else.
    Node(Box<Node>),
}

/// A path that was or is to be looked at. What is seen takes it.
pub(crate) type Spotted = (WirePath, Option<Result<Seen, Fault>>);

impl Sight<'_> {
    /// Looks at all paths in the folder that were not looked at.
    pub fn look_at(&self, spotted: &mut [Spotted]) {
        let lookers = (spotted.len() / SHARE).min(lookers());
        let shares = Mutex::new(spotted.chunks_mut(SHARE));
        let take = || shares.lock().unwrap_or_else(PoisonError::into_inner).next();
        let look = |inside: bool| {
            while let Some(share) = take() {
                for (path, seen) in share {
                    seen.get_or_insert_with(|| self.look(path, inside));
                }
            }
        };
        scope(|scope| {
            let start = |_: &usize| {
                let thread = Builder::new().name("look".into());
                thread.spawn_scoped(scope, || look(goes_into(self.folder))).is_ok()
            };
            // Where no thread can be had nobody else looks.
            if (0..lookers).take_while(start).count() == 0 {
                look(false);
            }
        });
    }

    /// What is at a path in the folder, which this thread may be in.
    fn look(&self, at: &mut WirePath, inside: bool) -> Result<Seen, Fault> {
        let (fd, path) = (self.folder, &*at);
        let name = OsStr::from_bytes(path.name().unwrap_or_default());
        let gone = |e: &io::Error| e.kind() == io::ErrorKind::NotFound;
        let found = stat_name(if inside { CWD } else { fd.as_fd() }, name)
            .and_then(|stat| Ok((entry_of(fd, name, WirePath::root(), &stat)?, stat)));
        let (entry, stat) = match found {
            Ok(found) => found,
            // All of it went: what is told of the folder is not all that was in it.
            Err(error) if gone(&error) && is_removed(fd) => {
                let text = format!("{path}: its folder was removed while it was read");
                return Err(Fault::new(Code::NotFound, text));
            }
            // It was there a moment ago; nobody asked for this one.
            Err(error) if gone(&error) => return Ok(Seen::Nothing),
            Err(error) => return Err(Fault::from_io(format!("cannot look at {path}"), &error)),
        };
        if !self.crosses && is_mount_point(&stat) {
            return Ok(Seen::Nothing);
        }
        if self.filter.excludes(path, entry.kind == EntryKind::Folder)? {
            return Ok(Seen::Nothing);
        }
        if entry.kind == EntryKind::Folder {
            return Ok(Seen::Folder);
        }
        let mut meta = of_status(&stat);
        let is_file = entry.kind == EntryKind::File;
        let is_link = matches!(entry.kind, EntryKind::Symlink { .. });
        // Files bring theirs when they are copied; those of a link are told here or nowhere.
        let asks = is_link || is_file && !self.plain;
        if asks && !self.bare.is_some_and(|look| look.knows(&stat)) {
            let folder = (!inside).then_some(fd.as_fd());
            match xattrs_at(folder, name, self.trusted, path) {
                Ok(Some(xattrs)) => meta.xattrs = xattrs,
                Ok(None) => self.bare.iter().for_each(|look| look.note(&stat)),
                // They are counted as not kept: no reason to leave out the link.
                Err(_) if is_link => {}
                Err(fault) if fault.code == Code::NotFound => return gone_or_not(fd, name, path),
                Err(fault) => return Err(fault),
            }
        }
        let linked = (is_file || is_link) && stat.stx_nlink > 1;
        let is_same = |other: &OwnedFd| {
            stat_name(other, name).is_ok_and(|other| twin_of(&other) == twin_of(&stat))
        };
        let shared = linked && self.beside.is_some_and(is_same);
        let twin = (linked && stat.stx_nlink > 1 + u32::from(shared)).then(|| twin_of(&stat));
        let (path, digest) = (std::mem::take(at), None);
        let node = Node { path, kind: entry.kind, size: entry.size, meta, twin, digest };
        Ok(Seen::Node(Box::new(node)))
    }
}

/// How many threads may look at a time.
fn lookers() -> usize {
    (processors() / 2 + 1).clamp(1, LOOKERS_MAX)
}

/// Makes a folder that of this thread and of no other. A thread that does this must end: paths
/// that users name are relative to the folder of the process.
fn goes_into(folder: &OwnedFd) -> bool {
    // What made it deprecated is a flag that takes descriptors from other threads; this is not it.
    #[expect(deprecated, reason = "the safe one")]
    let alone = rustix::thread::unshare(UnshareFlags::FS);
    alone.is_ok() && fchdir(folder).is_ok()
}

/// Whether a file whose attributes are not found is gone, or cannot be looked at: they are read
/// by way of /proc, and a file that is taken for gone would be deleted elsewhere.
fn gone_or_not(fd: &OwnedFd, name: &OsStr, path: &WirePath) -> Result<Seen, Fault> {
    match stat_name(fd, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Seen::Nothing),
        _ => {
            let text = format!("cannot read extended attributes of {path}: is /proc mounted?");
            Err(Fault::new(Code::Io, text))
        }
    }
}

/// Whether an open folder has no name any more.
pub(crate) fn is_removed(fd: &OwnedFd) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| stat.st_nlink == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bare::Bare;
    use rustix::fs::{XattrFlags, setxattr};
    use std::fs;
    use std::time::{Duration, SystemTime};

    #[test]
    fn many_names_are_seen_as_one_after_the_other_would_be() {
        let dir = tempfile::tempdir().expect("folder");
        let count = 5 * SHARE + 7;
        for number in 0..count {
            let name = dir.path().join(format!("{number:04}"));
            match number % 50 {
                7 => fs::create_dir(&name).expect("made"),
                8 => {}
                _ => fs::write(&name, vec![0; number]).expect("writes"),
            }
            if number % 50 == 21 {
                let set = setxattr(&name, "user.x", b"1", XattrFlags::empty());
                set.expect("the place of temporary files takes attributes");
            }
        }
        let folder: OwnedFd = fs::File::open(dir.path()).expect("opens").into();
        let filter = Filter::parse(vec![b"*9".to_vec()]).expect("plain");
        let (beside, bare) = (None, None);
        let sight = Sight {
            folder: &folder,
            beside,
            filter: &filter,
            trusted: true,
            plain: false,
            crosses: true,
            bare,
        };
        let before = std::env::current_dir().expect("there");
        let path = |number: usize| WirePath::parse(format!("{number:04}").as_bytes());
        let mut spotted: Vec<Spotted> =
            (0..count).map(|number| (path(number).expect("plain"), None)).collect();
        // One that cannot be told is not looked at.
        spotted[3].1 = Some(Err(Fault::new(Code::BadPath, "a name")));
        sight.look_at(&mut spotted);
        for (number, (at, seen)) in spotted.into_iter().enumerate() {
            match (seen.expect("all are looked at"), number) {
                (Err(fault), 3) => assert_eq!(fault.code, Code::BadPath),
                (Ok(Seen::Folder), _) => assert_eq!((number % 50, Ok(at)), (7, path(number))),
                (Ok(Seen::Nothing), _) => assert!(number % 50 == 8 || number % 10 == 9),
                (Ok(Seen::Node(node)), _) => {
                    assert_ne!(number, 3, "it has its answer");
                    assert_eq!((node.size, Ok(node.path)), (number as u64, path(number)));
                    assert_eq!(node.meta.xattrs.len(), usize::from(number % 50 == 21), "{number}");
                }
                (Err(fault), _) => panic!("{number}: {fault:?}"),
            }
        }
        assert_eq!(std::env::current_dir().expect("there"), before, "only those threads went");
    }

    /// How many attributes the files of a folder are told with, by their names.
    fn told(folder: &OwnedFd, bare: &Bare, now: SystemTime) -> Vec<(String, usize)> {
        let filter = Filter::default();
        let device = twin_of(&crate::identity::stat_open(folder).expect("there")).device;
        let bare = Look { bare, device, now };
        let (beside, trusted, plain, bare) = (None, true, false, Some(bare));
        let sight = Sight { folder, beside, filter: &filter, trusted, plain, crosses: true, bare };
        let told = |name: &str| match sight.look(&mut WirePath::parse(name.as_bytes())?, false)? {
            Seen::Node(node) => Ok((name.to_string(), node.meta.xattrs.len())),
            _ => Err(Fault::new(Code::NotFound, name)),
        };
        ["a", "b"].into_iter().map(|name| told(name).expect("a file")).collect()
    }

    #[test]
    fn a_file_without_attributes_is_asked_once_while_it_stays() {
        let dir = tempfile::tempdir().expect("folder");
        for name in ["a", "b"] {
            fs::write(dir.path().join(name), b"").expect("writes");
        }
        let set = |name: &str, attribute: &str| {
            setxattr(dir.path().join(name), attribute, b"1", XattrFlags::empty())
        };
        set("b", "user.x").expect("the place of temporary files takes attributes");
        let folder: OwnedFd = fs::File::open(dir.path()).expect("opens").into();
        let status = |name: &str| stat_name(&folder, OsStr::new(name)).expect("there");
        let (bare, later) = (Bare::default(), SystemTime::now() + Duration::from_secs(3));
        let of = |a: usize, b: usize| vec![("a".to_string(), a), ("b".to_string(), b)];
        assert_eq!(told(&folder, &bare, later), of(0, 1));
        assert_eq!((bare.knows(&status("a")), bare.knows(&status("b"))), (true, false));
        // A lie shows who is asked.
        bare.note(&status("b"), later);
        assert_eq!(told(&folder, &bare, later), of(0, 0));
        set("a", "user.y").expect("sets");
        set("b", "user.y").expect("sets");
        assert_eq!(told(&folder, &bare, later), of(1, 2), "both changed");
    }

    #[test]
    fn a_file_whose_attributes_are_not_found_is_gone_only_if_it_is() {
        let dir = tempfile::tempdir().expect("folder");
        fs::write(dir.path().join("a"), b"").expect("writes");
        let fd: OwnedFd = fs::File::open(dir.path()).expect("opens").into();
        let ask = |name: &str| {
            let path = WirePath::parse(name.as_bytes()).expect("plain");
            gone_or_not(&fd, OsStr::new(name), &path).map_err(|fault| fault.code)
        };
        assert!(matches!(ask("b"), Ok(Seen::Nothing)));
        assert!(matches!(ask("a"), Err(Code::Io)));
    }
}
