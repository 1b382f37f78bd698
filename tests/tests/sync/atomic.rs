//! `--atomic`: who reads the target sees the old tree or the new one, whatever
//! becomes of the run; what did not change is shared and never changed in place;
//! and where two folders cannot be exchanged that is said before anything is done.

use crate::faithful::{everything, rsync};
use crate::process::{Running, Signal, seen, skip, wait_for};
use crate::{BOTH, Way, World, changes, mounting, summary, text, tree, write};
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Files of a tree that all say the same.
const FILES: usize = 40;

fn write_version(root: &Path, version: u64) {
    for number in 0..FILES {
        write(root.join(format!("{:02}/{number}", number % 4)), format!("{version}").as_bytes());
    }
    write(root.join(format!("only in {version}")), format!("{version}").as_bytes());
    let _ = fs::remove_file(root.join(format!("only in {}", version.wrapping_sub(1))));
}

/// Reads all of a tree by what is open; none if it was replaced, or began to be, meanwhile.
fn read_all(target: &Path) -> Option<Vec<String>> {
    let folder = fs::File::open(target).expect("there is always a tree");
    let root = PathBuf::from(format!("/proc/self/fd/{}/", folder.as_raw_fd()));
    let files = tree::walk(&root).into_iter().filter(|path| path.is_file());
    let read: Vec<_> = files.map(fs::read_to_string).collect();
    let is = fs::metadata(target).expect("there is always a tree").ino();
    let same = is == folder.metadata().expect("open").ino();
    same.then(|| read.into_iter().map(|text| text.expect("the tree is in place")).collect())
}

/// What is beside a target, or in it, that a run made for itself.
fn parts(world: &World) -> Vec<PathBuf> {
    tree::parts(&world.path("."))
}

#[test]
fn readers_see_the_old_tree_or_the_new_one() {
    for way in BOTH {
        let world = World::new();
        let (source, target) = (world.source(), world.target(way));
        write_version(&source, 0);
        world.sync(way, &["--atomic", "--delete"]).done();
        assert_eq!(read_all(&target).expect("nobody is at it").len(), FILES + 1);
        let (stop, looks) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let Some(read) = read_all(&target) else { continue };
                        assert_eq!(read.len(), FILES + 1, "{way:?}: some of it: {read:?}");
                        let first = &read[0];
                        assert!(read.iter().all(|text| text == first), "{way:?}: {read:?}");
                        looks.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for version in 1..=6 {
                write_version(&source, version);
                let flags = ["--atomic", "--delete", "--max-delete", "50%"];
                let ended = world.sync(way, &flags);
                if version == 6 || ended.code != Some(0) {
                    stop.store(true, Ordering::Relaxed);
                }
                ended.done();
            }
        });
        assert!(looks.load(Ordering::Relaxed) > 20, "{way:?}: {looks:?} looks");
        tree::assert_same_content(&source, &target);
        assert_eq!(parts(&world), [""; 0].map(PathBuf::from), "{way:?}");
    }
}

