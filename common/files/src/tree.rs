//! Walks a tree that is mirrored: in the order that plans are made in, with all
//! that is compared of every entry. Links are told, never followed. Memory grows
//! with the depth of the tree and the names of the folders it is in. Used by the
//! server and by the client, each for its own side; digests are added by them.

use crate::bare::{Bare, Kept, Look, is_stamped};
use crate::folder::stat_name;
use crate::identity::{stat_open, twin_of};
use crate::meta::{of_status, xattrs_of};
use crate::names::Names;
use crate::reap::is_leftover;
use crate::sight::{Seen, Sight, Spotted, is_removed};
use crate::walk::DEPTH_MAX;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;
use verbatim_proto::chosen::Chosen;
use verbatim_proto::message::EntryKind;
use verbatim_proto::tree::Found;
use verbatim_proto::units::{FRAME_BYTES_MAX, PATH_BYTES_MAX};
use verbatim_proto::{Code, Fault, Filter, Meta, Node, Twin, WirePath};

/// How many bytes the paths of leftovers may have in a page, which has to fit a frame with all
/// else, before the page ends; the last one may be as long as paths are.
const LEFTOVERS_BYTES_MAX: usize = FRAME_BYTES_MAX / 4;

/// A walk in progress.
pub struct TreeWalk {
    /// The root, before it is told.
    root: Option<OwnedFd>,
    levels: Vec<Level>,
    filter: Filter,
    /// Whether `trusted.*` attributes are told.
    trusted: bool,
    /// Whether files are told without attributes.
    plain: bool,
    /// Whether what is mounted in it is told.
    crosses: bool,
    /// Files that need not be asked for theirs.
    bare: Option<Arc<Bare>>,
    /// Where they are kept for the next walk.
    kept: Option<Kept>,
    /// A folder that is not gone into: the target of what is walked.
    avoid: Option<Twin>,
    /// What alone is looked at, if not all of it.
    only: Option<Arc<Chosen>>,
    /// The root of a tree that this one shares files with, before it is told.
    beside: Option<OwnedFd>,
    leftovers: Vec<WirePath>,
    leftover_bytes: usize,
    /// The name that is looked at.
    name: Vec<u8>,
    /// Says that nobody waits for the rest.
    over: Arc<AtomicBool>,
}

struct Level {
    path: WirePath,
    fd: OwnedFd,
    names: Names,
    /// What was looked at and is told next.
    ahead: VecDeque<Spotted>,
    /// The same folder of the tree beside it.
    beside: Option<OwnedFd>,
    /// Its file system, where time stamps tell of attributes.
    stamped: Option<u64>,
}

impl TreeWalk {
    /// Begins at an open folder, and leaves out what the filter says.
    pub fn new(root: OwnedFd, filter: Filter, trusted: bool) -> Self {
        let (levels, leftovers) = (Vec::new(), Vec::new());
        Self {
            root: Some(root),
            levels,
            filter,
            trusted,
            plain: false,
            crosses: true,
            bare: None,
            kept: None,
            avoid: None,
            only: None,
            beside: None,
            leftovers,
            leftover_bytes: 0,
            name: Vec::new(),
            over: Arc::default(),
        }
    }

    /// Leaves out what is mounted in the tree, and where, unless `crosses` says so.
    pub fn crossing(self, crosses: bool) -> Self {
        Self { crosses, ..self }
    }

    /// Asks no file for its attributes that is known to have none, and notes which have none.
    pub fn knowing(mut self, bare: Arc<Bare>) -> Self {
        self.bare = Some(bare);
        self
    }

    /// The same by what the last walk of this tree left in a folder of this machine's.
    pub fn recalling(mut self, folder: &Path) -> Self {
        self.kept = self.root.as_ref().and_then(|root| Kept::open(folder, root, &self.filter));
        self.bare = self.kept.as_ref().map(|kept| kept.bare.clone());
        self
    }

