//! What an export says about who may use it: names, addresses, being hidden, and
//! how much may be written.

use crate::process::{Serve, Signal};
use crate::{World, names};

const TOML: &str = r#"
[[export]]
path = "DIR/data"
tokens = ["alice"]

[[export]]
name = "far"
path = "DIR/data"
addresses = ["192.0.2.0/24", "2001:db8::/32"]

[[export]]
name = "near"
path = "DIR/data"
addresses = ["127.0.0.0/8"]
hidden = true

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
    assert!(!of_alice.contains("near/"), "it is hidden: {of_alice}");

    let fetch = |token: &str, export: &str| {
        let from = world.serve.at(&format!("{export}/small"));
        world.cp(token, &[&from, &world.text("out")])
    };
    fetch(&alice, "data").done();
    fetch(&bob, "data").refused(1, &["no export is called data"]);
    fetch(&alice, "far").refused(1, &["no export is called far"]);
    fetch(&bob, "near").done();
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
    // Nor does its page say what lists do not.
    let page = world.serve.metrics.expect("it has a page");
    let told = verbatim_tests::http::get(page, "/api/v1/status").body;
    assert!(told.contains("\"data\"") && !told.contains("\"near\""), "{told}");
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
    assert!(open("in") && open("far") && !open("data"), "{log}");
    let anybody = crate::process::Home::new();
    let trusted = ["--fingerprint", &world.serve.fingerprint];
    let fetch = |path: &str| {
        anybody.cp(&[trusted[0], trusted[1], &world.serve.at(path), &world.text("out")])
    };
    fetch("near/small").done();
    fetch("data/small").refused(1, &["no export is called data"]);
}
