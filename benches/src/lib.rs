//! Side-by-side measurements: the real binaries and their peers as processes,
//! interleaved in one run, best of several, compared as ratios. Machines are
//! shared and noisy, so absolute figures are only context.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

pub mod compare;
pub mod crowd;
pub mod growth;
pub mod marks;
pub mod mounted;
pub mod plot;
pub mod raw;
pub mod relay;
pub mod rsync;
pub mod scale;
pub mod table;

use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What every comparison is told.
#[derive(clap::Args)]
pub struct Common {
    /// Rounds; the best of each counts.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Where copies go: a tmpfs.
    #[arg(long, default_value = "/dev/shm")]
    pub target: PathBuf,
    /// Write the figures to FILE as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// A tree of small files.
#[derive(clap::Args)]
pub struct SmallFiles {
    /// How many small files.
    #[arg(long, default_value_t = 100_000)]
    pub files: usize,
    /// How long each is.
    #[arg(long, default_value_t = 4096)]
    pub bytes: usize,
}

/// The folder this program is in, and with it the commands it measures.
pub fn bins() -> PathBuf {
    let program = std::env::current_exe().expect("this program has a path");
    program.parent().expect("it is in a folder").to_owned()
}

/// Waits until files that were just made are old enough: younger identities are neither cached
/// nor trusted.
pub fn let_settle() {
    std::thread::sleep(Duration::from_secs(3));
}

/// What one run of a command took.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// From start to exit.
    pub time: Duration,
    /// What it used while it ran.
    pub used: Used,
}

/// What a process used. Processor time is the figure that others on the machine change least.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    /// The most anonymous memory it had, in KiB: its own, which no file backs.
    pub rss_anon_kib: u64,
    /// The most memory it had, in KiB, with pages of files and of others (`VmHWM`).
    pub rss_peak_kib: u64,
    /// Processor time, of its user and of the system for it.
    pub cpu: Duration,
}

/// Runs a command to its end; it must succeed.
pub fn run(command: &mut Command) -> Run {
    try_run(command).unwrap_or_else(|error| panic!("{error}"))
}

/// The longest that a command may take: then it is ended, which is a failure.
const RUN_MAX: Duration = Duration::from_secs(600);

/// Runs a command to its end.
///
/// # Errors
/// When it ends with a failure, or is not over in time, in words.
pub fn try_run(command: &mut Command) -> Result<Run, String> {
    let (begin, before) = (Instant::now(), cpu_of("self", CHILDREN));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let watch = Watch::start_with_end(child.id(), Some(begin + RUN_MAX));
    let status = child.wait().expect("the child can be waited for");
    let time = begin.elapsed();
    // Before anything else: its number may soon be that of another process.
    let used = watch.stop();
    if !status.success() {
        return Err(format!("{command:?} ended with {status}"));
    }
    // What it used as a process of its own is gone with it: its parent has the sum.
    let cpu = cpu_of("self", CHILDREN) - before;
    Ok(Run { time, used: Used { cpu, ..used } })
}

/// Runs commands at the same time, until the last of them has succeeded.
pub fn run_all(commands: &mut [Command]) -> Run {
    let (begin, before) = (Instant::now(), cpu_of("self", CHILDREN));
    let children: Vec<Child> = commands
        .iter_mut()
        .map(|command| command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
        .map(|command| command.spawn().expect("it starts"))
        .collect();
    for mut child in children {
        let status = child.wait().expect("the child can be waited for");
        assert!(status.success(), "a command ended with {status}");
    }
    let cpu = cpu_of("self", CHILDREN) - before;
    Run { time: begin.elapsed(), used: Used { cpu, ..Used::default() } }
}

/// Fills a file with bytes that do not repeat, and reads it once.
pub fn fill(path: &Path, mib: u64) {
    let mut file = File::create(path).expect("the source can be created");
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let mut block = vec![0_u8; 1 << 20];
    for _ in 0..mib {
        for word in block.chunks_exact_mut(8) {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            word.copy_from_slice(&seed.to_le_bytes());
        }
        file.write_all(&block).expect("the source can be written");
    }
    std::io::copy(&mut File::open(path).expect("it is there"), &mut std::io::sink())
        .expect("the source can be read");
}

/// Watches what a process uses, and those it started, until this goes.
pub struct Watch {
    pid: u32,
    cpu: Duration,
    stop: Arc<AtomicBool>,
    most: Arc<Most>,
    thread: Option<JoinHandle<()>>,
}

/// The most memory seen so far, in KiB.
#[derive(Default)]
struct Most {
    anon_kib: AtomicU64,
    peak_kib: AtomicU64,
}

impl Watch {
    /// Watches a process until `stop`.
    pub fn start(pid: u32) -> Self {
        Self::start_with_end(pid, None)
    }

    /// The same, and ends the process, a child that nobody has waited for yet, at a time.
    fn start_with_end(pid: u32, end: Option<Instant>) -> Self {
        // Its peak is that of now on, where we may say so.
        let _ = std::fs::write(format!("/proc/{pid}/clear_refs"), "5");
        let stop = Arc::new(AtomicBool::new(false));
        let most = Arc::new(Most::default());
        let (ended, seen) = (stop.clone(), most.clone());
        let thread = std::thread::spawn(move || {
            for look in 0_u32.. {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let (anon_kib, peak_kib) = memory_kib(pid);
                seen.anon_kib.fetch_max(anon_kib, Ordering::Relaxed);
                seen.peak_kib.fetch_max(peak_kib, Ordering::Relaxed);
                if end.is_some_and(|end| Instant::now() > end)
                    && let Some(pid) = Pid::from_raw(pid as i32)
                {
                    // It may be gone already.
                    let _ = kill_process(pid, Signal::KILL);
                }
                // A command of a few milliseconds is looked at more than once.
                std::thread::sleep(Duration::from_millis(if look < 20 { 2 } else { 10 }));
            }
        });
        Self { pid, cpu: cpu_of_all(pid), stop, most, thread: Some(thread) }
    }

    /// What it used meanwhile.
    pub fn stop(mut self) -> Used {
        self.end();
        let cpu = cpu_of_all(self.pid).saturating_sub(self.cpu);
        let seen = |kib: &AtomicU64| kib.load(Ordering::Relaxed);
        let (rss_anon_kib, rss_peak_kib) = (seen(&self.most.anon_kib), seen(&self.most.peak_kib));
        Used { rss_anon_kib, rss_peak_kib, cpu }
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("sampling does not panic");
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

/// Where `/proc/PID/stat` has the times of a process and of its children, counted from behind
/// its name.
const OWN: usize = 11;
const CHILDREN: usize = 13;

/// What the kernel counts those times in, whatever its own clock is.
const TICKS_PER_SECOND: u64 = 100;

/// The processor time of a process, or of its children that ended.
fn cpu_of(pid: impl std::fmt::Display, whose: usize) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let behind_name = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks = behind_name.skip(whose).take(2).filter_map(|ticks| ticks.parse::<u64>().ok());
    Duration::from_millis(ticks.sum::<u64>() * 1000 / TICKS_PER_SECOND)
}

/// The processor time of a process, of its children that ended and of those that have not.
fn cpu_of_all(pid: u32) -> Duration {
    let living: Duration = children(pid).map(cpu_of_all).sum();
    cpu_of(pid, OWN) + cpu_of(pid, CHILDREN) + living
}

/// The processes that the first thread of a process started and that are there.
fn children(pid: u32) -> impl Iterator<Item = u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let list: Vec<u32> =
        list.unwrap_or_default().split_whitespace().filter_map(|id| id.parse().ok()).collect();
    list.into_iter()
}

/// The anonymous memory of a process and its peak, both with its children.
fn memory_kib(pid: u32) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let own = (field("RssAnon:"), field("VmHWM:"));
    children(pid).map(memory_kib).fold(own, |all, child| (all.0 + child.0, all.1 + child.1))
}

