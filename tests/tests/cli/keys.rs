//! Whom `rdma-serve` lets in: clients of its own user by the local door, others
//! by a key in `authorized_keys`. Also how a user gets such a key.

use crate::process::{Home, Serve};
use crate::{World, assert_same, exports, make_samples, names, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use verbatim_control::ClientKey;

/// A server that lets in the holder of the key in the file `token`, and its folder.
fn keyed(listen: &str) -> (tempfile::TempDir, Serve) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    make_samples(dir.path());
    let home = Arc::new(Home::new());
    authorize(&home, &dir.path().join("token"));
    let serve = Serve::of(&home, listen, &exports(dir.path()));
    (dir, serve)
}

/// Makes a key, and has the servers of `home` let it in.
fn authorize(home: &Home, token: &Path) {
    let key = ClientKey::generate().expect("random bytes");
    key.save_new(token).expect("a new file");
    fs::create_dir_all(home.state()).expect("a folder");
    let line = format!("# who may come in\n{} alice\n", key.public());
    fs::write(home.state().join("authorized_keys"), line).expect("a file");
}

#[test]
fn an_authorized_key_is_let_in() {
    let (dir, serve) = keyed("127.0.0.1:0");
    let (token, out) = (text(&dir.path().join("token")), text(&dir.path().join("out")));
    let trusted = ["--fingerprint", &serve.fingerprint, "--token-file", &token];
    let from = serve.at("data/b.bin");
    Home::new().cp(&[&trusted[..], &[&from, &out]].concat()).done();
    assert_same(&dir.path().join("data/b.bin"), &dir.path().join("out/b.bin"));
    // Who came in is logged.
    serve.logged("alice", 1);
}

#[test]
fn an_unauthorized_key_and_no_key_are_refused() {
    let (dir, serve) = keyed("127.0.0.1:0");
    let (other, out) = (dir.path().join("other"), text(&dir.path().join("out")));
    let key = ClientKey::generate().unwrap();
    key.save_new(&other).unwrap();
    let (from, other) = (serve.at("data/b.bin"), text(&other));
    let said = ["refused the session", "hint: use a key whose public half is in the server's"];
    let trusted = ["--fingerprint", &serve.fingerprint];
    let with_key = [&trusted[..], &["--token-file", &other, &from, &out]].concat();
    Home::new().cp(&with_key).refused(3, &said);
    Home::new().cp(&[&trusted[..], &[&from, &out]].concat()).refused(3, &said);
    // A wrong key is no better for the server's own user: it was asked for.
    serve.cp(&with_key).refused(3, &said);
    assert!(names(&dir.path().join("out")).is_empty());
    let log = serve.log();
    assert!(log.contains("client rejected"), "{log}");
    assert!(!log.contains(&*key.to_token()), "no token is logged");
}

#[test]
fn a_token_file_that_others_can_read_is_refused() {
    let (dir, serve) = keyed("127.0.0.1:0");
    let token = dir.path().join("token");
    fs::set_permissions(&token, PermissionsExt::from_mode(0o640)).unwrap();
    let (token, out) = (text(&token), text(&dir.path().join("out")));
    let ended = serve.cp(&["--token-file", &token, &serve.at("data/b.bin"), &out]);
    ended.refused(3, &[&token, "0640", &format!("hint: chmod 600 {token}")]);
    let none = text(&dir.path().join("none"));
    let ended = serve.cp(&["--token-file", &none, &serve.at("data/b.bin"), &out]);
    ended.refused(3, &[&none, "there is no such file"]);
}

#[test]
fn a_new_token_is_private_and_its_line_lets_its_holder_in() {
    let dir = tempfile::tempdir().unwrap();
    make_samples(dir.path());
    let (user, home) = (Home::new(), Arc::new(Home::new()));
    let token = dir.path().join("token");
    let made = user.cp(&["--new-token", &text(&token)]).done();
    assert_eq!(fs::metadata(&token).unwrap().permissions().mode() & 0o7777, 0o600);
    let secret = fs::read_to_string(&token).unwrap();
    assert!(!made.stdout.contains(secret.trim()) && !made.stderr.contains(secret.trim()));
    assert!(made.stdout.starts_with("ed25519:") && made.stdout.lines().count() == 1, "{made:?}");
    assert!(made.stderr.contains("authorized_keys"), "where the line goes is said: {made:?}");

    fs::create_dir_all(home.state()).unwrap();
    fs::write(home.state().join("authorized_keys"), &made.stdout).unwrap();
    let serve = Serve::of(&home, "127.0.0.1:0", &exports(dir.path()));
    let (from, to) = (serve.at("data/a.bin"), text(&dir.path().join("out")));
    let trusted = ["--fingerprint", &serve.fingerprint, "--token-file", &text(&token)];
    user.cp(&[&trusted[..], &[&from, &to]].concat()).done();
    assert_same(&dir.path().join("data/a.bin"), &dir.path().join("out/a.bin"));
}

#[test]
fn a_new_token_never_replaces_one() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    fs::write(&token, b"mine").unwrap();
    let ended = Home::new().cp(&["--new-token", &text(&token)]);
    ended.refused(1, &[&text(&token), "there is a file already"]);
    assert_eq!(fs::read(&token).unwrap(), b"mine");
    let ended = Home::new().cp(&["--new-token", &text(&dir.path().join("none/token"))]);
    ended.refused(1, &["none/token", "no such file"]);
    let ended = Home::new().cp(&["--new-token", &text(&token), "h:/a", "b"]);
    ended.refused(2, &["--new-token"]);
}

#[test]
fn other_machines_are_listened_to_only_with_keys_or_on_demand() {
    let world = World::new();
    let export = format!("data={}", world.text("data"));
    let ended = Home::new().serve(&["--listen", "0.0.0.0:0", &export]);
    let said =
        ["cannot listen on 0.0.0.0:0", "no key or token to come in with", "--insecure-no-auth"];
    ended.refused(1, &said);
    // With a key it listens; loopback is as far as a test goes.
    let (dir, serve) = keyed("0.0.0.0:0");
    let from = format!("rdma://127.0.0.1:{}/data/b.bin", serve.address.port());
    let (token, out) = (text(&dir.path().join("token")), text(&dir.path().join("out")));
    let trusted = ["--fingerprint", &serve.fingerprint, "--token-file", &token];
    Home::new().cp(&[&trusted[..], &[&from, &out]].concat()).done();
}

#[test]
fn letting_everybody_in_is_possible_and_warned_of() {
    let world = World::new();
    let export = format!("data={}", world.text("data"));
    let home = Arc::new(Home::new());
    let serve = Serve::of(&home, "0.0.0.0:0", &[export.as_str(), "--insecure-no-auth"]);
    let log = serve.log();
    assert!(log.contains("WARN anybody who can connect is let in"), "{log}");
    let from = format!("rdma://127.0.0.1:{}/data/b.bin", serve.address.port());
    let out = world.text("out");
    Home::new().cp(&["--fingerprint", &serve.fingerprint, &from, &out]).done();
    assert_same(&world.path("data/b.bin"), &world.path("out/b.bin"));
}