#[test]
fn a_run_that_is_killed_leaves_the_old_tree_and_is_gone_on_with() {
    for way in BOTH {
        let world = World::new();
        let (source, target) = (world.source(), world.target(way));
        write(source.join("a"), b"old");
        write(source.join("gone"), b"old");
        world.sync(way, &["--atomic"]).done();
        let before = fs::metadata(&target).expect("there").ino();
        fs::remove_file(source.join("gone")).expect("removes");
        write(source.join("a"), b"new and longer");
        write(source.join("large"), &tree::content(1, 48 << 20));
        // A younger file has no version yet, and is begun anew.
        std::thread::sleep(Duration::from_millis(2100));
        let flags = ["--atomic", "--delete", "--max-delete", "90%"];
        let slow = [&flags[..], &["--bwlimit", "24M"]].concat();
        let mut run = world.start(way, &slow);
        // As much as is noted in the journal, so that there is something to go on with.
        let journal = |world: &World| {
            let all = tree::walk(&world.path(".")).into_iter();
            all.filter(|path| path.to_string_lossy().ends_with("journal")).collect::<Vec<_>>()
        };
        wait_for("a journal has more than 1500 bytes", Duration::from_secs(30), || {
            run.assert_runs(&format!("{way:?}: it ended early"));
            let bytes = |path: PathBuf| (fs::metadata(&path).map_or(0, |meta| meta.len()), path);
            let journals: Vec<_> = journal(&world).into_iter().map(bytes).collect();
            let noted = journals.iter().any(|(bytes, _)| *bytes > 1500);
            seen(noted, (journals, run.report()))
        });
        run.signal(Signal::KILL);
        assert_eq!(run.end().code, None, "it was killed");
        let is = |name: &str| fs::read(target.join(name)).ok();
        assert_eq!(is("a").as_deref(), Some(&b"old"[..]), "{way:?}");
        assert!(is("gone").is_some() && is("large").is_none(), "{way:?}");
        assert_eq!(fs::metadata(&target).expect("there").ino(), before, "{way:?}");
        assert!(!parts(&world).is_empty(), "{way:?}: there is something to go on with");
        let ended = world.sync_again(way, &[&flags[..], &["--json"]].concat()).done();
        let moved = summary(&ended)["moved_bytes"].as_u64().expect("a number");
        assert!(moved < 47 << 20, "{way:?}: {moved} bytes moved, all of it again");
        tree::assert_same_content(&source, &target);
        assert_eq!(parts(&world), [""; 0].map(PathBuf::from), "{way:?}");
        // What another run left is not gone on with, and does not stay.
        write(source.join("large"), &tree::content(2, 48 << 20));
        let mut run = world.start(way, &slow);
        wait_for("rdma-sync has a journal", Duration::from_secs(30), || {
            run.assert_runs(&format!("{way:?}: it ended early"));
            seen(!journal(&world).is_empty(), (parts(&world), run.report()))
        });
        run.signal(Signal::KILL);
        run.end();
        world.sync_again(way, &["--atomic", "--exclude", "large"]).done();
        assert!(fs::read(target.join("large")).expect("stays") == tree::content(1, 48 << 20));
        assert_eq!(parts(&world), [""; 0].map(PathBuf::from), "{way:?}");
    }
}

#[test]
fn what_is_shared_is_never_changed_in_place() {
    for way in BOTH {
        let world = World::new();
        let (source, target) = (world.source(), world.target(way));
        write(source.join("one"), b"one file");
        fs::hard_link(source.join("one"), source.join("two")).expect("links");
        write(source.join("same"), b"same");
        write(source.join("changed"), b"old");
        world.sync(way, &["--atomic"]).done();
        let of = |name: &str| fs::metadata(target.join(name)).expect("there");
        // Somebody keeps the files of the old tree: what he has must stay what it was.
        for name in ["one", "same", "changed"] {
            fs::hard_link(target.join(name), world.path(&format!("kept {name}"))).expect("links");
        }
        let (one, same) = (of("one"), of("same"));
        fs::set_permissions(source.join("one"), fs::Permissions::from_mode(0o640)).expect("sets");
        write(source.join("changed"), b"new");
        let ended = world.sync(way, &["--atomic", "--json"]).done();
        let mut told = changes(&ended);
        told.sort();
        assert_eq!(told, ["copy changed", "link two", "metadata one"], "{way:?}");
        assert_eq!(of("same").ino(), same.ino(), "{way:?}: it is the same file");
        assert_eq!(of("one").ino(), of("two").ino(), "{way:?}: one file of two names");
        assert_eq!(of("one").mode() & 0o777, 0o640, "{way:?}");
        assert_ne!(of("one").ino(), one.ino(), "{way:?}");
        let kept = fs::metadata(world.path("kept one")).expect("there");
        assert_eq!(kept.mode(), one.mode(), "{way:?}: what others have was changed");
        assert_eq!(fs::read(world.path("kept changed")).expect("reads"), b"old", "{way:?}");
        // Nothing changed: nothing is exchanged.
        let inode = fs::metadata(&target).expect("there").ino();
        assert_eq!(changes(&world.sync(way, &["--atomic", "--json"]).done()), [""; 0]);
        assert_eq!(fs::metadata(&target).expect("there").ino(), inode, "{way:?}");
        assert_eq!(parts(&world), [""; 0].map(PathBuf::from), "{way:?}");
    }
}

#[test]
fn rsync_finds_no_difference_in_a_tree_that_was_exchanged() {
    let world = World::with_owners();
    let (source, target) = (world.source(), world.target(Way::Up));
    everything(&source);
    for flags in [&["--atomic"][..], &["--atomic", "--delete"]] {
        world.sync(Way::Up, flags).done();
        match rsync(&source, &target) {
            Some(said) => assert_eq!(said, ""),
            None => return skip("sync atomic::rsync_finds_no_difference", "no rsync"),
        }
        write(source.join("links/two"), b"all names of it");
        fs::set_permissions(source.join("deep"), fs::Permissions::from_mode(0o710)).expect("sets");
    }
}

