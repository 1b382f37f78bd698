//! What a server shows of itself: metrics, health, status. Asked as a scraper
//! asks, while and behind real copies. The page, Prometheus and Grafana have a
//! group of their own, `operate`.

use crate::http::{get, request, series};
use crate::process::{Home, Serve, Text, contents, seen, wait_for, when};
use crate::{World, text};
use serde_json::Value;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use verbatim_tests::port::Port;
use verbatim_tests::sockets::is_listening;

const WAIT_MAX: Duration = Duration::from_secs(20);

fn moved(address: SocketAddr, direction: &str) -> f64 {
    let name = format!("rdma_serve_bytes_total{{direction=\"{direction}\",transport=\"tcp\"}}");
    series(&get(address, "/metrics").body, &name).expect("the series is there")
}

#[test]
fn what_is_copied_is_counted_once_and_by_direction() {
    let world = World::new();
    let at = world.serve.metrics.expect("it shows metrics");
    assert_eq!((moved(at, "read"), moved(at, "write")), (0.0, 0.0));
    let a_bytes = fs::metadata(world.path("data/a.bin")).unwrap().len() as f64;
    world.serve.cp(&[world.serve.at("data/a.bin"), world.text("out")]).done();
    wait_for("the server counts bytes that were read", WAIT_MAX, || {
        when(moved(at, "read"), |bytes| *bytes > 0.0)
    });
    world.serve.cp(&["-r", &world.text("data"), &world.serve.at("in")]).done();
    assert_eq!(moved(at, "read"), a_bytes);
    assert_eq!(moved(at, "write"), a_bytes + 1.0 + 70_000.0);
    // Digests are compared, and nothing is moved.
    world.serve.cp(&["--verify", &world.serve.at("data/a.bin"), &world.text("out")]).done();
    world.serve.cp(&[world.serve.at("data/none"), world.text("out")]).refused(1, &[]);
    let page = get(at, "/metrics");
    assert!(page.head.contains("application/openmetrics-text"), "{}", page.head);
    let value = |name: &str| series(&page.body, name).unwrap_or_else(|| panic!("no {name}"));
    let operations = |operation: &str, outcome: &str| {
        let labels = format!("{{operation=\"{operation}\",outcome=\"{outcome}\"}}");
        value(&format!("rdma_serve_operations_total{labels}"))
    };
    assert_eq!(value("rdma_serve_bytes_total{direction=\"read\",transport=\"tcp\"}"), a_bytes);
    assert_eq!(operations("commit", "ok"), 4.0);
    assert_eq!((operations("open", "ok"), operations("open", "failed")), (2.0, 0.0));
    assert!(value("rdma_serve_step_seconds_count{step=\"commit\"}") > 0.0);
    assert_eq!(value("rdma_serve_connections_total{result=\"accepted\"}"), 4.0);
    assert_eq!(
        value("rdma_serve_chunks_total{direction=\"read\",transport=\"tcp\",verdict=\"verified\"}"),
        4.0
    );
}

#[test]
fn the_status_tells_who_is_in_and_what_went_wrong() {
    let world = World::new();
    let at = world.serve.metrics.expect("it shows metrics");
    let big = world.path("data/big");
    fs::write(&big, crate::bytes(5, 24 << 20)).unwrap();
    let status = || -> Value { serde_json::from_str(&get(at, "/api/v1/status").body).unwrap() };
    let slow = ["--bwlimit", "4M", &text(&big), &world.serve.at("in/big")].map(str::to_owned);
    let mut copy = world.serve.start_cp(&slow);
    let what = "the status shows done_bytes of the file that is copied";
    let shown = wait_for(what, WAIT_MAX, || {
        copy.assert_runs("the copy was over before the status showed it");
        let status = status();
        let bytes = status["sessions"][0]["files"][0]["done_bytes"].as_u64();
        when(status, |_| bytes > Some(0)).map_err(|status| (Text(status), copy.report()))
    });
    let session = &shown["sessions"][0];
    assert_eq!(session["transport"], "tcp");
    assert_eq!(session["who"], "local");
    assert!(session["agent"].as_str().unwrap().starts_with("rdma-cp "), "{session}");
    let file = &session["files"][0];
    assert_eq!((&file["path"], &file["direction"]), (&"in/big".into(), &"write".into()));
    assert_eq!(file["bytes"], 24 << 20);
    drop(copy);
    wait_for("the status shows no session", WAIT_MAX, || {
        let sessions = status()["sessions"].clone();
        seen(sessions.as_array().is_some_and(Vec::is_empty), Text(sessions))
    });
    world.serve.cp(&[&text(&big), &world.serve.at("data/new")]).refused(1, &["read-only"]);
    let status = status();
    assert_eq!(status["state"], "serving");
    assert_eq!(status["address"], world.serve.address.to_string());
    let exports: Vec<_> = status["exports"].as_array().unwrap().iter().collect();
    assert_eq!((&exports[0]["name"], &exports[0]["mode"]), (&"data".into(), &"ro".into()));
    assert_eq!((&exports[1]["name"], &exports[1]["mode"]), (&"in".into(), &"rw".into()));
    let error = &status["errors"][0];
    assert!(error["text"].as_str().unwrap().contains("read-only"), "{error}");
    assert!(error["hint"].as_str().unwrap().contains(":rw"), "{error}");
}

