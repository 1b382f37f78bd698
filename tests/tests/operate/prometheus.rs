//! The dashboard and the alerts, with a real Prometheus that scrapes a real server:
//! every query of the dashboard has an answer after a copy, and each alert fires
//! when its cause is made. Waiting times are shortened, nothing else: as they are
//! shipped, promtool checks and tries the rules (`rules.test.yml`).

use crate::{PROXY, Watched, has, proxied, set_port};
use serde_json::Value;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use verbatim_tests::http::get;
use verbatim_tests::port::Port;
use verbatim_tests::process::{Home, Running, Text, memory, seen, skip, wait_for};
use verbatim_tests::proxy::{Direction, Harm, Kind, Rule};

/// How long Prometheus may take to answer, and an alert to fire.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// What may not be there: the row for GPUs needs another exporter.
const OPTIONAL: &str = "DCGM_";

/// In the program, because a guest runs it without cargo.
const RULES: &str = include_str!("../../../configs/prometheus/rdma-serve.rules.yml");
const CONFIG: &str = include_str!("../../../configs/prometheus/prometheus.yml");

pub(crate) fn root() -> PathBuf {
    let crate_folder = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it for tests");
    Path::new(&crate_folder).parent().expect("it is in the workspace").to_owned()
}

/// A Prometheus of our own, that scrapes one server every second.
pub(crate) struct Prometheus {
    child: Child,
    address: SocketAddr,
    _port: Port,
}

