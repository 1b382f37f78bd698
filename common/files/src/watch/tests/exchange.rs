//! Names that change hands before the watcher reads the kernel's events: two
//! folders that are exchanged, a folder that is removed and made again, a folder
//! that takes a name from another. Compares the watches, here and in the kernel,
//! with the folders of the tree. Never changes a tree at random.

use super::*;
use rustix::fs::{CWD, RenameFlags, renameat_with};

/// Exchanges what two names mean.
pub(super) fn exchange(one: &Path, two: &Path) -> std::io::Result<()> {
    Ok(renameat_with(CWD, one, CWD, two, RenameFlags::EXCHANGE)?)
}

/// Has the watcher read and take all events that the kernel has.
pub(super) fn take_all(watcher: &mut Watcher) {
    let end = Instant::now() + DEADLINE;
    loop {
        let happened = watcher.kernel.read().expect("reads");
        if happened.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "there is no end of events: {happened:?}");
        assert!(!watcher.take(happened, Duration::ZERO).expect("takes"), "nothing is lost");
    }
}

/// Each folder below a root that has no watch, or a watch with another name; and what is
/// watched beside them. None when the watches are those folders.
pub(super) fn unlike_the_tree(watcher: &Watcher, root: &Path) -> Vec<String> {
    let mut folders = vec![String::new()];
    let mut next = 0;
    while let Some(path) = folders.get(next).cloned() {
        next += 1;
        let below = if path.is_empty() { String::new() } else { format!("{path}/") };
        for entry in fs::read_dir(root.join(&path)).expect("reads").flatten() {
            if entry.file_type().expect("is there").is_dir() {
                folders.push(format!("{below}{}", entry.file_name().into_string().expect("ours")));
            }
        }
    }
    let kernel = kernel_watches(watcher);
    let mut unlike = Vec::new();
    for path in &folders {
        let inode = fs::metadata(root.join(path)).expect("is there").ino();
        let number = watcher.tree.find(&WirePath::parse(path.as_bytes()).expect("plain"));
        let watched = number.and_then(|number| kernel.get(&number));
        if watched != Some(&inode) {
            unlike.push(format!("{path:?}: watch {number:?} is of {watched:?}, not {inode}"));
        }
    }
    let (tree, kernel) = (watcher.tree.len(), kernel.len());
    if tree != folders.len() || kernel != folders.len() {
        unlike.push(format!("{} folders, {tree} in the tree, {kernel} watches", folders.len()));
    }
    unlike
}

/// A tree with folders `a` and `b`, one deep in each, and one beside the tree.
fn sample() -> (tempfile::TempDir, Watcher) {
    let dir = tempfile::tempdir().expect("folder");
    for folder in ["root/a/in a", "root/b/in b", "out/in out"] {
        fs::create_dir_all(dir.path().join(folder)).expect("folders");
    }
    fs::write(dir.path().join("root/file"), b"a file").expect("writes");
    let watcher = watcher(&dir.path().join("root"), Excludes::default());
    (dir, watcher)
}

#[test]
fn folders_that_are_exchanged_are_watched_under_their_new_names() {
    for (one, two) in [
        ("root/a", "root/b"),
        ("root/b", "root/a"),
        ("root/a", "root/b/in b"),
        ("root/b/in b", "root/a"),
        ("root/a/in a", "root/b/in b"),
        ("root/a", "out"),
        ("out", "root/a"),
        ("out/in out", "root/b/in b"),
        ("root/a", "root/file"),
        ("root/file", "root/a"),
    ] {
        for times in 1..=3 {
            let (dir, mut watcher) = sample();
            // As many as there are: an exchange takes no room.
            watcher.folders_max = 5;
            let (one, two) = (dir.path().join(one), dir.path().join(two));
            for _ in 0..times {
                exchange(&one, &two).expect("exchanges");
            }
            take_all(&mut watcher);
            let root = dir.path().join("root");
            let unlike = unlike_the_tree(&watcher, &root);
            assert!(unlike.is_empty(), "{one:?} and {two:?}, {times} times: {unlike:?}");
        }
    }
}

#[test]
fn a_write_below_a_folder_that_was_exchanged_is_told() {
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name);
    for folder in ["root/a/deep", "root/b/deep", "out/deep"] {
        fs::create_dir_all(at(folder)).expect("folders");
    }
    let mut listener = Listener::begin(dir.path(), "root", &[]);
    for (one, two) in [("root/a", "root/b"), ("root/b", "root/a"), ("out", "root/b")] {
        exchange(&at(one), &at(two)).expect("exchanges");
        listener.hear(&["b/"]);
        for name in ["a/deep/file", "b/deep/file"] {
            fs::write(at("root").join(name), one).expect("writes");
            listener.hear(&[name]);
        }
    }
}

#[test]
fn a_folder_that_is_made_again_under_its_name_is_watched() {
    let (dir, mut watcher) = sample();
    let root = dir.path().join("root");
    let at = |name: &str| root.join(name);
    // Removed and made again; renamed twice, so that it is where it was; put in the place of
    // one that it was in; put in the place of an empty one.
    let changes: [&dyn Fn() -> std::io::Result<()>; 4] = [
        &|| fs::remove_dir_all(at("a")).and_then(|()| fs::create_dir_all(at("a/new/deep"))),
        &|| fs::rename(at("a"), at("c")).and_then(|()| fs::rename(at("c"), at("a"))),
        &|| {
            fs::rename(at("a/new"), at("new"))?;
            fs::remove_dir(at("a"))?;
            fs::rename(at("new"), at("a"))
        },
        &|| fs::remove_dir(at("b/in b")).and_then(|()| fs::rename(at("a"), at("b"))),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        change().unwrap_or_else(|error| panic!("change {number}: {error}"));
        take_all(&mut watcher);
        let unlike = unlike_the_tree(&watcher, &root);
        assert!(unlike.is_empty(), "change {number}: {unlike:?}");
    }
}

#[test]
fn a_folder_that_cannot_be_read_is_known_under_its_name_after_an_exchange() {
    obey_modes();
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name);
    let mode = |name: &str, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(at(name), mode).expect("own");
    };
    for folder in ["a/shut", "b"] {
        fs::create_dir_all(at(folder)).expect("folders");
    }
    mode("a/shut", 0);
    let mut watcher = watcher(dir.path(), Excludes::default());
    exchange(&at("a"), &at("b")).expect("exchanges");
    take_all(&mut watcher);
    mode("b/shut", 0o700);
    fs::create_dir(at("b/shut/new")).expect("makes");
    take_all(&mut watcher);
    let unlike = unlike_the_tree(&watcher, dir.path());
    assert!(unlike.is_empty(), "{unlike:?}");
}

#[test]
fn what_is_excluded_under_the_new_name_is_not_watched_after_an_exchange() {
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name);
    for folder in ["a/cache/deep", "b/cache/deep"] {
        fs::create_dir_all(at(folder)).expect("folders");
    }
    let excludes = Excludes::parse(vec![b"/a/cache".to_vec()]).expect("patterns");
    let mut watcher = watcher(dir.path(), excludes);
    let watched = |watcher: &Watcher| (watcher.tree.len(), watches(watcher));
    assert_eq!(watched(&watcher), (5, 5), "the root, a, b, b/cache and b/cache/deep");
    for _ in 0..2 {
        exchange(&at("a"), &at("b")).expect("exchanges");
        take_all(&mut watcher);
        assert_eq!(watched(&watcher), (5, 5), "the same of the other two folders");
    }
}
