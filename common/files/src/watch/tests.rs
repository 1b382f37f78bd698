//! Watching with the real kernel: what is told of files that are written, of
//! folders that come, move and go, and of what the kernel could not tell. Names
//! that change hands are in `exchange`. The last test lets a mirror follow a tree
//! that changes at random.

use super::kernel::{Kernel, watches_exhausted};
use super::*;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::mpsc;
use verbatim_proto::Change;

mod compare;
mod exchange;
mod random;

/// The longest anything may take to be told.
const DEADLINE: Duration = Duration::from_secs(20);

/// Short, so that tests are; long enough to be told apart.
const TIMING: Timing = Timing {
    quiet: Duration::from_millis(20),
    found: Duration::from_millis(100),
    settle: Duration::from_millis(400),
    writing_max: Duration::from_millis(1500),
    place_check: Duration::from_millis(100),
    compare: None,
    doubt: Duration::ZERO,
};

/// The same for who asks what is told before a file settles: a busy machine gets to it before.
const TIMING_CALM: Timing =
    Timing { settle: Duration::from_secs(4), writing_max: Duration::from_secs(15), ..TIMING };

struct Listener {
    watching: Watching,
    told: mpsc::Receiver<Told>,
    /// What was told so far.
    heard: BTreeSet<String>,
}

impl Listener {
    fn begin(folder: &Path, base: &str, excludes: &[&str]) -> Self {
        Self::timed(TIMING, folder, base, excludes)
    }

    fn timed(timing: Timing, folder: &Path, base: &str, excludes: &[&str]) -> Self {
        let (sender, told) = mpsc::channel();
        let folder = Folder::open(folder).expect("opens");
        let base = WirePath::parse(base.as_bytes()).expect("plain");
        let excludes = excludes.iter().map(|text| text.as_bytes().to_vec()).collect();
        let excludes = Excludes::parse(excludes).expect("patterns");
        let tell = move |told| drop(sender.send(told));
        let watching = Watching::begin(folder, base, excludes, timing, tell).expect("begins");
        let mut listener = Self { watching, told, heard: BTreeSet::new() };
        assert_eq!(listener.next(), Told::Changed(Changes::rescan()), "it begins with all");
        listener
    }

    /// Whatever is told next, asked for or not.
    fn next(&mut self) -> Told {
        self.watching.more();
        self.told.recv_timeout(DEADLINE).expect("something is told")
    }

    /// Listens until all of these were told; a slash at the end means all below.
    fn hear(&mut self, wanted: &[&str]) -> BTreeSet<String> {
        while !wanted.iter().all(|path| self.heard.contains(*path)) {
            let Told::Changed(changes) = self.next() else { panic!("ended before {wanted:?}") };
            assert!(!changes.rescan, "not for so little");
            self.heard.extend(changes.changes.iter().map(shown));
        }
        std::mem::take(&mut self.heard)
    }

    /// Why it ends.
    fn ended(&mut self) -> Fault {
        loop {
            if let Told::Ended(fault) = self.next() {
                return fault;
            }
        }
    }
}

fn shown(change: &Change) -> String {
    format!("{}{}", change.path, if change.below { "/" } else { "" })
}

fn set(paths: &[&str]) -> BTreeSet<String> {
    paths.iter().map(|path| (*path).to_owned()).collect()
}

/// Has this thread, and those it starts, read only what its modes allow, root or not.
fn obey_modes() {
    let mut sets = capabilities(None).expect("there are some");
    sets.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
    set_capabilities(None, sets).expect("fewer may be had");
}

