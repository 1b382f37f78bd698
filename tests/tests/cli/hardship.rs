//! Where the machine is in the way: a full disk, a folder that may not be
//! written, a file that may not be read. What was there stays, nothing is left
//! behind, and the message says what to do.

use crate::process::{Home, Running, Serve, skip};
use crate::{World, bytes, exports, is_root, make_samples, names, text, works};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

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

/// Who has no rights at all.
const NOBODY: u32 = 65534;

/// Says why a small disk cannot be made here, if it cannot.
fn no_small_disk() -> Option<&'static str> {
    let mount =
        "d=$(mktemp -d) && mount -t tmpfs -o size=1m verbatim-test $d && umount $d && rmdir $d";
    (!is_root() || !works("unshare", &["-m", "sh", "-c", mount]))
        .then_some("needs root, unshare and mount, to make a small disk of its own")
}

#[test]
fn a_full_disk_at_the_target_of_a_download_leaves_the_old_file() {
    if let Some(reason) = no_small_disk() {
        return skip("a_full_disk_at_the_target_of_a_download_leaves_the_old_file", reason);
    }
    let world = World::new();
    fs::write(world.path("data/a.bin"), bytes(1, 40 << 20)).unwrap();
    let out = world.text("out");
    // Looks at the disk from inside, because it is gone with the last process on it.
    let script = r#"disk=$0; "$@"; code=$?; ls -A "$disk"; cat "$disk/a.bin"; exit $code"#;
    let mut command = Command::new(ON_SMALL_DISK[0]);
    command.args(&ON_SMALL_DISK[1..]).args([&out, "sh", "-c", script, &out]);
    let from = world.serve.at("data/a.bin");
    let plain = world.serve.home().command("rdma-cp", &[&from, &out]);
    command.arg(plain.get_program()).args(plain.get_args());
    let said = ["data/a.bin", "no space", "hint: make room at the target"];
    let ended = Running::start(command).end().refused(1, &said);
    assert_eq!(ended.stdout, "a.bin\nold", "only the old file is there");
}

#[test]
fn a_full_disk_at_the_target_of_an_upload_leaves_the_old_file() {
    if let Some(reason) = no_small_disk() {
        return skip("a_full_disk_at_the_target_of_an_upload_leaves_the_old_file", reason);
    }
    let dir = tempfile::tempdir().unwrap();
    make_samples(dir.path());
    fs::write(dir.path().join("data/a.bin"), bytes(1, 40 << 20)).unwrap();
    let landing = text(&dir.path().join("in"));
    let user = Home::new();
    let home = Arc::new(Home::new().wrapped(&[&ON_SMALL_DISK[..], &[&landing]].concat()));
    let open = [exports(dir.path()).to_vec(), vec!["--insecure-no-auth".into()]].concat();
    let serve = Serve::of(&home, "127.0.0.1:0", &open);
    let trusted = ["--fingerprint", &serve.fingerprint];
    let (from, to) = (text(&dir.path().join("data/a.bin")), serve.at("in"));
    let ended = user.cp(&[&trusted[..], &[&from, &to]].concat());
    ended.refused(1, &[&from, "no space", "hint: make room at the target"]);
    // The server's view of its folder; ours has no small disk in it.
    let inside = Path::new("/proc").join(serve.id().to_string()).join("root");
    let inside = inside.join(landing.trim_start_matches('/'));
    assert_eq!(names(&inside), ["a.bin"]);
    assert_eq!(fs::read(inside.join("a.bin")).unwrap(), OLD);
    // What fits still goes.
    let small = text(&dir.path().join("data/b.bin"));
    user.cp(&[&trusted[..], &[&small, &to]].concat()).done();
    assert_eq!(names(&inside), ["a.bin", "b.bin"]);
}

/// A user without rights, whose folders are its own. Permissions mean nothing to root.
pub fn powerless() -> Option<Home> {
    if !is_root() {
        return Some(Home::new());
    }
    let ids = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let binary = text(&crate::process::binary("rdma-cp"));
    if !works("setpriv", &[&ids[..], &[&binary, "--version"]].concat()) {
        return None;
    }
    let home = Home::new().wrapped(&[&["setpriv"], &ids[..]].concat());
    chown(home.path(), Some(NOBODY), Some(NOBODY)).expect("root may give away");
    Some(home)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("our own file");
}

/// A server and a user who may read `data` but for `secret`, and may write in none of it.
fn denied(test: &str) -> Option<(tempfile::TempDir, Serve)> {
    let Some(home) = powerless() else {
        skip(test, "root needs setpriv, and a build that nobody may run");
        return None;
    };
    let dir = tempfile::tempdir().expect("a temporary folder");
    make_samples(dir.path());
    fs::write(dir.path().join("data/secret"), b"secret").expect("a file");
    set_mode(&dir.path().join("data/secret"), 0);
    set_mode(dir.path(), 0o755);
    for folder in ["out", "in"] {
        set_mode(&dir.path().join(folder), 0o555);
    }
    let serve = Serve::of(&Arc::new(home), "127.0.0.1:0", &exports(dir.path()));
    Some((dir, serve))
}

#[test]
fn a_target_that_may_not_be_written_is_said_to_be_so() {
    let test = "a_target_that_may_not_be_written_is_said_to_be_so";
    let Some((dir, serve)) = denied(test) else { return };
    let said = ["b.bin", "permission denied", "hint: the user of the server, or you at the target"];
    let out = dir.path().join("out");
    serve.cp(&[serve.at("data/b.bin"), text(&out)]).refused(1, &said);
    assert!(names(&out).is_empty());
    let from = text(&dir.path().join("data/b.bin"));
    serve.cp(&[from, serve.at("in")]).refused(1, &said);
    assert!(names(&dir.path().join("in")).is_empty());
}

#[test]
fn a_source_that_may_not_be_read_is_said_to_be_so() {
    let test = "a_source_that_may_not_be_read_is_said_to_be_so";
    let Some((dir, serve)) = denied(test) else { return };
    let said = ["secret", "permission denied", "hint: the user of the server, or you"];
    let target = tempfile::tempdir().unwrap();
    if is_root() {
        chown(target.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    serve.cp(&[serve.at("data/secret"), text(target.path())]).refused(1, &said);
    assert!(names(target.path()).is_empty());
    let from = text(&dir.path().join("data/secret"));
    serve.cp(&[from, serve.at("in")]).refused(1, &said);
    // The rest of its folder is copied all the same.
    let all = serve.cp(&["-r", &serve.at("data"), &text(target.path())]);
    all.refused(1, &["data/secret", "permission denied", "4 files,", "1 not copied"]);
    assert_eq!(names(&target.path().join("data")), ["a.bin", "b.bin", "sub"]);
}

#[test]
fn a_tree_is_copied_by_a_process_that_may_open_few_files() {
    let world = World::new();
    let tree = world.path("data/many");
    fs::create_dir(&tree).unwrap();
    for index in 0..1500 {
        fs::write(tree.join(format!("f{index}")), bytes(index, 100)).unwrap();
    }
    let (from, down) = (world.serve.at("data/many"), world.text("out"));
    for (source, target) in [(from.clone(), down.clone()), (down, world.serve.at("in/again"))] {
        let plain = world.serve.home().command("rdma-cp", &["-r", &source, &target]);
        let mut command = Command::new("sh");
        command.args(["-c", r#"ulimit -n 128; exec "$0" "$@""#]);
        command.arg(plain.get_program()).args(plain.get_args());
        let ended = Running::start(command).end();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
    assert_eq!(names(&world.path("in/again/many")).len(), 1500);
}
