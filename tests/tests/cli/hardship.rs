//! Where the machine is in the way: a folder that may not be written, a file
//! that may not be read. What was there stays, nothing is left behind, and the
//! message says what to do. Full disks are in `space`.

use crate::process::{Home, NOBODY, Running, Serve, skip};
use crate::{World, bytes, exports, is_root, make_samples, names, text};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("our own file");
}

/// A server and a user who may read `data` but for `secret`, and may write in none of it.
fn denied(test: &str) -> Option<(tempfile::TempDir, Serve)> {
    let Some(home) = Home::powerless() else {
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
    let said = ["b.bin", "permission denied", "hint: the user of the server, or you on this"];
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

#[test]
fn a_file_that_is_too_long_to_be_copied_fails_alone() {
    let world = World::in_memory();
    let long = fs::File::create(world.path("data/long")).unwrap();
    if long.set_len(5 << 60).is_err() {
        let test = "a_file_that_is_too_long_to_be_copied_fails_alone";
        return skip(test, "no file system in memory holds such a file");
    }
    let all = names(&world.path("data"));
    let rest: Vec<_> = all.into_iter().filter(|name| name != "long").collect();
    let said = ["long", "5764607523034234880 bytes are more than can be copied"];
    let run = |command: &str, arguments: &[String]| {
        Running::start(world.serve.home().command(command, arguments)).end().refused(1, &said);
    };
    run("rdma-cp", &["-r".into(), world.serve.at("data"), world.text("out/down")]);
    run("rdma-cp", &["-r".into(), world.text("data"), world.serve.at("in/up")]);
    run("rdma-sync", &[world.serve.at("data"), world.text("out/synced")]);
    run("rdma-sync", &[world.text("data"), world.serve.at("in/synced")]);
    for target in ["out/down", "in/up", "out/synced", "in/synced"] {
        assert_eq!(names(&world.path(target)), rest, "{target}");
    }
}

#[test]
fn a_file_of_size_0_that_has_content_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    make_samples(dir.path());
    let all = [exports(dir.path()).to_vec(), vec!["proc=/proc".into()]].concat();
    let serve = Serve::of(&Arc::new(Home::new()), "127.0.0.1:0", &all);
    let (down, up) = (dir.path().join("out"), dir.path().join("in"));
    let said = ["version: its size is 0 but it has content", "hint: read it with cat"];
    serve.cp(&[serve.at("proc/version"), text(&down)]).refused(1, &said);
    serve.cp(&["/proc/version".into(), serve.at("in")]).refused(1, &said);
    let piped = serve.cp(&[serve.at("proc/version"), "-".into()]).refused(1, &said);
    assert_eq!(piped.stdout, "", "nothing is written");
    let said = ["drivers: its size is 0 but it has content", "hint: read it with cat"];
    for (source, target) in
        [(serve.at("proc/tty"), text(&down)), ("/proc/tty".into(), serve.at("in"))]
    {
        let sync = serve.home().command("rdma-sync", &[source + "/", target]);
        Running::start(sync).end().refused(1, &said);
    }
    for folder in [&down, &up] {
        let files: Vec<_> =
            names(folder).into_iter().filter(|it| folder.join(it).is_file()).collect();
        assert_eq!(files, [""; 0], "no empty copy is left");
    }
    // One that is as empty as its size says is copied.
    serve.cp(&[serve.at("data/sub/empty"), text(&down)]).done();
    serve.cp(&[text(&dir.path().join("data/sub/empty")), serve.at("in")]).done();
    assert_eq!(fs::metadata(down.join("empty")).expect("copied").len(), 0);
    assert_eq!(fs::metadata(up.join("empty")).expect("copied").len(), 0);
}
