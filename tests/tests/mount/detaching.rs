//! A mount that fills and becomes a plain folder: what it holds then is what rdma-sync
//! would have made, and nobody who reads meanwhile is cut off.

use super::*;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

const MIB: usize = 1 << 20;

fn fill(dir: &Path) {
    fs::create_dir_all(dir.join("a/b")).expect("makes");
    fs::create_dir(dir.join("empty")).expect("makes");
    fs::write(dir.join("a/big"), noise(9 * MIB + 77, 1)).expect("writes");
    fs::write(dir.join("a/nothing"), b"").expect("writes");
    let sparse = fs::File::create(dir.join("a/sparse")).expect("makes");
    sparse.set_len(8 * MIB as u64 + 5).expect("grows");
    sparse.write_all_at(b"island", 5 * MIB as u64).expect("writes");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(dir.join("a/big"), Some(7001), Some(7002)).expect("root may");
    }
    fs::hard_link(dir.join("a/big"), dir.join("a/b/twin")).expect("links");
    symlink("../big", dir.join("a/b/link")).expect("links");
    for it in 0..120 {
        fs::write(dir.join(format!("a/b/f{it}")), noise(3000 + it, 7)).expect("writes");
    }
    fs::set_permissions(dir.join("a/b/f3"), fs::Permissions::from_mode(0o440)).expect("sets");
    fs::set_permissions(dir.join("empty"), fs::Permissions::from_mode(0o750)).expect("sets");
}

#[test]
fn a_filled_mount_becomes_a_folder_that_needs_no_sync() {
    if !can_mount("a_filled_mount_becomes_a_folder_that_needs_no_sync") {
        return;
    }
    let source = Source::new(fill);
    std::thread::sleep(SETTLED);
    let parent = tempfile::tempdir().expect("folder");
    let at = tempfile::Builder::new().prefix("mnt").tempdir_in(parent.path()).expect("folder");
    let cache = Arc::new(tempfile::tempdir().expect("folder"));
    let from = source.serve().at("data");
    let flags = ["--fill", "--detach-when-complete"];
    let place = at.path().to_owned();
    let mut mounted = Mounted::start_on(&source.home, &from, &cache, at, &flags);
    // Somebody who reads is waited for.
    let reader = fs::File::open(mounted.path("a/big")).expect("opens");
    let what = format!("a folder beside {} has the file a/b/twin", place.display());
    wait_for(&what, STAND_MAX, || {
        let beside = fs::read_dir(parent.path()).expect("lists").flatten();
        let mut beside = beside.map(|it| it.path()).filter(|it| it != &place);
        let made = beside.any(|it| it.join("a/b/twin").exists());
        seen(made, (contents(parent.path()), mounted.running.as_mut().map(Running::report)))
    });
    let fetched = mounted.wait_for_fill()["fetched_bytes"].clone();
    let content = noise(9 * MIB + 77, 1);
    for offset in [0, 4 * MIB, 9 * MIB] {
        let mut bytes = [0; 77];
        reader.read_exact_at(&mut bytes, offset as u64).expect("reads");
        assert!(bytes == content[offset..offset + 77]);
        assert!(is_mounted(&place), "it is in use");
    }
    drop(reader);
    mounted.running.take().expect("it runs").end().done();
    let at = place;
    assert!(!is_mounted(&at));
    let mut diff = Command::new("diff");
    let said = diff.args(["-r", "--no-dereference"]).arg(source.path("")).arg(&at).output();
    let said = said.expect("diff runs");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
    assert_eq!(fs::read_dir(parent.path()).expect("lists").count(), 1, "nothing is left beside it");
    let sync = |flags: &[&str]| {
        let mut words = vec![from.as_str(), at.to_str().expect("text"), "--json"];
        words.extend(flags);
        let said = Running::start(source.home.command("rdma-sync", &words)).end().done().stdout;
        let mut lines: Vec<serde_json::Value> =
            said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        (lines.pop().expect("a summary"), lines)
    };
    let of = |at: &Path, name: &str| fs::metadata(at.join(name)).expect("is there");
    assert_eq!(of(&at, "a/big").ino(), of(&at, "a/b/twin").ino(), "one file with two names");
    let owner = |it: fs::Metadata| (it.uid(), it.gid());
    assert_eq!(owner(of(&at, "a/big")), owner(of(&source.path(""), "a/big")));
    let (summary, steps) = sync(&["-n", "--delete"]);
    assert!(steps.is_empty(), "there is something to do: {steps:?}");
    assert_eq!(summary["event"], "summary", "{summary}");
    // All data came once, through the mount; two names of one file are one file there, and of the
    // sparse one the grain with data came.
    let whole = (9 * MIB + 77) + (256 << 10) + (0..120).map(|it| 3000 + it).sum::<usize>();
    assert_eq!(fetched, whole);
    let (_, differences) = sync(&["--check"]);
    assert!(differences.is_empty(), "{differences:?}");
}

