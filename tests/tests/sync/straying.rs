//! A mirror writes below its target and nowhere else, under the names it means:
//! a link that is in the way is replaced or refused, never followed.

use crate::{BOTH, World, changes, tree, write};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn a_link_in_the_place_of_a_folder_is_replaced_and_never_written_through() {
    for (way, atomic) in BOTH.into_iter().flat_map(|way| [(way, None), (way, Some("--atomic"))]) {
        let flags = |more: &[&'static str]| [more, atomic.as_slice()].concat();
        let world = World::new();
        let (source, target) = (world.source(), world.target(way));
        for folder in ["inside", "outside", "up"] {
            write(source.join(folder).join("x"), b"new");
        }
        write(source.join("other/x"), b"other");
        write(source.join("other/y"), b"");
        write(target.join("other/x"), b"other");
        let beside = target.parent().expect("a folder").join("beside");
        write(beside.join("x"), b"not ours");
        for folder in [&target.join("other"), &beside] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o500)).expect("sets");
        }
        symlink("other", target.join("inside")).expect("links");
        symlink(&beside, target.join("outside")).expect("links");
        symlink("../beside", target.join("up")).expect("links");
        world.sync(way, &flags(&[])).refused(1, &["inside", "no folder is in its place"]);
        world.sync(way, &flags(&["--delete", "--max-delete", "100%"])).done();
        tree::assert_same_content(&source, &target);
        assert_eq!(fs::read(target.join("other/x")).expect("reads"), b"other", "{way:?}");
        assert_eq!(fs::read(beside.join("x")).expect("reads"), b"not ours", "{way:?}");
        assert_eq!(fs::read_dir(&beside).expect("lists").count(), 1, "{way:?}");
        let mode = fs::metadata(&beside).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o500, "{way:?}: its mode was changed");
        let again = world.sync(way, &flags(&["--delete", "--json"])).done();
        assert_eq!(changes(&again), [""; 0], "{way:?}");
    }
}

#[test]
fn a_target_that_a_link_leads_to_is_written_to() {
    for way in BOTH {
        let world = World::new();
        write(world.source().join("a/b"), b"1");
        let target = world.target(way);
        let real = target.parent().expect("a folder").join("real");
        fs::create_dir(&real).expect("makes");
        symlink("real", &target).expect("links");
        world.sync(way, &[]).done();
        write(world.source().join("a/b"), b"12");
        world.sync(way, &["--delete"]).done();
        tree::assert_same_content(&world.source(), &real);
        assert!(target.is_symlink(), "{way:?}");
    }
}