#[test]
fn a_folder_is_watched_when_it_can_be_read() {
    obey_modes();
    let (dir, other) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
    let at = |name: &str| dir.path().join(name);
    let shut = |path: &Path| fs::DirBuilder::new().mode(0o0).create(path).expect("makes");
    let mode = |name: &str, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(at(name), mode).expect("own");
    };
    shut(&at("before"));
    fs::create_dir(at("inner")).expect("makes");
    fs::create_dir_all(other.path().join("tree")).expect("makes");
    shut(&other.path().join("tree/sub"));
    let mut listener = Listener::begin(dir.path(), "", &[]);
    shut(&at("new"));
    fs::rename(other.path().join("tree"), at("tree")).expect("one file system");
    mode("", 0o700);
    let heard = listener.hear(&["new/", "tree/", ""]);
    assert!(!heard.contains("before/"), "it was looked at with all else, and is as it was");
    // Who may not read a folder cannot go through it by its name.
    mode("inner", 0o300);
    fs::create_dir(at("inner/late")).expect("makes");
    listener.hear(&["inner/late/"]);
    for (opened, folder) in
        [("before", "before"), ("new", "new"), ("tree/sub", "tree/sub"), ("inner", "inner/late")]
    {
        mode(opened, 0o755);
        listener.hear(&[&format!("{folder}/")]);
        let file = format!("{folder}/file");
        fs::write(at(&file), b"whole").expect("writes");
        listener.hear(&[&file]);
    }
}

#[test]
fn folders_that_cannot_be_read_and_go_are_forgotten() {
    obey_modes();
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name);
    let mut watcher = watcher(dir.path(), Excludes::default());
    // As many as there may be at a time, and half as many again after each other.
    watcher.folders_max = 9;
    for number in 0..12 {
        fs::DirBuilder::new().mode(0o0).create(at(&number.to_string())).expect("makes");
        if number >= 6 {
            fs::remove_dir(at(&(number - 6).to_string())).expect("removes");
        }
        let happened = watcher.kernel.read().expect("reads");
        watcher.take(happened, Duration::ZERO).expect("there is room");
    }
}

#[test]
fn a_file_is_told_when_it_is_closed_and_one_that_stays_open_when_it_settles() {
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name);
    let mut listener = Listener::timed(TIMING_CALM, dir.path(), "", &[]);
    fs::write(at("a"), b"whole").expect("writes");
    assert_eq!(listener.hear(&["a"]), set(&["", "a"]), "and its folder, which has a new time");

    let mut open = fs::File::create(at("open")).expect("makes");
    open.write_all(b"half").expect("writes");
    let made = fs::File::create(at("made")).expect("makes");
    fs::hard_link(at("a"), at("name")).expect("links");
    std::os::unix::fs::symlink("a", at("link")).expect("links");
    let heard = listener.hear(&["name", "link"]);
    let early = heard.contains("open") || heard.contains("made");
    assert!(!early, "their writers are at work: {heard:?}");
    drop(made);
    assert!(listener.hear(&["open"]).contains("open"), "nobody wrote to it for long");
    open.write_all(b"other half").expect("writes");
    drop(open);
    let closed = Instant::now();
    listener.hear(&["open"]);
    assert!(closed.elapsed() < TIMING_CALM.settle, "{:?}", closed.elapsed());

    fs::rename(at("a"), at("b")).expect("renames");
    fs::remove_file(at("name")).expect("removes");
    assert_eq!(listener.hear(&["a", "b", "name"]), set(&["", "a", "b", "name"]));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(at("b"), mode).expect("own");
    assert_eq!(listener.hear(&["b"]), set(&["b"]));
}

#[test]
fn new_folders_are_looked_into_and_watched() {
    let dir = tempfile::tempdir().expect("folder");
    fs::create_dir_all(dir.path().join("old/deep")).expect("folders");
    let mut listener = Listener::begin(dir.path(), "", &[]);
    fs::write(dir.path().join("old/deep/x"), b"").expect("writes");
    listener.hear(&["old/deep", "old/deep/x"]);
    let deep = ["d"; 40].join("/");
    fs::create_dir_all(dir.path().join(&deep)).expect("folders");
    let file = format!("{deep}/f");
    fs::write(dir.path().join(&file), b"made at once").expect("writes");
    listener.hear(&["d", &deep, &file]);
    fs::write(dir.path().join(&file), b"again").expect("writes");
    assert!(!listener.hear(&[&file]).contains("d"), "only what changed");
    fs::remove_dir_all(dir.path().join("d/d")).expect("removes");
    listener.hear(&["d", "d/d/"]);
    fs::create_dir(dir.path().join("d/d")).expect("makes");
    fs::write(dir.path().join("d/d/new"), b"").expect("writes");
    listener.hear(&["d/d", "d/d/new"]);
}

