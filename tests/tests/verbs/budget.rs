//! The pin budget over a real device: what the kernel says is pinned never exceeds
//! it, files far larger than it arrive, and many clients share it.

use super::{assert_verbs, exports, folders, is_same, summary};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use verbatim_tests::http::{get, series};
use verbatim_tests::process::{Home, Running, Serve, seen, wait_for, when};
use verbatim_tests::tree;

const MIB: usize = 1 << 20;

/// Clients at a time: twenty, and half of them where a run must be short.
fn clients() -> usize {
    if is_long() { 20 } else { 10 }
}

/// Whether this is a run of `tests/run --full`, which takes what a slow guest takes.
fn is_long() -> bool {
    std::env::var_os("VERBATIM_TRIALS").is_some()
}

fn serve(dir: &Path, budget_mb: u32) -> Serve {
    serve_with(dir, &format!("pin_budget_mb = {budget_mb}"))
}

/// A server with this in its table for RDMA.
pub fn serve_with(dir: &Path, keys: &str) -> Serve {
    let config = dir.join("serve.toml");
    let text = format!("[rdma]\n{keys}\n[log]\nlevel = \"debug\"\n");
    fs::write(&config, text).expect("writes");
    let [data, landing] = exports(dir);
    let home = Arc::new(Home::new());
    Serve::of(&home, "127.0.0.1:0", &["--config", &config.display().to_string(), &data, &landing])
}

