//! The log of a server that has a line for every file. Its standard error is a socket
//! of datagrams here, so that each of its writes is seen for itself.

use crate::process::{Home, Running, Signal, Text, seen, wait_for};
use crate::text;
use serde_json::Value;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use verbatim_tests::output::Report;

/// Files that are copied, each with its line.
const FILES: usize = 500;

/// What the kernel writes to a pipe as a whole.
const PIPE_BUF: usize = 4096;

const WAIT_MAX: Duration = Duration::from_secs(20);

/// A server whose writes are kept apart; killed when this is dropped.
struct Logged {
    child: Child,
    log: UnixDatagram,
    writes: Vec<String>,
    port: u16,
    home: Arc<Home>,
    dir: TempDir,
}

impl Logged {
    fn start(rust_log: &str) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        fs::create_dir(dir.path().join("data")).expect("a folder");
        for at in 0..FILES {
            fs::write(dir.path().join(format!("data/{at}")), [7; 9]).expect("a file");
        }
        let (log, end) = UnixDatagram::pair().expect("sockets");
        log.set_nonblocking(true).expect("ours");
        let home = Arc::new(Home::new());
        let data = format!("data={}", text(&dir.path().join("data")));
        let arguments = ["--listen", "127.0.0.1:0", "--metrics", "off", "--log-format", "json"];
        let mut command = home.command("rdma-serve", &arguments);
        command.arg(data).env("RUST_LOG", rust_log).stdout(Stdio::null());
        let child = command.stderr(Stdio::from(OwnedFd::from(end))).spawn().expect("it starts");
        let mut logged = Self { child, log, writes: Vec::new(), port: 0, home, dir };
        let line = logged.wait_for("listening", 1).pop().expect("a line");
        let address = line["fields"]["address"].as_str().expect("an address").to_owned();
        logged.port = address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("one");
        logged
    }

    /// Takes what was written so far.
    fn take(&mut self) {
        let mut buffer = vec![0; 1 << 20];
        while let Ok(bytes) = self.log.recv(&mut buffer) {
            self.writes.push(String::from_utf8(buffer[..bytes].to_vec()).expect("text"));
        }
    }

    /// The lines with this message; fails where one is not whole.
    fn lines(&self, message: &str) -> Vec<Value> {
        let whole = |line: &str| serde_json::from_str::<Value>(line).expect(line);
        let all = self.writes.iter().flat_map(|write| write.lines()).map(whole);
        all.filter(|line| line["fields"]["message"] == message).collect()
    }

    /// Waits until it has written so many lines with this message.
    #[track_caller]
    fn wait_for(&mut self, message: &str, count: usize) -> Vec<Value> {
        let what = format!("the server has written {count} lines with the message {message:?}");
        wait_for(&what, WAIT_MAX, || {
            self.take();
            let lines = self.lines(message);
            let found = lines.len();
            let all = || format!("{found} lines; all that was written:\n{}", self.writes.concat());
            if found >= count { Ok(lines) } else { Err(Text(all())) }
        })
    }

    /// Copies all files; what is logged meanwhile is taken, because the socket holds little.
    fn copy(&mut self, to: &str) {
        let from = format!("rdma://127.0.0.1:{}/data", self.port);
        let to = text(&self.dir.path().join(to));
        let mut copy = Running::start(self.home.command("rdma-cp", &["-r", &from, &to]));
        wait_for("the copy ends", WAIT_MAX, || {
            self.take();
            seen(copy.has_ended(), copy.report())
        });
        copy.end().done();
    }

    fn signal_and_wait(&mut self, signal: Signal) {
        let id = rustix::process::Pid::from_raw(self.child.id() as i32).expect("a number");
        rustix::process::kill_process(id, signal).expect("our own child takes signals");
        wait_for("the server ends", WAIT_MAX, || {
            self.take();
            let ended = self.child.try_wait().expect("our own child");
            ended.ok_or_else(|| (Report::of(&mut self.child, &[]), Text(self.writes.concat())))
        });
        self.take();
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn lines_of_many_files_are_written_together_and_whole() {
    let mut logged = Logged::start("info");
    let before = logged.writes.len();
    logged.copy("out");
    // In time, though nobody ends it and nothing follows.
    assert_eq!(logged.wait_for("file sent", FILES).len(), FILES);
    let writes = &logged.writes[before..];
    assert!(writes.len() < FILES / 5, "{} writes for {FILES} files", writes.len());
    assert!(writes.iter().all(|write| write.len() <= PIPE_BUF && write.ends_with('\n')));
    // Files are closed by several threads, so their lines have no order but this one.
    let all = writes.concat();
    assert!(all.find("session began") < all.find("file sent"), "lines changed their order");
    // The end loses nothing of what still waits.
    logged.copy("again");
    logged.signal_and_wait(Signal::TERM);
    assert_eq!(logged.lines("file sent").len(), 2 * FILES);
    assert_eq!(logged.lines("stopped").len(), 1);
}

#[test]
fn a_killed_server_leaves_whole_lines_and_at_debug_each_is_written_at_once() {
    let mut logged = Logged::start("info");
    logged.copy("out");
    logged.wait_for("session began", 1);
    logged.signal_and_wait(Signal::KILL);
    assert!(logged.writes.iter().all(|write| write.ends_with('\n')));
    let mut logged = Logged::start("debug");
    logged.copy("out");
    logged.wait_for("file sent", FILES);
    assert!(logged.writes.iter().all(|write| write.lines().count() == 1));
}
