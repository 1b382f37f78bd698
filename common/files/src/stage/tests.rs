//! A tree takes the place of its target at once, and is found again by the same
//! run; nothing else of its kind stays, and what somebody else puts in its place
//! is left alone.

use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use tempfile::TempDir;

struct Place {
    dir: TempDir,
    folder: Folder,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Folder::open(dir.path()).expect("opens");
        Self { dir, folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn stage(&self, key: &str) -> Stage {
        self.try_stage(key).expect("a tree beside it")
    }

    fn try_stage(&self, key: &str) -> Result<Stage, NotHeld> {
        let path = WirePath::parse(b"target").expect("plain");
        Stage::prepare(
            &self.folder,
            &path,
            &Digest::of(key.as_bytes()),
            None,
            &|_| Ok(()),
            &mut |_| true,
        )
    }

    fn tree(&self, stage: &Stage) -> PathBuf {
        self.dir.path().join(OsStr::from_bytes(stage.path().as_bytes()))
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).expect("lists");
        let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        entries.map(|entry| name(entry.expect("entry"))).collect()
    }
}

#[test]
fn a_tree_takes_the_place_of_its_target_and_the_old_one_goes() {
    let place = Place::new();
    let first = place.stage("a");
    assert!(first.target().is_none());
    fs::write(place.tree(&first).join("file"), b"1").expect("writes");
    assert!(!place.at("target").exists(), "nothing is seen before");
    first.publish().expect("takes its place");
    drop(first);
    assert_eq!(place.names(), ["target"]);
    let second = place.stage("a");
    assert!(!second.is_resumed());
    fs::remove_file(place.tree(&second).join("file")).expect("was there");
    fs::write(place.tree(&second).join("other"), b"2").expect("writes");
    assert!(place.at("target/file").exists(), "the old one is as it was");
    second.publish().expect("takes its place");
    let held = second.into_target();
    assert!(matches!(place.try_stage("a"), Err(NotHeld::By(_))), "it is held on");
    let path = WirePath::parse(b"target").expect("plain");
    let third =
        Stage::prepare(&place.folder, &path, &Digest::of(b"a"), held, &|_| Ok(()), &mut |_| true)
            .expect("by us");
    third.discard().expect("removes");
    drop(third);
    assert!(!place.at("target/file").exists() && place.at("target/other").exists());
    assert_eq!(place.names(), ["target"]);
}

#[test]
fn there_is_always_a_tree_under_the_name() {
    /// A moment without one would be some microseconds long: seen by a reader that looks all the
    /// time in one of very few.
    const EXCHANGES: u64 = 100;
    let place = Place::new();
    fs::create_dir(place.at("target")).expect("makes");
    let done = std::sync::atomic::AtomicBool::new(false);
    let target = place.at("target");
    std::thread::scope(|scope| {
        let look = || {
            let mut missing = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                missing += u64::from(fs::metadata(&target).is_err());
            }
            missing
        };
        let readers = [scope.spawn(look), scope.spawn(look)];
        for _ in 0..EXCHANGES {
            place.stage("a").publish().expect("takes its place");
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        let missing: u64 = readers.map(|reader| reader.join().expect("looks")).iter().sum();
        assert_eq!(missing, 0, "looks that found nothing");
    });
}

#[test]
fn the_same_run_goes_on_and_what_another_left_goes() {
    let place = Place::new();
    fs::create_dir(place.at("target")).expect("makes");
    fs::write(place.at("target/file"), b"1").expect("writes");
    fs::create_dir(place.at(".other.0123456789abcdef.verbatim-part")).expect("makes");
    let first = place.stage("a");
    fs::write(place.tree(&first).join("new"), b"2").expect("writes");
    let (tree, holder) = (place.tree(&first), place.try_stage("a"));
    assert!(matches!(holder, Err(NotHeld::By(_))), "one at a time: {holder:?}");
    drop(first);
    let again = place.stage("a");
    assert!(again.is_resumed() && place.tree(&again) == tree && tree.join("new").exists());
    drop(again);
    let other = place.stage("b");
    assert!(!other.is_resumed() && !tree.exists() && !place.tree(&other).join("new").exists());
    other.discard().expect("removes");
    drop(other);
    // As a run leaves it that was ended right behind the exchange.
    let killed = place.stage("a");
    let [from, to] = [place.tree(&killed), place.at("target")];
    let (cwd, flags) = (rustix::fs::CWD, RenameFlags::EXCHANGE);
    renameat_with(cwd, &from, cwd, &to, flags).expect("exchanges");
    drop(killed);
    let next = place.stage("a");
    assert!(!next.is_resumed() && !from.exists(), "what was the target is no tree to go on with");
    next.discard().expect("removes");
    let mut names = place.names();
    names.sort();
    assert_eq!(names, [".other.0123456789abcdef.verbatim-part", "target"]);
}

