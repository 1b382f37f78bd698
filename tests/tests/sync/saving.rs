//! What a mirror does not move: chunks that the file it replaces has, and files
//! that the target has under another name. Whatever is taken from there is
//! checked as what moves is. And what it does not tell: pages that both trees have.

use crate::{BOTH, Way, World, changes, summary, text, tree, write};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};
use verbatim_tests::process::{Ended, Running, skip};
use verbatim_tests::proxy::Proxy;

/// What a run moved, in bytes of files.
fn moved(ended: &Ended) -> u64 {
    summary(ended)["moved_bytes"].as_u64().expect("a number")
}

/// What cannot be told apart on the way: chunks are fetched whole, grains are sent.
fn unit(way: Way) -> u64 {
    if way == Way::Down { 1 << 20 } else { 256 << 10 }
}

#[test]
fn of_a_large_changed_file_only_what_changed_is_moved() {
    let world = World::new();
    let source = world.source().join("large");
    let mut bytes = tree::content(1, (40 << 20) + 12_345);
    write(source.clone(), &bytes);
    for way in BOTH {
        world.sync(way, &[]).done();
    }
    // Two places of forty, and the file grows a little at its end.
    for at in [5 << 20, (30 << 20) + 77] {
        bytes[at] ^= 1;
    }
    bytes.extend(tree::content(2, 1000));
    write(source.clone(), &bytes);
    for way in BOTH {
        let target = world.target(way).join("large");
        let ended = world.sync(way, &["--json"]).done();
        assert_eq!(fs::read(&target).expect("reads"), bytes);
        let most = 2 * unit(way) + 13_345;
        assert!((2 * unit(way)..=most).contains(&moved(&ended)), "{way:?}: {ended:?}");
        // What was at the target is not believed: damage there is copied anew.
        let mut damaged = bytes.clone();
        damaged[10 << 20] ^= 1;
        write(target.clone(), &damaged);
        let ended = world.sync(way, &["--json"]).done();
        assert_eq!(fs::read(&target).expect("reads"), bytes);
        assert_eq!(moved(&ended), unit(way), "{way:?}");
    }
}

#[test]
fn of_a_renamed_or_copied_file_nothing_is_moved() {
    let world = World::new();
    let source = world.source();
    let names = ["m/one", "m/two", "m/three"];
    let contents = [1, 2, 3].map(|seed| tree::content(seed, (20 << 20) + 777));
    for (name, bytes) in names.iter().zip(&contents) {
        write(source.join(name), bytes);
    }
    for way in BOTH {
        world.sync(way, &[]).done();
    }
    // One goes up and one goes down in the order of names; one is copied, with a time of its own;
    // and one of the same size is new.
    fs::rename(source.join("m/one"), source.join("z")).expect("renames");
    fs::rename(source.join("m/two"), source.join("a")).expect("renames");
    write(source.join("m/three again"), &contents[2]);
    for way in BOTH {
        let ended = world.sync(way, &["--delete", "--max-delete", "100%", "--json"]).done();
        assert_eq!(moved(&ended), 0, "{way:?}: {ended:?}");
        assert!(changes(&ended).contains(&"copy z".to_owned()), "{ended:?}");
        tree::assert_same_content(&source, &world.target(way));
    }
    write(source.join("m/other"), &tree::content(9, contents[0].len()));
    for way in BOTH {
        let ended = world.sync(way, &["--json"]).done();
        assert_eq!(moved(&ended), contents[0].len() as u64, "{way:?}");
        tree::assert_same_content(&source, &world.target(way));
    }
}

#[test]
fn files_that_take_each_others_place_arrive_whole() {
    let world = World::new();
    let source = world.source();
    let contents = [1, 2, 3].map(|seed| tree::content(seed, 3 << 20));
    // An hour apart: files of one size that are written in the same tick of the kernel's clock have
    // one time, and who takes the place of whom could not be told by size and time.
    let now = SystemTime::now();
    for ((name, bytes), hours) in ["log", "log.1", "log.2"].iter().zip(&contents).zip(1..) {
        write(source.join(name), bytes);
        let file = fs::File::options().write(true).open(source.join(name)).expect("it is there");
        file.set_modified(now - hours * Duration::from_secs(3600)).expect("our own file");
    }
    for way in BOTH {
        world.sync(way, &[]).done();
    }
    fs::rename(source.join("log.1"), source.join("log.2")).expect("renames");
    fs::rename(source.join("log"), source.join("log.1")).expect("renames");
    write(source.join("log"), &tree::content(4, 3 << 20));
    for way in BOTH {
        let ended = world.sync(way, &["--json"]).done();
        // What is replaced while others are compared with it may have to move.
        assert!((3 << 20..=9 << 20).contains(&moved(&ended)), "{way:?}: {ended:?}");
        tree::assert_same_content(&source, &world.target(way));
        assert!(changes(&world.sync(way, &["--json"]).done()).is_empty());
    }
}

#[test]
fn no_more_is_moved_in_a_second_than_is_allowed() {
    for way in BOTH {
        let world = World::new();
        write(world.source().join("large"), &tree::content(1, 6 << 20));
        let begin = Instant::now();
        world.sync(way, &["--bwlimit", "4M"]).done();
        assert!(begin.elapsed() > Duration::from_secs(1), "{way:?}: {:?}", begin.elapsed());
        // What does not move takes no part of it.
        write(world.source().join("large again"), &tree::content(1, 6 << 20));
        let ended = world.sync(way, &["--bwlimit", "4M", "--json"]).done();
        assert_eq!(moved(&ended), 0, "{way:?}");
    }
}