    /// Leaves there what this one found, at its end.
    pub fn keep(&self) {
        if let Some(kept) = &self.kept {
            kept.keep(SystemTime::now());
        }
    }

    /// Ends when this turns true: nobody waits for the rest, which may be long where much is
    /// left out.
    pub fn until(mut self, over: Arc<AtomicBool>) -> Self {
        self.over = over;
        self
    }

    /// Does not go into this folder, which is an error.
    pub fn avoiding(mut self, avoid: Option<Twin>) -> Self {
        self.avoid = avoid;
        self
    }

    /// Looks at nothing but this, and the folders it is in.
    pub fn only(mut self, only: Option<Arc<Chosen>>) -> Self {
        self.only = only;
        self
    }

    /// Takes a file that has the same name in another tree, at this open folder, for two: that
    /// one may be shared for now, and has no other name because of it.
    pub fn beside(mut self, other: Option<OwnedFd>) -> Self {
        self.beside = other;
        self
    }

    /// Tells files without their extended attributes from now on, where there is nothing that they
    /// could be compared with: asking for those of a file costs as much as finding it.
    pub fn tell_plain(&mut self) {
        self.plain = true;
        self.kept = None;
    }

    /// What copies that were cut short left, of what was walked since this was last asked.
    pub fn take_leftovers(&mut self) -> Vec<WirePath> {
        self.leftover_bytes = 0;
        std::mem::take(&mut self.leftovers)
    }

    /// Whether so many leftovers wait to be taken that a page has to end.
    pub fn is_full(&self) -> bool {
        self.leftover_bytes >= LEFTOVERS_BYTES_MAX
    }

    /// Whether a file that was just told is still in its folder, wherever that is now.
    pub fn still_has(&self, path: &WirePath) -> bool {
        let level = self.levels.last().filter(|level| level.path == path.parent());
        let name = OsStr::from_bytes(path.name().unwrap_or_default());
        level.is_some_and(|level| stat_name(&level.fd, name).is_ok())
    }

    /// Enters a folder, and tells it.
    fn enter(&mut self, fd: OwnedFd, path: WirePath) -> Result<Box<Node>, Fault> {
        let what = format!("cannot read folder {path}");
        if self.levels.len() >= DEPTH_MAX {
            return Err(Fault::new(Code::Limit, format!("{what}: deeper than {DEPTH_MAX} levels")));
        }
        let stat = stat_open(&fd).map_err(|e| Fault::from_io(&what, &e))?;
        if self.avoid == Some(twin_of(&stat)) {
            let text = format!("{what}: it is the target, which lies in the source");
            return Err(Fault::new(Code::BadPath, text));
        }
        let xattrs = xattrs_of(&fd, self.trusted, &format!("folder {path}"))?;
        // Read before the folder is told: one that cannot be read is a fault, and nothing else.
        let names = Names::read(&fd, &what)?;
        let longest = path.as_bytes().len() + 1 + names.longest();
        if longest > PATH_BYTES_MAX {
            // Of the folder: what is in it has no path that could be told.
            let text = format!("{what}: a path in it is longer than {PATH_BYTES_MAX} bytes");
            return Err(Fault::new(Code::Limit, text));
        }
        let meta = Meta { xattrs, ..of_status(&stat) };
        let (kind, size, twin, digest) = (EntryKind::Folder, 0, None, None);
        let node = Node { path: path.clone(), kind, size, meta, twin, digest };
        let beside = match (self.levels.last().map(|level| &level.beside), node.path.name()) {
            (Some(Some(beside)), Some(name)) => {
                openat(beside, OsStr::from_bytes(name), FOLDER, Mode::empty()).ok()
            }
            _ => self.beside.take(),
        };
        let ahead = VecDeque::new();
        let is_stamped = self.bare.is_some() && is_stamped(&fd);
        let device = twin_of(&stat).device;
        let is_kept = self.kept.as_ref().is_none_or(|kept| kept.device == device);
        let stamped = (is_stamped && is_kept).then_some(device);
        self.levels.push(Level { path, fd, names, ahead, beside, stamped });
        Ok(Box::new(node))
    }

