//! The way to a server: one that answers, none, one that is silent, one that says
//! what it is. And what a server says of its own machine.

use crate::served::{Served, logged};
use crate::{SEEN_MAX, checks, doctor, json};
use serde_json::Value;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbatim_tests::http::get;
use verbatim_tests::port::Port;
use verbatim_tests::process::{Home, Running, Serve, Text, seen, wait_for};

struct World {
    serve: Serve,
    home: Arc<Home>,
    dir: tempfile::TempDir,
}

fn world() -> World {
    let (dir, home) = (tempfile::tempdir().expect("a folder"), Arc::new(Home::new()));
    std::fs::write(dir.path().join("a"), vec![7; 3 << 20]).expect("a file");
    let export = format!("data={}:rw", dir.path().display());
    let serve = Serve::of(&home, "127.0.0.1:0", &[export.as_str()]);
    World { serve, home, dir }
}

#[test]
fn a_server_is_tried_for_real_over_tcp() {
    let World { serve, home, .. } = world();
    let there = serve.address.to_string();
    let tcp = ["--transport", "tcp", "--sample", "0"];
    let ended = doctor(&home, &[&["--json", &there], &tcp[..]].concat());
    let said = json(&ended);
    let way = &said["way"];
    assert_eq!(way["addresses"][0], "127.0.0.1", "{said}");
    assert_eq!(way["fingerprint"], serve.fingerprint);
    let transports = way["transports"].as_array().expect("transports");
    assert_eq!(transports.len(), 1, "{way}");
    assert_eq!(transports[0]["transport"], "tcp");
    let latencies = transports[0]["latency_seconds"].as_array().expect("latencies");
    for latency in latencies {
        let of = |key: &str| latency[key].as_f64().expect("a number");
        assert!(of("count") >= 10.0 && of("p50") > 0.0, "{latency}");
        assert!(of("p50") <= of("p90") && of("p90") <= of("p99") && of("p99") <= of("max"));
    }
    assert_eq!(latencies.len(), 2, "read and write");
    let rates = transports[0]["rates"].as_array().expect("rates");
    let shapes: Vec<_> =
        rates.iter().map(|it| (it["bytes"].as_u64(), it["links"].as_u64())).collect();
    let shape = |bytes, links| (Some(bytes), Some(links));
    let expected =
        [shape(4096, 1), shape(65536, 1), shape(1 << 20, 1), shape(1 << 20, 2), shape(1 << 20, 4)];
    assert_eq!(shapes, [expected, expected].concat(), "for reads, then for writes");
    assert!(rates.iter().all(|it| it["bytes_per_second"].as_f64() > Some(0.0)), "{way}");
    assert_eq!(way["verdict"]["path"], "tcp");
    assert!(way["hash_bytes_per_second"].as_f64() > Some(0.0));

    let ended = doctor(&home, &[&[there.as_str()], &tcp[..]].concat());
    for words in ["way to 127.0.0.1:", "latency", "1024 KiB x 4", "####", "limited by the"] {
        assert!(ended.stdout.contains(words), "no {words} in\n{}", ended.stdout);
    }
    // It was a guest like any other, and left.
    let status = || get(serve.metrics.expect("it shows metrics"), "/api/v1/status").body;
    wait_for("the doctor has left: the server has no session", SEEN_MAX, || {
        let status: Value = serde_json::from_str(&status()).expect("JSON");
        let sessions = &status["sessions"];
        seen(sessions.as_array().is_some_and(Vec::is_empty), Text(sessions.clone()))
    });
}

