//! What processes and devices hold, counted before and after: descriptors, threads and memory of
//! a process from /proc, queue pairs and regions of all RDMA devices from the kernel. Changes
//! nothing; the tests say how much may be left.

use crate::http::{get, series};
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a server may take to find that its clients are gone, and to give back what they had.
const GIVE_BACK_MAX: Duration = Duration::from_secs(30);

/// What the threads of a server's pool keep open of the folders they wrote to last.
const POOL_DESCRIPTORS_MAX: usize = 8;

/// What a process holds.
#[derive(Clone, Copy, Debug)]
pub struct Holding {
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Memory of its own.
    pub anonymous_kib: u64,
}

impl Holding {
    /// Looks at a process of ours.
    pub fn of(process: u32) -> Self {
        let folder = PathBuf::from(format!("/proc/{process}"));
        let count = |name: &str| fs::read_dir(folder.join(name)).map_or(0, Iterator::count);
        let status = fs::read_to_string(folder.join("status")).expect("our own child");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|text| text.split_whitespace().next()?.parse().ok());
        let anonymous_kib = kib.expect("a kernel that counts");
        Self { descriptors: count("fd"), threads: count("task"), anonymous_kib }
    }

    /// Waits until a server whose clients are gone shows nothing of them, neither sessions nor
    /// registered memory, and has as many descriptors as before they came.
    ///
    /// # Panics
    /// When something is left.
    pub fn comes_back(&self, server: u32, metrics: SocketAddr) {
        let begin = Instant::now();
        loop {
            let text = get(metrics, "/metrics").body;
            let of =
                |name: &&str| series(&text, &format!("rdma_serve_{name}")).expect("it is shown");
            let shown = ["sessions", "regions", "pinned_bytes", "slots"];
            let shown: Vec<f64> = shown.iter().map(of).collect();
            let now = Self::of(server);
            let few = now.descriptors <= self.descriptors + POOL_DESCRIPTORS_MAX;
            if few && shown.iter().all(|count| *count == 0.0) {
                return;
            }
            let late = begin.elapsed() > GIVE_BACK_MAX;
            assert!(!late, "sessions, regions, pinned bytes, slots: {shown:?}; {self:?}, {now:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// What the kernel holds for RDMA, of all devices and processes: `qp`, `mr`, `pd`, `cq`, `ctx`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices(BTreeMap<String, u64>);

impl Devices {
    /// Asks the kernel.
    pub fn now() -> Self {
        let said = Command::new("rdma").args(["resource", "show"]).output().expect("rdma runs");
        let said = String::from_utf8(said.stdout).expect("text");
        let mut all = BTreeMap::new();
        // A line a device: its number, its name, then a kind and a count and so on.
        for line in said.lines() {
            let words: Vec<&str> = line.split_whitespace().skip(2).collect();
            for pair in words.chunks_exact(2) {
                *all.entry(pair[0].to_owned()).or_insert(0) += pair[1].parse::<u64>().unwrap_or(0);
            }
        }
        let found = Self(all);
        assert!(found.of("qp") > 0, "a device has a queue pair of its own: {said:?}");
        found
    }

    /// How many of a kind there are.
    pub fn of(&self, kind: &str) -> u64 {
        self.0.get(kind).copied().unwrap_or(0)
    }

    /// Whether there is no more of anything than before.
    pub fn is_within(&self, before: &Self) -> bool {
        self.0.iter().all(|(kind, &count)| count <= before.of(kind))
    }
}
