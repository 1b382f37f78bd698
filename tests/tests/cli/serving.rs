//! How `rdma-serve` starts, and refuses to: addresses, exports, configuration,
//! two servers of one user on one machine, and what it tidies when it starts.

use crate::process::{Home, Running, Serve, Signal, Text, contents, seen, wait_for};
use crate::{World, assert_same, exports, make_samples, names, text};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

#[test]
fn a_port_that_is_taken_is_said_to_be_so() {
    let world = World::new();
    let taken = world.serve.address.to_string();
    let export = world.text("data");
    let ended = Home::new().serve(&["--listen", &taken, "--metrics", "off", &export]);
    let said =
        [&format!("cannot listen on {taken}: address already in use"), "hint: another server"];
    ended.refused(1, &said.map(|words| words as &str));
    // The one that was there first is not disturbed.
    world.serve.cp(&[world.serve.at("data/b.bin"), world.text("out")]).done();
}

#[test]
fn an_export_must_be_there() {
    let home = Home::new();
    let none = text(&home.path().join("none"));
    let ended = home.serve(&["--listen", "127.0.0.1:0", &none]);
    let said = format!("cannot export {none} as none: no such file");
    ended.refused(2, &[&said, "hint: create the folder, or correct the path"]);
    let file = home.path().join("file");
    fs::write(&file, b"x").unwrap();
    let ended = home.serve(&["--listen", "127.0.0.1:0", &text(&file)]);
    ended.refused(2, &["it is not a folder", "hint: "]);
    let ended = home.serve(&["--listen", "127.0.0.1:0", "=/srv"]);
    ended.refused(2, &["its name is empty", "hint: "]);
}

#[test]
fn nothing_to_export_is_bad_usage() {
    let ended = Home::new().serve(&["--listen", "127.0.0.1:0"]);
    ended.refused(2, &["nothing to export", "hint: give a folder: rdma-serve PATH"]);
}

#[test]
fn an_unknown_key_names_the_nearest() {
    let home = Home::new();
    let config = home.path().join("serve.toml");
    fs::write(&config, "[limits]\nsesions_max = 3\n").unwrap();
    let arguments = ["--config", &text(&config), &text(home.path())];
    let said =
        ["unknown key \"limits.sesions_max\"", "hint: did you mean \"limits.sessions_max\"?"];
    home.serve(&arguments).refused(2, &said);
    fs::write(&config, "workers = 1000\n").unwrap();
    home.serve(&arguments).refused(2, &["workers = 1000 is out of range", &text(&config)]);
    fs::write(&config, "workers = \n").unwrap();
    home.serve(&arguments).refused(2, &["line 1", &text(&config)]);
    fs::remove_file(&config).unwrap();
    home.serve(&arguments).refused(2, &["cannot read", &text(&config), "hint: "]);
}

#[test]
fn a_configuration_is_followed_and_flags_win_over_it() {
    let dir = tempfile::tempdir().unwrap();
    make_samples(dir.path());
    let config = dir.path().join("serve.toml");
    let toml = format!(
        "listen = \"127.0.0.1:1\"\nlog.level = \"debug\"\n[[export]]\nname = \"set\"\npath = {:?}\n",
        dir.path().join("data")
    );
    fs::write(&config, toml).unwrap();
    let home = Arc::new(Home::new());
    let extra = format!("more={}:rw", text(&dir.path().join("in")));
    let serve = Serve::of(&home, "127.0.0.1:0", &["--config", &text(&config), &extra]);
    assert_ne!(serve.address.port(), 1);
    let listed = serve.cp(&["--list", &serve.at("")]).done().stdout;
    assert!(listed.contains("set/") && listed.contains("more/"), "{listed}");
    serve.cp(&[serve.at("set/b.bin"), text(&dir.path().join("out"))]).done();
    assert_same(&dir.path().join("data/b.bin"), &dir.path().join("out/b.bin"));
}

#[test]
fn the_rw_flag_makes_exports_writable_unless_they_say_otherwise() {
    let world = World::new();
    let kept = format!("kept={}:ro", world.text("data"));
    let open = format!("open={}", world.text("in"));
    let serve = Serve::start(&["--rw", &kept, &open]);
    let from = world.text("data/b.bin");
    serve.cp(&[&from, &serve.at("open")]).done();
    let said = ["read-only", "hint: mount it rw, or export it with :rw"];
    serve.cp(&[&from, &serve.at("kept/new")]).refused(1, &said);
    let arguments = [world.text("data"), serve.at("kept")];
    Running::start(serve.home().command("rdma-sync", &arguments)).end().refused(1, &said);
    assert_eq!(names(&world.path("in")), ["b.bin"]);
}

#[test]
fn a_state_folder_that_cannot_be_had_is_said_to_be_so() {
    for within in ["", "local"] {
        let home = Home::new();
        let taken = home.state().join(within);
        fs::create_dir_all(taken.parent().unwrap()).unwrap();
        fs::write(taken.components().as_path(), b"a file").unwrap();
        let ended =
            home.serve(&["--listen", "127.0.0.1:0", "--metrics", "off", &text(home.path())]);
        ended.refused(1, &["cannot make ", "file exists", "hint: ", "--state DIR"]);
    }
}

