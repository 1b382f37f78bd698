//! An rsync daemon to be compared with: modules, read and written, on loopback.
//! Ended when it goes. Its work is done by a child of its own for each client.

use crate::wait_for;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A running daemon.
pub struct Daemon {
    child: Child,
    /// The port it listens on.
    pub port: u16,
}

impl Daemon {
    /// Serves folders as modules of these names; its configuration goes to another folder.
    pub fn start(modules: &[(&str, &Path)], state: &Path, port: u16) -> Self {
        let config = state.join("rsyncd.conf");
        let mut lines =
            format!("address = 127.0.0.1\nport = {port}\nuse chroot = no\nread only = no\n");
        // One that root starts would be nobody, who writes into no folder of ours.
        if rustix::process::geteuid().is_root() {
            lines.push_str("uid = 0\ngid = 0\n");
        }
        for (name, folder) in modules {
            lines.push_str(&format!("[{name}]\npath = {}\n", folder.display()));
        }
        std::fs::write(&config, lines).expect("a configuration");
        let mut command = Command::new("rsync");
        command.args(["--daemon", "--no-detach"]).arg(format!("--config={}", config.display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let daemon = Self { child: command.spawn().expect("rsync is installed"), port };
        wait_for("the rsync daemon", port);
        daemon
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Ours, and it may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Says that it was skipped, in the file that `tests/run` counts.
    fn skip(why: &str) {
        let Some(path) = std::env::var_os("VERBATIM_SKIPS") else { return };
        let file = std::fs::File::options().append(true).create(true).open(path);
        writeln!(file.expect("it opens"), "{why}").expect("it can be written");
    }

    #[test]
    fn what_is_pushed_is_what_was_pulled() {
        if Command::new("rsync").arg("--version").output().is_err() {
            return skip("what_is_pushed_is_what_was_pulled: no rsync");
        }
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
        let port = free.expect("a free port").port();
        let top = tempfile::tempdir().expect("a folder");
        let (source, target) = (top.path().join("source"), top.path().join("target"));
        std::fs::create_dir(&source).expect("a folder");
        std::fs::create_dir(&target).expect("a folder");
        std::fs::write(source.join("file"), "some bytes").expect("a file");
        let daemon = Daemon::start(&[("src", &source), ("up", &target)], top.path(), port);
        let at = |module: &str| format!("rsync://127.0.0.1:{}/{module}/", daemon.port);
        let pulled = top.path().join("pulled").display().to_string();
        crate::run(Command::new("rsync").args(["-a", &at("src"), &pulled]));
        crate::run(Command::new("rsync").args(["-a", &format!("{pulled}/"), &at("up")]));
        let arrived = std::fs::read(target.join("file")).expect("it was pushed");
        assert_eq!(arrived, b"some bytes");
    }
}
