//! An rsync daemon to be compared with: one module, read and written, on loopback.
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
    /// Serves a folder as the module `m`; its configuration goes to another folder.
    pub fn start(folder: &Path, state: &Path, port: u16) -> Self {
        let config = state.join("rsyncd.conf");
        let lines = format!(
            "address = 127.0.0.1\nport = {port}\nuse chroot = no\nread only = no\n\
             [m]\npath = {}\n",
            folder.display()
        );
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
