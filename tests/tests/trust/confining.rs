//! What the server's process gives up before it serves anybody: files that it does
//! not serve, being root, and leaving its memory behind when it dies.

use crate::process::{Home, NOBODY, Running, Serve, Signal, Text, seen, skip, wait_for};
use crate::{FOLLOW_MAX, World, text};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::sync::Arc;
use tempfile::TempDir;

/// Folders of a world that every user may look into, and state of nobody's.
fn for_nobody() -> (TempDir, Arc<Home>) {
    let (dir, home) = (crate::folders(), Arc::new(Home::new()));
    for folder in [dir.path(), home.path()] {
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).expect("ours");
    }
    std::fs::create_dir_all(home.state()).expect("a folder");
    chown(home.state(), Some(NOBODY), Some(NOBODY)).expect("root may");
    (dir, home)
}

/// What every thread of a server may do, as the kernel says it.
fn assert_nobody_with(serve: &Serve, capabilities: &str) {
    let threads = std::fs::read_dir(format!("/proc/{}/task", serve.id())).expect("it runs");
    for thread in threads.flatten() {
        // One that has ended meanwhile has no power.
        let Ok(status) = std::fs::read_to_string(thread.path().join("status")) else {
            continue;
        };
        assert!(status.contains("Uid:\t65534\t65534\t65534\t65534"), "{status}");
        for set in ["CapEff", "CapPrm"] {
            assert!(status.contains(&format!("{set}:\t{capabilities}")), "{status}");
        }
    }
}

/// Puts a link in the place of the list of tokens, to one outside of everything; returns
/// whether a server follows it.
fn follows_a_link_out(landlock: bool) -> bool {
    let toml = format!("landlock = {landlock}\n[[export]]\npath = \"DIR/data\"\n");
    let mut world = World::configured(&toml);
    world.add("alice", &["--export", "*:ro"]);
    let (tokens, outside) = (world.home.state().join("tokens.toml"), world.path("out/tokens"));
    std::fs::rename(&tokens, &outside).expect("our own files");
    // Gone first, so that what is there later is read anew.
    world.serve.said("keys=0 tokens=0");
    symlink(&outside, &tokens).expect("a link");
    wait_for("the server has followed the link, or says that it may not", FOLLOW_MAX, || {
        let log = world.serve.log();
        let read = log.rsplit("keys=0 tokens=0").next().unwrap_or_default();
        let denied = read.contains("keys not read") && read.contains("ermission denied");
        match denied || read.contains("tokens=1") {
            true => Ok(!denied),
            false => Err(Text(log)),
        }
    })
}

#[test]
fn files_that_are_not_exported_are_out_of_reach() {
    let world = World::new(&[]);
    if !world.serve.log().contains("confined by Landlock") {
        return skip("files_that_are_not_exported_are_out_of_reach", "no Landlock here");
    }
    assert!(follows_a_link_out(false), "without Landlock it is in reach");
    assert!(!follows_a_link_out(true), "with it, it is not");
    // What is exported and what is its own still work.
    let token = world.add("alice", &["--export", "*:rw"]);
    world.cp(&token, &[&world.serve.at("data/large"), &world.text("out")]).done();
    world.cp(&token, &["-r", &world.text("data"), &world.serve.at("in/")]).done();
}

#[test]
fn a_server_that_is_given_a_user_is_no_longer_root() {
    if !rustix::process::geteuid().is_root() {
        return skip("a_server_that_is_given_a_user_is_no_longer_root", "needs root");
    }
    let (dir, home) = for_nobody();
    let secret = dir.path().join("data/secret");
    std::fs::write(&secret, b"of root").unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    let data = format!("data={}", text(&dir.path().join("data")));
    let serve = Serve::of(&home, "127.0.0.1:0", &["--user", "nobody", "--insecure-no-auth", &data]);
    assert_nobody_with(&serve, "0000000000000000");
    let anybody = Home::new();
    let fetch = |name: &str| {
        let (from, out) = (serve.at(&format!("data/{name}")), text(&dir.path().join("out")));
        anybody.cp(&["--fingerprint", &serve.fingerprint, &from, &out])
    };
    fetch("large").done();
    fetch("secret").refused(1, &["permission denied"]);
    // Who may not be root cannot give files away, unless that is kept.
    let toml = format!("[[export]]\npath = {:?}\nowner = \"client\"\n", dir.path().join("data"));
    let config = dir.path().join("serve.toml");
    std::fs::write(&config, toml).unwrap();
    let refused = Home::new().serve(&["--config", &text(&config), "--user", "nobody"]);
    refused.refused(2, &["cannot run as nobody", "gives files away", "set keep_chown"]);
    Home::new().serve(&["--user", "no-such-user", &data]).refused(2, &["no such user"]);
}