#[test]
fn the_port_is_for_reading_and_for_names_of_this_machine() {
    let world = World::new();
    let at = world.serve.metrics.expect("it shows metrics");
    assert_eq!(get(at, "/healthz").body, "ok\n");
    assert_eq!(get(at, "/readyz").status, 200);
    let page = get(at, "/");
    assert!(page.head.contains("default-src 'none'"), "{}", page.head);
    let none = get(at, "/etc/passwd");
    assert!(none.status == 404 && none.body.contains("/metrics"), "{none:?}");
    for method in ["POST", "DELETE", "PUT"] {
        assert_eq!(request(at, method, "/metrics", "localhost").status, 405);
    }
    assert_eq!(request(at, "GET", "/api/v1/status", "evil.example").status, 403);
}

#[test]
fn a_file_has_one_line_in_the_log_and_both_ends_call_the_session_the_same() {
    let world = World::new();
    let copied = world.serve.cp(&["--json", "-r", &world.serve.at("data"), &world.text("out")]);
    let copied = copied.done().stdout;
    let summary = copied.lines().last().expect("a summary");
    let summary: Value = serde_json::from_str(summary).unwrap();
    let request = summary["request"].as_str().expect("a request id").to_owned();
    assert_eq!(request.len(), 12, "{request}");
    world.serve.cp(&[world.text("data/a.bin"), world.serve.at("in")]).done();
    let log = world.serve.logged("file stored", 1);
    let lines = |words: &str| -> Vec<String> {
        log.lines().filter(|line| line.contains(words)).map(str::to_owned).collect()
    };
    let sent = lines("file sent");
    assert_eq!(sent.len(), 4, "{log}");
    assert!(sent.iter().all(|line| line.contains(&request)), "{request} in {sent:#?}");
    let a = sent.iter().find(|line| line.contains("path=\"data/a.bin\"")).expect("a line");
    assert!(a.contains("bytes=3145745") && a.contains("transport=\"tcp\""), "{a}");
    assert!(a.contains(" ms=") && a.contains("peer=\"127.0.0.1:"), "{a}");
    let stored = lines("file stored");
    assert!(stored.len() == 1 && stored[0].contains("path=\"in/a.bin\""), "{stored:?}");
    assert!(!stored[0].contains(&request), "another command is another request");
}

#[test]
fn json_logs_at_the_level_of_rust_log_are_an_object_a_line_and_hold_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    crate::make_samples(dir.path());
    let home = Arc::new(Home::new());
    let token = text(&dir.path().join("token"));
    let made = home.cp(&["--new-token", &token]).done();
    fs::create_dir_all(home.state()).unwrap();
    fs::write(home.state().join("authorized_keys"), made.stdout).unwrap();
    let config = dir.path().join("serve.toml");
    fs::write(&config, "[log]\nlevel = \"error\"\nformat = \"json\"\n").unwrap();
    let data = format!("data={}", text(&dir.path().join("data")));
    let arguments = ["--listen", "127.0.0.1:0", "--metrics", "off", "--config"];
    let mut command = home.command("rdma-serve", &arguments);
    command.arg(&config).arg(&data).env("RUST_LOG", "trace");
    let mut serve = crate::process::Running::start(command);
    // The port is the name of the door it leaves.
    let port = wait_for("the server has left a door and listens", WAIT_MAX, || {
        let mut doors = fs::read_dir(home.state().join("local")).into_iter().flatten().flatten();
        let port = doors.find_map(|door| door.path().file_stem()?.to_str()?.parse::<u16>().ok());
        // The door is there a moment before.
        let listening = port.filter(|port| is_listening(*port));
        listening.ok_or_else(|| (port, contents(&home.state().join("local")), serve.report()))
    });
    let from = format!("rdma://127.0.0.1:{port}/data/a.bin");
    let to = text(&dir.path().join("out"));
    let mut copy = home.command("rdma-cp", &["--log-format", "json", "--token-file", &token]);
    copy.args([&from, &to]).env("RUST_LOG", "trace");
    let copied = crate::process::Running::start(copy).end().done();
    serve.signal(crate::process::Signal::TERM);
    let served = serve.end();
    let secret = fs::read_to_string(&token).unwrap();
    let secret = secret.trim();
    for log in [&served.stderr, &copied.stderr] {
        assert!(!log.contains(secret), "the token is in the log");
        // What the copy says of itself beside its log is for people, and has no level.
        let is_log = |line: &&str| {
            line.starts_with('{')
                || [" TRACE", " DEBUG", " INFO"].iter().any(|it| line.contains(it))
        };
        assert!(served.stderr.lines().all(|line| is_log(&line)), "{log}");
        let logged = log.lines().filter(is_log);
        let objects: Vec<Value> =
            logged.map(|line| serde_json::from_str(line).expect(line)).collect();
        assert!(objects.len() > 3 && objects.iter().all(Value::is_object), "{log}");
        // A field of that name would hide what is logged.
        let twice = log.lines().filter(|line| line.matches("\"message\":").count() > 1);
        assert_eq!(twice.collect::<Vec<_>>(), [""; 0]);
        assert!(log.contains("\"TRACE\"") && log.contains("\"content\":"), "nothing is traced");
    }
    // What lets a data connection join is told by the server, and named in the client's log.
    assert!(copied.stderr.contains("secret: JoinSecret"), "{}", copied.stderr);
    let sent = served.stderr.lines().find(|line| line.contains("\"file sent\"")).expect("a line");
    let sent: Value = serde_json::from_str(sent).unwrap();
    assert_eq!(sent["fields"]["path"], "data/a.bin");
    assert_eq!(sent["fields"]["bytes"], 3_145_745);
    assert!(sent["fields"]["request"].is_string(), "{sent}");
}