    /// Takes the next names of the innermost folder, `room` at most, and looks at them. A folder ends
    /// them: what is behind it is looked at when it was walked. None where no name is left, and
    /// where leftovers have to be taken first.
    fn look_ahead(&mut self, room: usize) -> Option<()> {
        let level = self.levels.last_mut()?;
        let mut spotted = Vec::new();
        let mut is_full = self.leftover_bytes >= LEFTOVERS_BYTES_MAX;
        while spotted.len() < room.max(1) && !is_full {
            let Some(may_be_folder) = level.names.next_may_be_folder() else { break };
            level.names.take_into(&mut self.name);
            match level.path.with(&self.name) {
                Err(fault) => spotted.push((level.path.clone(), Some(Err(fault)))),
                Ok(path) if self.only.as_ref().is_some_and(|only| !only.sees(&path)) => {}
                Ok(path) if is_leftover(&self.name) => {
                    self.leftover_bytes += path.as_bytes().len();
                    is_full = self.leftover_bytes >= LEFTOVERS_BYTES_MAX;
                    self.leftovers.push(path);
                }
                Ok(path) => {
                    spotted.push((path, None));
                    if may_be_folder {
                        break;
                    }
                }
            }
        }
        let known = self.bare.as_deref().zip(level.stamped);
        let look = |(bare, device)| Look { bare, device, now: SystemTime::now() };
        let sight = Sight {
            folder: &level.fd,
            beside: level.beside.as_ref(),
            filter: &self.filter,
            trusted: self.trusted,
            plain: self.plain,
            crosses: self.crosses,
            bare: known.map(look),
        };
        sight.look_at(&mut spotted);
        let any = !spotted.is_empty();
        level.ahead = spotted.into();
        any.then_some(())
    }

    /// Goes into a folder of the innermost one.
    fn descend(&mut self, path: &WirePath) -> Result<Box<Node>, Fault> {
        let what = |e: Errno| Fault::from_io(format!("cannot read folder {path}"), &e.into());
        let fd = match (self.levels.last(), path.name()) {
            (Some(level), Some(name)) => {
                openat(&level.fd, OsStr::from_bytes(name), FOLDER, Mode::empty()).map_err(what)?
            }
            _ => return Err(what(Errno::NOENT)),
        };
        self.enter(fd, path.clone())
    }
}

/// Opens a folder for itself, and not what a link leads to.
pub(crate) const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl TreeWalk {
    /// The next entry; none at the end, and none where the walk is full until its leftovers are
    /// taken. What comes next may be looked at together with it, `room` entries in all.
    pub fn advance(&mut self, room: usize) -> Option<Found> {
        if let Some(root) = self.root.take() {
            let entered = self.enter(root, WirePath::root());
            return Some(entered.map_err(|fault| (WirePath::root(), fault)));
        }
        while !self.over.load(Ordering::Relaxed) {
            let Some((path, seen)) = self.levels.last_mut()?.ahead.pop_front() else {
                if self.look_ahead(room).is_none() {
                    if self.is_full() {
                        return None;
                    }
                    self.levels.pop();
                }
                continue;
            };
            let found = match seen.expect("all are looked at") {
                Ok(Seen::Nothing) => continue,
                Ok(Seen::Node(node)) => Ok(node),
                Ok(Seen::Folder) => self.descend(&path),
                Err(fault) => Err(fault),
            };
            return Some(found.map_err(|fault| {
                // The rest of a folder that is gone is gone too: it is told once.
                self.levels.pop_if(|level| level.path == path.parent() && is_removed(&level.fd));
                (path, fault)
            }));
        }
        None
    }
}

