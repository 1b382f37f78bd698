//! A tree of a server as a folder of this machine, for as long as a measurement takes:
//! starts `rdma-mount`, waits until it stands, asks it how it is, and ends it. Leaves
//! nothing mounted. Used by `mount-bench`.

use crate::Serve;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a mount may take to stand, and to go.
const STAND_MAX: Duration = Duration::from_secs(60);

/// A mount.
pub struct Mounted {
    child: Child,
    at: TempDir,
}

impl Mounted {
    /// Mounts a path of a server, over TCP, with its cache there.
    pub fn start(serve: &Serve, path: &str, cache: &Path, arguments: &[&str]) -> Self {
        let at = tempfile::tempdir().expect("a mount point");
        let from = format!("rdma://127.0.0.1:{}/{path}", serve.port);
        let mut command = serve.client("rdma-mount", &[&from]);
        command.arg(at.path()).args(["--foreground", "--transport", "tcp", "-q", "--cache"]);
        command.arg(cache).args(["--cache-size", "64G"]).args(arguments);
        let child = command.stdin(Stdio::null()).spawn().expect("rdma-mount starts");
        let mut mounted = Self { child, at };
        let deadline = Instant::now() + STAND_MAX;
        while !mounted.stands() {
            let ended = mounted.child.try_wait().expect("our own child");
            assert!(ended.is_none() && Instant::now() < deadline, "it does not stand: {ended:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        mounted
    }

    fn stands(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("the kernel tells");
        let at = self.at.path().to_str().expect("our own path");
        mounts.lines().any(|line| line.split(' ').nth(4) == Some(at))
    }

    /// Where something of it is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.at.path().join(name)
    }

    /// The process number of the daemon.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it tells of itself.
    pub fn status(&self) -> serde_json::Value {
        let mut bytes = vec![0; 16 << 10];
        let len = rustix::fs::getxattr(self.at.path(), "user.verbatim.status", &mut bytes[..]);
        serde_json::from_slice(&bytes[..len.expect("it has a status")]).expect("JSON")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Who is gone already needs no signal; what stays mounted is taken away.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
        if self.stands() {
            let _ = Command::new("umount").arg("-l").arg(self.at.path()).status();
        }
    }
}
