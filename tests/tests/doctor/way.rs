//! What is on the way to a server: packets that shrink between two networks, and
//! exports whose data moves encrypted only. Networks of their own are made of
//! namespaces, where this machine lets them be made.

use crate::{checks, doctor, json};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use verbatim_tests::process::{Home, Running, Serve, binary, skip};

/// Three networks in a row: `here`, a router, `there`; gone when this is.
struct Row {
    names: [String; 3],
}

/// Where the server is in `there`.
const SERVER: &str = "10.78.2.2:0";

impl Row {
    /// None where namespaces cannot be made. Both ends take packets of 9,000 bytes, the router
    /// those of `between`.
    fn new(between: u32) -> Option<Self> {
        let names = ["here", "router", "there"];
        let row = Self { names: names.map(|it| format!("verbatim-{}-{it}", std::process::id())) };
        let [here, router, there] = &row.names;
        let made = row.names.iter().all(|name| run(&format!("ip netns add {name}")));
        let steps = [
            format!(
                "ip -n {here} link add eth0 mtu 9000 type veth peer name left0 mtu 9000 netns {router}"
            ),
            format!(
                "ip -n {there} link add eth0 mtu 9000 type veth peer name right0 mtu 9000 netns {router}"
            ),
            format!("ip -n {here} addr add 10.78.1.2/24 dev eth0"),
            format!("ip -n {router} addr add 10.78.1.1/24 dev left0"),
            format!("ip -n {router} addr add 10.78.2.1/24 dev right0"),
            format!("ip -n {there} addr add 10.78.2.2/24 dev eth0"),
            format!("ip -n {here} link set eth0 up"),
            format!("ip -n {there} link set eth0 up"),
            format!("ip -n {there} link set lo up"),
            format!("ip -n {router} link set left0 up"),
            format!("ip -n {router} link set right0 up"),
            format!("ip -n {here} route add 10.78.2.0/24 via 10.78.1.1"),
            format!("ip -n {there} route add 10.78.1.0/24 via 10.78.2.1"),
            format!("ip -n {router} route replace 10.78.1.0/24 dev left0 mtu lock {between}"),
            format!("ip -n {router} route replace 10.78.2.0/24 dev right0 mtu lock {between}"),
            format!("ip netns exec {router} sysctl -qw net.ipv4.ip_forward=1"),
        ];
        // Whatever was made before it failed goes with `row`.
        (made && steps.iter().all(|step| run(step))).then_some(row)
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        for name in &self.names {
            run(&format!("ip netns del {name}"));
        }
    }
}

fn run(command: &str) -> bool {
    let words: Vec<_> = command.split_whitespace().collect();
    let ended = Command::new(words[0]).args(&words[1..]).output();
    ended.is_ok_and(|output| output.status.success())
}

/// What the doctor says of the way through such a row.
fn through(between: u32) -> Option<Value> {
    let row = Row::new(between)?;
    let [here, _, there] = &row.names;
    let home = Home::new().wrapped(&["ip", "netns", "exec", there]);
    let (home, dir) = (Arc::new(home), tempfile::tempdir().expect("a folder"));
    let export = format!("data={}", dir.path().display());
    let serve = Serve::of(&home, SERVER, &["--insecure-no-auth", &export]);
    // The same user elsewhere.
    let mut command = home.command_of("ip");
    command.args(["netns", "exec", here]).arg(binary("rdma-doctor")).arg("--state");
    command.arg(home.state()).args(["--json", "--sample", "0", "--transport", "tcp"]);
    command.args(["--fingerprint", &serve.fingerprint, &serve.address.to_string()]);
    Some(json(&Running::start(command).end()))
}

#[test]
fn packets_that_shrink_on_the_way_are_noticed() {
    let name = "packets_that_shrink_on_the_way_are_noticed";
    let Some(said) = through(1400) else {
        return skip(name, "namespaces of networks cannot be made here");
    };
    assert_eq!(said["way"]["packet_bytes"], 1400, "{said}");
    assert_eq!(said["way"]["netdev"], "eth0", "{said}");
    let findings = said["findings"].as_array().expect("findings").iter();
    let found: Vec<_> = findings.filter(|it| it["check"] == "path-mtu").collect();
    assert_eq!(found.len(), 1, "{said}");
    assert_eq!(found[0]["is"], "packets of 1400 bytes get there, and eth0 has an MTU of 9000");

    let said = through(9000).expect("it could be made before");
    assert_eq!(said["way"]["packet_bytes"], 9000, "{said}");
    assert!(!checks(&said).contains(&"path-mtu"), "{said}");
    assert!(said["way"]["verdict"]["bytes_per_second"].as_f64() > Some(0.0), "{said}");
}

/// A server with an export that moves encrypted only, and one that need not.
fn serve_both(dir: &Path) -> Serve {
    let export = |name: &str, more: &str| {
        std::fs::create_dir(dir.join(name)).expect("a folder");
        format!("[[export]]\nname = {name:?}\npath = {:?}\n{more}\n", dir.join(name))
    };
    let config = dir.join("serve.toml");
    let toml = export("open", "") + &export("secret", "encryption = \"required\"");
    std::fs::write(&config, toml).expect("writes");
    Serve::start(&["--config", config.to_str().expect("plain names")])
}

#[test]
fn an_encrypted_export_is_tried_inside_of_tls_and_others_are_not() {
    let dir = tempfile::tempdir().expect("a folder");
    let serve = serve_both(dir.path());
    let carried = |path: &str| {
        let host = format!("rdma://{}/{path}", serve.address);
        let ended = doctor(serve.home(), &["--json", "--sample", "0", "--transport", "tcp", &host]);
        json(&ended)["way"].clone()
    };
    for (path, carrier) in [("secret", "tcp+tls"), ("open", "tcp"), ("", "tcp+tls")] {
        let way = carried(path);
        assert_eq!(way["transports"][0]["carrier"], carrier, "{path}: {way}");
        assert_eq!(way["verdict"]["path"], carrier, "{path}: {way}");
        let rates = way["transports"][0]["rates"].as_array().expect("rates");
        assert!(rates.iter().all(|it| it["bytes_per_second"].as_f64() > Some(0.0)), "{way}");
    }
    let way = carried("nowhere");
    let error = way["transports"][0]["error"].as_str().expect("an error");
    assert!(error.contains("nowhere"), "{way}");
}