/// Entries alone: leftovers are forgotten.
impl Iterator for TreeWalk {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        loop {
            match self.advance(1) {
                None if self.is_full() => drop(self.take_leftovers()),
                found => return found,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Folder;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn walk(root: &std::path::Path, rules: &[&str]) -> (Vec<Found>, Vec<WirePath>) {
        let folder = Folder::open(root).expect("opens");
        let fd = folder.open_folder(&WirePath::root()).expect("opens");
        let rules = rules.iter().map(|rule| rule.as_bytes().to_vec()).collect();
        let mut walk = TreeWalk::new(fd, Filter::parse(rules).expect("plain"), true);
        let found = walk.by_ref().collect();
        (found, walk.take_leftovers())
    }

    fn shown(found: &[Found]) -> Vec<String> {
        let show = |found: &Found| match found {
            Ok(node) => node.path.to_string(),
            Err((path, fault)) => format!("({path}: {:?})", fault.code),
        };
        found.iter().map(show).collect()
    }

    #[test]
    fn a_walk_that_nobody_waits_for_ends() {
        let dir = tempfile::tempdir().expect("folder");
        fs::write(dir.path().join("a"), b"").expect("file");
        let root = fs::File::open(dir.path()).expect("opens").into();
        let over = Arc::new(AtomicBool::new(false));
        let mut walk = TreeWalk::new(root, Filter::default(), true).until(over.clone());
        assert!(walk.next().is_some(), "the root");
        over.store(true, Ordering::Relaxed);
        assert!(walk.next().is_none(), "it goes on");
    }

    #[test]
    fn a_walk_of_what_changed_looks_at_nothing_else() {
        use verbatim_proto::{Change, Changes};
        let dir = tempfile::tempdir().expect("folder");
        fs::create_dir_all(dir.path().join("a/b/c")).expect("folders");
        fs::create_dir_all(dir.path().join("x/y")).expect("folders");
        fs::write(dir.path().join("a/b/f"), b"").expect("writes");
        fs::write(dir.path().join("x/y/z"), b"").expect("writes");
        // Were it looked at, it would be a fault.
        fs::set_permissions(dir.path().join("a/b/c"), fs::Permissions::from_mode(0o0))
            .expect("own");
        let change = |text: &str, below| Change {
            path: WirePath::parse(text.as_bytes()).expect("plain"),
            below,
        };
        let changes = vec![change("a/b/f", false), change("x", true), change("gone", false)];
        let only = Chosen::changed(&Changes { changes, rescan: false });
        let folder = Folder::open(dir.path()).expect("opens");
        let fd = folder.open_folder(&WirePath::root()).expect("opens");
        let walk = TreeWalk::new(fd, Filter::default(), true).only(Some(Arc::new(only)));
        let found: Vec<Found> = walk.collect();
        assert_eq!(shown(&found), ["", "a", "a/b", "a/b/f", "x", "x/y", "x/y/z"]);
    }

    #[test]
    fn a_walk_that_knows_asks_no_file_that_has_none_and_notes_the_others() {
        let dir = tempfile::tempdir().expect("folder");
        for name in ["known", "new"] {
            fs::write(dir.path().join(name), b"").expect("writes");
        }
        let known = dir.path().join("known");
        rustix::fs::setxattr(&known, "user.x", b"1", rustix::fs::XattrFlags::empty())
            .expect("the place of temporary files takes attributes");
        // Old enough to be noted.
        std::thread::sleep(std::time::Duration::from_millis(2100));
        let fd: OwnedFd = fs::File::open(dir.path()).expect("opens").into();
        let status = |name: &str| crate::folder::stat_name(&fd, OsStr::new(name)).expect("there");
        let bare = Arc::new(Bare::default());
        // A lie shows who is asked.
        bare.note(&status("known"), SystemTime::now());
        let root = fs::File::open(dir.path()).expect("opens").into();
        let walk = TreeWalk::new(root, Filter::default(), true).knowing(bare.clone());
        let told = walk.map(|found| found.expect("an entry").meta.xattrs.len());
        let asked = !is_stamped(&fd);
        assert_eq!(told.collect::<Vec<_>>(), [0, usize::from(asked), 0]);
        assert_eq!(bare.knows(&status("new")), !asked);
    }

    #[test]
    fn a_walk_that_recalls_the_last_one_asks_no_file_again_that_stayed() {
        let dir = tempfile::tempdir().expect("folder");
        let state = tempfile::tempdir().expect("folder");
        let at = |name: &str| dir.path().join(name);
        let set = |name: &str, value: &[u8]| {
            rustix::fs::setxattr(at(name), "user.x", value, rustix::fs::XattrFlags::empty())
                .expect("the place of temporary files takes attributes");
        };
        for name in ["a", "b"] {
            fs::write(at(name), b"").expect("writes");
        }
        set("b", b"1");
        // Old enough to be noted.
        std::thread::sleep(std::time::Duration::from_millis(2100));
        let root = || OwnedFd::from(fs::File::open(dir.path()).expect("opens"));
        let told = || {
            let mut walk = TreeWalk::new(root(), Filter::default(), true).recalling(state.path());
            let entries = walk.by_ref().skip(1).map(|found| found.expect("an entry"));
            let told: Vec<usize> = entries.map(|node| node.meta.xattrs.len()).collect();
            walk.keep();
            told
        };
        assert_eq!(told(), [0, 1]);
        let Some(kept) = Kept::open(state.path(), &root(), &Filter::default()) else {
            return assert!(!is_stamped(&root()));
        };
        // A lie shows who is asked.
        let status = crate::folder::stat_name(root(), OsStr::new("b")).expect("there");
        kept.bare.note(&status, SystemTime::now());
        kept.keep(SystemTime::now());
        assert_eq!(told(), [0, 0]);
        set("a", b"1");
        set("b", b"2");
        assert_eq!(told(), [1, 1], "both changed");
    }

    #[test]
    fn a_tree_is_told_in_order_with_all_of_its_names() {
        let dir = tempfile::tempdir().expect("folder");
        fs::create_dir_all(dir.path().join("a/b")).expect("folders");
        for name in ["a/b/x", "a/c", "a b", "ab", "a/.c.12-3-0123abcd.verbatim-part"] {
            fs::write(dir.path().join(name), b"12345").expect("writes");
        }
        fs::hard_link(dir.path().join("ab"), dir.path().join("a/twin")).expect("links");
        symlink("nowhere", dir.path().join("a/link")).expect("links");
        let (found, leftovers) = walk(dir.path(), &[]);
        let names = ["", "a", "a/b", "a/b/x", "a/c", "a/link", "a/twin", "a b", "ab"];
        assert_eq!(shown(&found), names);
        assert_eq!(leftovers.len(), 1, "what is not finished is nobody's: {leftovers:?}");
        let node = |at: usize| found[at].as_ref().expect("an entry");
        assert_eq!(node(6).twin, node(8).twin);
        assert!(node(6).twin.is_some() && node(4).twin.is_none());
        assert_eq!((node(4).size, node(1).is_folder()), (5, true));
        let (found, _) = walk(dir.path(), &["a/*", "!*/link"]);
        assert_eq!(shown(&found), ["", "a", "a/link", "a b", "ab"]);
    }

    #[test]
    fn a_walk_that_looks_ahead_tells_the_same() {
        let dir = tempfile::tempdir().expect("folder");
        let at = |number: usize| dir.path().join(format!("{number:04}"));
        for number in 0..700 {
            match number % 200 {
                150 => fs::create_dir(at(number)).expect("made"),
                151 => symlink("nowhere", at(number)).expect("links"),
                152 => fs::write(at(150 + number / 200 * 200).join("in"), b"").expect("writes"),
                _ => fs::write(at(number), b"1").expect("writes"),
            }
        }
        fs::write(dir.path().join(".0500.12-3-0123abcd.verbatim-part"), b"").expect("writes");
        let (one_by_one, _) = walk(dir.path(), &["*7"]);
        let fd: OwnedFd = fs::File::open(dir.path()).expect("opens").into();
        let filter = Filter::parse(vec![b"*7".to_vec()]).expect("plain");
        let mut walk = TreeWalk::new(fd, filter, true);
        let (mut found, mut leftovers, mut more) = (Vec::new(), 0, true);
        while more {
            let (page, has_more) = crate::paging::next_page(&mut walk, None);
            found.extend(page.found);
            (leftovers, more) = (leftovers + page.leftovers.len(), has_more);
        }
        assert_eq!(shown(&found), shown(&one_by_one));
        assert_eq!((found.len(), leftovers), (1 + 700 - 70, 1));
    }

    #[test]
    fn what_is_behind_a_folder_is_looked_at_when_that_was_walked() {
        let dir = tempfile::tempdir().expect("folder");
        fs::create_dir(dir.path().join("b")).expect("made");
        for name in ["a", "b/x", "c"] {
            fs::write(dir.path().join(name), b"").expect("writes");
        }
        let fd: OwnedFd = fs::File::open(dir.path()).expect("opens").into();
        let mut walk = TreeWalk::new(fd, Filter::default(), true);
        let mut next = || walk.advance(100).expect("there is more").expect("an entry");
        assert_eq!([next(), next(), next()].map(|node| node.path.to_string()), ["", "a", "b"]);
        fs::write(dir.path().join("c"), b"12345").expect("writes");
        next();
        assert_eq!(next().size, 5);
    }

    #[test]
    fn a_plain_walk_tells_attributes_of_folders_alone() {
        use rustix::fs::{XattrFlags, setxattr};
        let dir = tempfile::tempdir().expect("folder");
        fs::create_dir(dir.path().join("a")).expect("folder");
        fs::write(dir.path().join("f"), b"").expect("writes");
        for name in ["a", "f"] {
            let set = setxattr(dir.path().join(name), "user.x", b"1", XattrFlags::empty());
            set.expect("the place of temporary files takes attributes");
        }
        let folder = Folder::open(dir.path()).expect("opens");
        let told = |plain: bool| {
            let fd = folder.open_folder(&WirePath::root()).expect("opens");
            let mut walk = TreeWalk::new(fd, Filter::default(), true);
            if plain {
                walk.tell_plain();
            }
            let count = |found: Found| found.expect("all can be read").meta.xattrs.len();
            walk.map(count).collect::<Vec<_>>()
        };
        assert_eq!((told(false), told(true)), (vec![0, 1, 1], vec![0, 1, 0]));
    }

    #[test]
    fn a_folder_that_vanishes_while_it_is_walked_is_a_fault_and_the_rest_is_told() {
        let dir = tempfile::tempdir().expect("folder");
        fs::create_dir_all(dir.path().join("a/b/c")).expect("folders");
        for name in ["a/b/c/1", "a/b/x", "a/b/y", "a/z"] {
            fs::write(dir.path().join(name), b"").expect("writes");
        }
        let folder = Folder::open(dir.path()).expect("opens");
        let fd = folder.open_folder(&WirePath::root()).expect("opens");
        let mut walk = TreeWalk::new(fd, Filter::default(), true);
        let mut found: Vec<Found> = walk.by_ref().take(4).collect();
        assert_eq!(shown(&found), ["", "a", "a/b", "a/b/c"]);
        fs::remove_dir_all(dir.path().join("a/b")).expect("removes");
        found.extend(walk);
        let told = ["", "a", "a/b", "a/b/c", "(a/b/c/1: NotFound)", "(a/b/x: NotFound)", "a/z"];
        assert_eq!(shown(&found), told);
    }

    #[test]
    fn a_name_in_the_tree_beside_it_is_none_of_the_file() {
        let dir = tempfile::tempdir().expect("folder");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("old/sub")).expect("folders");
        fs::create_dir_all(at("new/sub")).expect("folders");
        for name in ["sub/alone", "sub/one"] {
            fs::write(at("old").join(name), name).expect("writes");
        }
        fs::hard_link(at("old/sub/one"), at("old/two")).expect("links");
        for name in ["sub/alone", "sub/one", "two"] {
            fs::hard_link(at("old").join(name), at("new").join(name)).expect("links");
        }
        let open = |name: &str| {
            let folder = Folder::open(&at(name)).expect("opens");
            folder.open_folder(&WirePath::root()).expect("opens")
        };
        let twins = |walk: TreeWalk| {
            let nodes = walk.map(|found| found.expect("an entry"));
            let with_twin = nodes.filter(|node| node.twin.is_some());
            with_twin.map(|node| node.path.to_string()).collect::<Vec<_>>()
        };
        let walk = || TreeWalk::new(open("new"), Filter::default(), true);
        assert_eq!(twins(walk()), ["sub/alone", "sub/one", "two"]);
        assert_eq!(twins(walk().beside(Some(open("old")))), ["sub/one", "two"]);
    }