#[test]
fn folders_that_move_are_watched_where_they_are_and_nowhere_else() {
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("outside/in/deep")).expect("folders");
    fs::create_dir_all(at("root/a/b/c")).expect("folders");
    let mut listener = Listener::begin(dir.path(), "root", &[]);
    fs::rename(at("outside/in"), at("root/in")).expect("moves in");
    assert_eq!(listener.hear(&["in/"]), set(&["", "in/"]));
    fs::write(at("root/in/deep/x"), b"").expect("writes");
    listener.hear(&["in/deep/x"]);
    fs::rename(at("root/a/b"), at("root/z")).expect("moves");
    assert_eq!(listener.hear(&["z/", "a/b/"]), set(&["", "a", "a/b/", "z/"]));
    fs::write(at("root/z/c/y"), b"").expect("writes");
    assert_eq!(listener.hear(&["z/c/y"]), set(&["z/c", "z/c/y"]));
    fs::rename(at("root/z"), at("outside/z")).expect("moves out");
    listener.hear(&["z/"]);
    fs::write(at("outside/z/c/secret"), b"").expect("writes");
    fs::write(at("root/marker"), b"").expect("writes");
    assert_eq!(listener.hear(&["marker"]), set(&["", "marker"]));
}

#[test]
fn what_is_excluded_and_what_is_unfinished_is_neither_watched_nor_told() {
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("cache/deep")).expect("folders");
    fs::create_dir_all(at("keep")).expect("folders");
    let mut listener = Listener::begin(dir.path(), "", &["cache/", "*.tmp"]);
    fs::create_dir_all(at("keep/cache/x")).expect("folders");
    fs::write(at("cache/deep/f"), b"").expect("writes");
    fs::write(at("keep/cache/x/f"), b"").expect("writes");
    fs::write(at("keep/a.tmp"), b"").expect("writes");
    fs::write(at("keep/.a.0123456789abcdef.verbatim-part"), b"").expect("writes");
    fs::rename(at("keep/.a.0123456789abcdef.verbatim-part"), at("keep/a")).expect("renames");
    assert_eq!(listener.hear(&["keep/a"]), set(&["keep", "keep/a"]));
    let excludes = Excludes::parse(vec![b"cache/".to_vec()]).expect("patterns");
    let watcher = watcher(dir.path(), excludes);
    assert_eq!(watcher.tree.len(), 2, "the root and keep");
}

#[test]
fn a_folder_that_vanishes_ends_the_watch() {
    let begin = || {
        let dir = tempfile::tempdir().expect("folder");
        fs::create_dir_all(dir.path().join("a/root/x")).expect("folders");
        let listener = Listener::begin(dir.path(), "a/root", &[]);
        (dir, listener)
    };
    let (dir, mut listener) = begin();
    fs::remove_dir_all(dir.path().join("a/root")).expect("removes");
    let fault = listener.ended();
    assert_eq!(
        (fault.code, fault.text.as_str()),
        (Code::NotFound, "folder a/root is gone: it was removed, or renamed")
    );
    let (dir, mut listener) = begin();
    fs::rename(dir.path().join("a/root"), dir.path().join("a/r")).expect("renames");
    assert_eq!(listener.ended().text, "folder a/root is gone: it was removed, or renamed");
    // Nobody tells this one: it is found out.
    let (dir, mut listener) = begin();
    fs::rename(dir.path().join("a"), dir.path().join("b")).expect("renames");
    assert_eq!(listener.ended().code, Code::NotFound);
    // At once, or it may be found gone before another is there.
    let (dir, mut listener) = begin();
    fs::create_dir_all(dir.path().join("c/root")).expect("folders");
    let [a, c] = ["a", "c"].map(|name| dir.path().join(name));
    renameat_with(CWD, a, CWD, c, RenameFlags::EXCHANGE).expect("exchanges");
    let text = listener.ended().text;
    assert_eq!(text, "folder a/root is gone: another folder is in its place");
    let missing = dir.path().join("a");
    let (sender, told) = mpsc::channel();
    let folder = Folder::open(&missing).expect("opens");
    let path = WirePath::parse(b"nothing").expect("plain");
    let tell = move |told| drop(sender.send(told));
    let _watching = Watching::begin(folder, path, Excludes::default(), TIMING, tell);
    let told = told.recv_timeout(DEADLINE).expect("told");
    assert!(matches!(told, Told::Ended(Fault { code: Code::NotFound, .. })), "{told:?}");
}

