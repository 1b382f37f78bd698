//! Two hundred clients that pull one file at once, against one of them alone; and
//! what clients that do nothing cost the server. A server of its own for each round,
//! which has no digests yet. Called by `compare-bench`.
//!
//! The file must be long: who is let in first has the server for himself, and with a
//! short one is done before the last has started. What is measured then is how long
//! two hundred processes take to start, not who is served how.

use super::goals::Goal;
use super::peers::Helper;
use crate::crowd::{CONFIG, enter, get, metric};
use crate::{Serve, fill, let_settle, rss_anon_kib};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use verbatim_proto::units::WINDOW_BYTES;

const PORT: u16 = 21_540;
const METRICS_PORT: u16 = 21_541;

/// How often one client pulls alone in each round; it finds digests, which the crowd did not.
const ALONE_RUNS: usize = 5;

/// Clients that wait for changes; each is a process.
const WATCHERS: usize = 50;

/// Sessions that are let in and say nothing.
const SILENT: usize = 500;

/// How long all watchers may take until they are current.
const CURRENT_MAX: Duration = Duration::from_secs(120);

/// How long the copies of all may take together: then those that are left are ended.
const CROWD_MAX: Duration = Duration::from_secs(600);

/// How long those who stand at the door have to get there.
const AT_THE_DOOR: Duration = Duration::from_secs(1);

/// Where everything is, and how much of it.
pub struct Place<'a> {
    /// Our commands.
    pub bins: &'a Path,
    /// Where the file is made: a disk.
    pub source: &'a Path,
    /// Where copies of those who wait for changes go: a tmpfs.
    pub target: &'a Path,
    /// What servers keep.
    pub state: &'a Path,
    /// How long the file is.
    pub mib: u64,
    /// How many pull it.
    pub clients: usize,
}

/// What was measured; times in seconds.
#[derive(Debug, Default)]
pub struct Crowd {
    mib: u64,
    clients: usize,
    /// The best time of one client alone.
    alone_s: f64,
    /// The first and the last client to be done, in the round that was over first.
    fastest_s: f64,
    slowest_s: f64,
    /// Windows that were hashed, in the round with most of them.
    hashed: f64,
    /// The most anonymous memory of the server while all pull.
    server_kib: u64,
    /// What each session that says nothing, and each that waits for changes, adds.
    silent_kib: f64,
    watcher_kib: f64,
}

/// Measures both.
pub fn measure(place: &Place<'_>, rounds: usize) -> Crowd {
    println!("making one file of {} MiB for {} clients", place.mib, place.clients);
    let folder = place.source.join("crowd");
    fs::create_dir(&folder).expect("a folder");
    fill(&folder.join("file"), place.mib);
    let_settle();
    let mut crowd = Crowd { mib: place.mib, clients: place.clients, ..Crowd::default() };
    crowd.alone_s = f64::MAX;
    crowd.slowest_s = f64::MAX;
    for round in 0..rounds {
        let (serve, _) = place.serve(&folder, &format!("crowd-{round}"));
        let all = pull(place, &serve);
        let text = get(METRICS_PORT, "/metrics").expect("the server shows its metrics");
        let missed = metric(&text, "rdma_serve_cache_lookups_total{result=\"miss\"}");
        // One is over so soon that somebody else on the machine is easily in its way.
        let one = Place { clients: 1, ..*place };
        let alone_s =
            (0..ALONE_RUNS).map(|_| pull(&one, &serve).slowest_s).fold(f64::MAX, f64::min);
        println!("crowd: {} clients {:.3} s, one {alone_s:.3} s", place.clients, all.slowest_s);
        crowd.hashed = crowd.hashed.max(missed.expect("the server counts it"));
        crowd.alone_s = crowd.alone_s.min(alone_s);
        crowd.server_kib = crowd.server_kib.max(all.server_kib);
        if all.slowest_s < crowd.slowest_s {
            (crowd.fastest_s, crowd.slowest_s) = (all.fastest_s, all.slowest_s);
        }
    }
    (crowd.silent_kib, crowd.watcher_kib) = idle(place);
    fs::remove_dir_all(&folder).expect("it can be removed");
    crowd
}

impl Place<'_> {
    /// A server that knows nothing yet, and where it keeps what it learns.
    fn serve(&self, folder: &Path, name: &str) -> (Serve, PathBuf) {
        let state = self.state.join(name);
        fs::create_dir(&state).expect("a folder");
        let config = state.join("serve.toml");
        fs::write(&config, CONFIG).expect("a configuration");
        let metrics = format!("127.0.0.1:{METRICS_PORT}");
        let (config, export) = (config.display().to_string(), format!("src={}", folder.display()));
        let flags = ["--config", &config, "--metrics", &metrics, &export];
        (Serve::start(self.bins, &state, PORT, &flags), state)
    }
}

