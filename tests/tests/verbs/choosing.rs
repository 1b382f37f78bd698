//! Which port carries a copy, what is said about it, and what happens where it
//! cannot: an address that is not there or not of the peer's kind, one that goes
//! away, a path that carries nothing. And that TCP, when asked for, is all there is.

use crate::*;
use std::collections::HashSet;
use verbatim_files::limit::processors;
use verbatim_proto::units::{CHUNK_BYTES_DEFAULT, chunk_bytes_for, qps_for};

/// A copy of one file down, with these flags.
fn copy(serve: &Serve, dir: &Path, flags: &[&str]) -> Ended {
    let (from, to) = (serve.at("data/a"), dir.join("out").display().to_string());
    let mut arguments = flags.to_vec();
    arguments.extend([from.as_str(), to.as_str()]);
    serve.cp(&arguments)
}

fn folders_with_a() -> TempDir {
    let dir = folders();
    tree::write(&dir.path().join("data/a"), &tree::content(1, 5 << 20));
    dir
}

#[track_caller]
fn assert_tcp_because(ended: &Ended, words: &[&str]) {
    let told = summary(ended);
    assert_eq!(told["transport"], "tcp", "{told}");
    let reason = told["reason"].as_str().expect("a reason");
    for word in words {
        assert!(reason.contains(word), "{word:?} is not in: {reason}");
    }
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn the_choice_and_its_reason_are_told() {
    let dir = folders_with_a();
    let serve = Serve::start(&exports(dir.path()));
    let done = copy(&serve, dir.path(), &["--json", "-vvv", "--qps", "3"]).done();
    assert_verbs(&done, true);
    let told = summary(&done);
    let port = &told["rdma_ports"][0];
    let known = ["device", "kind", "address", "reason"].map(|key| port[key].as_str());
    assert!(known.iter().all(Option::is_some), "{told}");
    assert!(port["port"].as_u64() > Some(0) && port["gid_index"].is_u64(), "{told}");
    for log in [&done.stderr, &serve.logged("RDMA port chosen", 1)] {
        let line = log.lines().find(|line| line.contains("RDMA port chosen"));
        let line = line.unwrap_or_else(|| panic!("no line about it in: {log}"));
        assert!(known.iter().flatten().all(|word| line.contains(word)), "{line}");
    }
    let made = serve.log().matches("link made").count();
    assert!(made <= 3, "more than the queue pairs that were asked for: {made}");
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn queue_pairs_and_chunks_are_as_many_and_as_long_as_the_processors_ask_for() {
    let dir = folders();
    tree::write(&dir.path().join("data/a"), &tree::content(3, 8 << 20));
    let serve = Serve::start(&exports(dir.path()));
    let trace = dir.path().join("trace").display().to_string();
    // Chunks, and the queue pairs that they were spread over.
    let moved = |flags: &[&str]| {
        let done = copy(&serve, dir.path(), &[&["--json", "--trace", &trace], flags].concat());
        assert_verbs(&done.done(), true);
        fs::remove_file(dir.path().join("out/a")).expect("removes");
        let told = fs::read_to_string(&trace).expect("a trace");
        let told: Vec<serde_json::Value> = serde_json::from_str(&told).expect("JSON");
        let chunks = told.iter().filter(|it| it["name"] == "read" && it["ph"] == "b");
        let links: HashSet<_> = chunks.clone().map(|it| it["tid"].as_u64()).collect();
        (chunks.count(), links.len())
    };
    let of = |bytes: u32| (8 << 20) / bytes as usize;
    let qps = qps_for(processors());
    let (chunks, links) = moved(&[]);
    assert_eq!(chunks, of(chunk_bytes_for(qps)));
    assert!(links <= usize::from(qps), "{links} of {qps}");
    assert_eq!(moved(&["--qps", "1"]), (of(chunk_bytes_for(1)), 1));
    assert_eq!(moved(&["-j5"]).0, of(CHUNK_BYTES_DEFAULT), "as many as streams are many");
    assert_eq!(moved(&["--qps", "1", "--chunk-size", "4M"]), (2, 1));
    let tcp = copy(&serve, dir.path(), &["--transport", "tcp", "--trace", &trace]);
    assert_eq!(tcp.done().code, Some(0));
    let told = fs::read_to_string(&trace).expect("a trace");
    assert_eq!(told.matches("\"ph\":\"b\"").count(), of(CHUNK_BYTES_DEFAULT), "over TCP");
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn an_address_that_is_not_there_or_not_of_the_peers_kind_is_a_clear_error() {
    let dir = folders_with_a();
    let serve = Serve::start(&exports(dir.path()));
    let insist = ["--transport", "verbs", "--gid-index"];
    let none = [insist[0], insist[1], insist[2], "201"];
    copy(&serve, dir.path(), &none)
        .refused(3, &["has no address 201; it has 0 (", "leave the index out"]);
    let done = copy(&serve, dir.path(), &["--json", "--gid-index", "201"]).done();
    assert_tcp_because(&done, &["has no address 201; it has 0 (", "leave the index out"]);
    // Link-local, where the server's is IPv4.
    let wrong = [insist[0], insist[1], insist[2], "0"];
    copy(&serve, dir.path(), &wrong).refused(3, &["the peer's is fe80:", "of one IP version"]);
    let done = copy(&serve, dir.path(), &["--json", "--gid-index", "0"]).done();
    assert_tcp_because(&done, &["the peer's is fe80:", "of one IP version"]);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn an_address_that_goes_away_in_the_middle_is_left_for_tcp() {
    const NAME: &str = "an_address_that_goes_away_in_the_middle_is_left_for_tcp";
    if std::env::var_os("VERBATIM_GUEST").is_none() {
        return verbatim_tests::process::skip(NAME, "it would take an address of this machine");
    }
    let netdev = guest_netdev();
    let (dir, serve) = serve_big(BIG_BYTES);
    for (command, folder, _) in both_ways(&serve, dir.path(), SLOWLY) {
        let mut copy = serve.start_cp(&command);
        wait_for_journal(&mut copy, &folder);
        guest(&format!("ip addr del 10.9.0.1/24 dev {netdev}"));
        let ended = copy.end();
        guest(&format!("ip addr add 10.9.0.1/24 dev {netdev}"));
        let ended = ended.done();
        assert_left_for_tcp(&ended, "address");
        assert!(is_same(dir.path().join("data/big"), folder.join("big")));
        assert!(summary(&ended)["links_lost"].as_u64() > Some(0), "{ended:?}");
    }
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_path_that_carries_nothing_is_found_out_before_it_is_trusted() {
    const NAME: &str = "a_path_that_carries_nothing_is_found_out_before_it_is_trusted";
    if std::env::var_os("VERBATIM_GUEST").is_none() {
        return verbatim_tests::process::skip(NAME, "it would add a device to this machine");
    }
    // Two devices of one machine connect, and what either sends never gets to the other.
    guest("ip link add lone0 type dummy");
    guest("ip link set lone0 up");
    guest("ip addr add 10.66.0.1/24 dev lone0");
    guest("rdma link add rxelone type rxe netdev lone0");
    let dir = folders_with_a();
    let config = dir.path().join("serve.toml");
    fs::write(&config, "[rdma]\ndevice = \"rxelone\"\n").expect("writes");
    let [data, landing] = exports(dir.path());
    let serve = Serve::start(&["--config".to_owned(), config.display().to_string(), data, landing]);
    let device = std::env::var("VERBATIM_RDMA_DEVICE").unwrap_or_else(|_| "rxe0".into());
    let begin = std::time::Instant::now();
    let done = copy(&serve, dir.path(), &["--json", "--device", &device]).done();
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    assert_tcp_because(&done, &["does not work: reading a page over it", "UDP 4791"]);
    assert_eq!(summary(&done)["rdma_ports"][0]["device"].as_str(), Some(device.as_str()));
    assert!(is_same(dir.path().join("data/a"), dir.path().join("out/a")));
    // The other way too: what was granted on the dead link is not waited for.
    let from = dir.path().join("data/a").display().to_string();
    let done = serve.cp(&["--json", "--device", &device, &from, &serve.at("in")]).done();
    assert_tcp_because(&done, &["does not work"]);
    assert!(is_same(dir.path().join("data/a"), dir.path().join("in/a")));
    copy(&serve, dir.path(), &["--device", &device, "--transport", "verbs"])
        .refused(3, &["does not work"]);
    drop(serve);
    guest("rdma link del rxelone");
    guest("ip link del lone0");
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn only_a_copy_that_may_use_rdma_opens_its_library() {
    let dir = folders_with_a();
    let serve = Serve::start(&exports(dir.path()));
    for (transport, opens) in [("tcp", false), ("auto", true)] {
        let out = dir.path().join("out").display().to_string();
        let arguments = ["--json", "--transport", transport, &serve.at("data/a"), &out];
        let mut command = serve.home().command("rdma-cp", &arguments);
        command.env("LD_DEBUG", "libs");
        let ended = Running::start(command).end().done();
        assert_eq!(ended.stderr.contains("libibverbs"), opens, "{transport}: {}", ended.stderr);
    }
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn settings_of_the_server_reach_its_queue_pairs() {
    let dir = folders_with_a();
    let [data, landing] = exports(dir.path());
    let start = |rdma: &str| {
        let config = dir.path().join("serve.toml");
        fs::write(&config, format!("[rdma]\n{rdma}\n[log]\nlevel = \"debug\"\n")).expect("writes");
        let config = config.display().to_string();
        Serve::start(&["--config", &config, &data, &landing])
    };
    let from = dir.path().join("data/a").display().to_string();
    // Everything smaller than it is by default: it works, and is kept to.
    let serve = start(
        "qps = 2\nmtu = 256\nmax_inline_data = 0\nmax_send_wr = 64\nmax_recv_wr = 16\n\
         use_event_channel = false\nsend_buffer_mb = 16\nrecv_buffer_mb = 16\n\
         traffic_class = 106\nservice_level = 3",
    );
    assert_verbs(&copy(&serve, dir.path(), &["--json", "-j", "6"]).done(), true);
    assert_verbs(&serve.cp(&["--json", "-j", "6", &from, &serve.at("in")]).done(), false);
    assert!(is_same(dir.path().join("data/a"), dir.path().join("in/a")));
    let made = serve.log().matches("link made").count();
    assert_eq!(made, 4, "two of the six that each copy asked for: {}", serve.log());
    drop(serve);
    // A partition that the port is not in.
    let serve = start("pkey_index = 77");
    let done = copy(&serve, dir.path(), &["--json"]).done();
    assert_tcp_because(&done, &["has no partition 77", "pkeys"]);
    drop(serve);
    // An address that the server does not have.
    let serve = start("gid_index = 201");
    let done = copy(&serve, dir.path(), &["--json"]).done();
    assert_tcp_because(&done, &["has no address 201"]);
    assert!(serve.log().contains("has no address 201"), "{}", serve.log());
}