#[test]
fn a_target_that_somebody_replaces_is_left_alone() {
    let place = Place::new();
    fs::create_dir(place.at("target")).expect("makes");
    let stage = place.stage("a");
    fs::rename(place.at("target"), place.at("elsewhere")).expect("renames");
    fs::create_dir(place.at("target")).expect("makes");
    fs::write(place.at("target/mine"), b"").expect("writes");
    let fault = stage.publish().expect_err("it is another folder");
    assert_eq!(fault.code, Code::Changed, "{fault}");
    assert!(place.at("target/mine").exists());
    drop(stage);
    fs::remove_dir_all(place.at("target")).expect("removes");
    std::os::unix::fs::symlink("elsewhere", place.at("target")).expect("links");
    let fault = place.try_stage("a").expect_err("a link is no folder");
    assert!(format!("{fault:?}").contains("no folder"), "{fault:?}");
}

#[test]
fn what_cannot_be_exchanged_is_explained() {
    let says = |error| explain(error, "cannot do it").text;
    assert!(says(Errno::BUSY).contains("mount point"));
    assert!(says(Errno::INVAL).contains("without --atomic"));
    assert!(says(Errno::XDEV).contains("lower layer"));
    assert!(says(Errno::IO).contains("cannot do it"));
}

#[test]
fn what_others_do_to_the_target_meanwhile_is_not_lost() {
    let place = Place::new();
    fs::create_dir_all(place.at("target/sub")).expect("makes");
    fs::write(place.at("target/sub/file"), b"1").expect("writes");
    let left = place.stage("a");
    fs::write(place.tree(&left).join("copied"), b"").expect("writes");
    let tree = place.tree(&left);
    // Between two runs: what was left does not have it.
    drop(left);
    fs::write(place.at("target/sub/theirs"), b"").expect("writes");
    let again = place.stage("a");
    assert!(!again.is_resumed() && !tree.exists(), "it is built anew");
    assert!(place.tree(&again).join("sub/theirs").exists());
    drop(again);
    // While one runs, whatever it is; reading is nothing.
    fs::read(place.at("target/sub/file")).expect("reads");
    for change in [
        (|at| fs::write(at, b"other").expect("writes")) as fn(PathBuf),
        |at| fs::remove_file(at).expect("removes"),
        |at| fs::set_permissions(at, fs::Permissions::from_mode(0o700)).expect("sets"),
    ] {
        let stage = place.stage("b");
        change(place.at("target/sub/file"));
        let fault = stage.publish().expect_err("it would be lost");
        assert_eq!(fault.code, Code::Changed, "{fault}");
        fs::write(place.at("target/sub/file"), b"1").expect("writes");
    }
}

#[test]
fn what_an_interrupted_run_left_becomes_what_the_target_has() {
    let place = Place::new();
    fs::create_dir_all(place.at("target/both")).expect("makes");
    for name in ["same", "replaced", "both/kept"] {
        fs::write(place.at("target").join(name), b"old").expect("writes");
    }
    std::os::unix::fs::symlink("old", place.at("target/link")).expect("links");
    let stage = place.stage("a");
    let tree = place.tree(&stage);
    let shown = |name: &str| fs::read_to_string(tree.join(name)).ok();
    let replace = |name: &str| {
        fs::write(tree.join("new"), b"replaced").expect("writes");
        fs::rename(tree.join("new"), tree.join(name)).expect("renames");
    };
    replace("replaced");
    replace("link");
    replace("only here");
    fs::create_dir_all(tree.join("folder/empty")).expect("makes");
    fs::write(tree.join("folder/file"), b"").expect("writes");
    let part = ".x.0123456789abcdef.verbatim-part";
    fs::write(tree.join(part), b"part of a copy").expect("writes");
    let folder = place.folder.below(stage.path()).expect("opens");
    // What is in a folder before the folder, as whoever removes folders does it; and what is not
    // there.
    let all = [
        "same",
        "replaced",
        "only here",
        "link",
        "folder/file",
        "folder/empty",
        "folder",
        "both/kept",
        "both",
        part,
        "nowhere/at all",
        "nowhere",
    ];
    for name in all {
        let path = WirePath::parse(name.as_bytes()).expect("plain");
        stage.revert(&folder, &path, &path).unwrap_or_else(|fault| panic!("{name}: {fault}"));
    }
    for name in ["same", "replaced", "both/kept"] {
        assert_eq!(shown(name).as_deref(), Some("old"), "{name}");
    }
    assert_eq!(fs::read_link(tree.join("link")).expect("a link"), PathBuf::from("old"));
    let mut left: Vec<_> = fs::read_dir(&tree).expect("lists").collect();
    assert_eq!(left.len(), 4, "{:?}", left.drain(..).map(Result::unwrap));
    // A folder in which something is left stays.
    fs::create_dir(tree.join("folder")).expect("makes");
    fs::write(tree.join("folder/left out"), b"").expect("writes");
    let path = WirePath::parse(b"folder").expect("plain");
    stage.revert(&folder, &path, &path).expect("is no fault");
    assert!(tree.join("folder/left out").exists());
}
