//! The habits of cp, scp and rsync: wildcards on the server, links followed,
//! what is kept and what is replaced, what is left out, dry runs, comparing
//! without writing, chunk sizes and rates. Every flag in both directions.

use crate::process::{Ended, Home, Signal};
use crate::resuming::make_settled;
use crate::stopping::wait_for_bytes;
use crate::{World, assert_same, bytes, names};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

const HOUR: Duration = Duration::from_secs(3600);

/// Sets when a file was last changed: this long ago.
fn set_age(path: &Path, age: Duration) {
    let file = fs::OpenOptions::new().write(true).open(path).expect("our own file");
    file.set_modified(SystemTime::now() - age).expect("our own file");
}

/// Runs a copy with these flags.
fn cp(world: &World, flags: &[&str], from: &str, to: &str) -> Ended {
    world.serve.cp(&[flags, &[from, to]].concat())
}

fn make_fifo(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("makes a fifo");
}

/// All files, links and folders below, sorted.
fn tree(root: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(folder) = left.pop() {
        for name in names(&folder) {
            let path = folder.join(&name);
            all.push(path.strip_prefix(root).expect("below").to_string_lossy().into_owned());
            if path.is_dir() && !path.is_symlink() {
                left.push(path);
            }
        }
    }
    all.sort();
    all
}

#[test]
fn wildcards_are_matched_on_the_server() {
    let world = World::new();
    fs::write(world.path("data/.hidden.bin"), b"h").unwrap();
    fs::write(world.path("data/c.txt"), b"c").unwrap();
    fs::write(world.path("data/sub/deep/d.bin"), b"d").unwrap();
    let odd = world.path("data").join(OsStr::from_bytes(b"not text \xff.bin"));
    fs::write(&odd, b"odd").unwrap();
    let out = world.path("out");
    let copy = |pattern: &str, flags: &[&str]| {
        let ended = cp(&world, flags, &world.serve.at(pattern), &world.text("out"));
        let found = tree(&out);
        fs::remove_dir_all(&out).unwrap();
        fs::create_dir(&out).unwrap();
        (ended, found)
    };
    let (ended, found) = copy("data/*.bin", &[]);
    ended.done();
    assert_eq!(found, ["a.bin", "b.bin", "not text \u{fffd}.bin"]);
    assert_eq!(copy("data/[bc].*", &[]).1, ["b.bin", "c.txt"]);
    assert_eq!(copy("data/?.txt", &[]).1, ["c.txt"]);
    assert_eq!(copy("data/.*", &[]).1, [".hidden.bin"]);
    assert_eq!(copy("da*/s*/*/[cd].bin", &[]).1, ["c.bin", "d.bin"], "in any part of a path");
    assert_eq!(copy("data/*/deep/c.bin", &[]).1, ["c.bin"], "names behind a wildcard");
    assert_eq!(copy("data/s*/.", &["-r"]).1, ["deep", "deep/c.bin", "deep/d.bin", "empty"]);
    assert_eq!(copy("data/*/", &["-r"]).1.first().expect("copied"), "sub", "folders only");
    // Folders that match need the flag, the files beside them do not.
    let (ended, found) = copy("data/[bs]*", &[]);
    ended.refused(1, &["/data/sub", "hint: copy folders with -r"]);
    assert_eq!(found, ["b.bin"]);
    // What matches and cannot be copied is said to be so, and listed so.
    symlink("/etc/passwd", world.path("data/out.bin")).unwrap();
    symlink("none", world.path("data/dangling.bin")).unwrap();
    let (ended, found) = copy("data/[abdo]*.bin", &[]);
    ended.refused(1, &["/data/out.bin", "/data/dangling.bin"]);
    assert_eq!(found, ["a.bin", "b.bin"]);
    let listed = world.serve.cp(&["--list", &world.serve.at("data/[abdo]*.bin")]);
    listed.refused(1, &["/data/out.bin", "/data/dangling.bin"]);
    assert_eq!(copy("data/*/deep/c.bin", &[]).1, ["c.bin"], "a name need not be everywhere");
}

#[test]
fn a_pattern_may_stand_for_many_folders() {
    let world = World::new();
    for number in 0..30 {
        fs::create_dir(world.path(&format!("data/run{number}"))).unwrap();
        fs::write(world.path(&format!("data/run{number}/model")), format!("{number}")).unwrap();
    }
    cp(&world, &["-r"], &world.serve.at("data/run*"), &world.text("out")).done();
    for number in 0..30 {
        let model = world.path(&format!("out/run{number}/model"));
        assert_eq!(fs::read_to_string(model).unwrap(), number.to_string());
    }
}