#[test]
fn what_cannot_be_copied_leaves_the_target_as_it_was() {
    for way in BOTH {
        let world = World::new();
        let (source, target) = (world.source(), world.target(way));
        write(source.join("a"), b"old");
        world.sync(way, &["--atomic"]).done();
        write(target.join("in the way/file"), b"");
        write(source.join("in the way"), b"a file");
        write(source.join("a"), b"new one");
        let said = ["in the way", "--delete removes what is in its place", "stays as it was"];
        world.sync(way, &["--atomic"]).refused(1, &said);
        assert_eq!(fs::read(target.join("a")).expect("reads"), b"old", "{way:?}");
        world.sync(way, &["--atomic", "--delete", "--max-delete", "90%"]).done();
        tree::assert_same_content(&source, &target);
        assert_eq!(parts(&world), [""; 0].map(PathBuf::from), "{way:?}");
    }
}

#[test]
fn places_that_cannot_be_exchanged_are_refused_before_anything_is_done() {
    let world = World::new();
    write(world.path("src/a"), b"1");
    let run = |arguments: &[&str]| Running::start(world.home.command("rdma-sync", arguments)).end();
    let src = world.serve.at("src");
    let up = [text(&world.path("src")), world.serve.at("in"), "--atomic".into()];
    run(&[&up[0], &up[1], &up[2]]).refused(1, &["is an export", "name a folder in it"]);
    write(world.path("out/file"), b"");
    run(&[&src, &text(&world.path("out/file")), "--atomic"]).refused(1, &["no folder"]);
    run(&[&src, &text(&world.path("out/none/x")), "--atomic"]).refused(1, &["no such file"]);
    let name = "sync atomic::places_that_cannot_be_exchanged";
    let mounted = world.path("out/mounted");
    match mounting::tmpfs(&mounted, 4 << 20) {
        Some(_mount) => {
            run(&[&src, &text(&mounted), "--atomic"]).refused(1, &["is a mount point"]);
            assert_eq!(fs::read_dir(&mounted).expect("lists").count(), 0);
            run(&[&src, &text(&mounted.join("below")), "--atomic"]).done();
            // One that is mounted in the target would go with the old tree, and be emptied.
            let said = ["a file system is mounted in it", "out/mounted", "without --atomic"];
            run(&[&src, &text(&world.path("out")), "--atomic", "--exclude", "mounted"])
                .refused(1, &said);
            assert_eq!(fs::read(mounted.join("below/a")).expect("stays"), b"1");
        }
        None => skip(name, "tmpfs cannot be mounted here"),
    }
    // What is in a lower layer of an overlay cannot be renamed; what was made in it can.
    write(world.path("lower/copy/file"), b"");
    let layered = world.path("in/layered");
    match mounting::overlay(&world.path("lower"), &world.path("upper"), &layered) {
        Some(_mount) => {
            let (to, from) = (world.serve.at("in/layered/copy"), text(&world.path("src")));
            let said = ["in a lower layer", "without --atomic"];
            run(&[&src, &text(&layered.join("copy")), "--atomic"]).refused(1, &said);
            run(&[&from, &to, "--atomic"]).refused(1, &said);
            assert!(layered.join("copy/file").exists() && !layered.join("copy/a").exists());
            run(&[&from, &to]).done();
        }
        None => skip(name, "an overlay cannot be mounted here"),
    }
}

#[test]
fn where_the_file_system_can_files_are_reflinks() {
    let world = World::new();
    let (name, mounted) = ("sync atomic::where_the_file_system_can", world.path("out"));
    let Some(_mount) = mounting::image(&world.path("image"), "mkfs.btrfs", &["-q"], &mounted)
    else {
        return skip(name, "btrfs cannot be made or mounted here");
    };
    let (source, target) = (world.source(), world.target(Way::Down));
    write(source.join("a"), &tree::content(1, 900_000));
    fs::hard_link(source.join("a"), source.join("b")).expect("links");
    world.sync(Way::Down, &["--atomic"]).done();
    let before = fs::metadata(target.join("a")).expect("there");
    write(source.join("new"), b"1");
    assert_eq!(
        changes(&world.sync(Way::Down, &["--atomic", "--json"]).done()),
        ["copy new", "metadata ."]
    );
    let of = |name: &str| fs::metadata(target.join(name)).expect("there");
    assert_ne!(of("a").ino(), before.ino(), "it is a file of its own");
    assert_eq!(of("a").ino(), of("b").ino());
    tree::assert_same(&source, &target);
    assert_eq!(tree::parts(&mounted), [""; 0].map(PathBuf::from));
}