    #[test]
    fn a_folder_that_cannot_be_read_is_a_fault_and_nothing_else() {
        let dir = tempfile::tempdir().expect("folder");
        fs::create_dir_all(dir.path().join("a/b")).expect("folders");
        let shut = fs::Permissions::from_mode(0o0);
        fs::set_permissions(dir.path().join("a"), shut).expect("sets");
        let (found, _) = walk(dir.path(), &[]);
        let expected: &[&str] = match rustix::process::geteuid().is_root() {
            true => &["", "a", "a/b"],
            false => &["", "(a: Denied)"],
        };
        assert_eq!(shown(&found), expected);
        fs::set_permissions(dir.path().join("a"), fs::Permissions::from_mode(0o700)).expect("sets");
    }

    #[test]
    fn a_path_too_long_to_be_told_is_one_fault_and_the_rest_is_told_in_order() {
        use verbatim_proto::plan::{Diff, Options, Side};
        let dir = tempfile::tempdir().expect("folder");
        fs::write(dir.path().join("z"), b"").expect("writes");
        crate::walk::tests::dig(dir.path(), &"n".repeat(250), 140);
        let (found, _) = walk(dir.path(), &[]);
        let faults: Vec<_> = found.iter().filter_map(|found| found.as_ref().err()).collect();
        assert_eq!((faults.len(), faults[0].1.code), (1, Code::Limit), "{:?}", faults[0].1);
        assert_eq!(shown(&found).last().map(String::as_str), Some("z"));
        let mut diff = Diff::new(Options::default());
        diff.push(Side::Source, found, true).expect("in order, and nothing twice");
    }

    #[test]
    fn leftovers_of_a_page_fit_a_frame_and_none_is_left_out() {
        let dir = tempfile::tempdir().expect("folder");
        let deep = (0..12).fold(dir.path().to_owned(), |path, _| path.join("n".repeat(250)));
        fs::create_dir_all(&deep).expect("folders");
        for number in 0..400 {
            let name = format!(".a.1-{number}-0123abcd.verbatim-part");
            fs::write(deep.join(name), b"").expect("writes");
        }
        let fd: OwnedFd = fs::File::open(dir.path()).expect("opens").into();
        let mut walk = TreeWalk::new(fd, Filter::default(), true);
        let (mut told, mut more) = (Vec::new(), true);
        while more {
            let (page, has_more) = crate::paging::next_page(&mut walk, None);
            more = has_more;
            let bytes: usize = page.leftovers.iter().map(|path| path.as_bytes().len()).sum();
            assert!(bytes <= LEFTOVERS_BYTES_MAX + PATH_BYTES_MAX, "{bytes} bytes in a page");
            told.extend(page.leftovers);
        }
        told.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
        told.dedup();
        assert_eq!(told.len(), 400, "each is told");
    }
}