/// What the kernel counts as pinned by a process, in bytes.
pub fn pinned_by(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("VmPin");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

/// Waits for copies; returns the most that the server had pinned meanwhile.
fn watch(serve: &Serve, copies: &mut [Running]) -> u64 {
    let mut most = 0;
    while !copies.iter_mut().all(Running::has_ended) {
        most = most.max(pinned_by(serve.id()));
        std::thread::sleep(Duration::from_millis(2));
    }
    most
}

/// Fails unless no more was pinned than may be, as the kernel says and as the server does, which
/// tells it at the end of each of so many sessions.
#[track_caller]
fn assert_within(serve: &Serve, most: u64, budget_mb: u64, sessions: usize) {
    assert!(most > 0, "nothing was seen pinned");
    assert!(most <= budget_mb << 20, "{most} bytes were pinned");
    let log = serve.logged("peak_bytes=", sessions);
    let peaks = log
        .split("peak_bytes=")
        .skip(1)
        .filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok());
    let peak = peaks.max().expect("the server tells its peak");
    assert!(peak <= budget_mb << 20 && peak + (1 << 20) >= most, "{peak} told, {most} seen");
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_session_that_may_pin_little_waits_instead_of_failing() {
    let dir = folders();
    let big = dir.path().join("data/big");
    // Five windows, where four may be pinned.
    tree::write(&big, &tree::content(2, if is_long() { 96 } else { 72 } * MIB));
    let serve = serve_with(dir.path(), "pinned_mb_per_session = 64");
    let out = dir.path().join("out").display().to_string();
    let down = serve.cp(&["--json", &serve.at("data/big"), &out]).done();
    assert_verbs(&down, true);
    assert!(is_same(big.clone(), dir.path().join("out/big")));
    // Slots for all of these streams would be 512 MiB.
    let up = ["--json", "-j8", "--chunk-size=16M", &big.display().to_string(), &serve.at("in")];
    let up = serve.cp(&up).done();
    assert_verbs(&up, false);
    assert!(is_same(big, dir.path().join("in/big")));
    for done in [down, up] {
        assert_eq!(summary(&done)["links_lost"], 0, "{done:?}");
    }
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_file_far_larger_than_the_budget_arrives_both_ways() {
    let dir = folders();
    let big = dir.path().join("data/big");
    tree::write(&big, &tree::content(1, if is_long() { 256 } else { 64 } * MIB));
    let serve = serve(dir.path(), 8);
    let out = dir.path().join("out").display().to_string();
    let mut copies = [serve.start_cp(&["--json", &serve.at("data/big"), &out])];
    let most = watch(&serve, &mut copies);
    let [down] = copies;
    assert_verbs(&down.end().done(), true);
    assert!(is_same(big.clone(), dir.path().join("out/big")));
    assert_within(&serve, most, 8, 1);
    fs::remove_file(dir.path().join("out/big")).expect("removes");

    let mut copies = [serve.start_cp(&["--json", &big.display().to_string(), &serve.at("in")])];
    let most = watch(&serve, &mut copies);
    let [up] = copies;
    assert_verbs(&up.end().done(), false);
    assert!(is_same(big, dir.path().join("in/big")));
    assert_within(&serve, most, 8, 2);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn many_clients_share_the_budget_and_one_hashing() {
    let dir = folders();
    let big = dir.path().join("data/big");
    tree::write(&big, &tree::content(1, 17 * MIB));
    // An identity younger than this is not trusted, so it is hashed for each client.
    std::thread::sleep(Duration::from_millis(2100));
    for (budget_mb, all_verbs) in [(64, true), (8, false)] {
        let serve = serve(dir.path(), budget_mb);
        let target = |client: usize| dir.path().join(format!("out/{client}"));
        let start = |client| {
            let path = target(client).display().to_string();
            serve.start_cp(&["--json", &serve.at("data/big"), &path])
        };
        let mut copies: Vec<Running> = (0..clients()).map(start).collect();
        let most = watch(&serve, &mut copies);
        let mut over_verbs = 0;
        for (client, copy) in copies.into_iter().enumerate() {
            let done = copy.end().done();
            assert!(is_same(big.clone(), target(client)), "client {client}");
            fs::remove_file(target(client)).expect("removes");
            let summary = summary(&done);
            match summary["transport"].as_str() {
                Some("tcp") => {
                    let reason = summary["reason"].as_str().expect("a reason");
                    assert!(!all_verbs && reason.contains("its budget is"), "{reason}");
                }
                _ => {
                    assert_verbs(&done, true);
                    over_verbs += 1;
                }
            }
        }
        assert!(over_verbs >= 2, "{over_verbs} clients were served over verbs");
        assert_within(&serve, most, u64::from(budget_mb), over_verbs);
        let hashed = serve.log().matches("window hashed").count();
        assert_eq!(hashed, 2, "17 MiB are two windows, for however many clients");
    }
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_budget_that_is_full_is_seen_from_outside() {
    let dir = folders();
    let big = dir.path().join("data/big");
    tree::write(&big, &tree::content(1, 16 * MIB));
    let serve = serve(dir.path(), 8);
    let metrics = serve.metrics.expect("it shows metrics");
    let value = |name: &str| {
        let name = format!("rdma_serve_{name}");
        series(&get(metrics, "/metrics").body, &name).unwrap_or_else(|| panic!("no {name}"))
    };
    assert_eq!(value("pinned_limit_bytes"), (8 * MIB) as f64);
    // Slots stay pinned as long as their client is in: these take their time. The first gets half
    // of the budget, the next half of what is left.
    let slow = |client: usize| {
        let (from, there) = (big.display().to_string(), serve.at(&format!("in/{client}")));
        let flags = ["-qj4", "--transport", "verbs", "--chunk-size", "256K", "--bwlimit", "256K"];
        serve.start_cp(&[&flags[..], &[&from, &there]].concat())
    };
    let copies: Vec<Running> = (0..4).map(slow).collect();
    // What the rule for the alert asks, of numbers of one moment.
    wait_for("more than 0.9 of what the server may pin is pinned", super::BEGIN_MAX, || {
        let page = get(metrics, "/metrics").body;
        let of = |name: &str| series(&page, &format!("rdma_serve_{name}"));
        let (pinned, limit) = (of("pinned_bytes"), of("pinned_limit_bytes"));
        let is_full = pinned.zip(limit).is_some_and(|(pinned, limit)| pinned > 0.9 * limit);
        seen(is_full, format!("pinned_bytes {pinned:?}, pinned_limit_bytes {limit:?}"))
    });
    drop(copies);
    for name in ["pinned_bytes", "regions", "slots"] {
        let what = format!("the server shows {name} as 0, as its clients are gone");
        wait_for(&what, super::BEGIN_MAX, || when(value(name), |value| *value == 0.0));
    }
}
