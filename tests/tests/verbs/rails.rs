//! Two devices at once: both carry, one that goes down is left and come back to,
//! and when all are down TCP carries on, until one is up again.

use super::{
    assert_verbs, both_ways, folders, ip_link, is_same, serve_big, summary, wait_for_journal,
};
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use verbatim_tests::http::{get, series};
use verbatim_tests::process::{Home, Running, Serve, Signal, seen, wait_for, when};
use verbatim_tests::tree;

/// A second Soft-RoCE device, on a network device of its own; gone with this value.
struct SecondRail;

const NETDEV: &str = "eth1";
const DEVICE: &str = "rxe1";

/// How long a port may take to be what it was told to be.
const PORT_MAX: Duration = Duration::from_secs(10);

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect("it runs");
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}

impl SecondRail {
    fn add() -> Self {
        assert!(std::env::var_os("VERBATIM_GUEST").is_some(), "only in a guest of our own");
        run("ip", &["link", "add", NETDEV, "type", "dummy"]);
        run("ip", &["link", "set", NETDEV, "mtu", "9000", "up"]);
        run("ip", &["addr", "add", "10.9.1.1/24", "dev", NETDEV]);
        run("rdma", &["link", "add", DEVICE, "type", "rxe", "netdev", NETDEV]);
        wait_for("the second device has its address", PORT_MAX, || {
            let gid = format!("/sys/class/infiniband/{DEVICE}/ports/1/gids/1");
            let gid = fs::read_to_string(gid).map_err(|error| error.to_string())?;
            when(gid, |gid| gid.contains("ffff:0a09:0101"))
        });
        Self
    }
}

impl Drop for SecondRail {
    fn drop(&mut self) {
        for (program, arguments) in
            [("rdma", ["link", "delete", DEVICE]), ("ip", ["link", "delete", NETDEV])]
        {
            // A test that failed is told about that, not about this.
            let _ = Command::new(program).args(arguments).status();
        }
    }
}

/// Whether this is a guest whose devices may be disturbed; says so where not.
fn is_guest(test: &str) -> bool {
    let guest = std::env::var_os("VERBATIM_GUEST").is_some();
    if !guest {
        verbatim_tests::process::skip(test, "it would make and disturb devices of this machine");
    }
    guest
}

/// Packets that a device sent so far: of its own counters, not of ours.
fn sent_by(device: &str) -> u64 {
    let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts");
    fs::read_to_string(path).expect("a counter").trim().parse().expect("a number")
}

/// Waits until a device has sent so many more packets.
#[track_caller]
fn wait_for_traffic(copy: &mut Running, device: &str, packets: u64) {
    let before = sent_by(device);
    let what = format!("{device} has sent {packets} packets more than {before}");
    wait_for(&what, Duration::from_secs(30), || {
        copy.assert_runs(&format!("the copy ended before {device} carried"));
        let now = sent_by(device);
        seen(now >= before + packets, (now, copy.report()))
    });
}

/// The links over TCP that a server has.
fn tcp_links(serve: &Serve) -> f64 {
    let shown = get(serve.metrics.expect("it shows metrics"), "/metrics").body;
    series(&shown, "rdma_serve_links{transport=\"tcp\"}").expect("it shows links")
}

const BYTES: usize = 72 << 20;

/// What is copied slowly: it takes fourteen seconds of links that carry.
const SLOW_BYTES: usize = 56 << 20;