#[test]
fn two_servers_of_one_user_both_work() {
    let dir = tempfile::tempdir().unwrap();
    make_samples(dir.path());
    let home = Arc::new(Home::new());
    let first = Serve::of(&home, "127.0.0.1:0", &exports(dir.path()));
    let second = Serve::of(&home, "127.0.0.1:0", &exports(dir.path()));
    assert_eq!(first.fingerprint, second.fingerprint, "one state folder is one identity");
    let log = second.log();
    assert!(log.contains("WARN digest cache is held by another process"), "{log}");
    for (name, serve) in [("one", &first), ("two", &second)] {
        let to = dir.path().join("out").join(name);
        home.cp(&[serve.at("data/a.bin"), text(&to)]).done();
        assert_same(&dir.path().join("data/a.bin"), &to);
    }
}

/// So many clients pull one file at the same time.
fn copy_all(serve: &Serve, folder: &Path, clients: usize) {
    let target = |client: usize| folder.join(format!("shared-{client}"));
    let start = |client| serve.start_cp(&[serve.at("data/shared"), text(&target(client))]);
    let running: Vec<_> = (0..clients).map(start).collect();
    for copy in running {
        copy.end().done();
    }
    let source = folder.with_file_name("data").join("shared");
    for client in 0..clients {
        assert_same(&source, &target(client));
        fs::remove_file(target(client)).expect("removes");
    }
}

#[test]
fn a_file_is_hashed_once_and_a_restart_remembers_it() {
    let dir = tempfile::tempdir().unwrap();
    make_samples(dir.path());
    let big = dir.path().join("data/big");
    fs::write(&big, crate::bytes(9, 40 << 20)).unwrap();
    fs::write(dir.path().join("data/shared"), crate::bytes(8, 17 << 20)).unwrap();
    // An identity younger than this is not trusted, so it is not remembered either.
    std::thread::sleep(std::time::Duration::from_millis(2100));
    let home = Arc::new(Home::new());
    let config = dir.path().join("serve.toml");
    fs::write(&config, "[log]\nlevel = \"debug\"\n").unwrap();
    let mut arguments = vec!["--config".to_owned(), text(&config)];
    arguments.extend(exports(dir.path()));
    let hashed = |serve: &Serve| serve.log().matches("window hashed").count();
    let cached = |serve: &Serve| serve.log().matches("digests from the cache").count();
    let copy = |serve: &Serve| {
        serve.cp(&[serve.at("data/big"), text(&dir.path().join("out/big"))]).done();
        assert_same(&big, &dir.path().join("out/big"));
    };
    let first = Serve::of(&home, "127.0.0.1:0", &arguments);
    copy(&first);
    assert_eq!((hashed(&first), cached(&first)), (3, 0), "40 MiB are 3 windows");
    // As many clients at once as come: one of them has it hashed.
    copy_all(&first, &dir.path().join("out"), 20);
    let shared = 2;
    assert_eq!((hashed(&first), cached(&first)), (3 + shared, 19 * shared), "17 MiB, 20 clients");
    // The cache is written behind the copy.
    std::thread::sleep(std::time::Duration::from_millis(500));
    copy(&first);
    assert_eq!((hashed(&first), cached(&first)), (5, 38 + 3));
    first.signal(crate::process::Signal::TERM);
    assert_eq!(first.end(), Some(0));
    let second = Serve::of(&home, "127.0.0.1:0", &arguments);
    copy(&second);
    assert_eq!((hashed(&second), cached(&second)), (0, 3), "the restart forgot it");
}

#[test]
fn old_leftovers_of_uploads_are_removed_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    make_samples(dir.path());
    let month = Duration::from_secs(30 * 24 * 3600);
    let make = |path: &str, age: Duration| {
        let path = dir.path().join(path);
        fs::write(&path, b"some").unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
        file
    };
    fs::create_dir(dir.path().join("in/sub")).unwrap();
    make("in/.big.0123456789abcdef.verbatim-part", month);
    make("in/sub/.big.0123456789abcdef.verbatim-journal", month);
    make("in/.small.77-3-0a1b2c3d.verbatim-part", month);
    make("in/.young.0123456789abcdef.verbatim-part", Duration::from_secs(3600));
    make("in/.notes.verbatim-part", month);
    make("data/.big.0123456789abcdef.verbatim-part", month);
    let held = make("in/.held.0123456789abcdef.verbatim-part", month);
    rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let mut serve = Serve::start(&exports(dir.path()));
    for name in [".big.0123456789abcdef.verbatim-part", "sub/.big.", ".small.77-3"] {
        let what = format!("the server logs that the leftover {name} was removed");
        wait_for(&what, Duration::from_secs(20), || {
            let log = serve.log();
            let said = |line: &str| line.contains("leftover removed") && line.contains(name);
            seen(log.lines().any(said), (Text(log), contents(&dir.path().join("in"))))
        });
    }
    serve.signal(Signal::TERM);
    serve.said(" stopped");
    let left = [
        ".held.0123456789abcdef.verbatim-part",
        ".notes.verbatim-part",
        ".young.0123456789abcdef.verbatim-part",
        "sub",
    ];
    assert_eq!(names(&dir.path().join("in")), left);
    assert!(names(&dir.path().join("in/sub")).is_empty());
    let elsewhere = dir.path().join("data/.big.0123456789abcdef.verbatim-part");
    assert!(elsewhere.exists(), "a read-only export is not ours to tidy");
    assert_eq!(serve.log().matches("leftover removed").count(), 3);
}