#[test]
fn what_was_made_before_its_folder_was_watched_is_found_and_what_left_is_let_go() {
    let dir = tempfile::tempdir().expect("folder");
    fs::create_dir(dir.path().join("root")).expect("makes");
    let root = dir.path().join("root");
    let mut watcher = watcher(&root, Excludes::default());
    // All of it is there before the first event is looked at.
    fs::create_dir_all(root.join("a/b/c")).expect("folders");
    fs::write(root.join("a/b/c/f"), b"made at once").expect("writes");
    let happened = watcher.kernel.read().expect("reads");
    assert_eq!(happened.len(), 1, "the first folder, and no more: {happened:?}");
    watcher.take(happened, Duration::ZERO).expect("takes");
    let told = |watcher: &mut Watcher, now| {
        let changes = watcher.pending.take(now).unwrap_or_default().changes;
        changes.iter().map(shown).collect::<BTreeSet<_>>()
    };
    assert_eq!(told(&mut watcher, TIMING.quiet), set(&["", "a", "a/b", "a/b/c"]));
    assert_eq!(told(&mut watcher, TIMING.found), set(&["a/b/c/f"]));
    assert_eq!((watcher.tree.len(), watches(&watcher)), (4, 4));
    fs::rename(root.join("a/b"), dir.path().join("out")).expect("moves out");
    let happened = watcher.kernel.read().expect("reads");
    watcher.take(happened, Duration::ZERO).expect("takes");
    assert_eq!((watcher.tree.len(), watches(&watcher)), (2, 2));
}

/// How many watches the kernel has for it.
fn watches(watcher: &Watcher) -> usize {
    kernel_watches(watcher).len()
}

/// The inode of each watch that the kernel has for it, by the number of the watch.
fn kernel_watches(watcher: &Watcher) -> BTreeMap<i32, u64> {
    let info = format!("/proc/self/fdinfo/{}", watcher.kernel.as_fd().as_raw_fd());
    let info = fs::read_to_string(info).expect("the kernel tells");
    let watches = info.lines().filter_map(|line| {
        let word = |key| line.split(' ').find_map(|word| word.strip_prefix(key));
        let number = line.starts_with("inotify ").then(|| word("wd:"))??;
        let number = i32::from_str_radix(number, 16).expect("a number");
        Some((number, u64::from_str_radix(word("ino:")?, 16).expect("an inode")))
    });
    watches.collect()
}

fn watcher(folder: &Path, excludes: Excludes) -> Watcher {
    let folder = Folder::open(folder).expect("opens");
    let watched = Watched { folder, base: WirePath::root(), excludes, room: Box::new(|_| true) };
    Watcher::begin(watched, TIMING, Box::new(|| true)).expect("begins")
}

