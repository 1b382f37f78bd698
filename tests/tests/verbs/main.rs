//! The real commands over a real RDMA device: run by `tests/softroce/run`, in a
//! guest kernel where this machine has no device. Every copy here must say that
//! verbs carried it and that requests were posted, or why it went on over TCP.

mod budget;
mod choosing;
mod doctor;
mod following;
mod huge;
mod into_files;
mod mount;
mod pipes;
mod rails;
mod rights;
mod sealing;

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use verbatim_tests::holding::{Devices, Holding};
use verbatim_tests::http::{get, series};
use verbatim_tests::process::{Ended, Home, Running, Serve, Signal};
use verbatim_tests::process::{contents, exists, seen, wait_for};
use verbatim_tests::tree;

/// A file whose copy takes two seconds, slowly.
const BIG_BYTES: usize = 32 << 20;
const SLOWLY: &str = "--bwlimit=16M";

/// How long a copy may take to begin.
const BEGIN_MAX: Duration = Duration::from_secs(30);

/// A folder in memory with exports `data` (read-only) and `in` (writable), and `out`.
fn folders() -> TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    for name in ["data", "in", "out"] {
        fs::create_dir(dir.path().join(name)).expect("a folder");
    }
    dir
}

fn exports(dir: &Path) -> [String; 2] {
    let path = |name: &str| dir.join(name).display().to_string();
    [format!("data={}", path("data")), format!("in={}:rw", path("in"))]
}

fn summary(ended: &Ended) -> Value {
    let line = ended.stdout.lines().last().expect("a summary");
    serde_json::from_str(line).expect("the summary is JSON")
}

/// Fails unless verbs alone carried it: `reads` says which way.
#[track_caller]
fn assert_verbs(ended: &Ended, reads: bool) {
    let summary = summary(ended);
    let transport = summary["transport"].as_str().expect("a transport");
    assert!(transport.starts_with("verbs ") && !transport.contains("tcp"), "{summary}");
    let key = if reads { "rdma_reads" } else { "rdma_writes" };
    assert!(summary[key].as_u64() > Some(0), "no request was posted: {summary}");
    // What was read was waited for, unless its link died; a write may be known to be stored
    // before it is done.
    let (posted, done) = (summary[key].as_u64(), summary[format!("{key}_done")].as_u64());
    assert!(done > Some(0) && done <= posted, "{summary}");
    let undisturbed = summary["reconnects"] == 0 && summary["links_lost"] == 0;
    assert!(done == posted || !reads || !undisturbed, "{summary}");
}

fn is_same(left: PathBuf, right: PathBuf) -> bool {
    fs::read(left).expect("reads") == fs::read(right).expect("reads")
}

/// The commands that copy `data/big` down and up at this rate, what it lands in, and whether it
/// is read.
fn both_ways(serve: &Serve, dir: &Path, rate: &str) -> [(Vec<String>, PathBuf, bool); 2] {
    let command = |from: String, to: String| vec!["--json".into(), rate.into(), from, to];
    let path = |name: &str| dir.join(name).display().to_string();
    [
        (command(serve.at("data/big"), path("out")), dir.join("out"), true),
        (command(path("data/big"), serve.at("in")), dir.join("in"), false),
    ]
}

/// Exports whose `data/big` has so many bytes, and their server.
fn serve_big(bytes: usize) -> (TempDir, Serve) {
    let dir = folders();
    tree::write(&dir.path().join("data/big"), &tree::content(1, bytes));
    let serve = Serve::start(&exports(dir.path()));
    (dir, serve)
}

/// Fails unless a copy that began over verbs went on over TCP, and says why.
#[track_caller]
fn assert_left_for_tcp(ended: &Ended, why: &str) {
    let summary = summary(ended);
    let transport = summary["transport"].as_str().expect("a transport");
    assert!(transport.starts_with("verbs ") && transport.ends_with("tcp"), "{summary}");
    let reason = summary["reason"].as_str().expect("a reason");
    assert!(reason.contains(why), "{reason}");
    assert!(summary["rdma_reads"].as_u64().max(summary["rdma_writes"].as_u64()) > Some(0));
}