/// The anonymous memory of a process of now, in KiB, with that of its children.
pub fn rss_anon_kib(pid: u32) -> u64 {
    memory_kib(pid).0
}

/// Waits until a server listens.
fn wait_for(name: &str, port: u16) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < deadline, "{name} does not listen on {port}");
        std::thread::sleep(Duration::from_millis(20));
    }
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
        Self::start_logged(bins, state, port, arguments, Stdio::null())
    }

    /// The same, with its log kept somewhere.
    pub fn start_logged(
        bins: &Path,
        state: &Path,
        port: u16,
        arguments: &[&str],
        log: Stdio,
    ) -> Self {
        let mut command = Command::new(bins.join("rdma-serve"));
        command.arg("--state").arg(state);
        command.arg("--listen").arg(format!("127.0.0.1:{port}")).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command
            .spawn()
            .expect("rdma-serve starts: build it first, with the profile of this bench");
        let (state, bins) = (state.to_owned(), bins.to_owned());
        let serve = Self { child, port, state, bins };
        wait_for("rdma-serve", port);
        serve
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells a command that goes through a relay what it would find out by itself on the port of
    /// the server: whom to trust, and as whom to come.
    pub fn introduce(&self, command: &mut Command) {
        let door = self.state.join(format!("local/{}.toml", self.port));
        let door = std::fs::read_to_string(door).expect("the server has a door");
        let value = |key: &str| {
            let of = |line: &str| line.strip_prefix(key)?.strip_prefix(" = ").map(str::to_owned);
            door.lines().find_map(of).expect("the door is whole").trim_matches('"').to_owned()
        };
        command.arg("--fingerprint").arg(value("fingerprint")).env("RDMA_TOKEN", value("token"));
    }

    /// An `rdma-cp` that this server lets in.
    pub fn cp(&self, arguments: &[&str]) -> Command {
        self.client("rdma-cp", arguments)
    }

    /// An `rdma-sync` that this server lets in.
    pub fn sync(&self, arguments: &[&str]) -> Command {
        self.client("rdma-sync", arguments)
    }

    /// A command of ours that this server lets in.
    pub fn client(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.bins.join(name));
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

/// Files in one folder.
const FOLDER_FILES: usize = 1000;

/// Makes folders of files that differ from one another.
pub fn fill_tree(tree: &Path, files: usize, bytes: usize) {
    let mut bytes = vec![7_u8; bytes];
    for index in 0..files {
        let folder = tree.join(format!("{:04}", index / FOLDER_FILES));
        if index % FOLDER_FILES == 0 {
            std::fs::create_dir_all(&folder).expect("a folder");
        }
        for (byte, digit) in bytes.iter_mut().zip(index.to_le_bytes()) {
            *byte = digit;
        }
        std::fs::write(folder.join(format!("file-{index}")), &bytes).expect("a file");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_watches_when_a_watch_is_gone() {
        let watch = Watch::start(std::process::id());
        let seen = Arc::downgrade(&watch.most);
        drop(watch);
        assert!(seen.upgrade().is_none(), "a thread still looks");
    }

    #[test]
    fn a_command_that_fails_is_told_of() {
        let failed = try_run(Command::new("/bin/sh").args(["-c", "exit 3"]));
        assert!(failed.is_err_and(|error| error.contains("exit status: 3")));
    }
}
