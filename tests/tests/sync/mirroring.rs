//! What a mirror does and does not do: only what differs, what the flags leave
//! out, what is deleted and when, what a dry run and a comparison say.

use crate::{BOTH, Way, World, changes, summary, tree, write};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

/// Sets a time of last change that no clock gives.
fn age(path: &std::path::Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000 + seconds, 123_456_789);
    let file = fs::File::open(path).expect("opens");
    file.set_modified(time).expect("sets the time");
}

#[test]
fn only_what_differs_is_touched_and_a_second_run_does_nothing() {
    let world = World::new();
    let source = world.source();
    tree::sample(&source, 1);
    tree::small_files(&source.join("many"), 700, 9_000, 2);
    for way in BOTH {
        let first = world.sync(way, &["--json"]).done();
        assert!(summary(&first)["files"].as_u64() > Some(700), "{first:?}");
        tree::assert_same_content(&source, &world.target(way));
        let second = world.sync(way, &["--json"]).done();
        assert_eq!(changes(&second), [""; 0]);
        assert_eq!(summary(&second)["moved_bytes"], 0);
    }
    let before = fs::metadata(world.target(Way::Down).join("a.bin")).expect("there").ino();
    write(source.join("-rf"), b"other");
    fs::set_permissions(source.join("a.bin"), fs::Permissions::from_mode(0o640)).expect("sets");
    write(source.join("deep/new/file"), b"new");
    fs::remove_file(source.join("dangling link")).expect("removes");
    symlink("elsewhere", source.join("dangling link")).expect("links");
    for way in BOTH {
        let third = world.sync(way, &["--json"]).done();
        let mut changed = changes(&third);
        changed.retain(|change| !change.starts_with("metadata") || change.ends_with("a.bin"));
        let expected = [
            "copy -rf",
            "metadata a.bin",
            "symlink dangling link",
            "folder deep/new",
            "copy deep/new/file",
        ];
        assert_eq!(changed, expected, "{way:?}");
        tree::assert_same_content(&source, &world.target(way));
    }
    let after = fs::metadata(world.target(Way::Down).join("a.bin")).expect("there");
    assert_eq!((after.ino(), after.mode() & 0o7777), (before, 0o640), "only its mode was set");
}

#[test]
fn a_trailing_slash_means_nothing() {
    let world = World::new();
    tree::sample(&world.source(), 1);
    let [source, target] = world.ends(Way::Down);
    let run = |source: String, target: String| {
        let command = world.home.command("rdma-sync", &[source, target]);
        crate::process::Running::start(command).end().done();
        tree::assert_same_content(&world.source(), &world.target(Way::Down));
        fs::remove_dir_all(world.target(Way::Down)).expect("removes");
    };
    run(format!("{source}/"), target.clone());
    run(source.clone(), format!("{target}/"));
    run(format!("{source}/"), format!("{target}/"));
}

#[test]
fn a_dry_run_tells_everything_and_changes_nothing() {
    let world = World::new();
    tree::sample(&world.source(), 1);
    for way in BOTH {
        let told = changes(&world.sync(way, &["-n", "--json"]).done());
        assert!(!world.target(way).exists(), "{way:?}: the target was made");
        let done = changes(&world.sync(way, &["--json"]).done());
        // The target is made before it is looked at, so that only its metadata is news.
        let rest = |mut list: Vec<String>| {
            list.retain(|line| line != "folder ." && line != "metadata .");
            list
        };
        assert_eq!(rest(told), rest(done), "{way:?}");
        write(world.target(way).join("extra"), b"");
        write(world.source().join("-rf"), format!("changed {way:?}").as_bytes());
        let ended = world.sync(way, &["-n", "--delete"]).done();
        assert!(ended.stdout.contains("delete   extra  (gone)"), "{ended:?}");
        assert!(ended.stdout.contains("copy     -rf  (size, time)"), "{ended:?}");
        assert!(world.target(way).join("extra").exists());
    }
}

#[test]
fn deletes_are_asked_for_limited_and_come_last() {
    for way in BOTH {
        let world = World::new();
        let (source, target) = (world.source(), world.target(way));
        for number in 0..20 {
            write(source.join(format!("f{number:02}")), b"x");
        }
        write(source.join("old/sub/file"), b"x");
        world.sync(way, &[]).done();
        fs::remove_dir_all(source.join("old")).expect("removes");
        world.sync(way, &[]).done();
        assert!(target.join("old/sub/file").exists(), "nobody asked for it");
        // Three of 23 are more than a tenth of them, rounded up to 3: none is more.
        world
            .sync(way, &["--delete", "--max-delete", "2"])
            .refused(1, &["3 of the 23", "at most 2"]);
        assert!(target.join("old/sub/file").exists());
        write(target.join("kept.log"), b"");
        write(target.join("gone"), b"");
        world
            .sync(way, &["--delete"])
            .refused(1, &["5 of the 25", "at most 3", "0 of them deleted"]);
        let ended =
            world.sync(way, &["--delete", "--max-delete", "50%", "--exclude", "*.log", "--json"]);
        let ended = ended.done();
        assert!(!target.join("old").exists() && !target.join("gone").exists(), "{ended:?}");
        assert!(target.join("kept.log").exists(), "what is left out is not deleted");
        assert_eq!(summary(&ended)["deletes"], 4);
    }
}

