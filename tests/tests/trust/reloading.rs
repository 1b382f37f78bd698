//! A server that is told to read its configuration anew: what was outside of its
//! reach is served, who was copying goes on, and what is no good changes nothing.

use crate::certificates::Maker;
use crate::process::{Home, NOBODY, Serve, Signal, skip, wait_for};
use crate::{FOLLOW_MAX, text};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// A folder with a file in it, for an export of its own.
fn folder(content: &[u8]) -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("ours");
    fs::write(dir.path().join("file"), content).expect("a file");
    dir
}

/// Writes a configuration of these exports, in one step, as a careful editor does.
fn configure(config: &Path, more: &str, exports: &[(&str, &Path)]) {
    let export = |(name, path): &(&str, &Path)| {
        format!("[[export]]\nname = {name:?}\npath = {path:?}\nmode = \"rw\"\n")
    };
    let exports: String = exports.iter().map(export).collect();
    let new = config.with_extension("new");
    fs::write(&new, format!("{more}\n{exports}")).expect("a file");
    fs::rename(new, config).expect("ours");
}

/// The process that serves, below the one that was started.
fn child_of(serve: &Serve) -> Option<u32> {
    let id = serve.id();
    let list = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
    list.split_whitespace().next()?.parse().ok()
}

#[test]
fn what_is_added_is_served_and_who_was_copying_goes_on() {
    let (first, second) = (folder(&[7; 6 << 20]), folder(b"of the second"));
    let (home, dir) = (Arc::new(Home::new()), tempfile::tempdir().expect("a folder"));
    let (config, out) = (dir.path().join("serve.toml"), dir.path().join("out"));
    fs::create_dir(&out).expect("a folder");
    configure(&config, "", &[("first", first.path())]);
    let serve = Serve::of(&home, "127.0.0.1:0", &["--reloadable", "--config", &text(&config)]);
    let (listed, before) = (serve.cp(&["--list", &serve.at("")]).done(), child_of(&serve));
    assert!(listed.stdout.contains("first") && !listed.stdout.contains("second"), "{listed:?}");
    let copy = ["--json", "--bwlimit=2M", &serve.at("first/file"), &text(&out.join("kept"))];
    let copying = serve.start_cp(&copy);
    let begun = || fs::read_dir(&out).expect("ours").next().map(drop);
    wait_for("it has begun", FOLLOW_MAX, begun);

    configure(&config, "", &[("first", first.path()), ("second", second.path())]);
    serve.signal(Signal::HUP);
    serve.logged(" listening ", 2);
    // By the key that the new one left, at the port of before, of a folder that was out of reach.
    serve.cp(&[&serve.at("second/file"), &text(&out.join("new"))]).done();
    assert_eq!(fs::read(out.join("new")).expect("copied"), b"of the second");
    let after = child_of(&serve);
    assert!(before.is_some() && after.is_some() && before != after, "{before:?} {after:?}");
    if serve.log().contains("confined by Landlock") {
        assert_eq!(serve.log().matches("confined by Landlock").count(), 2);
    }
    let done = copying.end().done();
    let summary: Value = serde_json::from_str(done.stdout.lines().last().expect("a summary"))
        .expect("the summary is JSON");
    assert!(summary["reconnects"].as_u64() >= Some(1), "{summary}");
    assert_eq!(fs::read(out.join("kept")).expect("copied"), vec![7; 6 << 20]);
    serve.signal(Signal::TERM);
    assert_eq!(serve.end(), Some(0));
    let gone = || !Path::new(&format!("/proc/{}", after.unwrap_or(0))).exists();
    wait_for("the server is gone", FOLLOW_MAX, || gone().then_some(()));
}

