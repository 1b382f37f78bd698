//! What a mirror does not move: chunks that the file it replaces has, and files
//! that the target has under another name. Whatever is taken from there is
//! checked as what moves is.

use crate::{BOTH, Way, World, changes, summary, tree, write};
use std::fs;
use std::time::{Duration, Instant, SystemTime};

/// What a run moved, in bytes of files.
fn moved(ended: &crate::Ended) -> u64 {
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