/// Runs rdma-sync through a proxy, to its end; returns what its control connection carried.
fn through(world: &World, way: Way, flags: &[&str]) -> (Ended, u64) {
    let port = world.serve.address.port();
    let proxy = Proxy::start(port, &[]);
    let other = format!(":{}/", proxy.port());
    let ends = world.ends(way).map(|end| end.replace(&format!(":{port}/"), &other));
    let known = proxy.known(&world.home);
    let known = known.iter().map(String::as_str).chain(["--json"]).collect::<Vec<_>>();
    let ends = [ends[0].as_str(), ends[1].as_str()];
    let command = world.home.command("rdma-sync", &[&ends, &known[..], flags].concat());
    let ended = Running::start(command).end().done();
    (ended, proxy.counts().control_bytes)
}

#[test]
fn what_both_trees_have_is_not_told_wherever_something_differs() {
    const FILES: u64 = 16_000;
    let world = World::new();
    let source = world.source();
    let name = |number: u64| format!("{:02}/{number:05}-{}", number / 500, "n".repeat(80));
    for number in 0..FILES {
        write(source.join(name(number)), b"");
    }
    for way in BOTH {
        // Of a target that is missing nothing is alike.
        let dry = world.sync(way, &["--json", "--dry-run"]).done();
        assert!(changes(&dry).len() as u64 > FILES && !world.target(way).exists(), "{way:?}");
        world.sync(way, &[]).done();
    }
    let all = FILES * 100;
    for way in BOTH {
        let (ended, told) = through(&world, way, &["--checksum"]);
        assert!(told > all, "{way:?}: with digests all is told, {told} bytes: {ended:?}");
        let (ended, told) = through(&world, way, &[]);
        assert_eq!(changes(&ended), [""; 0]);
        assert!(told < all / 8, "{way:?}: {told} bytes");
    }
    // Not a folder of it stays as it was, and pages begin elsewhere from here on.
    write(source.join(name(1_700)), b"longer");
    fs::set_permissions(source.join(name(3_333)), fs::Permissions::from_mode(0o600)).expect("sets");
    fs::remove_file(source.join(name(5_000))).expect("removes");
    write(source.join("09/0 is new"), b"new");
    fs::remove_dir_all(source.join("12")).expect("removes");
    for way in BOTH {
        let part = format!("{}/15/.x.12-3-0123abcd.verbatim-part", text(&world.target(way)));
        write(part.clone().into(), b"");
        let (ended, told) = through(&world, way, &["--delete"]);
        let mut changed = changes(&ended);
        changed.retain(|change| !change.starts_with("delete 12/"));
        let expected = [
            format!("copy {}", name(1_700)),
            format!("metadata {}", name(3_333)),
            "copy 09/0 is new".to_owned(),
        ];
        for change in &expected {
            assert!(changed.contains(change), "{way:?}: {change} is not in {changed:?}");
        }
        assert!(changed.contains(&format!("delete {}", name(5_000))), "{changed:?}");
        tree::assert_same_content(&source, &world.target(way));
        assert!(told < all * 2 / 3, "{way:?}: {told} bytes");
        assert!(!fs::exists(&part).expect("looks"), "{way:?}: what a copy left is swept away");
        let (ended, told) = through(&world, way, &["--delete"]);
        assert_eq!(changes(&ended), [""; 0]);
        assert!(told < all / 8, "{way:?}: {told} bytes");
    }
}

/// More than a control connection carries where of 4,000 files one page is told.
const FEW: u64 = 60_000;

#[test]
fn what_a_target_may_not_keep_is_taken_from_it_though_both_trees_have_it() {
    let world = World::new();
    tree::small_files(&world.source(), 4_000, 0, 1);
    std::os::unix::fs::symlink("3500", world.source().join("35/link")).expect("links");
    for way in BOTH {
        world.sync(way, &[]).done();
    }
    // By hand, at both ends: what came from elsewhere may not run as its owner here.
    let name = "35/3500";
    for place in [world.source(), world.target(Way::Up)] {
        fs::set_permissions(place.join(name), fs::Permissions::from_mode(0o4755)).expect("sets");
    }
    let (ended, told) = through(&world, Way::Up, &[]);
    assert_eq!(changes(&ended), [format!("metadata {name}")]);
    assert!(told < FEW, "{told} bytes: {ended:?}");
    let mode = fs::metadata(world.target(Way::Up).join(name)).expect("there").permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
}

#[test]
fn where_owners_cannot_be_set_they_make_no_difference() {
    let test = "sync saving::where_owners_cannot_be_set";
    if !rustix::process::geteuid().is_root() {
        return skip(test, "only root has files of somebody else");
    }
    let Some(world) = World::powerless() else {
        return skip(test, "root needs setpriv, and a build that nobody may run");
    };
    tree::small_files(&world.source(), 4_000, 0, 1);
    for way in BOTH {
        world.sync(way, &[]).done();
        let owner = |root: PathBuf| fs::metadata(root.join("35/3500")).expect("there").uid();
        assert_ne!(owner(world.source()), owner(world.target(way)));
        let (ended, told) = through(&world, way, &[]);
        assert_eq!(changes(&ended), [""; 0], "{way:?}");
        assert!(told < FEW, "{way:?}: {told} bytes");
    }
}
