//! `rdma-mount` as a user runs it, on real servers over loopback and the kernel's own
//! FUSE: what readers get (`reading`), and fio (`fio`), and the loaders of a training run
//! (`loader`), of sparse files (`holes`), whose files are (`owning`), what is fetched for
//! whom (`patterns`), what they get when the source or the cache changes (`changing`) or
//! the cache was damaged (`damaged`) or is not this user's alone (`cache_owner`), when the
//! server or the daemon is lost (`losing`), when the server lies (`lying`), when the disk of the cache is full (`full`), how
//! a mount comes and goes (`living`), and how the system makes it (`system`). A stage of its
//! own in `tests/run`; where /dev/fuse cannot be used every test says so and is skipped.

#![forbid(unsafe_code)]

mod cache_owner;
mod changing;
mod damaged;
mod detaching;
mod fio;
mod full;
mod holes;
mod living;
mod loader;
mod losing;
mod lying;
mod offline;
mod owning;
mod patterns;
mod reading;
mod system;
mod watching;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use verbatim_tests::port::Port;
use verbatim_tests::process::{Ended, Home, Running, Serve, Signal, Text, contents};
use verbatim_tests::process::{seen, skip, wait_for, when};

/// How long a mount may take to stand, and to go.
const STAND_MAX: Duration = Duration::from_secs(30);

/// How long a file that was just written is not trusted, and a bit more.
const SETTLED: Duration = Duration::from_millis(2_100);

/// Whether mounts can be made here; says so if not.
fn can_mount(test: &str) -> bool {
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let root = rustix::process::geteuid().is_root();
    let helper = Command::new("fusermount3").arg("-V").output().is_ok();
    match device {
        Ok(_) if root || helper => true,
        Ok(_) => {
            skip(test, "neither root nor fusermount3");
            false
        }
        Err(error) => {
            skip(test, &format!("/dev/fuse cannot be used: {error}"));
            false
        }
    }
}

/// A source with its server.
struct Source {
    dir: TempDir,
    home: Arc<Home>,
    port: Port,
    serve: Option<Serve>,
}

impl Source {
    /// Serves a folder that `fill` puts something in.
    fn new(fill: impl FnOnce(&Path)) -> Self {
        Self::of(Home::new(), fill)
    }

    /// The same by this user.
    fn of(home: Home, fill: impl FnOnce(&Path)) -> Self {
        Self::in_folder(tempfile::tempdir().expect("a folder"), home, fill)
    }

    /// The same out of this folder.
    fn in_folder(dir: TempDir, home: Home, fill: impl FnOnce(&Path)) -> Self {
        fill(dir.path());
        let home = Arc::new(home);
        let mut source = Self { dir, home, port: Port::take(), serve: None };
        source.start();
        source
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn serve(&self) -> &Serve {
        self.serve.as_ref().expect("it is served")
    }

    /// Starts a server, where the one before was.
    #[track_caller]
    fn start(&mut self) {
        let export = format!("data={}", self.dir.path().display());
        self.serve = Some(Serve::of(&self.home, &self.port.text(), &[&export]));
    }

    /// Ends the server without a word.
    fn kill(&mut self) {
        drop(self.serve.take().expect("it is served"));
    }

    /// Mounts it, with a cache of its own.
    #[track_caller]
    fn mount(&self, arguments: &[&str]) -> Mounted {
        self.mount_with(&Arc::new(tempfile::tempdir().expect("a folder")), arguments)
    }

    /// Mounts it with this cache.
    #[track_caller]
    fn mount_with(&self, cache: &Arc<TempDir>, arguments: &[&str]) -> Mounted {
        Mounted::start(&self.home, &self.serve().at("data"), cache, arguments)
    }
}

/// A mount; ended, whatever happened to it, when this is dropped.
struct Mounted {
    running: Option<Running>,
    cache: Arc<TempDir>,
    at: Option<TempDir>,
}

impl Mounted {
    #[track_caller]
    fn start(home: &Home, source: &str, cache: &Arc<TempDir>, arguments: &[&str]) -> Self {
        let at = tempfile::tempdir().expect("a folder");
        Self::start_on(home, source, cache, at, arguments)
    }

    #[track_caller]
    fn start_on(
        home: &Home,
        source: &str,
        cache: &Arc<TempDir>,
        at: TempDir,
        arguments: &[&str],
    ) -> Self {
        let place = ["--foreground", "--transport", "tcp", "--cache"].map(OsStr::new);
        let mut all: Vec<&OsStr> = vec![source.as_ref(), at.path().as_ref()];
        all.extend(place);
        all.push(cache.path().as_ref());
        all.extend(arguments.iter().map(OsStr::new));
        let mut running = Running::start(home.command("rdma-mount", &all));
        let what = format!("something is mounted on {}", at.path().display());
        wait_for(&what, STAND_MAX, || {
            let stands = is_mounted(at.path());
            if !stands {
                running.assert_runs("rdma-mount ended before its mount stood");
            }
            seen(stands, running.report())
        });
        Self { running: Some(running), cache: cache.clone(), at: Some(at) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.at.as_ref().expect("it has a place").path().join(name)
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs")
    }

    /// What it tells of itself.
    fn status(&self) -> serde_json::Value {
        let mut bytes = vec![0; 16 << 10];
        let len = rustix::fs::getxattr(self.path(""), "user.verbatim.status", &mut bytes[..]);
        serde_json::from_slice(&bytes[..len.expect("it has a status")]).expect("JSON")
    }

    /// Waits until its status is as it should be; returns that.
    #[track_caller]
    fn wait_for_status(
        &self,
        what: &str,
        mut done: impl FnMut(&serde_json::Value) -> bool,
    ) -> serde_json::Value {
        wait_for(what, STAND_MAX, || when(self.status(), &mut done).map_err(Text))
    }

    /// Waits until all of the source is in the cache.
    #[track_caller]
    fn wait_for_fill(&self) -> serde_json::Value {
        self.wait_for_status("the fill is complete", |it| it["fill"]["state"] == "complete")
    }

    /// Ends it as a user would, and returns what it said; fails unless it ends well and leaves
    /// nothing.
    #[track_caller]
    fn end(mut self) -> Ended {
        let running = self.running.take().expect("it runs");
        running.signal(Signal::TERM);
        let ended = running.end().done();
        let at = self.at.as_ref().expect("it has a place").path();
        assert!(!is_mounted(at), "it is still mounted");
        ended
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(at) = &self.at
            && is_mounted(at.path())
        {
            let _ = Command::new("umount").arg("-l").arg(at.path()).status();
        }
    }
}

/// Whether something is mounted exactly there.
fn is_mounted(at: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the kernel tells");
    let at = at.to_str().expect("our own path");
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(at))
}

/// Bytes that are nowhere the same.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// What a system call said: the number of its error.
fn errno(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or_default()
}

const EIO: i32 = 5;
const EFBIG: i32 = 27;
const EOPNOTSUPP: i32 = 95;
const ESTALE: i32 = 116;
const ENOTCONN: i32 = 107;
const ECONNABORTED: i32 = 103;