#[test]
fn what_the_kernel_lost_is_looked_for_again() {
    let dir = tempfile::tempdir().expect("folder");
    let mut watcher = watcher(dir.path(), Excludes::default());
    fs::write(dir.path().join("a"), b"").expect("writes");
    fs::write(dir.path().join("b"), b"").expect("writes");
    // The same twice is told once: so in turns, and more than any queue holds.
    let queue = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("a limit");
    let queue: usize = queue.trim().parse().expect("a number");
    for number in 0..queue + 10 {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(dir.path().join(["a", "b"][number % 2]), mode).expect("own");
    }
    fs::create_dir_all(dir.path().join("unseen/deep")).expect("folders");
    let mut lost = false;
    while !lost {
        let happened = watcher.kernel.read().expect("reads");
        assert!(!happened.is_empty(), "nothing was lost");
        lost = watcher.take(happened, Duration::ZERO).expect("takes");
    }
    assert_eq!(watcher.tree.len(), 1, "it does not know of the folder");
    watcher.begin_again().expect("begins");
    assert_eq!(watcher.tree.len(), 3);
    assert_eq!(watcher.pending.take(Duration::ZERO), Some(Changes::rescan()));
}

#[test]
fn limits_are_told_with_what_to_do() {
    let dir = tempfile::tempdir().expect("folder");
    fs::create_dir_all(dir.path().join("a/b")).expect("folders");
    let mut small = watcher(dir.path(), Excludes::default());
    small.folders_max = 3;
    assert!(small.begin_again().is_ok());
    fs::create_dir(dir.path().join("c")).expect("makes");
    let happened = small.kernel.read().expect("reads");
    let fault = small.take(happened, Duration::ZERO).expect_err("too many");
    assert_eq!(fault.code, Code::Limit);
    assert!(fault.text.starts_with("cannot watch c: more than 3 folders; exclude"), "{fault}");
    let path = WirePath::parse(b"data/x").expect("plain");
    let fault = watches_exhausted(&path, Some(8192));
    assert_eq!(
        fault.text,
        "cannot watch data/x: this user's limit of 8192 watched folders is reached; \
         raise sysctl fs.inotify.max_user_watches, or exclude folders"
    );
    assert!(kernel::watches_max().is_some_and(|limit| limit > 0));
    drop(Kernel::new().expect("there is one left"));
}

#[test]
fn a_watch_without_room_for_a_folder_ends_and_names_the_sysctl() {
    let dir = tempfile::tempdir().expect("folder");
    fs::create_dir_all(dir.path().join("a/b")).expect("folders");
    let mut small = watcher(dir.path(), Excludes::default());
    let asked = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = asked.clone();
    small.watched.room = Box::new(move |folders| {
        seen.lock().expect("whole").push(folders);
        folders <= 3
    });
    small.begin_again().expect("there are three");
    fs::create_dir(dir.path().join("c")).expect("makes");
    let happened = small.kernel.read().expect("reads");
    let fault = small.take(happened, Duration::ZERO).expect_err("a fourth");
    assert_eq!(fault.code, Code::Limit);
    for part in ["cannot watch c: this client's share", "3 in this", "fs.inotify.max_user_watches"]
    {
        assert!(fault.text.contains(part), "{fault}");
    }
    fs::remove_dir(dir.path().join("a/b")).expect("removes");
    let happened = small.kernel.read().expect("reads");
    small.take(happened, Duration::ZERO).expect("takes");
    assert_eq!(asked.lock().expect("whole").last(), Some(&3), "what is gone is given back");
}

#[test]
fn a_watch_that_is_dropped_ends_its_thread_and_one_without_credit_is_silent() {
    let dir = tempfile::tempdir().expect("folder");
    let (sender, told) = mpsc::channel();
    let folder = Folder::open(dir.path()).expect("opens");
    let tell = move |told| drop(sender.send(told));
    let watching = Watching::begin(folder, WirePath::root(), Excludes::default(), TIMING, tell)
        .expect("begins");
    assert!(matches!(told.recv_timeout(DEADLINE), Ok(Told::Changed(_))));
    fs::write(dir.path().join("a"), b"").expect("writes");
    let silent = told.recv_timeout(TIMING.settle);
    assert_eq!(silent, Err(mpsc::RecvTimeoutError::Timeout), "nobody asked");
    watching.more();
    assert!(matches!(told.recv_timeout(DEADLINE), Ok(Told::Changed(_))));
    drop(watching);
    let end = told.recv_timeout(DEADLINE);
    assert_eq!(end, Err(mpsc::RecvTimeoutError::Disconnected), "the thread is gone, silently");
}