#[test]
fn a_user_who_keeps_chown_gives_files_away_and_has_no_other_power() {
    if !rustix::process::geteuid().is_root() {
        let name = "a_user_who_keeps_chown_gives_files_away_and_has_no_other_power";
        return skip(name, "needs root");
    }
    let (dir, home) = for_nobody();
    let path = |below: &str| dir.path().join(below);
    chown(path("in"), Some(NOBODY), Some(NOBODY)).unwrap();
    let toml = format!(
        "user = \"nobody\"\nkeep_chown = true\ninsecure_no_auth = true\n[[export]]\npath = {:?}\n\
         mode = \"rw\"\nowner = \"client\"\n",
        path("in")
    );
    std::fs::write(path("serve.toml"), toml).unwrap();
    let serve = Serve::of(&home, "127.0.0.1:0", &["--config", &text(&path("serve.toml"))]);
    // To change owners, and modes and times of what is another's: 0, 3 and 4.
    assert_nobody_with(&serve, "0000000000000019");
    // Of somebody else, with a mode that lets only its owner in, and an attribute.
    let (from, secret) = (path("data/sub/mine"), path("in/secret"));
    std::fs::create_dir(path("data/sub")).unwrap();
    std::fs::write(&from, b"mine").unwrap();
    let named = rustix::fs::setxattr(&from, "user.note", b"kept", rustix::fs::XattrFlags::empty());
    for given in [&from, &path("data/sub")] {
        chown(given, Some(1234), Some(1235)).unwrap();
    }
    std::fs::set_permissions(&from, PermissionsExt::from_mode(0o640)).unwrap();
    let anybody = Home::new();
    let cp = |arguments: &[&str]| {
        anybody.cp(&[&["--fingerprint", &serve.fingerprint], arguments].concat())
    };
    cp(&["-rp", &text(&path("data/sub")), &serve.at("in/")]).done();
    for (name, mode) in [("in/sub/mine", 0o100_640), ("in/sub", 0o040_755)] {
        let made = std::fs::metadata(path(name)).unwrap();
        assert_eq!((made.uid(), made.gid(), made.mode()), (1234, 1235, mode), "{name}");
    }
    let (made, kept) = (std::fs::metadata(path("in/sub/mine")).unwrap(), from.metadata().unwrap());
    assert_eq!(made.mtime_nsec(), kept.mtime_nsec());
    if named.is_ok() {
        let mut value = [0; 8];
        let len = rustix::fs::getxattr(path("in/sub/mine"), "user.note", &mut value).unwrap();
        assert_eq!(&value[..len], b"kept");
    }
    // It still cannot read what only root may.
    std::fs::write(&secret, b"of root").unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    cp(&[&serve.at("in/secret"), &text(&path("out"))]).refused(1, &["permission denied"]);
}

/// Goes to a folder, and allows core dumps of any size there.
const DUMPING: &str = "cd \"$0\" && ulimit -c unlimited && exec \"$@\"";

/// Waits until a process may leave no core dump, nor give one to a handler, and may not change
/// that; and one that is made after all would have no memory in it.
#[track_caller]
fn wait_for_no_dumps(what: &str, id: u32) {
    wait_for(&format!("{what} forbids its core dumps"), FOLLOW_MAX, || {
        let limits = std::fs::read_to_string(format!("/proc/{id}/limits")).unwrap_or_default();
        let line = limits.lines().find(|line| line.starts_with("Max core file size"));
        let words: Vec<_> = line.unwrap_or_default().split_whitespace().skip(4).take(2).collect();
        // Where it is 1, the kernel starts no handler either.
        let filter = std::fs::read_to_string(format!("/proc/{id}/coredump_filter"));
        let filter = filter.unwrap_or_default();
        let forbidden = words == ["1", "1"] && filter.trim() == "00000000";
        seen(forbidden, (line.map(str::to_owned), filter))
    });
}

#[test]
fn a_process_that_dies_leaves_no_core_dump() {
    let name = "a_process_that_dies_leaves_no_core_dump";
    let place = tempfile::tempdir().expect("a folder");
    let wrapper = ["sh", "-c", DUMPING, &text(place.path())];
    let able = std::process::Command::new("sh").args(&wrapper[1..]).arg("true").output();
    if !able.is_ok_and(|output| output.status.success()) {
        return skip(name, "this user may leave no core dumps anyway");
    }
    let (dir, home) = (crate::folders(), Arc::new(Home::new().wrapped(&wrapper)));
    let serve = World::start(&home, &dir, &[]);
    wait_for_no_dumps("rdma-serve", serve.id());
    serve.signal(Signal::ABORT);
    assert_eq!(serve.end(), None, "it was killed");
    // The others wait for a server that says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = format!("rdma://{}/data", silent.local_addr().expect("its address"));
    let to = text(&dir.path().join("out"));
    for (command, arguments) in [
        ("rdma-cp", &[at.as_str(), &to][..]),
        ("rdma-sync", &[&at, &to]),
        ("rdma-mount", &["--foreground", &at, &to]),
        ("rdma-doctor", &[&at]),
    ] {
        if command == "rdma-mount" && !std::path::Path::new("/dev/fuse").exists() {
            continue;
        }
        let running = Running::start(home.command(command, arguments));
        wait_for_no_dumps(command, running.id());
        running.signal(Signal::ABORT);
        running.end();
    }
    assert_eq!(crate::names(place.path()), [""; 0], "nothing was dumped");
}