#[test]
fn a_copy_leaves_a_timeline_and_its_numbers() {
    let world = World::new();
    let (trace, numbers) = (world.path("trace.json"), world.path("nightly.prom"));
    let (at, out) = (world.serve.at("data/a.bin"), world.text("out"));
    let records = ["--trace", &text(&trace), "--metrics-file", &text(&numbers)].map(str::to_owned);
    world.serve.cp(&[&records[..], &[at.clone(), out.clone()]].concat()).done();
    let events: Vec<Value> =
        serde_json::from_str(&fs::read_to_string(&trace).unwrap()).expect("a list of events");
    let count = |name: &str, phase: &str| {
        events.iter().filter(|event| event["name"] == name && event["ph"] == phase).count()
    };
    // Three chunks and a bit are four.
    assert_eq!((count("read", "b"), count("read", "e"), count("verify and store", "X")), (4, 4, 4));
    let text_of = fs::read_to_string(&numbers).unwrap();
    assert_eq!(series(&text_of, "rdma_cp_bytes{run=\"nightly\"}"), Some(3_145_745.0));
    assert_eq!(series(&text_of, "rdma_cp_exit_code{run=\"nightly\"}"), Some(0.0));
    // What cannot begin leaves its numbers too, or the last ones would stay good.
    let nobody = format!("rdma://{}/data/a.bin", Port::take().address);
    world.serve.cp(&["--metrics-file", &text(&numbers), &nobody, &out]).refused(3, &["connect"]);
    let text_of = fs::read_to_string(&numbers).unwrap();
    assert_eq!(series(&text_of, "rdma_cp_exit_code{run=\"nightly\"}"), Some(3.0));
    let nowhere = text(&world.path("none/x.prom"));
    let ended = world.serve.cp(&["--metrics-file", &nowhere, &at, &out]);
    ended.refused(2, &["cannot write", &nowhere]);
}

#[test]
fn a_port_that_was_asked_for_must_be_had_and_the_default_need_not() {
    let dir = tempfile::tempdir().unwrap();
    let export = text(dir.path());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ended = Home::new().serve(&["--listen", "127.0.0.1:0", "--metrics", &address, &export]);
    let said = format!("cannot listen for metrics on {address}: address already in use");
    ended.refused(1, &[&said, "hint: give another address with --metrics"]);
    // Ours, or that of whoever else runs here: taken it is.
    let _default = TcpListener::bind("127.0.0.1:9469");
    let serve = Serve::plain(&Arc::new(Home::new()), &["--listen", "127.0.0.1:0", &export]);
    let log = serve.log();
    assert!(log.contains("WARN no metrics and no page"), "{log}");
    assert_eq!(serve.metrics, None);
    let off = ["--listen", "127.0.0.1:0", "--metrics", "off", &export];
    let serve = Serve::plain(&Arc::new(Home::new()), &off);
    assert_eq!((serve.metrics, serve.log().contains("WARN no metrics")), (None, false));
}