impl Prometheus {
    pub fn start(folder: &Path, target: SocketAddr) -> Self {
        fs::write(folder.join("rdma-serve.rules.yml"), hurried(RULES)).expect("a file");
        let config = CONFIG.replace("15s", "1s").replace("127.0.0.1:9469", &target.to_string());
        fs::write(folder.join("prometheus.yml"), config).expect("a file");
        let port = Port::take();
        let address = port.address;
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("series").display()))
            .arg(format!("--web.listen-address={address}"))
            .args(["--log.level=error", "--query.lookback-delta=5s"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("prometheus runs");
        let mut prometheus = Self { child, address, _port: port };
        wait_for("prometheus answers that it is ready", WAIT_MAX, || {
            let ended = prometheus.child.try_wait().expect("our own child");
            let refused =
                |error: std::io::Error| format!("{error}; how prometheus ended: {ended:?}");
            std::net::TcpStream::connect(address).map_err(refused)?;
            let answer = get(address, "/-/ready");
            seen(answer.status == 200, format!("{answer:?}"))
        });
        prometheus
    }

    /// What a query finds; fails if it is none.
    pub fn query(&self, query: &str) -> Vec<Value> {
        let answer = get(self.address, &format!("/api/v1/query?query={}", encoded(query)));
        let answer: Value = serde_json::from_str(&answer.body).expect("JSON");
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().cloned().unwrap_or_default()
    }

    #[track_caller]
    pub fn wait_for_alert(&self, name: &str) {
        self.wait_for_alert_of(name, "");
    }

    /// Waits until an alert fires that has this label.
    #[track_caller]
    fn wait_for_alert_of(&self, name: &str, label: &str) {
        wait_for(&format!("the alert {name} {label} fires"), WAIT_MAX, || {
            std::thread::sleep(Duration::from_millis(200));
            let firing = format!("ALERTS{{alertname=\"{name}\",alertstate=\"firing\",{label}}}");
            match self.query(&firing).is_empty() {
                true => Err(Text(format!("all alerts: {}", Value::from(self.query("ALERTS"))))),
                false => Ok(()),
            }
        });
    }

    /// Waits until a query finds something.
    #[track_caller]
    fn wait_for_series(&self, query: &str) {
        wait_for(&format!("prometheus finds something for {query}"), WAIT_MAX, || {
            match self.query(query).is_empty() {
                true => Err(Text(format!("what it scraped: {}", Value::from(self.query("up"))))),
                false => Ok(()),
            }
        });
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Rules that wait for seconds instead of minutes.
fn hurried(rules: &str) -> String {
    let mut rules = rules.to_owned();
    for minutes in ["1m", "5m", "10m"] {
        rules = rules.replace(&format!("for: {minutes}"), "for: 1s");
    }
    rules.replace("[1h] offset 5m", "[8s] offset 4s").replace("[5m]", "[4s]")
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// The queries of the dashboard, as Grafana would send them.
fn queries() -> Vec<String> {
    let text = fs::read_to_string(root().join("configs/grafana/rdma-serve.json"));
    let dashboard: Value = serde_json::from_str(&text.expect("the dashboard")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let filled = |target: &Value| {
        let query = target["expr"].as_str().expect("a query").to_owned();
        let query = query.replace("$__rate_interval", "1m").replace("$__range", "1h");
        query.replace("$instance", ".*")
    };
    targets.map(filled).collect()
}

fn copy(watched: &Watched, arguments: &[&str]) {
    watched.home.cp(arguments).done();
}

#[test]
fn every_panel_has_data_after_a_copy_and_every_alert_fires() {
    let name = "every_panel_has_data_after_a_copy_and_every_alert_fires";
    if !has(name, "prometheus") {
        return;
    }
    // In memory: what a rule compares is what moved lately, and a disk may take longer.
    let dir = memory();
    let home = Home::new();
    expire_soon(&home);
    for folder in ["data", "in", "out"] {
        fs::create_dir(dir.path().join(folder)).expect("a folder");
    }
    set_port(dir.path(), "mlx5_0", "4: ACTIVE", "400 Gb/sec (4X NDR)");
    let mut watched = Watched::serve(dir, home);
    let series = memory();
    let prometheus = Prometheus::start(series.path(), watched.metrics);
    prometheus.wait_for_series("rdma_serve_sessions");
    let early = prometheus.query("ALERTS{alertname!=\"RdmaServeDiskNearlyFull\"}");
    let early: Vec<_> = early.iter().map(|alert| &alert["metric"]["alertname"]).collect();
    let expected = |name: &&Value| **name != "RdmaServeCertificateExpiring";
    assert!(!early.iter().any(expected), "fires without a cause: {early:?}");
    watched.make("data/big", 160 << 20);
    let (big, out, up) = (watched.at("data/big"), watched.text("out/big"), watched.at("in/big"));
    let start = |words: &[&str]| Running::start(watched.home.command("rdma-cp", words));
    // A client is in all the time, and hardly anything moves when another one is done.
    let slow = start(&["-q", "--bwlimit", "256K", &watched.text("data/big"), &up]);
    prometheus.wait_for_series("rdma_serve_sessions > 0");
    let fast = start(&["--bwlimit", "30M", &big, &out]);
    prometheus.wait_for_alert("RdmaServeThroughputDrop");
    fast.end().done();
    drop(slow);
    copy(&watched, &[&out, &watched.at("in/again")]);

    let queries = queries();
    assert!(queries.len() > 15, "only {} queries", queries.len());
    for query in &queries {
        if query.starts_with(OPTIONAL) {
            // It must be a query all the same.
            prometheus.query(query);
        } else {
            prometheus.wait_for_series(query);
        }
    }

    // This machine's devices are files, so every session is over TCP.
    prometheus.wait_for_alert("RdmaServeFallback");
    prometheus.wait_for_alert("RdmaServeCertificateExpiring");
    watched.set_port("mlx5_0", "4: ACTIVE", "100 Gb/sec (1X NDR)");
    prometheus.wait_for_alert("RdmaServePortSlow");
    watched.set_port("mlx5_0", "1: DOWN", "100 Gb/sec (1X NDR)");
    prometheus.wait_for_alert("RdmaServePortDown");
    altered(&watched, "out/big");
    prometheus.wait_for_alert("RdmaServeMismatch");
    let full = Full::over(&watched.path("in"));
    if full.is_some() {
        let dir = tempfile::tempdir().expect("a folder");
        let server = disk_server(&watched, dir);
        let series = tempfile::tempdir().expect("a folder");
        let second = Prometheus::start(series.path(), server.metrics);
        second.wait_for_alert_of("RdmaServeDiskNearlyFull", "export=\"in\"");
    } else {
        skip(&format!("{name} (disk nearly full)"), "no file system can be mounted");
    }
    watched.stop();
    prometheus.wait_for_alert("RdmaServeDown");
}

/// A server that exports what `Full` made.
fn disk_server(watched: &Watched, dir: tempfile::TempDir) -> Watched {
    for folder in ["data", "out"] {
        fs::create_dir(dir.path().join(folder)).expect("a folder");
    }
    std::os::unix::fs::symlink(watched.path("in"), dir.path().join("in")).expect("a link");
    Watched::serve(dir, Home::new())
}

/// A file system of 4 MiB, nearly full; gone when this is.
struct Full(PathBuf);

impl Full {
    fn over(folder: &Path) -> Option<Self> {
        let mount = ["-t", "tmpfs", "-o", "size=4m", "verbatim"];
        let mounted = Command::new("mount").args(mount).arg(folder).stderr(Stdio::null()).status();
        mounted.ok().filter(std::process::ExitStatus::success)?;
        let full = Self(folder.to_owned());
        fs::write(folder.join("filling"), vec![1; 3900 << 10]).expect("there is room");
        Some(full)
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l"]).arg(&self.0).status();
    }
}

/// Gives a server that has not begun a certificate that ends within days.
fn expire_soon(home: &Home) {
    let identity = verbatim_control::ServerIdentity::load_or_create(&home.state());
    drop(identity.expect("an identity"));
    let key = fs::read(home.state().join("identity.key")).expect("the key");
    let key = rcgen::KeyPair::try_from(key).expect("a key");
    let mut parameters = rcgen::CertificateParams::new(["verbatim".to_owned()]).expect("a name");
    let days = std::time::SystemTime::now() + Duration::from_secs(10 * 86400);
    parameters.not_after = days.into();
    let certificate = parameters.self_signed(&key).expect("a certificate");
    fs::write(home.state().join("identity.crt"), certificate.der()).expect("it is written");
}

/// Has a network alter a file that is uploaded.
pub(crate) fn altered(watched: &Watched, path: &str) {
    let rule = Rule::all(Kind::Data, Direction::Up, Harm::FlipEvery(20 << 20));
    let there = format!("{PROXY}/in/altered");
    proxied(watched, rule, &["-j", "1", &watched.text(path), &there]).done();
}

#[test]
fn the_rules_and_the_scrape_configuration_are_good_as_they_are_shipped() {
    let name = "the_rules_and_the_scrape_configuration_are_good_as_they_are_shipped";
    if !has(name, "promtool") {
        return;
    }
    let promtool = |arguments: &[&str], path: &str| {
        let output = Command::new("promtool").args(arguments).arg(root().join(path)).output();
        let output = output.expect("promtool runs");
        assert!(output.status.success(), "promtool {arguments:?}: {output:?}");
    };
    promtool(&["check", "config"], "configs/prometheus/prometheus.yml");
    promtool(&["check", "rules"], "configs/prometheus/rdma-serve.rules.yml");
    promtool(&["test", "rules"], "tests/tests/operate/rules.test.yml");
}
