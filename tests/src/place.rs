//! A user, folders, and a server that is ended and started again at the same
//! address: for tests of what outlives a server. Two exports, `data` to read and
//! `in` to write to, and a folder `out` for what comes back.

use crate::port::Port;
use crate::process::{self, Home, Serve, Signal};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

/// Where such a test takes place.
pub struct Place {
    /// The user, of the server and of copies.
    pub home: Arc<Home>,
    dir: TempDir,
    /// Where the server is.
    pub address: String,
    _port: Port,
}

impl Place {
    /// Makes it, and starts the first server.
    pub fn new() -> (Self, Serve) {
        Self::of(tempfile::tempdir().expect("a temporary folder"), Home::new())
    }

    /// The same in memory, for short waits, which a disk that flushes for somebody else would
    /// exceed.
    pub fn in_memory() -> (Self, Serve) {
        Self::of(process::memory(), Home::in_memory())
    }

    fn of(dir: TempDir, home: Home) -> (Self, Serve) {
        for folder in ["data", "in", "out"] {
            fs::create_dir(dir.path().join(folder)).expect("a folder");
        }
        let port = Port::take();
        let place = Self { dir, home: Arc::new(home), address: port.text(), _port: port };
        let serve = place.serve();
        (place, serve)
    }

    /// Starts a server, where the one before was.
    #[track_caller]
    pub fn serve(&self) -> Serve {
        self.serve_as(&self.home, &[])
    }

    /// Starts a server there as another user, with more arguments.
    #[track_caller]
    pub fn serve_as(&self, home: &Arc<Home>, more: &[&str]) -> Serve {
        let exports = [format!("data={}", self.text("data")), format!("in={}:rw", self.text("in"))];
        let arguments: Vec<&str> =
            exports.iter().map(String::as_str).chain(more.iter().copied()).collect();
        Serve::of(home, &self.address, &arguments)
    }

    /// What is in one of the folders.
    pub fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// The same as an argument.
    pub fn text(&self, below: &str) -> String {
        self.path(below).to_str().expect("temporary folders have plain names").to_owned()
    }

    /// Ends a server as a power cut of its process would, and waits until it is gone.
    #[track_caller]
    pub fn kill(&self, serve: Serve) {
        serve.signal(Signal::KILL);
        assert_eq!(serve.end(), None, "it was killed");
    }
}
