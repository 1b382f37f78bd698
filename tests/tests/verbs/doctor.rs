//! The doctor with a real device: well, and ill in the ways that a guest kernel can
//! be made ill; and servers with and without RDMA, tried for real. What it says of
//! each case is here, word for word but for figures.

use super::{exports, folders, guest};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use verbatim_tests::process::{Ended, Home, Running, Serve, skip};

fn doctor(home: &Home, arguments: &[&str]) -> Ended {
    let ended = Running::start(home.command("rdma-doctor", arguments)).end();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    ended
}

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

/// The exit code, and a line for each finding about one thing.
fn told(home: &Home, about: &str, arguments: &[&str]) -> (Option<i32>, Vec<String>) {
    let mut all = vec!["--json", "--sample", "0"];
    all.extend(arguments);
    let ended = doctor(home, &all);
    (ended.code, lines(&json(&ended), about))
}

fn lines(said: &Value, about: &str) -> Vec<String> {
    let findings = said["findings"].as_array().expect("findings").iter();
    let about = findings.filter(|it| it["about"].as_str().is_some_and(|it| it.contains(about)));
    let of = |it: &Value, key: &str| it[key].as_str().expect("text").to_owned();
    about
        .map(|it| format!("{} {}: {}", of(it, "severity"), of(it, "check"), of(it, "is")))
        .collect()
}

/// A device of its own to make ill; gone when this is.
struct Patient;

impl Patient {
    fn new() -> Self {
        guest("ip link add sick0 type dummy");
        let patient = Self;
        guest("ip link set sick0 mtu 9000 up");
        guest("ip addr add 10.77.0.1/24 dev sick0");
        guest("rdma link add rxesick type rxe netdev sick0");
        patient
    }
}

impl Drop for Patient {
    fn drop(&mut self) {
        // What is not there any more is gone already.
        let _ = Command::new("rdma").args(["link", "del", "rxesick"]).status();
        let _ = Command::new("ip").args(["link", "del", "sick0"]).status();
    }
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_device_is_told_of_as_it_is_made_ill_and_well() {
    const NAME: &str = "a_device_is_told_of_as_it_is_made_ill_and_well";
    if std::env::var_os("VERBATIM_GUEST").is_none() {
        return skip(NAME, "it would add a device to this machine");
    }
    let (home, _patient) = (Home::new(), Patient::new());
    let device = ["--device", "rxesick"];
    let well = told(&home, "rxesick", &device);
    assert_eq!(well, (Some(0), vec![]));
    let env = doctor(&home, &["--sample", "0", "--env", "--device", "rxesick"]).done();
    assert_eq!(env.stdout, "export NCCL_IB_HCA='=rxesick:1'\nexport NCCL_IB_GID_INDEX=1\n");

    guest("ip link set sick0 mtu 1500");
    let small = "limits mtu: sick0 has an MTU of 1500, so RDMA packets carry 1024 bytes";
    assert_eq!(told(&home, "rxesick", &device), (Some(1), vec![small.into()]));
    guest("ip link set sick0 mtu 9000");

    guest("ip addr del 10.77.0.1/24 dev sick0");
    let local = "limits gid: the GID table has link-local entries only";
    assert_eq!(told(&home, "rxesick", &device), (Some(1), vec![local.into()]));
    guest("ip addr add 10.77.0.1/24 dev sick0");

    guest("ip link set sick0 down");
    let (exit, lines) = told(&home, "rxesick", &device);
    assert_eq!((exit, lines.len()), (Some(2), 1), "{lines:?}");
    assert!(lines[0].starts_with("blocks port: the port is DOWN (physically "), "{lines:?}");
    let script = doctor(&home, &["--sample", "0", "--fix-script", "--device", "rxesick"]).stdout;
    assert!(script.lines().any(|line| line == "ip link set sick0 up"), "{script}");
    // What the script says mends it.
    guest("ip link set sick0 up");
    assert_eq!(told(&home, "rxesick", &device).0, Some(0));

    // Somebody who may lock next to nothing.
    let shell = "ulimit -l 64; exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"";
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o777)).expect("a mode");
    let home = home.wrapped(&["sh", "-c", shell, "sh"]);
    let poor = "blocks memlock: 64 KiB of memory may be locked";
    assert_eq!(told(&home, "memlock", &device), (Some(2), vec![poor.into()]));
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn servers_are_tried_over_verbs_and_over_tcp() {
    let dir = folders();
    let serve = Serve::start(&exports(dir.path()));
    let there = serve.address.to_string();
    let ended = doctor(serve.home(), &["--json", "--sample", "0", &there]);
    let said = json(&ended);
    let tried = said["way"]["transports"].as_array().expect("transports");
    let carriers: Vec<_> =
        tried.iter().map(|it| it["carrier"].as_str().unwrap_or("none")).collect();
    assert!(carriers[0].starts_with("verbs ") && carriers[1] == "tcp", "{said}");
    for it in tried {
        let rates = it["rates"].as_array().expect("rates");
        assert_eq!(rates.len(), 10, "five shapes each way: {it}");
        assert!(rates.iter().all(|it| it["bytes_per_second"].as_f64() > Some(0.0)), "{it}");
        let latencies = it["latency_seconds"].as_array().expect("latencies");
        assert!(latencies.iter().all(|it| it["p50"].as_f64() > Some(0.0)), "{it}");
    }
    assert_eq!(said["way"]["verdict"]["path"], tried[0]["carrier"], "{said}");
    drop(serve);

    let [data, landing] = exports(dir.path());
    let serve = Serve::start(&["--no-rdma".to_owned(), data, landing]);
    let there = serve.address.to_string();
    let ended = doctor(serve.home(), &["--json", "--sample", "0", &there]);
    let (said, exit) = (json(&ended), ended.code);
    let told_of = lines(&said, &there);
    assert_eq!((exit, told_of.len()), (Some(2), 1), "{told_of:?}");
    assert!(told_of[0].starts_with("blocks server-rdma: the server: no RDMA"), "{told_of:?}");
    assert_eq!(said["way"]["verdict"]["path"], "tcp", "{said}");
    let home = Home::new();
    drop(serve);
    let (exit, lines) = told(&home, &there, &[&there]);
    assert_eq!((exit, lines.len()), (Some(2), 1), "no server: {lines:?}");
    assert!(lines[0].starts_with("blocks server: cannot connect"), "{lines:?}");
}