#[test]
fn what_changes_while_a_filled_mount_is_in_use_is_in_the_folder() {
    if !can_mount("what_changes_while_a_filled_mount_is_in_use_is_in_the_folder") {
        return;
    }
    let source = Source::new(|dir| {
        for name in ["read", "old", "gone"] {
            fs::write(dir.join(name), noise(3000, 1)).expect("writes");
        }
        fs::set_permissions(dir, fs::Permissions::from_mode(0o751)).expect("sets");
    });
    std::thread::sleep(SETTLED);
    let parent = tempfile::tempdir().expect("folder");
    let at = tempfile::Builder::new().prefix("mnt").tempdir_in(parent.path()).expect("folder");
    let cache = Arc::new(tempfile::tempdir().expect("folder"));
    let from = source.serve().at("data");
    // So slowly that the reader is in before all is here.
    let flags = ["--fill=2K", "--detach-when-complete"];
    let place = at.path().to_owned();
    let mut mounted = Mounted::start_on(&source.home, &from, &cache, at, &flags);
    let reader = fs::File::open(mounted.path("read")).expect("opens");
    // The mirror gives the tree its mode at its end.
    let what = format!("the folder beside {} has mode 751", place.display());
    wait_for(&what, STAND_MAX, || {
        let mut beside = fs::read_dir(parent.path()).expect("lists").flatten();
        let tree = beside.find(|it| it.path() != place);
        let mode = tree.as_ref().and_then(|tree| Some(tree.metadata().ok()?.mode() & 0o777));
        let found = tree.map(|tree| tree.path());
        let found = format!("{found:?} has mode {:o}", mode.unwrap_or_default());
        seen(mode == Some(0o751), (found, mounted.running.as_mut().map(Running::report)))
    });
    std::thread::sleep(SETTLED);
    fs::write(source.path("old"), noise(4000, 2)).expect("writes");
    fs::write(source.path("new"), noise(5000, 3)).expect("writes");
    fs::remove_file(source.path("gone")).expect("removes");
    assert!(is_mounted(&place), "it is in use");
    drop(reader);
    mounted.running.take().expect("it runs").end().done();
    assert!(!is_mounted(&place));
    let mut diff = Command::new("diff");
    let said = diff.arg("-r").arg(source.path("")).arg(&place).output().expect("diff runs");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
}

#[test]
fn a_fill_counts_what_is_here_as_here_and_what_changes_as_it_becomes() {
    if !can_mount("a_fill_counts_what_is_here_as_here_and_what_changes_as_it_becomes") {
        return;
    }
    let source = Source::new(|dir| {
        fs::write(dir.join("big"), noise(40 * MIB, 1)).expect("writes");
        (0..30).for_each(|it| {
            fs::write(dir.join(format!("f{it}")), noise(5000, it)).expect("writes");
        });
    });
    std::thread::sleep(SETTLED);
    let cache = Arc::new(tempfile::tempdir().expect("folder"));
    let full = |mounted: &Mounted| {
        mounted.wait_for_status("the fill has ended", |status| {
            status["fill"]["state"] != "filling" && status["fill"]["state"] != "off"
        })
    };
    let mut fetched = Vec::new();
    for _ in 0..2 {
        let mounted = source.mount_with(&cache, &["--fill", "--cache-size", "64M"]);
        let told = full(&mounted);
        assert_eq!(
            (&told["fill"]["state"], &told["fill"]["files"]),
            (&"complete".into(), &31.into()),
            "{told}"
        );
        assert_eq!((&told["fill"]["failed"], &told["cache"]["evictions"]), (&0.into(), &0.into()));
        fetched.push(told["fetched_bytes"].as_u64().expect("a number"));
        mounted.end();
    }
    assert_eq!(fetched, [40 * MIB as u64 + 30 * 5000, 0], "what is here takes no new room");
    // What does not fit ends it, and nothing goes for it.
    fs::write(source.path("more"), noise(30 * MIB, 2)).expect("writes");
    std::thread::sleep(SETTLED);
    let mounted = source.mount_with(&cache, &["--fill", "--cache-size", "64M"]);
    let told = full(&mounted);
    assert_eq!(
        (&told["fill"]["state"], &told["cache"]["evictions"]),
        (&"cache full".into(), &0.into())
    );
    assert_eq!(told["fetched_bytes"], 0, "{told}");
    mounted.end();
}
