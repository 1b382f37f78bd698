//! Symbolic links with several names, and with attributes: each is one link with
//! as many names at the target, and what of it cannot be kept is counted.

use crate::faithful::rsync;
use crate::process::{Running, Serve, skip};
use crate::{BOTH, Way, World, changes, summary, text};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

/// Which link this is: its inode, and how many names it has.
fn link_at(path: &Path) -> (u64, u64) {
    let found = fs::symlink_metadata(path).expect("there");
    assert!(found.is_symlink(), "{} is no link", path.display());
    (found.ino(), found.nlink())
}

/// Sets the time of a link, whichever of its names is given.
fn set_time(link: &Path, seconds: i64) {
    let stamp = Timespec { tv_sec: seconds, tv_nsec: 5 };
    let times = Timestamps { last_access: stamp, last_modification: stamp };
    rustix::fs::utimensat(CWD, link, &times, AtFlags::SYMLINK_NOFOLLOW).expect("sets times");
}

/// Fails unless these names of a tree are names of one link, which has no others.
#[track_caller]
fn assert_one(root: &Path, names: &[&str], what: &str) {
    let found: Vec<_> = names.iter().map(|name| link_at(&root.join(name))).collect();
    let one = (found[0].0, names.len() as u64);
    assert!(found.iter().all(|it| *it == one), "{what}: {names:?} are (inode, names) {found:?}");
}

#[test]
fn hard_links_of_symbolic_links_are_kept() {
    for (way, flags) in BOTH.into_iter().flat_map(|way| [(way, &[][..]), (way, &["--atomic"])]) {
        let world = World::new();
        let (source, target) = (world.source(), world.target(way));
        fs::create_dir(source.join("sub")).expect("a folder");
        symlink("nowhere", source.join("one")).expect("links");
        symlink("nowhere", source.join("alone")).expect("links");
        for name in ["sub/two", "three"] {
            fs::hard_link(source.join("one"), source.join(name)).expect("links");
        }
        let flags = [flags, &["--json", "--delete"]].concat();
        let sync = || changes(&world.sync(way, &flags).done());
        let said = sync();
        assert_one(&target, &["one", "sub/two", "three"], &format!("{way:?} {flags:?} {said:?}"));
        assert_one(&target, &["alone"], "it is another link");
        assert_eq!(sync(), [""; 0], "{way:?} {flags:?}: the same again");
        // Nothing but its time changes, and all names of it stay names of one link.
        set_time(&source.join("three"), 1_000_000_000);
        sync();
        assert_one(&target, &["one", "sub/two", "three"], "its time changed");
        // One name becomes a link of its own, and a link of its own becomes a name.
        fs::remove_file(source.join("sub/two")).expect("removes");
        symlink("nowhere", source.join("sub/two")).expect("links");
        set_time(&source.join("sub/two"), 1_000_000_000);
        fs::remove_file(source.join("alone")).expect("removes");
        fs::hard_link(source.join("one"), source.join("alone")).expect("links");
        sync();
        assert_one(&target, &["alone", "one", "three"], "a name came and one went");
        assert_one(&target, &["sub/two"], "it is another link now");
        assert_eq!(sync(), [""; 0], "{way:?} {flags:?}: the same again");
        if let Some(said) = rsync(&source, &target) {
            assert_eq!(said, "", "{way:?} {flags:?}");
        }
    }
}

#[test]
fn attributes_of_a_symbolic_link_are_counted_as_not_kept() {
    let mut world = World::new();
    let link = world.source().join("link");
    symlink("nowhere", &link).expect("links");
    if rustix::fs::lsetxattr(&link, "trusted.verbatim", b"x", XattrFlags::empty()).is_err() {
        return skip("attributes of links", "not root, or trusted.* cannot be set here");
    }
    let config = world.path("serve.toml");
    let export = |name: &str, mode: &str| {
        let path = text(&world.path(name));
        format!(
            "[[export]]\nname = \"{name}\"\npath = \"{path}\"\nmode = \"{mode}\"\n\
             allow_security_xattrs = true\n"
        )
    };
    fs::write(&config, [export("src", "ro"), export("in", "rw")].concat()).expect("writes");
    world.serve = Serve::of(&world.home, "127.0.0.1:0", &["--config", &text(&config)]);
    let not_kept = |ended| summary(&ended)["not_kept"]["xattrs"].as_u64().expect("a number");
    for way in BOTH {
        assert_eq!(not_kept(world.sync(way, &["--json"]).done()), 1, "{way:?}: rdma-sync");
        let again = world.sync(way, &["--json"]).done();
        assert_eq!(changes(&again), [""; 0], "{way:?}: what cannot be kept does not differ");
        let [from, to] = world.ends(way);
        let to = format!("{to}-by-cp");
        let copy = world.home.command("rdma-cp", &["--json", "-a", &from, &to]);
        assert_eq!(not_kept(Running::start(copy).end().done()), 1, "{way:?}: rdma-cp");
        let copied = match way {
            Way::Down => world.path("out/copy-by-cp/link"),
            Way::Up => world.path("in/copy-by-cp/link"),
        };
        assert_eq!(fs::read_link(copied).expect("a link").as_os_str(), "nowhere");
    }
}