/// A tree as somebody sees it who looks only where he is told to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mirror(BTreeMap<String, Option<Vec<u8>>>);

impl Mirror {
    fn of(root: &Path) -> Self {
        let mut mirror = Self::default();
        mirror.look(root, "", true);
        mirror
    }

    fn look(&mut self, root: &Path, path: &str, below: bool) {
        let at = root.join(path);
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        if below || !at.is_dir() {
            self.0.retain(|known, _| !known.starts_with(&prefix) || known == path);
        }
        self.0.remove(path);
        if at.is_dir() {
            self.0.insert(path.to_owned(), None);
            let names = fs::read_dir(&at).into_iter().flatten().flatten();
            for entry in names.filter(|_| below) {
                let name = entry.file_name().into_string().expect("ours");
                self.look(root, &format!("{prefix}{name}"), true);
            }
        } else if let Ok(content) = fs::read(&at) {
            self.0.insert(path.to_owned(), Some(content));
        }
    }

    fn apply(&mut self, root: &Path, changes: &Changes) {
        if changes.rescan {
            *self = Self::of(root);
        }
        for change in &changes.changes {
            self.look(root, &change.path.to_string(), change.below);
        }
    }
}

/// Changes a tree at random, as quickly as it can.
fn churn(root: &Path, seed: u64, steps: usize) {
    let mut state = seed | 1;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below
    };
    for step in 0..steps {
        let names = ["a", "b", "c"];
        let mut path = || {
            let depth = 1 + random(4);
            (0..depth).map(|_| names[random(3)]).collect::<Vec<_>>().join("/")
        };
        let (one, two) = (root.join(path()), root.join(path()));
        // Most of these fail, now and then: that is part of it.
        let _ = match random(7) {
            0 | 1 => fs::create_dir_all(&one),
            2 | 3 => fs::write(&one, format!("{step}")),
            4 => fs::rename(&one, &two),
            5 => fs::remove_dir_all(&one),
            _ => fs::remove_file(&one),
        };
    }
}

fn follow(seed: u64) {
    let dir = tempfile::tempdir().expect("folder");
    let root = dir.path().join("root");
    fs::create_dir(&root).expect("makes");
    let listener = Listener::begin(dir.path(), "root", &[]);
    let mut mirror = Mirror::of(&root);
    let churning = {
        let root = root.clone();
        std::thread::spawn(move || churn(&root, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), 800))
    };
    let end = Instant::now() + DEADLINE;
    loop {
        let done = churning.is_finished();
        listener.watching.more();
        match listener.told.recv_timeout(TIMING.settle + TIMING.quiet) {
            Ok(Told::Changed(changes)) => mirror.apply(&root, &changes),
            Ok(Told::Ended(fault)) => panic!("SEED={seed}: {fault}"),
            Ok(Told::Healed(_, path)) => panic!("SEED={seed}: compared, at {path}"),
            // Silence is no sign that all was told, where who tells it waits for a processor.
            Err(_) if done && mirror == Mirror::of(&root) => break,
            Err(_) => {}
        }
        assert!(Instant::now() < end, "SEED={seed}: {mirror:?} is not {:?}", Mirror::of(&root));
    }
}

#[test]
fn a_mirror_that_looks_only_where_it_is_told_to_ends_equal() {
    let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok());
    let seeds: Vec<u64> = seed.map_or_else(|| (1..=8).collect(), |seed| vec![seed]);
    // Side by side: most of the time each waits for silence.
    std::thread::scope(|scope| {
        for seed in seeds {
            scope.spawn(move || follow(seed));
        }
    });
}
