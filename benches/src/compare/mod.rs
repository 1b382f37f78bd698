//! The comparison with what people use today: the same workloads by us and by our
//! peers, interleaved in one run. `work` makes what is copied, `peers` knows how each
//! of them copies it, this measures and tells. Called by `compare-bench`.

pub mod peers;
pub mod work;

use crate::{Run, Used, Watch, run};
use peers::{Peer, World};
use std::process::Command;
use std::time::Duration;
use work::Work;

/// What one way to copy took for one workload: the best of its runs.
pub struct Figure {
    /// Whose.
    pub peer: Peer,
    /// From start to exit.
    pub time: Duration,
    /// Processor time of both sides.
    pub cpu: Duration,
    /// The most anonymous memory of the command and of what serves it, in KiB.
    pub rss_kib: (u64, u64),
    /// Bytes that crossed the loopback device; none where nothing does.
    pub wire_bytes: u64,
    /// How many runs there were.
    pub runs: usize,
}

impl Figure {
    fn of(peer: Peer) -> Self {
        let most = Duration::MAX;
        Self { peer, time: most, cpu: most, rss_kib: (0, 0), wire_bytes: u64::MAX, runs: 0 }
    }

    fn add(&mut self, run: Run, server: Used, wire_bytes: u64) {
        self.time = self.time.min(run.time);
        self.cpu = self.cpu.min(run.used.cpu + server.cpu);
        self.rss_kib.0 = self.rss_kib.0.max(run.used.rss_anon_kib);
        self.rss_kib.1 = self.rss_kib.1.max(server.rss_anon_kib);
        self.wire_bytes = self.wire_bytes.min(wire_bytes);
        self.runs += 1;
    }
}

/// Measures all ways of a workload, taking turns.
pub fn measure(world: &World, work: &Work, rounds: usize) -> Vec<Figure> {
    let mut figures: Vec<Figure> = work.peers.iter().map(|peer| Figure::of(*peer)).collect();
    for round in 0..rounds {
        for figure in &mut figures {
            let peer = figure.peer;
            // Who takes a minute where others take a second is measured once.
            if round > 0 && figure.time > SLOW {
                continue;
            }
            world.prepare(work, peer, round);
            let (server, before) = (world.server(peer), wire_bytes());
            let watch = server.map(Watch::start);
            let done = run(&mut world.command(work, peer));
            let used = watch.map(Watch::stop).unwrap_or_default();
            let moved = wire_bytes() - before;
            println!("{:12} {:28} {:8.3} s", work.name, peer.name(), done.time.as_secs_f64());
            if round == 0 {
                world.check(work, peer);
            }
            figure.add(done, used, if server.is_some() { moved } else { 0 });
            world.clear(work, peer);
        }
    }
    figures
}

/// Ways slower than this are measured once.
const SLOW: Duration = Duration::from_secs(20);

/// What the loopback device has carried so far, headers included.
fn wire_bytes() -> u64 {
    let devices = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let line = devices.lines().find_map(|line| line.trim().strip_prefix("lo:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// What the machine does at most: bytes a second over loopback TCP, and hashed on one core.
pub fn limits(world: &World, work: &Work) -> (f64, f64) {
    let mut server = Command::new("iperf3");
    server.args(["-s", "-1", "-B", "127.0.0.1", "-p", "21530"]).stdout(std::process::Stdio::null());
    let mut server = server.spawn().expect("iperf3 is installed");
    std::thread::sleep(Duration::from_secs(1));
    let client = Command::new("iperf3")
        .args(["-c", "127.0.0.1", "-p", "21530", "-t", "3", "-J"])
        .output()
        .expect("iperf3 is installed");
    let _ = server.wait();
    let told: serde_json::Value = serde_json::from_slice(&client.stdout).unwrap_or_default();
    let bits = told["end"]["sum_received"]["bits_per_second"].as_f64().unwrap_or(0.0);
    let file = world.source.join(work.name).join("file");
    let hashed = run(Command::new("b3sum").args(["--num-threads", "1"]).arg(file));
    (bits / 8.0, work.bytes as f64 / hashed.time.as_secs_f64())
}
