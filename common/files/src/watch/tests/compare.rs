//! What no event tells is found by comparing: writes through a name outside of the
//! tree, through descriptors without a name and through mappings; a folder that
//! lost its watch, and a watch that lost its folder. And what events do tell is not
//! taken for such. The other tests of the watcher never compare.

use super::exchange::{take_all, unlike_the_tree};
use super::*;
use rustix::fs::{AtFlags, Mode, OFlags, linkat, openat};
use std::os::unix::fs::FileExt;

/// Again and again, as quickly as it can.
const COMPARING: Timing = Timing {
    compare: Some(Duration::from_millis(50)),
    doubt: Duration::from_millis(100),
    ..TIMING
};

impl Listener {
    /// Listens until a path is told; says how many differences were found until then.
    fn healed(&mut self, wanted: &str) -> u64 {
        let mut healed = 0;
        loop {
            match self.next() {
                Told::Healed(count, _) => healed += count,
                Told::Changed(changes) if changes.changes.iter().any(|it| shown(it) == wanted) => {
                    return healed;
                }
                Told::Changed(changes) => assert!(!changes.rescan, "not for {wanted}"),
                Told::Ended(fault) => panic!("ended before {wanted}: {fault}"),
            }
        }
    }
}

/// Lets the clock of the file system go on, so that what changes is younger than what was told.
fn tick() {
    std::thread::sleep(Duration::from_millis(50));
}

#[test]
fn a_write_through_a_hard_link_outside_of_the_tree_is_healed_and_counted() {
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("root/deep")).expect("folders");
    fs::create_dir_all(at("out")).expect("folders");
    fs::write(at("root/deep/file"), b"first").expect("writes");
    fs::hard_link(at("root/deep/file"), at("out/name")).expect("links");
    let mut listener = Listener::timed(COMPARING, dir.path(), "root", &[]);
    for round in 0..3 {
        tick();
        fs::write(at("out/name"), format!("round {round}")).expect("writes");
        assert_eq!(listener.healed("deep/file"), 1, "round {round}");
    }
    // The same with a time of long ago, as a copy with its times makes it.
    tick();
    let outside = fs::File::options().write(true).open(at("out/name")).expect("opens");
    outside.write_all_at(b"old", 0).expect("writes");
    outside.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("own");
    drop(outside);
    listener.healed("deep/file");
}

#[test]
fn a_write_through_a_descriptor_without_a_name_is_healed_when_it_was_linked_in() {
    let dir = tempfile::tempdir().expect("folder");
    let mut listener = Listener::timed(COMPARING, dir.path(), "", &[]);
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let fd = openat(CWD, dir.path(), flags, Mode::from_raw_mode(0o600)).expect("opens");
    let own = format!("/proc/self/fd/{}", fd.as_raw_fd());
    linkat(CWD, own, CWD, dir.path().join("file"), AtFlags::SYMLINK_FOLLOW).expect("links");
    assert_eq!(listener.healed("file"), 0, "the name was told");
    tick();
    fs::File::from(fd).write_all(b"behind its name").expect("writes");
    assert_eq!(listener.healed("file"), 1);
}

#[test]
fn what_events_tell_is_not_taken_for_what_they_missed() {
    let dir = tempfile::tempdir().expect("folder");
    let root = dir.path().join("root");
    fs::create_dir(&root).expect("makes");
    let mut listener = Listener::timed(COMPARING, dir.path(), "root", &["*.tmp"]);
    for seed in 1..=4_u64 {
        churn(&root, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), 400);
        fs::write(root.join("x.tmp"), format!("{seed}")).expect("writes");
        // Another name elsewhere changes the times of a file, and nothing of its content.
        fs::write(root.join("kept"), b"").expect("writes");
        fs::hard_link(root.join("kept"), dir.path().join(format!("{seed}"))).expect("links");
        tick();
        fs::write(root.join(format!("mark {seed}")), b"").expect("writes");
        assert_eq!(listener.healed(&format!("mark {seed}")), 0, "seed {seed}");
        fs::remove_file(root.join("x.tmp")).expect("removes");
    }
    // The rounds behind the last change find nothing either.
    listener.watching.more();
    let end = Instant::now() + COMPARING.doubt * 10;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        match listener.told.recv_timeout(left) {
            Ok(Told::Healed(count, path)) => panic!("{count} differences, the first at {path}"),
            Ok(_) => listener.watching.more(),
            Err(_) => break,
        }
    }
}

/// Compares until something was found and all is settled; gives the names of what is told.
fn compare(watcher: &mut Watcher) -> (u64, BTreeSet<String>) {
    let mut now = watcher.compared.due().expect("it compares");
    for _ in 0..4 {
        take_all(watcher);
        watcher.compare(now).expect("compares");
        now += Duration::from_secs(60);
    }
    let healed = watcher.compared.healed.take().map_or(0, |(count, _)| count);
    let changes = watcher.pending.take(now + DEADLINE).unwrap_or_default();
    watcher.told(&changes);
    (healed, changes.changes.iter().map(shown).collect())
}

fn comparing(root: &Path) -> Watcher {
    let folder = Folder::open(root).expect("opens");
    let excludes = Excludes::default();
    let watched = Watched { folder, base: WirePath::root(), excludes, room: Box::new(|_| true) };
    let mut watcher = Watcher::begin(watched, COMPARING, Box::new(|| true)).expect("begins");
    watcher.told(&Changes::rescan());
    watcher
}

#[test]
fn a_folder_that_lost_its_watch_and_a_watch_that_lost_its_folder_are_healed() {
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name);
    for name in ["a/deep", "b", "c"] {
        fs::create_dir_all(at(name)).expect("folders");
    }
    let mut watcher = comparing(dir.path());
    assert_eq!(compare(&mut watcher), (0, set(&[])), "all is as it should be");
    let number = |watcher: &Watcher, path: &str| {
        watcher.tree.find(&WirePath::parse(path.as_bytes()).expect("plain")).expect("watched")
    };
    // A stale event took the watch of a; another, that came too early, left one under c.
    let a = number(&watcher, "a");
    watcher.forget(a);
    exchange::exchange(&at("b"), &at("c")).expect("exchanges");
    drop(watcher.kernel.read().expect("reads"));
    assert!(!unlike_the_tree(&watcher, dir.path()).is_empty());
    let (healed, told) = compare(&mut watcher);
    assert_eq!((healed, told), (3, set(&["a/", "b/", "c/"])));
    let unlike = unlike_the_tree(&watcher, dir.path());
    assert!(unlike.is_empty(), "{unlike:?}");
    assert_eq!(compare(&mut watcher), (0, set(&[])), "it is settled");
    // A file whose removal was not told.
    tick();
    fs::write(at("b/file"), b"").expect("writes");
    assert_eq!(compare(&mut watcher).0, 0);
    assert_eq!(compare(&mut watcher).0, 0);
    fs::remove_file(at("b/file")).expect("removes");
    drop(watcher.kernel.read().expect("reads"));
    assert_eq!(compare(&mut watcher), (1, set(&["b/"])));
}
