//! What goes wrong with one entry is said of that entry, the rest is done, and
//! the exit code is 1: names that are one at the target, things of another kind,
//! folders that vanish, disks that are full, and clocks that lie.

use crate::process::{Ended, Running, skip};
use crate::{BOTH, Way, World, changes, mounting, text, tree, write};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// Makes `source` equal to a folder below `out` or `in`.
fn sync_to(world: &World, way: Way, below: &str, flags: &[&str]) -> Ended {
    let ends = match way {
        Way::Down => [world.serve.at("src"), text(&world.path(&format!("out/{below}")))],
        Way::Up => [text(&world.source()), world.serve.at(&format!("in/{below}"))],
    };
    let ends = [ends[0].as_str(), ends[1].as_str()];
    Running::start(world.home.command("rdma-sync", &[&ends, flags].concat())).end()
}

fn top(world: &World, way: Way, below: &str) -> PathBuf {
    world.path(if way == Way::Down { "out" } else { "in" }).join(below)
}

#[test]
fn what_this_machine_cannot_do_is_not_blamed_on_the_way_to_the_server() {
    let world = World::new();
    write(world.source().join("kept"), b"kept");
    // More to delete than is kept in memory.
    for number in 0..4000 {
        write(world.path(&format!("out/{number:060}")), b"");
    }
    let (from, to) = (world.serve.at("src"), text(&world.path("out")));
    let flags = [from.as_str(), to.as_str(), "--delete", "--max-delete", "100%"];
    let mut command = world.home.command("rdma-sync", &flags);
    command.env("TMPDIR", world.path("none"));
    Running::start(command).end().refused(1, &["cannot keep a list of what is to do"]);
}

fn no_parts(root: &Path) {
    assert_eq!(tree::parts(root), [""; 0].map(PathBuf::from));
}

#[test]
fn a_file_where_a_folder_goes_is_an_error_for_it_alone() {
    for way in BOTH {
        let world = World::new();
        let (source, target) = (world.source(), world.target(way));
        write(source.join("a/b/c"), b"1");
        write(source.join("file"), b"2");
        write(source.join("rest/x"), b"3");
        write(target.join("a/b"), b"a file where a folder goes");
        write(target.join("file/x"), b"a folder where a file goes");
        let said = ["a/b", "file", "hint: --delete removes what is in its place"];
        world.sync(way, &[]).refused(1, &said);
        assert_eq!(fs::read(target.join("rest/x")).expect("the rest is done"), b"3", "{way:?}");
        assert_eq!(fs::read(target.join("a/b")).expect("stays").len(), 26, "{way:?}");
        assert!(target.join("file/x").exists(), "{way:?}");
    }
}

#[test]
fn names_that_are_one_at_the_target_are_an_error_and_the_rest_is_done() {
    for way in BOTH {
        let world = World::new();
        let mounted = top(&world, way, "folding");
        let copy = mounted.join("copy");
        let Some(_mount) = mounting::folding(&world.path("image"), &mounted, &copy) else {
            let name = "sync trouble::names_that_are_one_at_the_target";
            return skip(name, "nothing that folds case can be made or mounted here");
        };
        let source = world.source();
        write(source.join("README"), b"first");
        write(source.join("Readme"), b"second");
        write(source.join("data/a"), b"1");
        write(source.join("Data/b"), b"2");
        write(source.join("rest"), b"3");
        let said = ["Readme", "data", "differs only in case"];
        sync_to(&world, way, "folding/copy", &[]).refused(1, &said);
        assert_eq!(fs::read(copy.join("README")).expect("reads"), b"first", "{way:?}");
        assert_eq!(fs::read(copy.join("rest")).expect("reads"), b"3", "{way:?}");
        assert!(copy.join("Data/b").exists() && !copy.join("Data/a").exists(), "{way:?}");
        sync_to(&world, way, "folding/copy", &["--delete"]).refused(2, &["nothing can be deleted"]);
    }
}