/// All clients pull at once, into a sink each: so many copies of a file that is long enough fit
/// into no memory. What each takes is verified as every copy is.
fn pull(place: &Place<'_>, serve: &Serve) -> Crowd {
    let from = format!("rdma://127.0.0.1:{}/src/file", serve.port);
    let (gate, door) = std::io::pipe().expect("a pipe");
    let copy = |_| {
        let copy = serve.cp(&["-q", &from, "-"]);
        // Stands at the door as a process that only has to become the command.
        let mut waits = Command::new("/bin/sh");
        waits.args(["-c", "read -r _; exec \"$@\" </dev/null", "sh"]);
        waits.arg(copy.get_program()).args(copy.get_args());
        waits.stdin(gate.try_clone().expect("a descriptor"));
        waits.stdout(Stdio::null()).stderr(Stdio::null());
        Helper(waits.spawn().expect("it starts"))
    };
    let mut copies: Vec<Helper> = (0..place.clients).map(copy).collect();
    std::thread::sleep(AT_THE_DOOR);
    let watch = crate::Watch::start(serve.pid());
    let begin = Instant::now();
    drop(door);
    let took = ends(&mut copies, begin);
    let server_kib = watch.stop().rss_anon_kib;
    let fastest_s = took.iter().copied().fold(f64::MAX, f64::min);
    let slowest_s = took.iter().copied().fold(0.0, f64::max);
    Crowd { server_kib, fastest_s, slowest_s, ..Crowd::default() }
}

/// Waits until all have ended well, and says when each did. The kernel wakes this for each: who
/// looks now and then would add to the time of one alone. One that fails, or is not over in time,
/// is the end of the measurement, and of those that are left.
fn ends(copies: &mut [Helper], begin: Instant) -> Vec<f64> {
    let mut left: Vec<(usize, OwnedFd)> = copies.iter().map(handle).enumerate().collect();
    let mut took = vec![0.0; copies.len()];
    while !left.is_empty() {
        let mut waited: Vec<_> =
            left.iter().map(|(_, fd)| PollFd::new(fd, PollFlags::IN)).collect();
        let rest = CROWD_MAX.saturating_sub(begin.elapsed());
        let rest = Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: rest.subsec_nanos().into() };
        let ended = poll(&mut waited, Some(&rest)).expect("processes can be waited for");
        let now = begin.elapsed().as_secs_f64();
        assert!(ended > 0, "{} clients are not over after {CROWD_MAX:?}", left.len());
        let over: Vec<bool> = waited.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut over = over.into_iter();
        left.retain(|(number, _)| {
            if over.next() == Some(false) {
                return true;
            }
            let status = copies[*number].0.wait().expect("it is ours");
            assert!(status.success(), "client {number} ended with {status}");
            took[*number] = now;
            false
        });
    }
    took
}

/// What the kernel tells the end of a process by.
fn handle(copy: &Helper) -> OwnedFd {
    let pid = Pid::from_raw(copy.0.id() as i32).expect("a process has a number");
    pidfd_open(pid, PidfdFlags::empty()).expect("a process of ours has a handle")
}

/// What a session that says nothing, and one that waits for changes, adds to a server that has
/// served somebody before, in KiB. A server each: memory that some gave back serves others.
fn idle(place: &Place<'_>) -> (f64, f64) {
    let (small, targets) = (place.source.join("watched"), place.target.join("watchers"));
    crate::fill_tree(&small, 10, 4096);
    fs::create_dir(&targets).expect("a folder");
    let from = format!("rdma://127.0.0.1:{PORT}/src");
    let first = targets.join("first").display().to_string();
    let warm = |serve: &Serve| {
        crate::run(&mut serve.sync(&["-q", &from, &first]));
        rss_anon_kib(serve.pid())
    };
    let (serve, state) = place.serve(&small, "silent");
    let before = warm(&serve);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let crowd = runtime.expect("a runtime").block_on(enter(&state, PORT, SILENT));
    let silent = rss_anon_kib(serve.pid()).saturating_sub(before) as f64 / crowd.len() as f64;
    drop((crowd, serve));
    let (serve, _) = place.serve(&small, "watched");
    let before = warm(&serve);
    let watchers = watch(&serve, &from, &targets);
    let watching = rss_anon_kib(serve.pid()).saturating_sub(before) as f64 / WATCHERS as f64;
    drop(watchers);
    fs::remove_dir_all(&targets).expect("it can be removed");
    fs::remove_dir_all(&small).expect("it can be removed");
    (silent, watching)
}

