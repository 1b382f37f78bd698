//! A server that is told to read its configuration anew: what was outside of its
//! reach is served, who was copying goes on, and what is no good changes nothing.

use crate::certificates::Maker;
use crate::process::{Home, NOBODY, Serve, Signal, Text, seen, skip, wait_for};
use crate::{FOLLOW_MAX, text};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use verbatim_tests::http::get;
use verbatim_tests::port::Port;

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
    let mut copying = serve.start_cp(&copy);
    wait_for("the copy has begun: a file is in out", FOLLOW_MAX, || {
        seen(!crate::names(&out).is_empty(), copying.report())
    });

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
    let after = after.unwrap_or(0);
    wait_for(&format!("process {after}, which served, is gone"), FOLLOW_MAX, || {
        let status = fs::read_to_string(format!("/proc/{after}/status"));
        seen(!Path::new(&format!("/proc/{after}")).exists(), status.map(Text))
    });
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
        assert!(line.contains("configuration rejected"), "{line}");
    }
    assert_eq!((child_of(&serve), before.is_some()), (before, true), "it goes on");
    serve.cp(&["--list", &serve.at("data")]).done();
    configure(&config, "", &[("data", export.path()), ("more", export.path())]);
    serve.signal(Signal::HUP);
    serve.logged(" listening ", 2);
    assert!(serve.cp(&["--list", &serve.at("")]).done().stdout.contains("more"));
}

/// A server whose addresses are those of its configuration, which lets anybody in.
struct Addressed {
    serve: Serve,
    export: TempDir,
    dir: TempDir,
}

impl Addressed {
    fn start(home: Home, listen: &str, metrics: &str, more: &str) -> Self {
        let (export, dir) = (folder(b"bytes"), tempfile::tempdir().expect("a folder"));
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("ours");
        let config = dir.path().join("serve.toml");
        write(&config, listen, metrics, more, export.path());
        let flags = ["--reloadable", "--config", &text(&config)];
        let serve = Serve::plain(&Arc::new(home), &flags);
        Self { serve, export, dir }
    }

    /// Has it read another configuration.
    fn reload(&self, listen: &str, metrics: &str, more: &str) {
        let config = self.dir.path().join("serve.toml");
        write(&config, listen, metrics, more, self.export.path());
        self.serve.signal(Signal::HUP);
    }

    /// Waits until it did not take a configuration so many times, and says why not the last time.
    fn refusal(&self, times: usize) -> String {
        let words = "configuration rejected";
        let log = self.serve.logged(words, times);
        log.lines().rfind(|line| line.contains(words)).expect("it was logged").to_owned()
    }

    /// Waits until it listens for so many times, and serves.
    fn serves(&self, times: usize) {
        self.serve.logged(" listening ", times);
        self.serve.cp(&["--list", &self.serve.at("data")]).done();
    }
}

fn write(config: &Path, listen: &str, metrics: &str, more: &str, export: &Path) {
    let keys = format!("listen = {listen:?}\ninsecure_no_auth = true\n{more}\n");
    let keys = format!("{keys}[metrics]\nlisten = {metrics:?}\n");
    configure(config, &keys, &[("data", export)]);
}

#[test]
fn an_address_that_cannot_be_had_changes_nothing() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let (free, taken) = ("127.0.0.1:0", taken.local_addr().expect("ours").to_string());
    let server = Addressed::start(Home::new(), free, free, "");
    let before = child_of(&server.serve);
    // Of others, and of other machines (RFC 5737).
    let refused = [
        (free, &*taken, format!("cannot listen for metrics on {taken}")),
        (free, "192.0.2.1:9469", "cannot listen for metrics on 192.0.2.1:9469".into()),
        (&*taken, free, format!("cannot listen on {taken}")),
        ("192.0.2.1:20490", free, "cannot listen on 192.0.2.1:20490".into()),
    ];
    for (number, (listen, metrics, why)) in refused.into_iter().enumerate() {
        server.reload(listen, metrics, "");
        let line = server.refusal(number + 1);
        assert!(line.contains(&why), "{line}");
    }
    assert_eq!((child_of(&server.serve), before.is_some()), (before, true), "it goes on");
    server.serves(1);
}

#[test]
fn a_user_that_it_cannot_become_changes_nothing() {
    let name = "a_user_that_it_cannot_become_changes_nothing";
    let Some(home) = Home::powerless() else { return skip(name, "nobody may not run this build") };
    let server = Addressed::start(home, "127.0.0.1:0", "off", "");
    let before = child_of(&server.serve);
    server.reload("127.0.0.1:0", "off", "user = \"daemon\"");
    let line = server.refusal(1);
    assert!(line.contains("only root can become another user"), "{line}");
    assert_eq!((child_of(&server.serve), before.is_some()), (before, true), "it goes on");
    server.serves(1);
}

#[test]
fn an_address_that_holds_the_one_before_is_served_or_nothing_is_lost() {
    let held = Port::take();
    let [all, other] = ["0.0.0.0", "127.0.0.2"].map(|ip| format!("{ip}:{}", held.address.port()));
    let server = Addressed::start(Home::new(), &held.text(), "off", "");
    let in_way = TcpListener::bind(&other).expect("a free address");
    server.reload(&all, "off", "");
    let line = server.refusal(1);
    assert!(line.contains(&format!("cannot listen on {all}")), "{line}");
    server.serves(2);
    drop(in_way);
    server.reload(&all, "off", "");
    server.serves(3);
    let there = |address: &str| std::net::TcpStream::connect(address).is_ok();
    assert!(there(&other));
    // And back.
    server.reload(&held.text(), "off", "");
    server.serves(4);
    assert!(!there(&other));
}

#[test]
fn a_server_that_cannot_start_anew_is_started_as_it_was() {
    let (held, free) = (Port::take(), "127.0.0.1:0");
    let [all, other] = ["0.0.0.0", "127.0.0.2"].map(|ip| format!("{ip}:{}", held.address.port()));
    let mut server = Addressed::start(Home::new(), free, &held.text(), "");
    let _in_way = TcpListener::bind(&other).expect("a free address");
    // Whether the rest of it is free shows when the server is gone.
    server.reload(free, &all, "");
    server.serve.said(&format!("cannot listen for metrics on {all}"));
    let line = server.refusal(1);
    assert!(line.contains("the old one stays active"), "{line}");
    server.serves(2);
    assert_eq!(get(held.address, "/readyz").status, 200);
    server.reload(free, &held.text(), "drain_seconds = 1");
    server.serves(3);
    server.serve.signal(Signal::TERM);
    assert_eq!(server.serve.end(), Some(0));
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
    wait_for(&format!("process {child}, which serves, is gone, too"), FOLLOW_MAX, || {
        let status = status(child);
        seen(status.is_empty() || status.contains("State:\tZ"), Text(status))
    });
}

#[test]
fn a_server_without_a_parent_stops_at_a_hangup() {
    let export = folder(b"bytes");
    let serve = Serve::start(&[format!("data={}", text(export.path()))]);
    serve.signal(Signal::HUP);
    assert_eq!(serve.end(), Some(0));
}