#[test]
fn a_server_that_is_not_there_or_says_nothing_is_given_up() {
    let home = Home::new();
    let nobody = Port::take();
    let gone = nobody.text();
    let ended = doctor(&home, &["--json", "--sample", "0", &gone]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(checks(&json(&ended)).contains(&"server"), "{ended:?}");

    let silent = TcpListener::bind("127.0.0.1:0").expect("binds");
    let there = silent.local_addr().expect("an address").to_string();
    let begin = Instant::now();
    let arguments = ["--json", "--sample", "0", "--timeout", "2", &there];
    let ended = doctor(&home, &arguments);
    assert!(begin.elapsed() < Duration::from_secs(25), "it took {:?}", begin.elapsed());
    let said = json(&ended);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(said["way"]["error"].as_str().is_some_and(|it| it.contains("2 s")), "{said}");
    let ended = doctor(&home, &["--json", "--sample", "0", "no-such-host.invalid"]);
    assert!(checks(&json(&ended)).contains(&"server"), "{ended:?}");

    let status = doctor(&home, &["--server-status", &gone]);
    status.refused(3, &["cannot get the status", "hint: "]);
}

#[test]
fn a_stranger_is_not_asked_and_is_told_so() {
    let World { serve, .. } = world();
    let ended = doctor(&Home::new(), &["--sample", "0", &serve.address.to_string()]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stdout.contains("BLOCKS  127.0.0.1:"), "{ended:?}");
}

#[test]
fn the_status_of_a_server_is_told_without_prometheus() {
    let World { serve, home, .. } = world();
    let metrics = serve.metrics.expect("it shows metrics").to_string();
    let ended = doctor(&home, &["--server-status", &metrics]).done();
    for words in ["rdma-serve ", ": serving, up for", "export data (rw): ", " free"] {
        assert!(ended.stdout.contains(words), "no {words} in\n{}", ended.stdout);
    }
    let ended = doctor(&home, &["--json", "--server-status", &metrics]).done();
    assert_eq!(json(&ended)["state"], "serving");
}

#[test]
fn a_mirror_leaves_its_numbers_and_its_timeline() {
    let World { serve, home, dir } = world();
    let file = home.path().join("nightly.prom");
    let (trace, target) = (home.path().join("trace.json"), home.path().join("copy"));
    let text = |path: &std::path::Path| path.to_str().expect("plain names").to_owned();
    let arguments = [
        "--metrics-file",
        &text(&file),
        "--trace",
        &text(&trace),
        &serve.at("data"),
        &text(&target),
    ];
    Running::start(home.command("rdma-sync", &arguments)).end().done();
    let numbers = std::fs::read_to_string(&file).expect("the file");
    let bytes = (3 << 20) as f64;
    let line = format!("rdma_sync_bytes{{run=\"nightly\"}} {bytes}");
    assert!(numbers.lines().any(|have| have == line), "no {line} in\n{numbers}");
    let events: Vec<Value> =
        serde_json::from_slice(&std::fs::read(&trace).expect("the trace")).expect("a list");
    assert!(events.iter().any(|event| event["name"] == "read"), "{events:?}");
    let arguments = ["--watch", "--metrics-file", "x.prom", &serve.at("data"), &text(&target)];
    let ended = Running::start(home.command("rdma-sync", &arguments)).end();
    ended.refused(2, &["--metrics-file", "--status-file"]);
    drop(dir);
}

#[test]
fn a_server_says_what_is_degraded_on_its_machine() {
    let served = Served::on("healthy", "sys/class/net/ens1np0/mtu = 1500\n");
    let finding = served.finding("mtu");
    assert_eq!((&finding["severity"], &finding["about"]), (&"limits".into(), &"mlx5_0/1".into()));
    assert_eq!(finding["fix"], "run: ip link set ens1np0 mtu 9000");
    for key in ["is", "should", "why"] {
        assert!(finding[key].as_str().is_some_and(|it| !it.is_empty()), "{key}: {finding}");
    }
    let line = logged(&["WARN", " degraded ", "check=\"mtu\"", "about=\"mlx5_0/1\""]);
    assert!(line.contains("is=\"ens1np0 has an MTU of 1500"), "{line}");
    assert!(line.contains("fix=run: ip link set ens1np0 mtu 9000"), "{line}");
    let shown = doctor(&served.home, &["--server-status", &served.metrics.to_string()]).done();
    let line = "LIMITS mlx5_0/1: ens1np0 has an MTU of 1500";
    assert!(shown.stdout.contains(line), "{}", shown.stdout);
}