/// Runs a command of the guest, and fails with it.
fn guest(command: &str) {
    let words: Vec<_> = command.split_whitespace().collect();
    let status = Command::new(words[0]).args(&words[1..]).status();
    assert!(status.expect("it runs").success(), "{command}");
}

/// Waits until a partial file is there, and something in its journal.
#[track_caller]
fn wait_for_journal(copy: &mut Running, folder: &Path) {
    wait_for("the copy has a journal of more than 600 bytes in its target", BEGIN_MAX, || {
        copy.assert_runs("the copy ended before it was looked at");
        let entries = fs::read_dir(folder).expect("lists").flatten();
        let journals = entries.filter(|e| e.file_name().as_encoded_bytes().ends_with(b"-journal"));
        let longest = journals.filter_map(|entry| Some(entry.metadata().ok()?.len())).max();
        seen(longest > Some(600), (contents(folder), copy.report()))
    });
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn the_commands_copy_over_verbs_both_ways_and_say_so() {
    let dir = folders();
    tree::write(&dir.path().join("data/a"), &tree::content(1, 20 << 20));
    for index in 0..50 {
        tree::write(&dir.path().join(format!("data/t/{index}")), &tree::content(index, 5000));
    }
    let serve = Serve::start(&exports(dir.path()));
    let out = dir.path().join("out").display().to_string();
    let done = serve.cp(&["-r", "--json", &serve.at("data/."), &out]).done();
    assert_verbs(&done, true);
    let done = serve.cp(&["-r", "--json", &format!("{out}/."), &serve.at("in")]).done();
    assert_verbs(&done, false);
    tree::assert_same(&dir.path().join("data"), &dir.path().join("in"));
    assert!(serve.log().contains("RDMA is offered"), "{}", serve.log());
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_client_killed_at_any_moment_goes_on_over_verbs() {
    let dir = folders();
    let big = dir.path().join("data/big");
    tree::write(&big, &tree::content(1, BIG_BYTES));
    // Only what a later write would change the time of is gone on with.
    std::thread::sleep(Duration::from_millis(2100));
    let serve = Serve::start(&exports(dir.path()));
    let (idle, descriptors) = (Devices::now(), Holding::of(serve.id()).descriptors);
    // So slowly that it is certainly under way when it is looked at.
    const CRAWLING: &str = "--bwlimit=2M";
    for (command, folder, reads) in both_ways(&serve, dir.path(), CRAWLING) {
        let mut copy = serve.start_cp(&command);
        wait_for_journal(&mut copy, &folder);
        let busy = Devices::now();
        assert!(busy.of("qp") > idle.of("qp") && busy.of("mr") > idle.of("mr"), "{busy:?}");
        assert!(registered(&serve) > 0.0, "the server shows nothing of it");
        copy.signal(Signal::KILL);
        copy.end();
        assert!(!folder.join("big").exists(), "a partial file has the final name");
        let unlimited: Vec<_> = command.iter().filter(|word| *word != CRAWLING).collect();
        let done = serve.cp(&unlimited).done();
        assert_verbs(&done, reads);
        assert!(is_same(big.clone(), folder.join("big")));
        if reads {
            assert!(summary(&done)["resumed_bytes"].as_u64() > Some(0), "{done:?}");
        }
    }
    let what = format!("the devices and the server are as before: {idle:?}, {descriptors} files");
    wait_for(&what, BEGIN_MAX, || {
        let (now, devices, registered) =
            (Holding::of(serve.id()), Devices::now(), registered(&serve));
        let few = now.descriptors <= descriptors + POOL_DESCRIPTORS_MAX;
        let done = devices.is_within(&idle) && registered == 0.0 && few;
        seen(done, (devices, now, format!("{registered} registered")))
    });
}

/// What the threads of a pool keep open of the folders they wrote to last.
const POOL_DESCRIPTORS_MAX: usize = 8;

/// What a server shows of registered memory and of queue pairs, added up.
fn registered(serve: &Serve) -> f64 {
    let text = get(serve.metrics.expect("it shows metrics"), "/metrics").body;
    let names = ["regions", "pinned_bytes", "slots", "queue_pairs{state=\"rts\"}"];
    let of = |name| series(&text, &format!("rdma_serve_{name}"));
    names.map(|name| of(name).unwrap_or_else(|| panic!("no {name} in {text}"))).iter().sum()
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_server_killed_in_the_middle_is_gone_on_with_when_it_is_back() {
    let dir = folders();
    let (data, out) = (dir.path().join("data"), dir.path().join("out"));
    tree::write(&data.join("big"), &tree::content(1, BIG_BYTES));
    let home = Arc::new(Home::new());
    let serve = Serve::of(&home, "127.0.0.1:0", &exports(dir.path()));
    let listen = serve.address.to_string();
    let command =
        ["--json".to_owned(), SLOWLY.into(), serve.at("data/big"), out.display().to_string()];
    let mut copy = serve.start_cp(&command);
    wait_for_journal(&mut copy, &out);
    serve.signal(Signal::KILL);
    drop(serve);
    let serve = Serve::of(&home, &listen, &exports(dir.path()));
    // Either it found the server again by itself, or the same command goes on.
    let ended = copy.end();
    let ended = if ended.code == Some(0) { ended } else { serve.cp(&command).done() };
    assert_verbs(&ended, true);
    assert!(is_same(data.join("big"), out.join("big")));
}

/// The network device under the RDMA device, in a guest that is ours to disturb.
fn guest_netdev() -> String {
    assert!(std::env::var_os("VERBATIM_GUEST").is_some(), "only in a guest of our own");
    std::env::var("VERBATIM_RDMA_NETDEV").expect("the guest names it")
}

fn ip_link(netdev: &str, state: &str) {
    let status = Command::new("ip").args(["link", "set", netdev, state]).status();
    assert!(status.expect("ip runs").success(), "ip link set {netdev} {state}");
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_port_that_goes_down_in_the_middle_is_left_for_tcp() {
    if std::env::var_os("VERBATIM_GUEST").is_none() {
        return verbatim_tests::process::skip(
            "a_port_that_goes_down_in_the_middle_is_left_for_tcp",
            "it would take down a port of this machine",
        );
    }
    let netdev = guest_netdev();
    let (dir, serve) = serve_big(BIG_BYTES);
    for (command, folder, _) in both_ways(&serve, dir.path(), SLOWLY) {
        let mut copy = serve.start_cp(&command);
        wait_for_journal(&mut copy, &folder);
        ip_link(&netdev, "down");
        let ended = copy.end();
        ip_link(&netdev, "up");
        assert_left_for_tcp(&ended.done(), "port");
        assert!(is_same(dir.path().join("data/big"), folder.join("big")));
    }
}

/// Runs a command as nobody, who may pin 64 KiB.
const FEW_PINS: [&str; 6] = [
    "prlimit",
    "--memlock=65536:65536",
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
];

fn open_to_all(path: &Path) {
    let status = Command::new("chown").args(["-R", "65534:65534"]).arg(path).status();
    assert!(status.expect("chown runs").success());
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_small_memlock_limit_on_either_side_means_tcp_and_says_how_to_raise_it() {
    let dir = folders();
    tree::write(&dir.path().join("data/a"), &tree::content(1, 5 << 20));
    open_to_all(dir.path());
    let out = dir.path().join("out").display().to_string();
    let [poor, rich] = [true, false].map(|limited| {
        let home = Home::new();
        open_to_all(home.path());
        // The one may pin little, the other is the same user without the limit.
        let wrapper = if limited { &FEW_PINS[..] } else { &FEW_PINS[2..] };
        Arc::new(home.wrapped(wrapper))
    });
    // The client may pin little: it proves the key of the server's user, its own.
    let serve = Serve::of(&rich, "127.0.0.1:0", &exports(dir.path()));
    let state = rich.state().display().to_string();
    for command in [
        ["--state", &state, "--json", &serve.at("data/a"), &out],
        ["--state", &state, "--json", &format!("{out}/a"), &serve.at("in")],
    ] {
        let plain = rich.command("rdma-cp", &command[2..]);
        let mut limited = Command::new(FEW_PINS[0]);
        limited.arg(FEW_PINS[1]).arg(plain.get_program()).args(plain.get_args());
        for (key, value) in plain.get_envs().filter_map(|(key, value)| Some((key, value?))) {
            limited.env(key, value);
        }
        assert_memlock(&Running::start(limited).end().done());
    }
    drop(serve);
    // The server may pin little.
    let serve = Serve::of(&poor, "127.0.0.1:0", &exports(dir.path()));
    let again = dir.path().join("out/again").display().to_string();
    assert_memlock(&serve.cp(&["--json", &serve.at("data/a"), &again]).done());
    assert!(is_same(dir.path().join("data/a"), dir.path().join("out/again")));
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn an_upload_leaves_a_device_that_takes_no_slots_and_says_why() {
    let dir = folders();
    let (from, to) = (dir.path().join("out/a"), dir.path().join("in/a"));
    tree::write(&from, &tree::content(1, 24 << 20));
    open_to_all(dir.path());
    let home = Home::new();
    open_to_all(home.path());
    let serve =
        Serve::of(&Arc::new(home.wrapped(&FEW_PINS[2..])), "127.0.0.1:0", &exports(dir.path()));
    // Enough to try a device with, and not for the slots of four links.
    let (limit, pid) = ("--memlock=3145728:3145728", serve.pid().to_string());
    let limited = Command::new(FEW_PINS[0]).args([limit, "--pid", &pid]).status();
    assert!(limited.expect("prlimit runs").success());
    let flags = ["--json", "--qps", "4", "--chunk-size", "1M"];
    let ends = [from.display().to_string(), serve.at("in")];
    let ended = serve.cp(&[&flags[..], &[&ends[0], &ends[1]]].concat()).done();
    assert!(is_same(from, to));
    let summary = summary(&ended);
    let reason = summary["reason"].as_str().expect("a reason");
    assert!(reason.contains("cannot register slots"), "{summary}");
}

#[track_caller]
fn assert_memlock(ended: &Ended) {
    let summary = summary(ended);
    assert!(summary["transport"].as_str().is_some_and(|name| name.ends_with("tcp")), "{summary}");
    let reason = summary["reason"].as_str().expect("a reason");
    assert!(reason.contains("memlock"), "{reason}");
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_server_without_rdma_is_copied_from_over_tcp_unless_the_user_insists() {
    let dir = folders();
    tree::write(&dir.path().join("data/a"), &tree::content(1, 5 << 20));
    let config = dir.path().join("serve.toml");
    fs::write(&config, "[rdma]\nenable = false\n").expect("writes");
    let [data, landing] = exports(dir.path());
    let config = config.display().to_string();
    let serve = Serve::start(&["--config", &config, &data, &landing]);
    let out = dir.path().join("out").display().to_string();
    let done = serve.cp(&["--json", &serve.at("data/a"), &out]).done();
    let told = summary(&done);
    assert_eq!(told["transport"], "tcp", "{told}");
    assert!(told["reason"].as_str().is_some_and(|why| why.contains("switched off")), "{told}");
    let insisted = serve.cp(&["--transport", "verbs", &serve.at("data/a"), &out]);
    insisted.refused(3, &["switched off"]);
}