#[test]
fn times_of_a_clock_that_jumped_are_kept_and_differ_once() {
    let second = Duration::from_secs(1);
    let (epoch, now) = (SystemTime::UNIX_EPOCH, SystemTime::now());
    let times = [epoch, epoch - 86_400 * second, epoch + 5 * second, now + 86_400 * 3650 * second];
    for way in BOTH {
        let world = World::new();
        let (source, target) = (world.source(), world.target(way));
        let names: Vec<String> = (0..times.len()).map(|number| format!("{number}")).collect();
        for (name, time) in names.iter().zip(times) {
            write(source.join(name), name.as_bytes());
            write(source.join(format!("large {name}")), &tree::content(1, 3 << 20));
            for name in [name.clone(), format!("large {name}")] {
                let file = fs::File::open(source.join(name)).expect("opens");
                file.set_modified(time).expect("sets");
            }
        }
        world.sync(way, &[]).done();
        tree::assert_same_content(&source, &target);
        for (name, time) in names.iter().zip(times) {
            let is = fs::metadata(target.join(name)).expect("there").modified().expect("a time");
            assert_eq!(is, time, "{way:?}: {name}");
        }
        assert_eq!(changes(&world.sync(way, &["--json"]).done()), [""; 0], "{way:?}");
        // The target's clock was ahead: what is newer there is not taken for right.
        let newer = fs::File::open(target.join("0")).expect("opens");
        newer.set_modified(now + 86_400 * second).expect("sets");
        assert_eq!(changes(&world.sync(way, &["--json"]).done()), ["copy 0"], "{way:?}");
    }
}

#[test]
fn a_full_disk_is_an_error_for_what_does_not_fit() {
    for way in BOTH {
        let world = World::new();
        let mounted = top(&world, way, "small");
        let Some(_mount) = mounting::tmpfs(&mounted, 6 << 20) else {
            return skip("sync trouble::a_full_disk", "tmpfs cannot be mounted here");
        };
        let (source, copy) = (world.source(), mounted.join("copy"));
        write(source.join("a"), b"small");
        write(source.join("large"), &tree::content(1, 9 << 20));
        write(source.join("z"), &tree::content(2, 700_000));
        let said = ["large", "make room at the target"];
        sync_to(&world, way, "small/copy", &[]).refused(1, &said);
        assert_eq!(fs::read(copy.join("a")).expect("the rest is done"), b"small", "{way:?}");
        assert_eq!(fs::read(copy.join("z")).expect("the rest is done").len(), 700_000, "{way:?}");
        assert!(!copy.join("large").exists(), "{way:?}");
        // A tree that does not fit is not seen at all.
        write(source.join("a"), b"changed");
        let said = ["large", "the target stays as it was"];
        sync_to(&world, way, "small/copy", &["--atomic"]).refused(1, &said);
        assert_eq!(fs::read(copy.join("a")).expect("stays"), b"small", "{way:?}");
        fs::remove_file(source.join("large")).expect("removes");
        sync_to(&world, way, "small/copy", &["--atomic"]).done();
        tree::assert_same_content(&source, &copy);
        no_parts(&mounted);
    }
}

#[test]
fn what_cannot_be_made_its_own_is_not_changed_in_the_live_tree() {
    for way in BOTH {
        let world = World::new();
        let mounted = top(&world, way, "small");
        // Room for another name of the file, and for no second file.
        let Some(_mount) = mounting::tmpfs(&mounted, 6 << 20) else {
            return skip(
                "sync trouble::what_cannot_be_made_its_own",
                "tmpfs cannot be mounted here",
            );
        };
        let (source, large) = (world.source().join("large"), mounted.join("copy/large"));
        write(source.clone(), &tree::content(1, 4 << 20));
        sync_to(&world, way, "small/copy", &["--atomic"]).done();
        let of = || fs::metadata(&large).expect("there");
        let before = of();
        fs::set_permissions(&source, fs::Permissions::from_mode(0o711)).expect("sets");
        let said = ["large", "no space left", "the target stays as it was"];
        sync_to(&world, way, "small/copy", &["--atomic"]).refused(1, &said);
        let is = of();
        assert_eq!((is.ino(), is.mode()), (before.ino(), before.mode()), "{way:?}: it was changed");
        assert_eq!(is.mtime_nsec(), before.mtime_nsec(), "{way:?}");
        // The tree that was built is gone on with when there is room.
        let (size, remount) = (format!("remount,size={}", 12 << 20), text(&mounted));
        let wider = Command::new("mount").args(["-o", &size, &remount]).status();
        assert!(wider.expect("mount is there").success());
        sync_to(&world, way, "small/copy", &["--atomic"]).done();
        assert_eq!(of().mode() & 0o7777, 0o711, "{way:?}");
        no_parts(&mounted);
    }
}

