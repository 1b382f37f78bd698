//! Disks that are too small, on either side: what cannot fit is refused before
//! it is begun, with the numbers; what fits goes, holes and all; and what fills
//! the disk on the way fails, leaving the old file and nothing else.

use crate::process::{Ended, Home, Running, Serve, skip};
use crate::stopping::make_sparse;
use crate::{World, bytes, exports, is_root, make_samples, names, text, works};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;
use verbatim_tests::holding::Holding;

/// Runs its other arguments in a mount namespace of its own, with a small tmpfs on the first.
const ON_SMALL_DISK: [&str; 5] = [
    "unshare",
    "-m",
    "sh",
    "-c",
    r#"mount -t tmpfs -o size=16m,mode=755 verbatim-test "$0" && printf old >"$0/a.bin" && exec "$@""#,
];

/// What is kept at the target when there is no room for the new one.
const OLD: &[u8] = b"old";

/// Says why a small disk cannot be made here, if it cannot.
fn no_small_disk(test: &str) -> bool {
    let mount =
        "d=$(mktemp -d) && mount -t tmpfs -o size=1m verbatim-test $d && umount $d && rmdir $d";
    let cannot = !is_root() || !works("unshare", &["-m", "sh", "-c", mount]);
    if cannot {
        skip(test, "needs root, unshare and mount, to make a small disk of its own");
    }
    cannot
}

/// Downloads to a small disk; standard output is what is on it then, and the sizes.
fn down(world: &World, sources: &[&str]) -> Ended {
    let out = world.text("out");
    // Looks at the disk from inside, because it is gone with the last process on it.
    let script = r#"disk=$0; "$@"; code=$?; cd "$disk"; stat -c '%n %s' $(ls -A); exit $code"#;
    let mut command = Command::new(ON_SMALL_DISK[0]);
    command.args(&ON_SMALL_DISK[1..]).args([&out, "sh", "-c", script, &out]);
    let sources = sources.iter().map(|source| world.serve.at(source));
    let flags = ["-r".to_owned()].into_iter();
    let arguments: Vec<String> = flags.chain(sources).chain([out]).collect();
    let plain = world.serve.home().command("rdma-cp", &arguments);
    command.arg(plain.get_program()).args(plain.get_args());
    Running::start(command).end()
}

/// A server whose writable folder is a small disk, and a user of it.
struct Small {
    dir: TempDir,
    user: Home,
    serve: Serve,
}

impl Small {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        make_samples(dir.path());
        let landing = text(&dir.path().join("in"));
        let home = Arc::new(Home::new().wrapped(&[&ON_SMALL_DISK[..], &[&landing]].concat()));
        let open = [exports(dir.path()).to_vec(), vec!["--insecure-no-auth".into()]].concat();
        let serve = Serve::of(&home, "127.0.0.1:0", &open);
        Self { dir, user: Home::new(), serve }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    fn up(&self, sources: &[&str]) -> Ended {
        let flags = ["-r", "--fingerprint", &self.serve.fingerprint].map(str::to_owned);
        let sources = sources.iter().map(|source| text(&self.path(source)));
        let target = [self.serve.at("in")];
        let all: Vec<String> = flags.into_iter().chain(sources).chain(target).collect();
        self.user.cp(&all)
    }

    /// The server's view of its folder; ours has no small disk in it.
    fn inside(&self) -> PathBuf {
        let root = Path::new("/proc").join(self.serve.id().to_string()).join("root");
        root.join(text(&self.path("in")).trim_start_matches('/'))
    }
}

/// What is said of a file of 40 MiB that does not fit.
const REFUSED: [&str; 4] = [
    "data/a.bin",
    "no space: it needs 40.0 MiB (41943040 bytes), ",
    " are free",
    "hint: make room at the target",
];

#[test]
fn a_download_that_cannot_fit_is_refused_and_leaves_the_old_file() {
    if no_small_disk("a_download_that_cannot_fit_is_refused_and_leaves_the_old_file") {
        return;
    }
    let world = World::new();
    fs::write(world.path("data/a.bin"), bytes(1, 40 << 20)).unwrap();
    let before = Holding::of(world.serve.id());
    let ended = down(&world, &["data/a.bin"]).refused(1, &REFUSED);
    before.comes_back(&world.serve);
    assert_eq!(ended.stdout, "a.bin 3\n", "only the old file is there");
}

