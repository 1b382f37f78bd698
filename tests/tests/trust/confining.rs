//! What the server's process gives up before it serves anybody: files that it does
//! not serve, and being root.

use crate::process::{Home, Serve, skip, wait_for};
use crate::{FOLLOW_MAX, World, text};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::sync::Arc;

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
    wait_for("the server looks at it", FOLLOW_MAX, || {
        let log = world.serve.log();
        let read = log.rsplit("keys=0 tokens=0").next().unwrap_or_default();
        let denied = read.contains("keys not read") && read.contains("ermission denied");
        if denied { Some(false) } else { read.contains("tokens=1").then_some(true) }
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
    let (dir, home) = (crate::folders(), Arc::new(Home::new()));
    for folder in [dir.path(), home.path()] {
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let (state, secret) = (home.state(), dir.path().join("data/secret"));
    std::fs::create_dir_all(&state).unwrap();
    chown(&state, Some(65534), Some(65534)).unwrap();
    std::fs::write(&secret, b"of root").unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    let data = format!("data={}", text(&dir.path().join("data")));
    let serve = Serve::of(&home, "127.0.0.1:0", &["--user", "nobody", "--insecure-no-auth", &data]);
    for thread in std::fs::read_dir(format!("/proc/{}/task", serve.id())).unwrap() {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        assert!(status.contains("Uid:\t65534\t65534\t65534\t65534"), "{status}");
        assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    }
    let anybody = Home::new();
    let fetch = |name: &str| {
        let (from, out) = (serve.at(&format!("data/{name}")), text(&dir.path().join("out")));
        anybody.cp(&["--fingerprint", &serve.fingerprint, &from, &out])
    };
    fetch("large").done();
    fetch("secret").refused(1, &["permission denied"]);
    // Who may not be root cannot give files away.
    let toml = format!("[[export]]\npath = {:?}\nowner = \"client\"\n", dir.path().join("data"));
    let config = dir.path().join("serve.toml");
    std::fs::write(&config, toml).unwrap();
    let refused = Home::new().serve(&["--config", &text(&config), "--user", "nobody"]);
    refused.refused(2, &["cannot run as nobody", "gives files away"]);
    Home::new().serve(&["--user", "no-such-user", &data]).refused(2, &["no such user"]);
}
