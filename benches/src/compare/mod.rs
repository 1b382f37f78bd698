//! The comparison with what people use today: the same workloads by us and by our
//! peers, interleaved in one run. `work` makes what is copied, `peers` knows how each
//! of them copies it, this measures and tells. Called by `compare-bench`.

pub mod contender;
pub mod crowd;
pub mod goals;
pub mod guest;
pub mod measured;
pub mod peers;
pub mod report;
pub mod work;

use crate::raw::{Hashing, hashing};
use crate::{Watch, run, try_run};
use measured::Figure;
use peers::World;
use std::process::{Command, Stdio};
use std::time::Duration;
use work::Work;

/// Measures all ways of a workload, taking turns. A peer that fails is told of and left out from
/// then on; one of ours that fails ends the comparison.
pub fn measure(world: &World, work: &Work, rounds: usize) -> Vec<Figure> {
    let mut figures: Vec<Figure> = work.peers.iter().map(|peer| Figure::of(*peer)).collect();
    for round in 0..rounds {
        for figure in &mut figures {
            // Who takes a minute where others take a second is measured once.
            if round > 0 && (figure.runs == 0 || figure.time > SLOW) {
                continue;
            }
            match once(world, work, figure, round) {
                Ok(seconds) => {
                    println!("{:12} {:28} {seconds:8.3} s", work.name, figure.peer.name());
                }
                Err(error) if figure.peer.is_ours() => panic!("{error}"),
                Err(error) => {
                    println!("{:12} {:28} failed: {error}", work.name, figure.peer.name());
                    *figure = Figure::of(figure.peer);
                }
            }
            world.clear(work);
        }
    }
    figures
}

/// One run of one way; says how long it took.
fn once(world: &World, work: &Work, figure: &mut Figure, round: usize) -> Result<f64, String> {
    let peer = figure.peer;
    world.prepare(work, peer, round)?;
    world.warm(work);
    let (server, before) = (world.server(peer), wire_bytes());
    let watch = server.map(Watch::start);
    let done = try_run(&mut world.command(work, peer));
    let used = watch.map(Watch::stop).unwrap_or_default();
    let moved = wire_bytes() - before;
    let done = done?;
    if round == 0 {
        world.check(work, peer)?;
    }
    figure.add(done, used, if peer.is_on_the_wire() { moved } else { 0 });
    Ok(done.time.as_secs_f64())
}

/// Ways slower than this are measured once.
const SLOW: Duration = Duration::from_secs(20);

/// What the loopback device has carried so far, headers included.
fn wire_bytes() -> u64 {
    let devices = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let line = devices.lines().find_map(|line| line.trim().strip_prefix("lo:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// What the machine does at most, bytes and seconds.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes a second over loopback TCP.
    pub wire: f64,
    /// Bytes a second that `b3sum` hashes on one core.
    pub b3sum: f64,
    /// What hashing costs us.
    pub hashing: Hashing,
}

impl Limits {
    /// For scripts.
    pub fn to_json(self) -> serde_json::Value {
        serde_json::json!({
            "iperf3_bytes_per_s": self.wire, "b3sum_bytes_per_s": self.b3sum,
            "blake3_in_cache_cpu_s_per_gb": self.hashing.in_cache_s_per_gb,
            "blake3_of_file_cpu_s_per_gb": self.hashing.of_file_s_per_gb,
        })
    }
}

impl std::fmt::Display for Limits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "limits: iperf3 {:.2} GB/s, b3sum on one core {:.2} GB/s; a BLAKE3 pass takes {:.3} s \
             of a processor a GB in cache, {:.3} s with reading the file",
            self.wire / 1e9,
            self.b3sum / 1e9,
            self.hashing.in_cache_s_per_gb,
            self.hashing.of_file_s_per_gb
        )
    }
}

/// Measures the limits, with the one file of this workload.
pub fn limits(world: &World, work: &Work) -> Limits {
    let mut server = Command::new("iperf3");
    server.args(["-s", "-1", "-B", "127.0.0.1", "-p", "21530"]).stdout(Stdio::null());
    let mut server = server.spawn().expect("iperf3 is installed");
    std::thread::sleep(Duration::from_secs(1));
    let client = Command::new("iperf3")
        .args(["-c", "127.0.0.1", "-p", "21530", "-t", "3", "-J"])
        .output()
        .expect("iperf3 is installed");
    let _ = server.wait();
    let file = world.source.join(work.name).join("file");
    let hashed = run(Command::new("b3sum").args(["--num-threads", "1"]).arg(&file));
    Limits {
        wire: iperf_bytes_per_s(&client.stdout).expect("iperf3 tells what it received"),
        b3sum: work.bytes as f64 / hashed.time.as_secs_f64(),
        hashing: hashing(&file),
    }
}

/// What the client of iperf3 says (`-J`).
fn iperf_bytes_per_s(told: &[u8]) -> Option<f64> {
    let told: serde_json::Value = serde_json::from_slice(told).ok()?;
    Some(told["end"]["sum_received"]["bits_per_second"].as_f64()? / 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iperf_is_believed_when_it_received_something() {
        let told = br#"{"end":{"sum_sent":{"bits_per_second":9e9},
            "sum_received":{"seconds":3.0,"bits_per_second":8e9}}}"#;
        assert_eq!(iperf_bytes_per_s(told), Some(1e9));
        assert_eq!(iperf_bytes_per_s(br#"{"error":"unable to connect"}"#), None);
    }
}