/// Copies a file down and up, slowly, over two rails, and does `during` to each copy when both
/// carry it. What is copied must arrive as it is; returns what was said about each copy.
fn copy_slowly(during: impl Fn(&Serve, &mut Running)) -> [serde_json::Value; 2] {
    let _second = SecondRail::add();
    let (dir, serve) = serve_big(SLOW_BYTES);
    both_ways(&serve, dir.path(), "--bwlimit=4M").map(|(command, folder, _)| {
        let mut copy = serve.start_cp(&command);
        wait_for_journal(&mut copy, &folder);
        wait_for_traffic(&mut copy, DEVICE, 100);
        during(&serve, &mut copy);
        let done = copy.end().done();
        assert!(is_same(dir.path().join("data/big"), folder.join("big")));
        summary(&done)
    })
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn two_devices_carry_equal_parts_of_one_file_both_ways() {
    if !is_guest("two_devices_carry_equal_parts_of_one_file_both_ways") {
        return;
    }
    let _second = SecondRail::add();
    let (dir, serve) = serve_big(BYTES / 2);
    for (command, folder, _) in both_ways(&serve, dir.path(), "--bwlimit=1000M") {
        let before = ["rxe0", DEVICE].map(sent_by);
        let done = serve.cp(&command).done();
        let after = ["rxe0", DEVICE].map(sent_by);
        assert!(is_same(dir.path().join("data/big"), folder.join("big")));
        let summary = summary(&done);
        let transport = summary["transport"].as_str().expect("a transport");
        assert!(transport.contains("rxe0/1") && transport.contains("rxe1/1"), "{summary}");
        assert!(!transport.contains("tcp"), "{summary}");
        let [first, second] = [0, 1].map(|rail| after[rail] - before[rail]);
        // Packets of 4 KiB, and answers to them: a file of 36 MiB takes 9,216.
        let least = (BYTES / 2 / 4096) as u64 / 4;
        assert!(first > least && second > least, "{first} and {second} packets");
    }
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_rail_that_goes_down_is_left_and_come_back_to() {
    if !is_guest("a_rail_that_goes_down_is_left_and_come_back_to") {
        return;
    }
    let told = copy_slowly(|_, copy| {
        ip_link(NETDEV, "down");
        // The other one carries on.
        wait_for_traffic(copy, "rxe0", 500);
        ip_link(NETDEV, "up");
        wait_for_traffic(copy, DEVICE, 100);
    });
    for summary in told {
        let transport = summary["transport"].as_str().expect("a transport");
        assert!(!transport.contains("tcp"), "{summary}");
    }
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn when_all_rails_are_down_tcp_carries_until_one_is_back() {
    if !is_guest("when_all_rails_are_down_tcp_carries_until_one_is_back") {
        return;
    }
    let told = copy_slowly(|serve, copy| {
        ip_link(NETDEV, "down");
        ip_link("eth0", "down");
        wait_for("the server has links over TCP", Duration::from_secs(30), || {
            copy.assert_runs("the copy ended before there were links over TCP");
            let links = tcp_links(serve);
            seen(links > 0.0, (links, copy.report()))
        });
        ip_link("eth0", "up");
        wait_for_traffic(copy, "rxe0", 100);
        ip_link(NETDEV, "up");
    });
    for summary in told {
        let transport = summary["transport"].as_str().expect("a transport");
        assert!(transport.contains(", then tcp, then verbs "), "{summary}");
        assert!(summary["reason"].as_str().is_some_and(|why| why.contains("port")), "{summary}");
        assert_eq!(summary["reconnects"], 0, "it began anew: {summary}");
    }
}

/// An export that admits the first rail only, and a client that has both: the copy begins, its
/// server is killed and comes back, and the session after that has links before it names a file.
#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_rail_that_an_export_does_not_admit_is_left_and_the_others_carry() {
    if !is_guest("a_rail_that_an_export_does_not_admit_is_left_and_the_others_carry") {
        return;
    }
    let _second = SecondRail::add();
    let dir = folders();
    tree::write(&dir.path().join("data/big"), &tree::content(1, BYTES / 4));
    let export = |name: &str, mode: &str| {
        let path = dir.path().join(name);
        format!(
            "[[export]]\nname = {name:?}\npath = {path:?}\nmode = {mode:?}\ngids = [\"10.9.0.0/24\"]\n"
        )
    };
    let config = dir.path().join("serve.toml");
    fs::write(&config, export("data", "ro") + &export("in", "rw")).expect("writes");
    let flags = ["--config".to_owned(), config.display().to_string()];
    let home = Arc::new(Home::new());
    let mut serve = Serve::of(&home, "127.0.0.1:0", &flags);
    let listen = serve.address.to_string();
    for (command, folder, reads) in both_ways(&serve, dir.path(), "--bwlimit=4M") {
        let before = sent_by(DEVICE);
        let mut copy = serve.start_cp(&command);
        wait_for_journal(&mut copy, &folder);
        serve.signal(Signal::KILL);
        drop(serve);
        serve = Serve::of(&home, &listen, &flags);
        let done = copy.end().done();
        assert!(is_same(dir.path().join("data/big"), folder.join("big")));
        assert_verbs(&done, reads);
        let summary = summary(&done);
        assert_eq!(summary["reconnects"], 1, "{summary}");
        let ports = summary["rdma_ports"].as_array().expect("ports");
        let refused = |device: &str| {
            let port = ports.iter().find(|port| port["device"] == device).expect("both are told");
            port["refused"].as_str().map(str::to_owned)
        };
        let why = refused(DEVICE).expect("the second is refused");
        assert!(why.contains("may not move to the RDMA port"), "{why}");
        assert_eq!(refused("rxe0"), None, "{summary}");
        // Links that had to go were proven with a page each, and no more.
        let packets = sent_by(DEVICE) - before;
        assert!(packets < 200, "{packets} packets on a rail that is not admitted");
    }
    serve.logged("an export does not admit their RDMA ports", 1);
}
