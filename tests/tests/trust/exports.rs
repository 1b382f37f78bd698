//! What an export says about who may use it: names, addresses, being hidden, and
//! how much may be written.

use crate::process::{Home, Running, Serve, Signal, Text, skip, wait_for};
use crate::{FOLLOW_MAX, World, folders, names, text};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use verbatim_tests::http;

const TOML: &str = r#"
[[export]]
path = "DIR/data"
tokens = ["alice"]

[[export]]
name = "far"
path = "DIR/data"
addresses = ["192.0.2.0/24", "2001:db8::/32"]

[[export]]
name = "veiled"
path = "DIR/data"
addresses = ["127.0.0.0/8"]
hidden = true

[[export]]
name = "certified"
path = "DIR/data"
certificates = ["alice.example"]

[[export]]
path = "DIR/in"
mode = "rw"
quota_mb = 3
"#;

#[test]
fn an_export_is_there_for_those_it_names_and_nobody_else() {
    let world = World::configured(TOML);
    let alice = world.add("alice", &["--export", "*:rw"]);
    let bob = world.add("bob", &["--export", "*:rw"]);
    let listed = |token: &str| world.cp(token, &["--list", &world.serve.at("")]).done().stdout;
    let (of_alice, of_bob) = (listed(&alice), listed(&bob));
    assert!(of_alice.contains("data/") && !of_bob.contains("data/"), "{of_alice} {of_bob}");
    assert!(!of_alice.contains("far/"), "it is for other addresses: {of_alice}");
    assert!(!of_alice.contains("veiled/"), "it is hidden: {of_alice}");

    let fetch = |token: &str, export: &str| {
        let from = world.serve.at(&format!("{export}/small"));
        world.cp(token, &[&from, &world.text("out")])
    };
    fetch(&alice, "data").done();
    fetch(&bob, "data").refused(1, &["no export is called data"]);
    fetch(&alice, "far").refused(1, &["no export is called far"]);
    fetch(&bob, "veiled").done();
    // The user of the server may read these files with cp as well.
    let from = world.serve.at("far/small");
    world.serve.cp(&[&from, &world.text("out")]).done();
}

#[test]
fn a_quota_of_written_bytes_is_for_all_clients_together() {
    let world = World::configured(TOML);
    let token = world.add("alice", &["--export", "in:rw"]);
    let put = |from: &str, name: &str| {
        let to = world.serve.at(&format!("in/{name}"));
        world.cp(&token, &[&world.text(from), &to])
    };
    // 8 MiB never fit, 2 MiB do once.
    put("data/large", "a").refused(1, &["the quota of in is used up", "quota_mb"]);
    std::fs::write(world.path("two"), vec![7; 2 << 20]).unwrap();
    put("two", "b").done();
    put("two", "c").refused(1, &["the quota of in is used up"]);
    put("data/small", "d").done();
    assert_eq!(names(&world.path("in")), ["b", "d"]);

    // The next server knows what was written, though it starts anew.
    let World { serve, dir, home } = world;
    serve.signal(Signal::TERM);
    assert_eq!(serve.end(), Some(0));
    let config = dir.path().join("serve.toml");
    let serve = Serve::of(&home, "127.0.0.1:0", &["--config", &crate::text(&config)]);
    let world = World { serve, dir, home };
    let to = world.serve.at("in/e");
    let ended = world.cp(&token, &[&world.text("two"), &to]);
    ended.refused(1, &["the quota of in is used up"]);

    // One that cannot know it does not start: the quota would be used twice.
    let World { serve, dir, home } = world;
    serve.signal(Signal::TERM);
    assert_eq!(serve.end(), Some(0));
    let kept = home.state().join("quotas.toml");
    std::fs::write(&kept, "nonsense").unwrap();
    let config = dir.path().join("serve.toml");
    let refused = home.serve(&["--listen", "127.0.0.1:0", "--config", &crate::text(&config)]);
    refused.refused(1, &["quotas.toml", "it is not what rdma-serve wrote", "remove it"]);
}

#[test]
fn neither_the_page_nor_the_status_tells_of_a_hidden_export() {
    let world = World::configured(TOML);
    let token = world.add("alice", &["--export", "*:rw"]);
    let slowly = |path: &str, name: &str| {
        let (from, to) = (world.serve.at(path), world.text(name));
        let (home, command) = world.command(&token, &["--bwlimit", "1M", &from, &to]);
        (home, Running::start(command))
    };
    let put = |path: &str| {
        let ended = world.cp(&token, &[&world.text("data/small"), &world.serve.at(path)]);
        ended.refused(1, &[path, "read-only"]);
    };
    put("veiled/not-there");
    put("data/not-here");
    let _copies = (slowly("veiled/large", "out/a"), slowly("data/large", "out/b"));
    let page = world.serve.metrics.expect("it has a page");
    let what = "both copies have opened their file, and the status tells of data/large";
    let told = wait_for(what, FOLLOW_MAX, || {
        let told = http::get(page, "/api/v1/status").body;
        let metrics = http::get(page, "/metrics").body;
        let name = r#"rdma_serve_operations_total{operation="open",outcome="ok"}"#;
        let opened = http::series(&metrics, name);
        match opened >= Some(2.0) && told.contains("data/large") {
            true => Ok(told),
            false => Err((opened, Text(told))),
        }
    });
    assert!(told.contains("data/not-here"), "errors are told: {told}");
    assert!(!told.contains("veiled") && !told.contains("not-there"), "{told}");
    assert_eq!(told.matches("/large").count(), 1, "{told}");
    // Whoever runs it is told.
    world.serve.logged("veiled/not-there", 1);
}

