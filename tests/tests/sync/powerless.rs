//! Mirrors of somebody who is not root: folders that are closed to their owner,
//! groups that cannot be chosen, and files that may not be read. A file that could
//! not be copied has no other names, and nothing is deleted for it.

use crate::process::skip;
use crate::{BOTH, Way, World, changes, write};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Who has no rights, and a mirror.
fn powerless(test: &str) -> Option<World> {
    let world = World::powerless();
    if world.is_none() {
        skip(test, "root needs setpriv, and a build that nobody may run");
    }
    world
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("sets");
}

fn none(world: &World, way: Way) {
    assert_eq!(changes(&world.sync(way, &["--json"]).done()), [""; 0], "{way:?}");
}

#[test]
fn a_target_that_its_owner_may_not_write_to_follows_all_the_same() {
    for way in BOTH {
        let Some(world) = powerless("sync powerless::a_target_that_its_owner") else { return };
        let source = world.source();
        write(source.join("a"), b"1");
        write(source.join("sub/a"), b"1");
        let shut = |mode| {
            world.give_away();
            set_mode(&source.join("sub"), mode);
            set_mode(&source, mode);
        };
        shut(0o555);
        world.sync(way, &[]).done();
        none(&world, way);
        shut(0o755);
        write(source.join("b"), b"2");
        write(source.join("sub/b"), b"2");
        shut(0o555);
        world.sync(way, &[]).done();
        let target = world.target(way);
        assert_eq!(fs::read(target.join("b")).expect("it is there"), b"2", "{way:?}");
        for folder in [&target, &target.join("sub")] {
            assert_eq!(fs::metadata(folder).expect("there").mode() & 0o777, 0o555, "{way:?}");
        }
        none(&world, way);
    }
}

#[test]
fn a_group_that_a_folder_hands_down_is_no_difference() {
    if !rustix::process::geteuid().is_root() {
        return skip("sync powerless::a_group_that_a_folder", "only root makes the folder for it");
    }
    for way in BOTH {
        let Some(world) = powerless("sync powerless::a_group_that_a_folder") else { return };
        write(world.source().join("sub/a"), b"1");
        world.give_away();
        let above = world.target(way).parent().expect("a folder").to_owned();
        std::os::unix::fs::chown(&above, None, Some(4321)).expect("root may");
        set_mode(&above, 0o2777);
        world.sync(way, &[]).done();
        let group = fs::metadata(world.target(way).join("sub/a")).expect("there").gid();
        assert_eq!(group, 4321, "{way:?}: it was handed down");
        none(&world, way);
    }
}

#[test]
fn what_could_not_be_copied_keeps_what_may_be_all_there_is_of_it() {
    for way in BOTH {
        let Some(world) = powerless("sync powerless::what_could_not_be_copied") else { return };
        let (source, target) = (world.source(), world.target(way));
        write(source.join("old/f"), b"the only copy");
        write(source.join("rest"), b"");
        world.give_away();
        world.sync(way, &[]).done();
        fs::rename(source.join("old"), source.join("new")).expect("renames");
        set_mode(&source.join("new/f"), 0);
        let flags = ["--delete", "--max-delete", "100%"];
        world.sync(way, &flags).refused(1, &["new/f", "nothing is deleted", "0 of them deleted"]);
        assert_eq!(fs::read(target.join("old/f")).expect("reads"), b"the only copy", "{way:?}");
        set_mode(&source.join("new/f"), 0o644);
        world.sync(way, &flags).done();
        assert!(!target.join("old").exists() && target.join("new/f").exists(), "{way:?}");
    }
}

#[test]
fn a_file_that_could_not_be_copied_gets_no_other_name() {
    for way in BOTH {
        let Some(world) = powerless("sync powerless::a_file_that_could_not") else { return };
        let (source, target) = (world.source(), world.target(way));
        write(source.join("one"), b"the first");
        write(source.join("two"), b"the second one");
        world.give_away();
        world.sync(way, &[]).done();
        fs::remove_file(source.join("two")).expect("removes");
        write(source.join("one"), b"both, and not to be read");
        fs::hard_link(source.join("one"), source.join("two")).expect("links");
        world.give_away();
        set_mode(&source.join("one"), 0);
        world.sync(way, &[]).refused(1, &["/one", "/two", "2 not done"]);
        assert_eq!(fs::read(target.join("one")).expect("reads"), b"the first", "{way:?}");
        assert_eq!(fs::read(target.join("two")).expect("reads"), b"the second one", "{way:?}");
    }
}