#[test]
fn a_disk_that_fills_up_with_small_files_ends_nothing_but_them() {
    for way in BOTH {
        let world = World::new();
        let mounted = top(&world, way, "small");
        let Some(_mount) = mounting::tmpfs(&mounted, 2 << 20) else {
            return skip("sync trouble::a_disk_that_fills_up", "tmpfs cannot be mounted here");
        };
        let (source, copy) = (world.source(), mounted.join("copy"));
        tree::small_files(&source.join("many"), 700, 12_000, 3);
        sync_to(&world, way, "small/copy", &[]).refused(1, &["make room at the target"]);
        for path in tree::walk(&copy).into_iter().filter(|path| path.is_file()) {
            let name = path.strip_prefix(&copy).expect("below");
            let is = fs::read(&path).expect("reads");
            assert!(is == fs::read(source.join(name)).expect("reads"), "{way:?}: {name:?}");
        }
        fs::remove_dir_all(source.join("many")).expect("removes");
        write(source.join("few"), b"1");
        // Where something is not done nothing is deleted, so room is made by hand, as the hint says.
        fs::remove_dir_all(copy.join("many")).expect("removes");
        let flags = ["--delete", "--max-delete", "100%"];
        sync_to(&world, way, "small/copy", &flags).done();
        tree::assert_same_content(&source, &copy);
        no_parts(&mounted);
    }
}

#[test]
fn folders_that_vanish_while_they_are_walked_end_nothing_but_themselves() {
    for way in BOTH {
        let world = World::new();
        let (source, target) = (world.source(), world.target(way));
        tree::small_files(&source.join("stays"), 300, 500, 1);
        let stop = AtomicBool::new(false);
        let mut codes = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0_u64.. {
                    let folder = source.join(format!("comes/{}", round % 7));
                    tree::small_files(&folder, 30, 300, round);
                    let _ = fs::remove_dir_all(source.join(format!("comes/{}", (round + 3) % 7)));
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            for _ in 0..6 {
                let ended = world.sync(way, &["--delete", "--max-delete", "100%"]);
                let named = ended.stderr.contains("comes");
                let fine = ended.code == Some(0) || ended.code == Some(1) && named;
                // What is behind the folder that vanished is there, whatever became of it.
                let stays = tree::walk(&target.join("stays"));
                let stay = stays.iter().filter(|path| path.is_file()).count() == 300;
                codes.push((fine && stay, ended));
            }
            stop.store(true, Ordering::Relaxed);
        });
        for (fine, ended) in codes {
            assert!(fine, "{way:?}: {ended:?}");
        }
        world.sync(way, &["--delete", "--max-delete", "100%"]).done();
        tree::assert_same_content(&source, &target);
        no_parts(&target);
    }
}

#[test]
fn however_much_killed_runs_left_the_next_one_removes_it() {
    // More than fit a page of a walk; in a folder that is to go, and that has to be empty for it.
    const LEFT: usize = 9000;
    for way in BOTH {
        let world = World::new();
        write(world.source().join("file"), b"content");
        let folder = world.target(way).join("gone");
        fs::create_dir_all(&folder).expect("a folder");
        for number in 0..LEFT {
            let part = folder.join(format!(".file.1-{number}-0123abcd.verbatim-part"));
            fs::write(part, b"").expect("a leftover");
        }
        world.sync(way, &["--delete", "--max-delete", "100%"]).done();
        no_parts(&world.target(way));
        tree::assert_same_content(&world.source(), &world.target(way));
    }
}
