//! `rdma-sync` as a user runs it: real processes, real sockets, real trees. One
//! module a subject; what they share is here. Not part of the tests that cargo
//! runs by itself: `tests/run sync` runs them, they take a while.

#![forbid(unsafe_code)]

mod atomic;
mod churning;
mod coarse;
mod exchange;
mod faithful;
mod following;
mod full;
mod healing;
mod killing;
mod links;
mod mirroring;
mod mounting;
mod owners;
mod powerless;
mod refusing;
mod saving;
mod straying;
mod trouble;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use verbatim_tests::port::Port;
use verbatim_tests::process::{self, Ended, Home, Running, Serve};
use verbatim_tests::tree;

/// How long the server may be at the work of a client that was killed.
pub(crate) const LET_GO_MAX: Duration = Duration::from_secs(20);

/// A server that exports `src`, and `in` for writing, and a folder `out` beside them.
pub(crate) struct World {
    pub home: Arc<Home>,
    pub serve: Serve,
    port: Port,
    pub dir: TempDir,
}

/// Which way a mirror goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Down,
    Up,
}

pub(crate) const BOTH: [Way; 2] = [Way::Down, Way::Up];

impl World {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for name in ["src", "in", "out"] {
            fs::create_dir(dir.path().join(name)).expect("a folder");
        }
        let (home, port) = (Arc::new(Home::new()), Port::take());
        let serve = Serve::of(&home, &port.text(), &exports(dir.path()));
        Self { home, serve, dir, port }
    }

    /// The same for a user without rights, who has all of it; none where there is no such user.
    pub fn powerless() -> Option<Self> {
        let home = Arc::new(Home::powerless()?);
        let dir = tempfile::tempdir().expect("a temporary folder");
        for name in ["src", "in", "out"] {
            fs::create_dir(dir.path().join(name)).expect("a folder");
        }
        let port = Port::take();
        let serve = Serve::of(&home, &port.text(), &exports(dir.path()));
        let world = Self { home, serve, dir, port };
        world.give_away();
        Some(world)
    }

    /// Starts the server again where it was; it must have been killed.
    #[track_caller]
    pub fn serve_again(&mut self) {
        self.serve.gone();
        self.serve = Serve::of(&self.home, &self.port.text(), &exports(self.dir.path()));
    }

    /// Gives all files to the user without rights.
    pub fn give_away(&self) {
        if rustix::process::geteuid().is_root() {
            for path in [vec![self.dir.path().to_owned()], tree::walk(self.dir.path())].concat() {
                let id = Some(process::NOBODY);
                std::os::unix::fs::lchown(&path, id, id).expect("root may give away");
            }
        }
    }

    /// The same, where uploads may have any owner and any bits, if this is root.
    pub fn with_owners() -> Self {
        let mut world = Self::new();
        let config = world.path("serve.toml");
        let path = text(&world.path("in"));
        let lines = format!(
            "[[export]]\nname = \"in\"\npath = \"{path}\"\nmode = \"rw\"\nowner = \"client\"\n\
             root_squash = false\nallow_setuid = true\nallow_security_xattrs = true\n"
        );
        fs::write(&config, lines).expect("writes");
        let arguments = ["--config", &text(&config)];
        world.serve = Serve::of(&world.home, "127.0.0.1:0", &arguments);
        world
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// The source of a mirror.
    pub fn source(&self) -> PathBuf {
        self.path("src")
    }

    /// The target of a mirror.
    pub fn target(&self, way: Way) -> PathBuf {
        self.path(if way == Way::Down { "out/copy" } else { "in/copy" })
    }

    /// Both ends as they are written on the command line.
    pub fn ends(&self, way: Way) -> [String; 2] {
        match way {
            Way::Down => [self.serve.at("src"), text(&self.target(way))],
            Way::Up => [text(&self.source()), self.serve.at("in/copy")],
        }
    }

    /// Runs rdma-sync with these flags, to its end.
    #[track_caller]
    pub fn sync(&self, way: Way, flags: &[&str]) -> Ended {
        self.start(way, flags).end()
    }

    /// The same, behind one that was killed: the server may still be at its work.
    #[track_caller]
    pub fn sync_again(&self, way: Way, flags: &[&str]) -> Ended {
        let begin = Instant::now();
        loop {
            let ended = self.sync(way, flags);
            if !is_held(&ended) || begin.elapsed() > LET_GO_MAX {
                return ended;
            }
        }
    }

    pub fn start(&self, way: Way, flags: &[&str]) -> Running {
        let ends = self.ends(way);
        let arguments: Vec<&str> = ends.iter().map(String::as_str).chain(flags.to_vec()).collect();
        Running::start(self.home.command("rdma-sync", &arguments))
    }
}

/// Whether somebody has the target, perhaps one that was killed.
pub(crate) fn is_held(ended: &Ended) -> bool {
    ended.code == Some(1) && ended.stderr.contains("is being synchronised by")
}

pub(crate) fn exports(dir: &Path) -> [String; 2] {
    [format!("src={}", text(&dir.join("src"))), format!("in={}:rw", text(&dir.join("in")))]
}

pub(crate) fn text(path: &Path) -> String {
    path.to_str().expect("temporary folders have plain names").to_owned()
}

/// Writes a file, and the folders it is in.
pub(crate) fn write(path: PathBuf, bytes: &[u8]) {
    tree::write(&path, bytes);
}

/// The last line of what `--json` prints: the summary.
pub(crate) fn summary(ended: &Ended) -> serde_json::Value {
    let line = ended.stdout.lines().last().unwrap_or_else(|| panic!("nothing printed: {ended:?}"));
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))
}

/// What changed, as `action path`, in order.
pub(crate) fn changes(ended: &Ended) -> Vec<String> {
    let events = ended.stdout.lines().map(|line| {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|e| panic!("{e}: {line}"))
    });
    let word = |event: &serde_json::Value, key: &str| event[key].as_str().unwrap_or("").to_owned();
    events
        .filter(|event| event["event"] == "change")
        .map(|event| format!("{} {}", word(&event, "action"), word(&event, "path")))
        .collect()
}