#[test]
fn a_server_that_lets_in_anybody_says_what_is_open() {
    let toml = format!("insecure_no_auth = true\n{TOML}");
    let world = World::configured(&toml);
    let log = world.serve.log();
    let open = |name: &str| {
        log.lines().any(|line| {
            line.contains("open to anybody") && line.contains(&format!("name=\"{name}\""))
        })
    };
    assert!(open("in") && open("far") && !open("data") && !open("certified"), "{log}");
    let anybody = crate::process::Home::new();
    let trusted = ["--fingerprint", &world.serve.fingerprint];
    let fetch = |path: &str| {
        anybody.cp(&[trusted[0], trusted[1], &world.serve.at(path), &world.text("out")])
    };
    fetch("veiled/small").done();
    fetch("data/small").refused(1, &["no export is called data"]);
}

/// Mounts something in `data/inner`, binds a folder to `data/bound`, then runs what follows.
const MOUNTED: &str = "mount -t tmpfs none \"$0\"/inner && echo >\"$0\"/inner/file && \
                       mount --bind \"$0\"/../apart \"$0\"/bound && exec \"$@\"";

/// Two exports of one folder, of which one leaves out what is mounted there.
const CROSSING: &str = r#"
[[export]]
name = "all"
path = "DIR/data"
mode = "rw"

[[export]]
name = "one"
path = "DIR/data"
mode = "rw"
cross_mounts = false
"#;

/// A server that has file systems in its export which nobody else sees; none where that cannot be.
fn with_mounts() -> Option<World> {
    let dir = folders();
    for folder in ["data/inner", "data/bound", "apart"] {
        std::fs::create_dir(dir.path().join(folder)).expect("a folder");
    }
    std::fs::write(dir.path().join("apart/file"), b"").expect("a file");
    let data = text(&dir.path().join("data"));
    let wrapper = ["unshare", "-m", "sh", "-c", MOUNTED, &data];
    let able = Command::new(wrapper[0]).args(&wrapper[1..]).arg("true").output();
    if !able.is_ok_and(|output| output.status.success()) {
        return None;
    }
    let home = Arc::new(Home::new().wrapped(&wrapper));
    let config = dir.path().join("serve.toml");
    std::fs::write(&config, CROSSING.replace("DIR", &text(dir.path()))).expect("a file");
    let serve = Serve::of(&home, "127.0.0.1:0", &["--config", &text(&config)]);
    Some(World { serve, dir, home })
}

#[test]
fn mounts_in_an_export_are_left_out_where_cross_mounts_is_false() {
    let name = "mounts_in_an_export_are_left_out_where_cross_mounts_is_false";
    let Some(world) = with_mounts() else { return skip(name, "nothing can be mounted here") };
    let token = world.add("alice", &["--export", "*:rw"]);
    let cp = |arguments: &[&str]| world.cp(&token, arguments);
    let at = |path: &str| world.serve.at(path);
    let within = |folder: &Path| names(folder).join(" ");
    cp(&[&at("all/inner/file"), &world.text("out")]).done();
    cp(&["-r", &at("all"), &world.text("out/all")]).done();
    assert_eq!(within(&world.path("out/all/inner")), "file", "the default crosses mounts");
    cp(&["-r", &at("one"), &world.text("out/one")]).done();
    assert_eq!(within(&world.path("out/one")), "large small");
    let listed = cp(&["--list", &at("one/")]).done().stdout;
    assert!(!listed.contains("inner") && !listed.contains("bound"), "{listed}");
    for mounted in ["one/inner/file", "one/bound/file"] {
        let below = &mounted[4..];
        cp(&[&at(mounted), &world.text("out")]).refused(1, &[below, "cross_mounts = false"]);
    }
    let new = cp(&[&world.text("data/small"), &at("one/inner/new")]);
    new.refused(1, &["inner", "cross_mounts = false"]);
    // A mirror walks its trees in another way.
    let home = Home::new();
    let trusted = ["--fingerprint", &world.serve.fingerprint, &at("one"), &world.text("mirror")];
    let mut sync = home.command("rdma-sync", &trusted);
    sync.env("RDMA_TOKEN", &token);
    Running::start(sync).end().done();
    assert_eq!(within(&world.path("mirror")), "large small");
}
