//! Side-by-side measurements: the real binaries and their peers as processes,
//! interleaved in one run, best of several, compared as ratios. Machines are
//! shared and noisy, so absolute figures are only context.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

pub mod plot;
pub mod scale;
pub mod table;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What one run of a command took.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// From start to exit.
    pub time: Duration,
    /// The most anonymous memory it had, in KiB.
    pub rss_anon_kib: u64,
}

/// Runs a command to its end; it must succeed.
pub fn run(command: &mut Command) -> Run {
    let begin = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let watch = Watch::start(child.id());
    let status = child.wait().expect("the child can be waited for");
    let time = begin.elapsed();
    assert!(status.success(), "{command:?} ended with {status}");
    Run { time, rss_anon_kib: watch.stop() }
}

/// Samples the anonymous memory of a process.
pub struct Watch {
    stop: Arc<AtomicBool>,
    most_kib: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches a process until `stop`.
    pub fn start(pid: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let most_kib = Arc::new(AtomicU64::new(0));
        let (ended, most) = (stop.clone(), most_kib.clone());
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                most.fetch_max(rss_anon_kib(pid), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Self { stop, most_kib, thread: Some(thread) }
    }

    /// The most memory that was seen, in KiB.
    pub fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("sampling does not panic");
        }
        self.most_kib.load(Ordering::Relaxed)
    }
}

fn rss_anon_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// A server of ours, ended when it goes.
pub struct Serve {
    child: Child,
    /// The port it listens on.
    pub port: u16,
    state: PathBuf,
    bins: PathBuf,
}

impl Serve {
    /// Starts `rdma-serve` on a port with these arguments, and waits until it listens.
    pub fn start(bins: &Path, state: &Path, port: u16, arguments: &[&str]) -> Self {
        let mut command = Command::new(bins.join("rdma-serve"));
        command.arg("--state").arg(state);
        command.arg("--listen").arg(format!("127.0.0.1:{port}")).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("rdma-serve starts: build it with --release first");
        let (state, bins) = (state.to_owned(), bins.to_owned());
        let serve = Self { child, port, state, bins };
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "rdma-serve does not listen on {port}");
            std::thread::sleep(Duration::from_millis(20));
        }
        serve
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// An `rdma-cp` that this server lets in.
    pub fn cp(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.bins.join("rdma-cp"));
        command.arg("--state").arg(&self.state).args(arguments);
        command
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        // Ours, and it may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