#[test]
fn an_upload_that_cannot_fit_is_refused_and_leaves_the_old_file() {
    if no_small_disk("an_upload_that_cannot_fit_is_refused_and_leaves_the_old_file") {
        return;
    }
    let small = Small::new();
    fs::write(small.path("data/a.bin"), bytes(1, 40 << 20)).unwrap();
    let before = Holding::of(small.serve.id());
    small.up(&["data/a.bin"]).refused(1, &REFUSED);
    before.comes_back(&small.serve);
    assert_eq!(names(&small.inside()), ["a.bin"]);
    assert_eq!(fs::read(small.inside().join("a.bin")).unwrap(), OLD);
    // What fits still goes.
    small.up(&["data/b.bin"]).done();
    assert_eq!(names(&small.inside()), ["a.bin", "b.bin"]);
}

#[test]
fn of_two_files_that_fit_one_by_one_only_one_is_begun() {
    if no_small_disk("of_two_files_that_fit_one_by_one_only_one_is_begun") {
        return;
    }
    let world = World::new();
    let small = Small::new();
    for name in ["one", "two"] {
        fs::write(world.path(&format!("data/{name}")), bytes(1, 10 << 20)).unwrap();
        fs::write(small.path(name), bytes(1, 10 << 20)).unwrap();
    }
    let said = ["no space: it needs 10.0 MiB", " for files that are being written", "1 file,"];
    let ended = down(&world, &["data/one", "data/two"]).refused(1, &said);
    assert!(ended.stdout.lines().count() == 2, "{ended:?}");
    small.up(&["one", "two"]).refused(1, &said);
    assert_eq!(names(&small.inside()).len(), 2);
}

#[test]
fn a_sparse_file_larger_than_the_disk_fits_if_its_data_does() {
    if no_small_disk("a_sparse_file_larger_than_the_disk_fits_if_its_data_does") {
        return;
    }
    let world = World::new();
    make_sparse(&world.path("data/big"), 1);
    let ended = down(&world, &["data/big"]).done();
    assert_eq!(ended.stdout, format!("a.bin 3\nbig {}\n", 1 << 30));
    let small = Small::new();
    make_sparse(&small.path("big"), 1);
    small.up(&["big"]).done();
    assert_eq!(fs::metadata(small.inside().join("big")).unwrap().len(), 1 << 30);
}

#[test]
fn a_disk_that_fills_up_on_the_way_fails_what_is_too_much_and_nothing_else() {
    if no_small_disk("a_disk_that_fills_up_on_the_way_fails_what_is_too_much_and_nothing_else") {
        return;
    }
    // Each is too small to be looked at before it is begun.
    let make = |folder: PathBuf| {
        fs::create_dir(&folder).unwrap();
        for number in 0..30 {
            fs::write(folder.join(format!("{number}")), bytes(number, 900 << 10)).unwrap();
        }
    };
    let said = ["no space", "hint: make room at the target", "not copied"];
    let world = World::new();
    make(world.path("data/many"));
    let before = Holding::of(world.serve.id());
    let ended = down(&world, &["data/many"]).refused(1, &said);
    before.comes_back(&world.serve);
    assert_eq!(ended.stdout.lines().next(), Some("a.bin 3"), "{ended:?}");
    let small = Small::new();
    make(small.path("many"));
    let before = Holding::of(small.serve.id());
    small.up(&["many"]).refused(1, &said);
    before.comes_back(&small.serve);
    assert_eq!(fs::read(small.inside().join("a.bin")).unwrap(), OLD);
    let arrived = names(&small.inside().join("many"));
    assert!(arrived.iter().all(|name| !name.starts_with('.')), "{arrived:?}");
    for name in &arrived {
        let (there, here) = (small.inside().join("many").join(name), small.path("many").join(name));
        assert!(fs::read(there).unwrap() == fs::read(here).unwrap(), "{name} is not whole");
    }
}