#[test]
fn an_empty_or_unreadable_source_deletes_nothing() {
    for way in BOTH {
        let world = World::new();
        let (source, target) = (world.source(), world.target(way));
        write(target.join("precious"), b"x");
        let flags = ["--delete", "--max-delete", "100%"];
        world.sync(way, &flags).refused(1, &["nothing is deleted", "the source is empty"]);
        // Deeper than a walk goes: it cannot be told what is in there.
        let mut deep = source.clone();
        for _ in 0..515 {
            deep.push("d");
        }
        fs::create_dir_all(&deep).expect("a deep folder");
        write(source.join("new"), b"x");
        world
            .sync(way, &flags)
            .refused(1, &["nothing is deleted", "cannot be read", "deeper than"]);
        assert!(target.join("precious").exists() && target.join("new").exists());
    }
}

#[test]
fn what_is_of_another_kind_is_replaced_where_deleting_is_asked_for() {
    for way in BOTH {
        let world = World::new();
        let (source, target) = (world.source(), world.target(way));
        write(source.join("a/folder/now"), b"1");
        write(source.join("b"), b"a file now");
        write(source.join("c"), b"not a link now");
        write(source.join("rest"), b"");
        write(target.join("a"), b"a file");
        write(target.join("b/was/a/folder"), b"");
        fs::create_dir_all(&target).expect("folder");
        symlink("x", target.join("c")).expect("links");
        let ended = world.sync(way, &[]).refused(1, &["is in its place", "--delete"]);
        assert!(target.join("rest").exists(), "the rest is done: {ended:?}");
        assert_eq!(fs::read(target.join("c")).expect("reads"), b"not a link now");
        assert!(target.join("b/was/a/folder").exists());
        world
            .sync(way, &["--delete"])
            .refused(1, &["nothing is deleted", "a folder is in its place"]);
        world.sync(way, &["--delete", "--max-delete", "100%"]).done();
        tree::assert_same_content(&source, &target);
        assert_eq!(changes(&world.sync(way, &["--delete", "--json"]).done()), [""; 0]);
    }
}

#[test]
fn patterns_and_lists_say_what_is_looked_at() {
    for way in BOTH {
        let world = World::new();
        let (source, target) = (world.source(), world.target(way));
        for name in ["a/x.o", "a/keep.o", "a/y.c", "build/z.c", "b/x.c", "listed/1/2", "c d"] {
            write(source.join(name), name.as_bytes());
        }
        let there = || {
            let mut names: Vec<String> = tree::walk(&target)
                .iter()
                .filter(|path| path.is_file())
                .map(|path| path.strip_prefix(&target).expect("below").display().to_string())
                .collect();
            names.sort();
            names
        };
        let flags = ["--exclude", "*.o", "--include", "keep.o", "--exclude", "build/"];
        world.sync(way, &flags).done();
        assert_eq!(there(), ["a/keep.o", "a/y.c", "b/x.c", "c d", "listed/1/2"]);
        fs::remove_dir_all(&target).expect("removes");
        let list = world.path("list");
        write(list.clone(), b"listed\nc d\n./a/y.c\nmissing\n");
        let flags = ["--files-from", list.to_str().expect("plain")];
        world.sync(way, &flags).refused(1, &["missing", "listed, but not in the source"]);
        assert_eq!(there(), ["a/y.c", "c d", "listed/1/2"]);
    }
}

#[test]
fn contents_are_compared_by_digest_where_that_is_asked_for() {
    for way in BOTH {
        let world = World::new();
        let (source, target) = (world.source(), world.target(way));
        for (name, len) in [("small", 10), ("large", 5 << 20)] {
            write(source.join(name), &tree::content(1, len));
            age(&source.join(name), 7);
        }
        world.sync(way, &[]).done();
        world.sync(way, &["--check"]).done();
        // The same size and time, one bit: size and time do not tell.
        let mut bytes = fs::read(target.join("large")).expect("reads");
        bytes[4 << 20] ^= 1;
        write(target.join("large"), &bytes);
        age(&target.join("large"), 7);
        assert_eq!(changes(&world.sync(way, &["--json"]).done()), [""; 0]);
        let ended = world.sync(way, &["--check"]);
        assert_eq!(ended.code, Some(4), "{ended:?}");
        assert_eq!(ended.stdout, "copy     large  (content)\n");
        let ended = world.sync(way, &["--checksum", "--json"]).done();
        assert_eq!(changes(&ended), ["copy large"]);
        tree::assert_same_content(&source, &target);
        // Another time alone is no reason to copy.
        age(&target.join("small"), 8);
        let ended = world.sync(way, &["--check"]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), "metadata small  (time)\n"));
        let ended = world.sync(way, &["-c", "--json"]).done();
        assert_eq!(changes(&ended), ["metadata small"]);
        write(target.join("extra"), b"");
        let ended = world.sync(way, &["--check"]);
        assert!(ended.code == Some(1) && ended.stdout.contains("delete   extra"), "{ended:?}");
    }
}

#[test]
fn a_folder_that_holds_what_is_left_out_stays_and_is_no_failure() {
    for way in BOTH {
        let world = World::new();
        let (source, target) = (world.source(), world.target(way));
        write(source.join("a"), b"");
        write(target.join("gone/kept.log"), b"");
        write(target.join("gone/x"), b"");
        write(target.join("empty/x"), b"");
        let flags = ["--delete", "--max-delete", "100%", "--exclude", "*.log", "--json"];
        let ended = world.sync(way, &flags).done();
        assert!(target.join("gone/kept.log").exists() && !target.join("gone/x").exists());
        assert!(!target.join("empty").exists(), "{way:?}");
        let mut deleted = changes(&ended);
        deleted.retain(|change| change.starts_with("delete"));
        deleted.sort();
        let expected = ["delete empty", "delete empty/x", "delete gone/x"];
        assert_eq!(deleted, expected, "{way:?}: only what is gone is told");
        assert_eq!(summary(&ended)["deletes"], 3, "{way:?}");
    }
}
