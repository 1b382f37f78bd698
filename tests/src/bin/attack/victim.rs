//! The server that is attacked: a process of the build under test, with a folder to read
//! and one to write to, a token for the enemy, and an honest client beside it. Owns the
//! folders, which are in memory where there is room, and the crowd's runtime.

use crate::Flags;
use crate::table::Table;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use verbatim_control::ClientKey;
use verbatim_tests::process::{self, Home, Running, Serve};

/// Links of `export/links`: as many as one message may ask about.
pub const LINKS: usize = 128;

/// How long what a link leads to is, in bytes.
const TARGET_BYTES: usize = 4_000;

/// How deep `export/deep` is.
const DEPTH: usize = 126;

/// How long after an attack the memory of the server counts, unless the attack was shorter.
const AFTER_SECONDS: u64 = 10;

/// How long an honest copy is tried for.
pub const COPY_MAX: Duration = Duration::from_secs(60);

/// A server of the build under test.
pub struct Victim {
    pub serve: Serve,
    /// The key of the enemy's token: everything, to read and to write.
    pub key: ClientKey,
    /// What the build calls itself.
    pub version: String,
    dir: TempDir,
    after_seconds: u64,
}

/// What a server may keep in memory for its clients, where it knows such a bound.
const BUDGET_MB: u64 = 128;

impl Victim {
    /// Starts it. `large_bytes` is how long `export/large` is.
    pub fn start(flags: &Flags, large_bytes: u64) -> Self {
        let (dir, home) = (process::memory(), Arc::new(Home::in_memory()));
        let path = |below: &str| dir.path().join(below);
        for folder in ["export/links", "in", "out"] {
            fs::create_dir_all(path(folder)).expect("a folder");
        }
        fs::create_dir_all(path("export/deep").join(vec!["x"; DEPTH].join("/"))).expect("folders");
        for number in 0..LINKS {
            let target = "t".repeat(TARGET_BYTES);
            symlink(target, path(&format!("export/links/{number}"))).expect("a link");
        }
        fs::write(path("export/small"), vec![7; 64 << 10]).expect("a file");
        let large = fs::File::create(path("export/large")).expect("a file");
        fill(&large, large_bytes);
        let added = home.command("rdma-token", &["add", "enemy", "--export", "*:rw"]);
        let token = Running::start(added).end().done().stdout;
        let key = ClientKey::from_token(token.trim()).expect("a token");
        let text = |below: &str| path(below).to_str().expect("plain").to_owned();
        let exports = [format!("export={}", text("export")), format!("in={}:rw", text("in"))];
        let mut arguments = exports.to_vec();
        let config = text("serve.toml");
        fs::write(&config, format!("[limits]\nmemory_mb = {BUDGET_MB}\n")).expect("a file");
        let budget = ["--config".to_owned(), config];
        let check = [&arguments[..], &budget, &["--check-config".to_owned()]].concat();
        // Older servers have no budget.
        if Running::start(home.command("rdma-serve", &check)).end().code == Some(0) {
            arguments.extend(budget);
        }
        let serve = Serve::of(&home, "127.0.0.1:0", &arguments);
        let version = Running::start(home.command("rdma-serve", &["--version"])).end().stdout;
        let version = version.lines().next().unwrap_or_default().to_owned();
        let after_seconds = flags.seconds.min(AFTER_SECONDS);
        Self { serve, key, version, dir, after_seconds }
    }

    /// An empty table for an attack on it.
    pub fn table(&self, attack: &'static str) -> Table {
        Table::new(attack, &self.version)
    }

    /// Copies a file as an honest client of the server's user, again and again until the server
    /// lets it; returns how long that took, in seconds, or `COPY_MAX` where it took longer.
    pub fn copy(&self, name: &str) -> f64 {
        let begin = Instant::now();
        let (from, to) = (self.serve.at(&format!("export/{name}")), self.path("out").join(name));
        let _ = fs::remove_file(&to);
        let start = || {
            let mut command =
                self.serve.home().command("rdma-cp", &[from.as_ref(), to.as_os_str()]);
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("rdma-cp runs")
        };
        let mut child = start();
        loop {
            match child.try_wait().expect("our own child") {
                Some(status) if status.success() => return begin.elapsed().as_secs_f64(),
                _ if begin.elapsed() >= COPY_MAX => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return COPY_MAX.as_secs_f64();
                }
                Some(_) => child = start(),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// How much of its memory is of no file (`RssAnon`), in MiB.
    pub fn memory_mib(&self) -> f64 {
        let path = format!("/proc/{}/status", self.serve.id());
        let status = fs::read_to_string(&path).expect("the server lives");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok());
        kib.expect("the kernel counts it") / 1024.0
    }

    /// Adds what it has in memory before, at most while `attack` runs, and after it.
    pub fn measure_memory(
        &self,
        table: &mut Table,
        what: &str,
        attack: impl FnOnce(&mut dyn FnMut()),
    ) {
        table.row(format!("{what}: memory before"), self.memory_mib().round(), "MiB");
        let mut most = 0_f64;
        attack(&mut || most = most.max(self.memory_mib()));
        table.row(format!("{what}: memory at most"), most.round(), "MiB");
        let mut waited = 0;
        for seconds in [1, self.after_seconds] {
            std::thread::sleep(Duration::from_secs(seconds - waited));
            waited = seconds;
            let after = self.memory_mib().round();
            table.row(format!("{what}: memory {seconds} s after they left"), after, "MiB");
        }
    }

    /// What is in one of its folders.
    pub fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }
}

/// Writes bytes that are no zeros.
fn fill(file: &fs::File, bytes: u64) {
    use std::io::Write;
    let piece: Vec<u8> =
        (0..1_u32 << 18).flat_map(|n| (n.wrapping_mul(2_654_435_761)).to_le_bytes()).collect();
    let (mut file, mut rest) = (file, bytes as usize);
    while rest > 0 {
        let some = rest.min(piece.len());
        file.write_all(&piece[..some]).expect("there is room");
        rest -= some;
    }
}

/// A runtime for the tasks of an enemy. Dropping it ends them all and closes their connections.
pub fn crowd() -> tokio::runtime::Runtime {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime")
}