#[test]
fn a_folder_is_not_copied_into_itself() {
    let world = World::new();
    let said = ["cannot copy a folder into itself", "rdma-sync"];
    let before = tree(&world.path("data"));
    for target in ["data", "data/sub", "data/sub/new"] {
        let down = cp(&world, &["-r"], &world.serve.at("data"), &world.text(target));
        down.refused(1, &said);
    }
    assert_eq!(tree(&world.path("data")), before, "nothing was made");
    fs::create_dir_all(world.path("in/deep")).unwrap();
    fs::write(world.path("in/deep/a"), b"a").unwrap();
    let before = tree(&world.path("in"));
    for target in ["in", "in/deep", "in/deep/new"] {
        cp(&world, &["-r"], &world.text("in"), &world.serve.at(target)).refused(1, &said);
    }
    assert_eq!(tree(&world.path("in")), before, "nothing was made");
    // Beside it, and from within it, is another matter.
    cp(&world, &["-r"], &world.text("in/deep"), &world.serve.at("in/beside")).done();
    cp(&world, &["-r"], &world.serve.at("in/deep"), &world.text("in/again")).done();
    assert_eq!(fs::read(world.path("in/again/a")).unwrap(), b"a");
}

#[test]
fn two_sources_of_one_name_are_not_copied_over_each_other() {
    let world = World::new();
    for (folder, content) in [("one", "1"), ("two", "2")] {
        for place in ["data", "put"] {
            let folder = world.path(&format!("{place}/{folder}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("model.pt"), content).unwrap();
        }
    }
    let down = cp(&world, &[], &world.serve.at("data/*/model.pt"), &world.text("out"));
    down.refused(1, &["/data/two/model.pt", "data/one/model.pt is copied to model.pt too"]);
    assert_eq!(fs::read(world.path("out/model.pt")).unwrap(), b"1");
    let up = [world.text("put/one/model.pt"), world.text("put/two/model.pt")];
    let up = world.serve.cp(&[&up[0], &up[1], &world.serve.at("in")]);
    up.refused(1, &["put/two/model.pt", "put/one/model.pt is copied to model.pt too"]);
    assert_eq!(fs::read(world.path("in/model.pt")).unwrap(), b"1");
    // One that is named twice is copied once, by overlapping patterns for one.
    let twice = world.serve.at("data/one/m*");
    let twice =
        world.serve.cp(&["--json", &twice, &world.serve.at("data/one/*"), &world.text("out")]);
    assert!(twice.done().stdout.contains("\"files\":1,"));
    // Folders too: what is in both would be of one of them.
    let both = ["put/one", "put/two"].map(|folder| world.path(folder).join("same"));
    both.iter().for_each(|folder| fs::create_dir(folder).unwrap());
    let up = both.map(|folder| folder.display().to_string());
    let up = world.serve.cp(&["-r", &up[0], &up[1], &world.serve.at("in")]);
    up.refused(1, &["put/two/same", "copy them into different folders"]);
}

#[test]
fn a_pattern_without_a_match_is_named_and_a_literal_name_wins() {
    let world = World::new();
    let none = world.serve.cp(&[&world.serve.at("data/*.pt"), &world.text("out")]);
    none.refused(1, &["no name matches the pattern /data/*.pt"]);
    let none = world.serve.cp(&[&world.serve.at("data/*/none"), &world.text("out")]);
    none.refused(1, &["no name matches the pattern /data/*/none"]);
    fs::write(world.path("data/[ab].bin"), b"literal").unwrap();
    world.serve.cp(&[&world.serve.at("data/[ab].bin"), &world.text("out")]).done();
    assert_eq!(names(&world.path("out")), ["[ab].bin"]);
    // One match may take a new name; several need a folder.
    world.serve.cp(&[&world.serve.at("data/a*"), &world.text("out/new")]).done();
    assert_same(&world.path("data/a.bin"), &world.path("out/new"));
    let several = world.serve.cp(&[&world.serve.at("data/?.bin"), &world.text("out/more")]);
    several.refused(2, &["the target folder does not exist"]);
    let list = world.serve.cp(&["--list", &world.serve.at("data/?.bin")]).done().stdout;
    assert!(list.contains("data/a.bin") && list.contains("data/b.bin"), "{list}");
    assert_eq!(list.lines().count(), 2, "{list}");
}

/// Links of every kind in a tree: to a file, to a folder, upwards, out of it, to nothing.
fn make_links(root: &Path) {
    symlink("b.bin", root.join("to-file")).expect("our own folder");
    symlink("sub/deep", root.join("to-folder")).expect("our own folder");
    symlink("..", root.join("sub/circle")).expect("our own folder");
    symlink("nothing", root.join("dangling")).expect("our own folder");
    symlink("../outside", root.join("leaves")).expect("our own folder");
    fs::write(root.parent().expect("a parent").join("outside"), b"outside")
        .expect("our own folder");
}

#[test]
fn links_are_copied_as_links_or_as_what_they_lead_to() {
    let world = World::new();
    make_links(&world.path("data"));
    let plain = [
        "a.bin",
        "b.bin",
        "dangling",
        "leaves",
        "sub",
        "sub/circle",
        "sub/deep",
        "sub/deep/c.bin",
        "sub/empty",
        "to-file",
        "to-folder",
    ];
    world.serve.cp(&["-r", &world.serve.at("data"), &world.text("out/plain")]).done();
    world.serve.cp(&["-r", &world.text("data"), &world.serve.at("in/plain")]).done();
    for copy in [world.path("out/plain"), world.path("in/plain")] {
        assert_eq!(tree(&copy), plain);
        assert_eq!(fs::read_link(copy.join("to-folder")).unwrap(), Path::new("sub/deep"));
    }

    let down = world.serve.cp(&["-rL", &world.serve.at("data"), &world.text("out/deref")]);
    let said = ["data/leaves", "leads out of its export", "data/dangling", "no such file"];
    down.refused(1, &[&said[..], &["data/sub/circle", "in a circle", "3 not copied"]].concat());
    let followed = [
        "a.bin",
        "b.bin",
        "sub",
        "sub/deep",
        "sub/deep/c.bin",
        "sub/empty",
        "to-file",
        "to-folder",
        "to-folder/c.bin",
    ];
    assert_eq!(tree(&world.path("out/deref")), followed);
    assert!(!world.path("out/deref/to-file").is_symlink());
    assert_same(&world.path("data/b.bin"), &world.path("out/deref/to-file"));

    // Here a link may lead anywhere its user may.
    let up = world.serve.cp(&["-rL", &world.text("data"), &world.serve.at("in/deref")]);
    up.refused(1, &["dangling", "no such file", "sub/circle", "in a circle", "2 not copied"]);
    let mut with_outside = followed.to_vec();
    with_outside.insert(2, "leaves");
    assert_eq!(tree(&world.path("in/deref")), with_outside);
    assert_eq!(fs::read(world.path("in/deref/leaves")).unwrap(), b"outside");
}

#[test]
fn no_clobber_leaves_what_is_there() {
    let world = World::new();
    symlink("new", world.path("data/link")).unwrap();
    for there in ["out/tree", "in/tree"] {
        fs::create_dir_all(world.path(there).join("sub")).unwrap();
        fs::write(world.path(there).join("b.bin"), b"old").unwrap();
        fs::write(world.path(there).join("sub/empty"), b"old").unwrap();
        symlink("old", world.path(there).join("link")).unwrap();
    }
    let contents = world.serve.at("data/.");
    let down = world.serve.cp(&["-rnv", &contents, &world.text("out/tree")]).done();
    let up = world.serve.cp(&["-rnv", &world.text("data/."), &world.serve.at("in/tree")]).done();
    for (ended, there) in [(down, "out/tree"), (up, "in/tree")] {
        assert!(ended.stderr.contains("b.bin: the target is there"), "{ended:?}");
        assert!(ended.stderr.contains("3 left alone"), "{ended:?}");
        assert!(ended.stderr.contains("2 files, "), "{ended:?}");
        let there = world.path(there);
        assert_eq!(fs::read(there.join("b.bin")).unwrap(), b"old");
        assert_eq!(fs::read(there.join("sub/empty")).unwrap(), b"old");
        assert_eq!(fs::read_link(there.join("link")).unwrap(), Path::new("old"));
        assert_same(&world.path("data/a.bin"), &there.join("a.bin"));
        assert_same(&world.path("data/sub/deep/c.bin"), &there.join("sub/deep/c.bin"));
    }
    // Single files as well.
    world.serve.cp(&["-n", &world.serve.at("data/b.bin"), &world.text("out/tree/b.bin")]).done();
    world.serve.cp(&["-n", &world.text("data/b.bin"), &world.serve.at("in/tree/b.bin")]).done();
    assert_eq!(fs::read(world.path("out/tree/b.bin")).unwrap(), b"old");
    assert_eq!(fs::read(world.path("in/tree/b.bin")).unwrap(), b"old");
    world.serve.cp(&["-nf", &contents, &world.text("out")]).refused(2, &["cannot be used with"]);
}

#[test]
fn no_clobber_leaves_what_comes_while_it_copies() {
    let world = World::new();
    make_settled(&world.path("data/big"));
    let (down, up) = (world.serve.at("data/big"), world.serve.at("in/big"));
    for (from, to, there) in [
        (down, world.text("out/big"), world.path("out")),
        (world.text("data/big"), up, world.path("in")),
    ] {
        let mut copy = world.serve.start_cp(&["-nv", "--bwlimit", "32M", &from, &to]);
        wait_for_bytes(&mut copy, &there);
        fs::write(there.join("big"), b"theirs").unwrap();
        let ended = copy.end().done();
        assert!(ended.stderr.contains("big: the target is there"), "{ended:?}");
        assert!(ended.stderr.contains("1 left alone"), "{ended:?}");
        assert_eq!(fs::read(there.join("big")).unwrap(), b"theirs");
        assert_eq!(names(&there), ["big"], "nothing of the copy is left");
    }
    // What one client wanted so is no failure.
    let log = world.serve.logged("file left alone", 1);
    assert!(!log.contains("file failed"), "{log}");
}

#[test]
fn update_replaces_what_is_older() {
    let world = World::new();
    // The source changed an hour ago: copies from before that are old.
    for name in ["a.bin", "b.bin", "sub/empty", "sub/deep/c.bin"] {
        set_age(&world.path("data").join(name), HOUR);
    }
    for there in ["out/tree", "in/tree"] {
        let there = world.path(there);
        fs::create_dir_all(there.join("sub")).unwrap();
        fs::write(there.join("a.bin"), b"older").unwrap();
        set_age(&there.join("a.bin"), 2 * HOUR);
        fs::write(there.join("b.bin"), b"newer").unwrap();
        fs::write(there.join("sub/empty"), b"as new").unwrap();
        let times = fs::metadata(world.path("data/sub/empty")).unwrap().modified().unwrap();
        let file = fs::OpenOptions::new().write(true).open(there.join("sub/empty")).unwrap();
        file.set_modified(times).unwrap();
    }
    world.serve.cp(&["-ru", &world.serve.at("data/."), &world.text("out/tree")]).done();
    world.serve.cp(&["-ru", &world.text("data/."), &world.serve.at("in/tree")]).done();
    for there in [world.path("out/tree"), world.path("in/tree")] {
        assert_same(&world.path("data/a.bin"), &there.join("a.bin"));
        assert_eq!(fs::read(there.join("b.bin")).unwrap(), b"newer");
        assert_eq!(fs::read(there.join("sub/empty")).unwrap(), b"as new");
        assert!(there.join("sub/deep/c.bin").exists(), "what is missing is copied");
    }
    // A second run has nothing to do; after a change, that file alone.
    let summary = |ended: Ended| ended.done().stderr;
    let again = world.serve.cp(&["-ru", &world.serve.at("data/."), &world.text("out/tree")]);
    let again = summary(again);
    assert!(again.contains("4 left alone") && again.contains("0 files, "), "{again}");
    fs::write(world.path("data/b.bin"), b"changed").unwrap();
    let changed = world.serve.cp(&["-u", &world.serve.at("data/b.bin"), &world.text("out/tree")]);
    assert!(summary(changed).contains("1 file, "));
    assert_eq!(fs::read(world.path("out/tree/b.bin")).unwrap(), b"changed");
}

#[test]
fn force_makes_way_for_a_folder_and_never_removes_one() {
    let world = World::new();
    for there in ["out/data", "in/data"] {
        fs::create_dir_all(world.path(there).join("b.bin/kept")).unwrap();
        fs::write(world.path(there).join("sub"), b"in the way").unwrap();
        fs::write(world.path(there).join("a.bin"), b"old").unwrap();
        fs::set_permissions(world.path(there).join("a.bin"), PermissionsExt::from_mode(0o444))
            .unwrap();
    }
    let down = ["-r", &world.serve.at("data"), &world.text("out")];
    let up = ["-r", &world.text("data"), &world.serve.at("in")];
    for (arguments, there) in [(down, "out/data"), (up, "in/data")] {
        let plain = world.serve.cp(&arguments);
        plain.refused(1, &["data/sub", "a file is in its place", "data/b.bin", "directory"]);
        let there = world.path(there);
        assert_same(&world.path("data/a.bin"), &there.join("a.bin"));
        assert_eq!(fs::read(there.join("sub")).unwrap(), b"in the way");
        let forced = world.serve.cp(&[&["-f"][..], &arguments].concat());
        forced.refused(1, &["data/b.bin", "directory", "1 not copied"]);
        assert_same(&world.path("data/sub/deep/c.bin"), &there.join("sub/deep/c.bin"));
        assert!(there.join("b.bin/kept").is_dir(), "a folder is never removed");
    }
}

#[test]
fn what_is_excluded_is_neither_copied_nor_walked() {
    let world = World::new();
    for (name, content) in [("x.tmp", "x"), ("sub/y.tmp", "y"), ("sub/deep/keep.bin", "k")] {
        fs::write(world.path("data").join(name), content).unwrap();
    }
    fs::create_dir_all(world.path("data/sub/cache/more")).unwrap();
    fs::write(world.path("data/sub/cache/z"), b"z").unwrap();
    fs::write(world.path("data/cache"), b"a file of that name").unwrap();
    fs::create_dir(world.path("data/sub/locked")).unwrap();
    let flags = [
        "-r",
        "--exclude",
        "*.tmp",
        "--exclude",
        "cache/",
        "--exclude",
        "/sub/deep/c.*",
        "--exclude",
        "lock[e]d",
        "--exclude",
        "deep/c.bin",
    ];
    let expected = ["a.bin", "b.bin", "cache", "sub", "sub/deep", "sub/deep/keep.bin", "sub/empty"];
    cp(&world, &flags, &world.serve.at("data"), &world.text("out/tree")).done();
    cp(&world, &flags, &world.text("data"), &world.serve.at("in/tree")).done();
    assert_eq!(tree(&world.path("out/tree")), expected);
    assert_eq!(tree(&world.path("in/tree")), expected);
    // Sources are names too, whether a pattern or the user names them.
    let sources = ["--exclude", "b.*", &world.serve.at("data/?.bin"), &world.text("out")];
    world.serve.cp(&sources).done();
    assert_eq!(names(&world.path("out")), ["a.bin", "tree"]);
    let sources = [
        "--exclude",
        "b.*",
        &world.text("data/a.bin"),
        &world.text("data/b.bin"),
        &world.serve.at("in"),
    ];
    world.serve.cp(&sources).done();
    assert_eq!(names(&world.path("in")), ["a.bin", "tree"]);
    let bad = world.serve.cp(&["--exclude", "/", &world.serve.at("data"), &world.text("out")]);
    bad.refused(2, &["--exclude", "no name in it"]);
}

#[test]
fn an_excluded_folder_of_the_server_is_not_listed() {
    let world = World::new();
    // Deeper than a walk can go: walking it is an error, leaving it out is none.
    let mut deep = world.path("data/deeper");
    for _ in 0..520 {
        deep.push("d");
    }
    fs::create_dir_all(&deep).unwrap();
    let arguments = ["-r", &world.serve.at("data"), &world.text("out/all")];
    world.serve.cp(&arguments).refused(1, &["deeper than 512 levels"]);
    let left_out = ["-r", "--exclude", "deeper", &world.serve.at("data"), &world.text("out/some")];
    world.serve.cp(&left_out).done();
    let up = ["-r", "--exclude", "deeper", &world.text("data"), &world.serve.at("in/some")];
    world.serve.cp(&up).done();
    assert!(!world.path("out/some/deeper").exists() && !world.path("in/some/deeper").exists());
}

#[test]
fn a_dry_run_tells_and_creates_nothing() {
    let world = World::new();
    symlink("b.bin", world.path("data/link")).unwrap();
    fs::write(world.path("out/b.bin"), b"old").unwrap();
    fs::write(world.path("in/b.bin"), b"old").unwrap();
    let host = "127.0.0.1:/";
    let lines = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let (remote, local) = (format!("{host}data"), world.text("out/new"));
    let down = world.serve.cp(&["-r", "--dry-run", &world.serve.at("data"), &local]).done();
    let expected =
        ["/a.bin", "/b.bin", "/link@", "/sub/", "/sub/deep/", "/sub/deep/c.bin", "/sub/empty"];
    let mut wanted: Vec<String> =
        expected.iter().map(|name| format!("{remote}{name} -> {local}{name}")).collect();
    wanted.push(format!("{remote}/ -> {local}/"));
    wanted.sort();
    assert_eq!(lines(&down.stdout), wanted);
    assert!(down.stderr.contains("4 files, 3.07 MiB, would be copied"), "{down:?}");

    let (local, remote) = (world.text("data"), format!("{host}in/new"));
    let up = world.serve.cp(&["-r", "--dry-run", &local, &world.serve.at("in/new")]).done();
    let mut wanted: Vec<String> =
        expected.iter().map(|name| format!("{local}{name} -> {remote}{name}")).collect();
    wanted.push(format!("{local}/ -> {remote}/"));
    wanted.sort();
    assert_eq!(lines(&up.stdout), wanted);

    // With -n, what is there would not be copied.
    let both = [
        world.serve.cp(&["-rn", "--dry-run", &world.serve.at("data/."), &world.text("out")]),
        world.serve.cp(&["-rn", "--dry-run", &world.text("data/."), &world.serve.at("in")]),
    ];
    for ended in both {
        let ended = ended.done();
        assert!(
            !ended.stdout.contains("b.bin ->") && ended.stdout.contains("a.bin ->"),
            "{ended:?}"
        );
        assert!(ended.stderr.contains("1 left alone"), "{ended:?}");
    }
    assert_eq!(names(&world.path("out")), ["b.bin"]);
    assert_eq!(names(&world.path("in")), ["b.bin"]);
    assert_eq!(fs::read(world.path("out/b.bin")).unwrap(), b"old");
    let json = ["--dry-run", "--json", &world.serve.at("data/b.bin"), &world.text("out")];
    let told = world.serve.cp(&json).done().stdout;
    let first: serde_json::Value = serde_json::from_str(told.lines().next().unwrap()).unwrap();
    assert_eq!((&first["event"], &first["bytes"]), (&"planned".into(), &1.into()), "{told}");
}

#[test]
fn verify_compares_without_writing() {
    let world = World::new();
    symlink("b.bin", world.path("data/link")).unwrap();
    fs::write(world.path("data/big"), bytes(9, 40 << 20)).unwrap();
    let (down, up) = ("out/data", "in/data");
    world.serve.cp(&["-r", &world.serve.at("data"), &world.text("out")]).done();
    world.serve.cp(&["-r", &world.text("data"), &world.serve.at("in")]).done();
    let verify = |there: &str| match there {
        "out/data" => {
            world.serve.cp(&["-r", "--verify", &world.serve.at("data"), &world.text("out")])
        }
        _ => world.serve.cp(&["-r", "--verify", &world.text("data"), &world.serve.at("in")]),
    };
    for there in [down, up] {
        let same = verify(there).done();
        assert!(same.stderr.contains("5 files, ") && same.stderr.contains("same on both sides"));
        let there_path = world.path(there);
        let before = tree(&there_path);

        // One byte in the middle of the large file.
        let mut content = bytes(9, 40 << 20);
        content[20 << 20] ^= 1;
        fs::write(there_path.join("big"), &content).unwrap();
        let ended = verify(there);
        let said = ["cannot verify", "data/big", "differs in the 256 KiB at byte 20971520"];
        let ended =
            ended.refused(4, &[&said[..], &["hint: copy it again", "1 differ or"]].concat());
        assert!(ended.stderr.contains("4 files, "), "the others are the same: {ended:?}");
        assert_eq!(fs::read(there_path.join("big")).unwrap(), content, "nothing is written");
        fs::write(there_path.join("big"), bytes(9, 40 << 20)).unwrap();

        // Another length, a link that leads elsewhere, a small file that differs.
        fs::write(there_path.join("a.bin"), b"short").unwrap();
        fs::remove_file(there_path.join("link")).unwrap();
        symlink("a.bin", there_path.join("link")).unwrap();
        fs::write(there_path.join("sub/empty"), b"").unwrap();
        fs::write(there_path.join("b.bin"), b"c").unwrap();
        let said =
            ["data/a.bin", "bytes here", "data/link", "leads to a.bin", "data/b.bin", "3 differ"];
        verify(there).refused(4, &said);

        // Missing, and nothing else wrong.
        for name in ["a.bin", "b.bin", "link"] {
            fs::remove_file(there_path.join(name)).unwrap();
        }
        let missing =
            verify(there).refused(1, &["data/b.bin", "no such file", "hint: copy it first"]);
        assert!(!missing.stderr.contains("differs"), "{missing:?}");
        assert_eq!(tree(&there_path).len(), before.len() - 3, "nothing is written");
    }
}

/// Four of these travel in one chunk, more chunks than one stream has slots for: what is given
/// up by its size then waits beside what is still compared.
#[test]
fn verify_names_each_of_many_packed_files_that_differ() {
    let world = World::new();
    let length = 255 << 10;
    for folder in ["data/many", "out/many", "in/many"] {
        fs::create_dir(world.path(folder)).unwrap();
        for number in 0..120 {
            let mut content = bytes(number, length);
            match number % 4 {
                1 if folder != "data/many" => content.truncate(length - 1),
                2 if folder != "data/many" => content[length / 2] ^= 1,
                _ => {}
            }
            fs::write(world.path(folder).join(number.to_string()), content).unwrap();
        }
    }
    let flags = ["-r", "-j", "1", "--verify"];
    let down = cp(&world, &flags, &world.serve.at("data/many"), &world.text("out"));
    let up = cp(&world, &flags, &world.text("data/many"), &world.serve.at("in"));
    for ended in [down, up] {
        let ended = ended.refused(4, &["60 differ", "60 files, "]);
        assert_eq!(ended.stderr.matches("bytes here").count(), 30, "{ended:?}");
        assert_eq!(ended.stderr.matches("it differs in").count(), 30, "{ended:?}");
    }
}

#[test]
fn verify_tells_of_a_longer_copy_of_a_file_that_ends_in_a_hole() {
    let world = World::new();
    fs::File::create(world.path("data/hollow")).unwrap().set_len(1_000_000).unwrap();
    fs::write(world.path("out/hollow"), vec![0; 2_000_000]).unwrap();
    let (there, here) = (world.serve.at("data/hollow"), world.text("out/hollow"));
    let said = ["it has 2000000 bytes here, 1000000 on the server"];
    world.serve.cp(&["--verify", &there, &here]).refused(4, &said);
    world.serve.cp(&["--verify", &here, &there]).refused(4, &said);
}

#[test]
fn verify_compares_single_files_and_says_their_digest() {
    let world = World::new();
    fs::copy(world.path("data/a.bin"), world.path("out/copy")).unwrap();
    let digest = blake3::hash(&bytes(1, (3 << 20) + 17)).to_string();
    let down = ["--verify", "--digest", &world.serve.at("data/a.bin"), &world.text("out/copy")];
    assert!(world.serve.cp(&down).done().stdout.starts_with(&digest));
    let up = ["--verify", "--digest", &world.text("out/copy"), &world.serve.at("data/a.bin")];
    assert!(world.serve.cp(&up).done().stdout.starts_with(&digest), "a read-only export will do");
    world
        .serve
        .cp(&["--verify", &world.text("out/copy"), &world.serve.at("data/b.bin")])
        .refused(4, &["copy"]);
    world.serve.cp(&["--verify", "-n", "a", "h:/b"]).refused(2, &["cannot be used with"]);
}

#[test]
fn chunks_of_every_allowed_size_work_and_others_are_refused() {
    let world = World::new();
    for size in ["256K", "16M"] {
        let (down, up) = (world.text("out/copy"), world.serve.at("in/copy"));
        world.serve.cp(&["--chunk-size", size, &world.serve.at("data/a.bin"), &down]).done();
        world.serve.cp(&["--chunk-size", size, &world.text("data/a.bin"), &up]).done();
        assert_same(&world.path("data/a.bin"), &world.path("out/copy"));
        assert_same(&world.path("data/a.bin"), &world.path("in/copy"));
    }
    for (size, why) in
        [("128K", "from 256K to 16M"), ("300K", "a power of two"), ("32M", "16M"), ("x", "no size")]
    {
        Home::new().cp(&["--chunk-size", size, "a", "h:/b"]).refused(2, &["--chunk-size", why]);
    }
}

#[test]
fn a_rate_is_kept_in_both_directions() {
    let world = World::new();
    fs::write(world.path("data/big"), bytes(4, 6 << 20)).unwrap();
    let limited = |from: &str, to: &str| {
        let begin = Instant::now();
        world.serve.cp(&["--bwlimit", "4M", from, to]).done();
        begin.elapsed()
    };
    let down = limited(&world.serve.at("data/big"), &world.text("out"));
    let up = limited(&world.text("data/big"), &world.serve.at("in"));
    // 6 MiB at 4 MiB/s: all but the last chunk has had its time, less a short burst.
    for took in [down, up] {
        assert!(took >= Duration::from_millis(1100), "it took {took:?}");
    }
    assert_same(&world.path("data/big"), &world.path("out/big"));
    assert_same(&world.path("data/big"), &world.path("in/big"));
}

#[test]
fn a_low_rate_trips_no_timeout_and_one_that_is_too_low_is_refused() {
    let world = World::in_memory();
    fs::write(world.path("data/slow"), bytes(4, 6 << 20)).unwrap();
    // All of it would be in flight at once, for three seconds; the timeout is two.
    let flags = ["--timeout", "2", "--bwlimit", "2M"];
    let down = cp(&world, &flags, &world.serve.at("data/slow"), &world.text("out")).done();
    let up = cp(&world, &flags, &world.text("data/slow"), &world.serve.at("in")).done();
    assert!(!down.stderr.contains("links were lost"), "{down:?}");
    assert!(!up.stderr.contains("links were lost"), "{up:?}");
    assert_same(&world.path("data/slow"), &world.path("out/slow"));
    assert_same(&world.path("data/slow"), &world.path("in/slow"));
    let refused = Home::new().cp(&["--bwlimit", "10K", "a", "h:/b"]);
    refused
        .refused(2, &["--bwlimit 10K is too low for a timeout of 60 s", "hint: give at least 69K"]);
    Home::new().cp(&["--bwlimit", "fast", "a", "h:/b"]).refused(2, &["--bwlimit", "no size"]);
}

#[test]
fn fifos_in_a_tree_are_skipped_with_a_warning_both_ways() {
    let world = World::new();
    make_fifo(&world.path("data/sub/fifo"));
    let down = world.serve.cp(&["-r", &world.serve.at("data"), &world.text("out")]).done();
    let up = world.serve.cp(&["-r", &world.text("data"), &world.serve.at("in")]).done();
    for (ended, copy) in [(down, "out/data"), (up, "in/data")] {
        let said = "data/sub/fifo: it is not a regular file, folder or link";
        assert!(ended.stderr.contains("rdma-cp: skipped "), "{ended:?}");
        assert!(ended.stderr.contains(said) && ended.stderr.contains("1 left alone"), "{ended:?}");
        assert!(!world.path(copy).join("sub/fifo").exists());
        assert!(world.path(copy).join("sub/empty").exists(), "the rest arrives");
    }
    // One that is named as a source is a failure: nothing that was asked for was done.
    let named = world.serve.cp(&[&world.serve.at("data/sub/fifo"), &world.text("out")]);
    named.refused(1, &["data/sub/fifo", "not a regular file"]);
    let named = world.serve.cp(&[&world.text("data/sub/fifo"), &world.serve.at("in")]);
    named.refused(1, &["data/sub/fifo", "not a regular file"]);
}

#[test]
fn a_limited_copy_stops_at_once_when_it_is_interrupted() {
    let world = World::new();
    make_settled(&world.path("data/big"));
    let out = world.path("out");
    let arguments = ["--bwlimit", "8M", &world.serve.at("data/big"), &world.text("out")];
    let mut copy = world.serve.start_cp(&arguments);
    wait_for_bytes(&mut copy, &out);
    let begin = Instant::now();
    copy.signal(Signal::INT);
    let ended = copy.end();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert!(begin.elapsed() < Duration::from_secs(3), "it took {:?}", begin.elapsed());
    // What is verified stays, and the same command goes on with it.
    let again = world.serve.cp(&[&world.serve.at("data/big"), &world.text("out")]).done();
    assert!(again.stderr.contains("were there from an earlier run"), "{again:?}");
    assert_same(&world.path("data/big"), &out.join("big"));
}

#[test]
fn names_with_wildcards_and_bytes_are_sources_as_they_are() {
    let world = World::new();
    let name = OsStr::from_bytes(b"what? \xff*.bin");
    fs::write(world.path("out").join(name), b"odd").unwrap();
    let mut from = OsString::from(world.text("out/"));
    from.push(name);
    world.serve.cp(&[from.as_os_str(), OsStr::new(&world.serve.at("in"))]).done();
    let mut remote = OsString::from(world.serve.at("in/"));
    remote.push(name);
    let back = OsString::from(world.text("out/back"));
    world.serve.cp(&[&remote, &back]).done();
    assert_eq!(fs::read(world.path("out/back")).unwrap(), b"odd");
}