#[test]
fn a_configuration_that_is_no_good_changes_nothing() {
    let export = folder(b"bytes");
    let dir = tempfile::tempdir().expect("a folder");
    let config = dir.path().join("serve.toml");
    configure(&config, "", &[("data", export.path())]);
    let home = Arc::new(Home::new());
    let mut serve = Serve::of(&home, "127.0.0.1:0", &["--reloadable", "--config", &text(&config)]);
    let before = child_of(&serve);
    // Each of them good, and not of one another.
    let maker = Maker::new(&dir.path().join("ca.pem"));
    ["one", "two"].iter().for_each(|name| maker.make(dir.path(), name, "127.0.0.1", None));
    let [cert, key] = ["one.pem", "two.key"].map(|name| dir.path().join(name));
    let mixed = format!("[tls]\ncert = {cert:?}\nkey = {key:?}");
    for (more, exports, why) in [
        ("no_such_key = 1", vec![("data", export.path())], "no_such_key"),
        ("", vec![("data", Path::new("/no/such/folder"))], "/no/such/folder"),
        ("", vec![], "nothing to export"),
        (&mixed, vec![("data", export.path())], "two.key"),
    ] {
        configure(&config, more, &exports);
        serve.signal(Signal::HUP);
        let line = serve.said(why);
        assert!(line.contains("configuration not taken"), "{line}");
    }
    assert_eq!((child_of(&serve), before.is_some()), (before, true), "it goes on");
    serve.cp(&["--list", &serve.at("data")]).done();
    configure(&config, "", &[("data", export.path()), ("more", export.path())]);
    serve.signal(Signal::HUP);
    serve.logged(" listening ", 2);
    assert!(serve.cp(&["--list", &serve.at("")]).done().stdout.contains("more"));
}

#[test]
fn what_is_to_stop_is_not_started_anew() {
    for order in [[Signal::HUP, Signal::TERM], [Signal::TERM, Signal::HUP]] {
        let export = folder(b"bytes");
        let dir = tempfile::tempdir().expect("a folder");
        let config = dir.path().join("serve.toml");
        configure(&config, "", &[("data", export.path())]);
        let home = Arc::new(Home::new());
        let serve = Serve::of(&home, "127.0.0.1:0", &["--reloadable", "--config", &text(&config)]);
        order.into_iter().for_each(|signal| serve.signal(signal));
        assert_eq!(serve.end(), Some(0), "{order:?}");
    }
}

#[test]
fn a_server_ends_with_the_parent_that_holds_its_port() {
    let name = "a_server_ends_with_the_parent_that_holds_its_port";
    if !rustix::process::geteuid().is_root() {
        return skip(name, "needs root");
    }
    let (export, home) = (folder(b"bytes"), Arc::new(Home::new()));
    fs::set_permissions(home.path(), PermissionsExt::from_mode(0o755)).expect("ours");
    fs::create_dir_all(home.state()).expect("a folder");
    chown(home.state(), Some(NOBODY), Some(NOBODY)).expect("root may");
    let data = format!("data={}", text(export.path()));
    // Becoming another user undoes what was asked of the kernel before.
    let flags = ["--reloadable", "--user", "nobody", "--insecure-no-auth", &data];
    let serve = Serve::of(&home, "127.0.0.1:0", &flags);
    let child = child_of(&serve).expect("it serves");
    let status = |pid: u32| fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    assert!(status(child).contains("Uid:\t65534"), "{}", status(child));
    // SIGHUP gives the next one the same rights to give up.
    serve.signal(Signal::HUP);
    serve.logged("root is given up", 2);
    serve.logged(" listening ", 2);
    let child = child_of(&serve).expect("it serves");
    assert!(status(child).contains("Uid:\t65534") && status(serve.id()).contains("Uid:\t0"));
    serve.signal(Signal::KILL);
    wait_for("it is gone, too", FOLLOW_MAX, || {
        let status = status(child);
        (status.is_empty() || status.contains("State:\tZ")).then_some(())
    });
}

#[test]
fn a_server_without_a_parent_stops_at_a_hangup() {
    let export = folder(b"bytes");
    let serve = Serve::start(&[format!("data={}", text(export.path()))]);
    serve.signal(Signal::HUP);
    assert_eq!(serve.end(), Some(0));
}