/// Starts those that wait for changes, and waits until each has its copy.
fn watch(serve: &Serve, from: &str, targets: &Path) -> Vec<Helper> {
    let statuses: Vec<_> = (0..WATCHERS).map(|n| targets.join(format!("{n}.json"))).collect();
    let start = |(number, status): (usize, &PathBuf)| {
        let target = targets.join(format!("copy-{number}")).display().to_string();
        let mut watch = serve.sync(&["-q", "--watch", from, &target]);
        watch.arg("--status-file").arg(status);
        Helper(quiet(&mut watch).spawn().expect("it starts"))
    };
    let watchers = statuses.iter().enumerate().map(start).collect();
    let is_current = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let told: Value = serde_json::from_str(&text).unwrap_or_default();
        told["state"] == "current"
    };
    let deadline = Instant::now() + CURRENT_MAX;
    while !statuses.iter().all(is_current) {
        assert!(Instant::now() < deadline, "the watchers are not current");
        std::thread::sleep(Duration::from_millis(50));
    }
    watchers
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

impl Crowd {
    /// The rate of all against that of one alone.
    fn rate_ratio(&self) -> f64 {
        self.alone_s * self.clients as f64 / self.slowest_s
    }

    /// How often the file was hashed.
    fn times_hashed(&self) -> f64 {
        self.hashed / (self.mib << 20).div_ceil(WINDOW_BYTES) as f64
    }

    /// What is to be reached.
    pub fn goals(&self) -> Vec<Goal> {
        let name = format!("{} clients, one file of {} MiB", self.clients, self.mib);
        vec![
            Goal::at_most(format!("{name}: times it was hashed"), self.times_hashed(), 1.0),
            Goal::at_least(format!("{name}: rate of all by that of one"), self.rate_ratio(), 0.9),
            Goal::at_most(
                format!("{name}: time of the slowest by that of the fastest"),
                self.slowest_s / self.fastest_s,
                1.5,
            ),
            Goal::at_most(
                format!("server, MiB for each of {SILENT} silent sessions"),
                self.silent_kib / 1024.0,
                2.0,
            ),
            Goal::at_most(
                format!("server, MiB for each of {WATCHERS} that wait for changes"),
                self.watcher_kib / 1024.0,
                2.0,
            ),
        ]
    }

    /// For scripts.
    pub fn to_json(&self) -> Value {
        json!({
            "clients": self.clients, "mib": self.mib, "alone_s": self.alone_s,
            "fastest_s": self.fastest_s, "slowest_s": self.slowest_s,
            "rate_of_all_by_that_of_one": self.rate_ratio(),
            "times_hashed": self.times_hashed(), "server_rss_anon_kib": self.server_kib,
            "silent": SILENT, "server_kib_for_each_silent": self.silent_kib,
            "watchers": WATCHERS, "server_kib_for_each_watcher": self.watcher_kib,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_is_held_against_one_client() {
        let crowd = Crowd {
            mib: 40,
            clients: 200,
            alone_s: 0.05,
            fastest_s: 8.0,
            slowest_s: 12.5,
            hashed: 3.0,
            ..Crowd::default()
        };
        let goals = crowd.goals();
        let met = |text: &str| {
            let goal = goals.iter().find(|goal| goal.what.contains(text)).expect("there is one");
            (goal.measured, goal.is_met())
        };
        // Three windows of 16 MiB, each hashed once.
        assert_eq!(met("times it was hashed"), (1.0, true));
        assert_eq!(met("rate of all"), (0.8, false));
        assert_eq!(met("slowest"), (1.5625, false));
        let twice = Crowd { hashed: 4.0, ..crowd };
        assert!(!twice.goals()[0].is_met(), "one window was hashed twice");
    }

    fn shell(script: &str) -> Helper {
        Helper(quiet(Command::new("/bin/sh").args(["-c", script])).spawn().expect("it starts"))
    }

    #[test]
    fn each_client_has_a_time_of_its_own() {
        let begin = Instant::now();
        let mut copies = [shell("sleep 0.2"), shell("true")];
        let took = ends(&mut copies, begin);
        assert!(took[0] >= 0.2 && took[1] > 0.0, "{took:?}");
    }

    #[test]
    #[should_panic(expected = "client 1 ended with")]
    fn a_client_that_fails_ends_the_measurement() {
        ends(&mut [shell("exec sleep 600"), shell("exit 3")], Instant::now());
    }

    #[test]
    #[should_panic(expected = "1 clients are not over")]
    fn a_client_that_never_ends_is_not_waited_for() {
        let long_ago = Instant::now().checked_sub(CROWD_MAX).expect("the clock runs longer");
        ends(&mut [shell("exec sleep 600")], long_ago);
    }
}
