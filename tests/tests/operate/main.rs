//! How a server is watched, with what people watch it with: a real Chromium looks
//! at the page, a real Prometheus scrapes the metrics and fires the alerts. Run by
//! the stage `operate` of tests/run, which installs both; without them these tests
//! say what they skip. One module a subject; the server they watch is here.

#![forbid(unsafe_code)]

mod browser;
mod journal;
mod kubernetes;
mod manuals;
mod metrics;
mod page;
mod pins;
mod prometheus;
mod readme;
mod status;
mod units;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::oneshot;
use verbatim_server::config::export::{Export, Mode};
use verbatim_server::config::{Config, Metrics};
use verbatim_server::{Server, ServerOptions};
use verbatim_tests::process::{self, Ended, Home};
use verbatim_tests::proxy::{Proxy, Rule};

const START_MAX: Duration = Duration::from_secs(20);

/// A server in this process, on a machine whose RDMA devices are files.
struct Watched {
    dir: TempDir,
    home: Home,
    address: SocketAddr,
    metrics: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watched {
    /// Exports `data`, read-only, and `in`, writable. `mlx5_0` is up, `mlx5_1` is down.
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        for folder in ["data", "in", "out"] {
            fs::create_dir(dir.path().join(folder)).expect("a folder");
        }
        set_port(dir.path(), "mlx5_0", "4: ACTIVE", "400 Gb/sec (4X NDR)");
        set_port(dir.path(), "mlx5_1", "1: DOWN", "400 Gb/sec (4X NDR)");
        Self::serve(dir, Home::new())
    }

    fn serve(dir: TempDir, home: Home) -> Self {
        // The doctor of that machine looks for the exports there.
        for name in ["data", "in"] {
            let path = dir.path().join(name);
            let there = path.strip_prefix("/").expect("it is a whole path");
            fs::create_dir_all(dir.path().join("machine").join(there)).expect("a folder");
        }
        let export = |name: &str, mode| {
            Export::new(name, &dir.path().join(name), mode).expect("it is an export")
        };
        let config = Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            state: home.state(),
            drain_seconds: 1,
            metrics: Metrics { listen: "127.0.0.1:0".into(), asked_for: true },
            exports: vec![export("data", Mode::ReadOnly), export("in", Mode::ReadWrite)],
            ..Config::default()
        };
        let options =
            ServerOptions { root: Some(dir.path().join("machine")), ..ServerOptions::default() };
        let (stop, stopped) = oneshot::channel();
        let (told, ready) = mpsc::channel();
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let server = Server::bind(config, options).await.expect("it listens");
                let metrics = server.metrics_address().expect("it shows metrics");
                told.send((server.address(), metrics)).expect("the test waits");
                server.run(async { drop(stopped.await) }).await;
            });
        };
        let thread = Some(std::thread::spawn(serve));
        let (address, metrics) = ready.recv_timeout(START_MAX).expect("the server starts");
        Self { dir, home, address, metrics, stop: Some(stop), thread }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    fn text(&self, below: &str) -> String {
        self.path(below).to_str().expect("plain names").to_owned()
    }

    /// A path of the server, for a command.
    fn at(&self, path: &str) -> String {
        format!("rdma://{}/{path}", self.address)
    }

    /// Makes a file that compresses to nothing less.
    fn make(&self, path: &str, bytes: usize) {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut content = Vec::with_capacity(bytes + 8);
        while content.len() < bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            content.extend_from_slice(&state.to_le_bytes());
        }
        content.truncate(bytes);
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("it is below a folder")).expect("a folder");
        fs::write(path, content).expect("a file");
    }

    /// Changes a port of the machine.
    fn set_port(&self, device: &str, state: &str, rate: &str) {
        set_port(self.dir.path(), device, state, rate);
    }

    /// Stops the server.
    fn stop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))), "the server panicked");
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A test that fails says why itself.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn set_port(dir: &Path, device: &str, state: &str, rate: &str) {
    let port = dir.join("machine/sys/class/infiniband").join(device).join("ports/1");
    fs::create_dir_all(port.join("counters")).expect("a folder");
    let counters = ["port_rcv_data", "port_xmit_data", "port_rcv_packets", "port_xmit_packets"];
    let counters = counters.map(|name| format!("counters/{name}"));
    for counter in &counters {
        put(dir, &port.join(counter), "1000");
    }
    put(dir, &port.join("counters/link_downed"), "1");
    for (name, value) in [("state", state), ("rate", rate), ("link_layer", "InfiniBand")] {
        put(dir, &port.join(name), value);
    }
}

/// Gives a file of the machine this line. Who reads it meanwhile finds the old one or the new
/// one, as in the real one, and never half of it.
fn put(dir: &Path, path: &Path, line: &str) {
    let beside = dir.join("beside");
    fs::write(&beside, format!("{line}\n")).expect("a file");
    fs::rename(beside, path).expect("it takes its place");
}

/// What stands for the address of a server behind a proxy.
const PROXY: &str = "rdma://proxy";

/// Copies something through a network that does this to it.
fn proxied(watched: &Watched, rule: Rule, arguments: &[&str]) -> Ended {
    let proxy = Proxy::start(watched.address.port(), &[rule]);
    let there = format!("rdma://127.0.0.1:{}", proxy.port());
    let known = proxy.known(&watched.home);
    let arguments = arguments.iter().map(|word| word.replace(PROXY, &there));
    watched.home.cp(&known.into_iter().chain(arguments).collect::<Vec<_>>())
}

/// Whether a command is there; says that a test is skipped if it is not.
fn has(test: &str, command: &str) -> bool {
    let found = std::process::Command::new("sh")
        .args(["-c", &format!("command -v {command}")])
        .output()
        .is_ok_and(|output| output.status.success());
    if !found {
        process::skip(test, &format!("{command} is not installed"));
    }
    found
}
