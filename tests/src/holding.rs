//! What processes and devices hold, counted before and after: descriptors, threads and memory of
//! a process from /proc, queue pairs and regions of all RDMA devices from the kernel. A server
//! that shares its process with others is told from them by its port and its folder. Changes
//! nothing; the tests say how much may be left.

use crate::http::{get, series};
use crate::process::{Serve, wait_for};
use crate::sockets::connected_to;
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

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
    #[track_caller]
    pub fn comes_back(&self, serve: &Serve) {
        give_back(serve.metrics.expect("it shows them"), || {
            let now = Self::of(serve.id());
            let many = now.descriptors > self.descriptors + POOL_DESCRIPTORS_MAX;
            many.then(|| format!("{self:?} became {now:?}"))
        });
    }
}

/// Waits until a server shows nothing of its clients, and nothing else is left of them.
#[track_caller]
fn give_back(metrics: SocketAddr, left: impl Fn() -> Option<String>) {
    wait_for("the server has given back what its clients had", GIVE_BACK_MAX, || {
        let (shown, left) = (shown(metrics), left());
        let all = left.is_none() && shown.iter().all(|(_, count)| *count == 0.0);
        if all { Ok(()) } else { Err((shown, left)) }
    });
}

/// What a server shows of its clients.
fn shown(metrics: SocketAddr) -> [(&'static str, f64); 4] {
    let text = get(metrics, "/metrics").body;
    let of = |name| series(&text, &format!("rdma_serve_{name}")).expect("it is shown");
    ["sessions", "regions", "pinned_bytes", "slots"].map(|name| (name, of(name)))
}

/// What a server of this process has open, among all that its other threads have.
pub struct Served {
    port: u16,
    folders: Vec<PathBuf>,
    metrics: SocketAddr,
}

impl Served {
    /// A server at this port, whose clients read and write files in these folders.
    pub fn new(port: u16, folders: Vec<PathBuf>, metrics: SocketAddr) -> Self {
        Self { port, folders, metrics }
    }

    /// Waits until it shows nothing of its clients, which are gone, has no connection of theirs,
    /// and neither it nor they have a file open.
    ///
    /// # Panics
    /// When something is left.
    #[track_caller]
    pub fn comes_back(&self) {
        give_back(self.metrics, || {
            let sockets = connected_to(self.port);
            let files: Vec<_> = self.folders.iter().flat_map(|at| files_in(at)).collect();
            let some = sockets > 0 || !files.is_empty();
            some.then(|| format!("{sockets} connections; open: {files:?}"))
        });
    }
}

/// Files in a folder, or that were, of which this process has descriptors. Folders are not
/// counted: threads keep those they wrote to last.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let open = fs::read_dir("/proc/self/fd").expect("our own").flatten();
    let is_file = |at: &fs::DirEntry| fs::metadata(at.path()).is_ok_and(|it| it.is_file());
    open.filter(is_file)
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter(|path| path.starts_with(folder))
        .collect()
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
