//! Who may do what, tested as a user meets it: real processes, real sockets,
//! real exit codes. One module a subject; what they share is here. Its own stage
//! of `tests/run`, because many of these wait for a clock.

#![forbid(unsafe_code)]

mod bounds;
mod certificates;
mod confining;
mod core_dumps;
mod exports;
mod giving;
mod limits;
mod memory;
mod owners;
mod parent;
mod quotas;
mod reloading;
mod sealing;
mod secrets;
mod tokens;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use verbatim_control::ConnectOptions;
use verbatim_proto::units::CHUNK_BYTES_DEFAULT;
use verbatim_tests::process::{self, Ended, Home, Running, Serve};

/// How long a server may take to follow what was changed.
const FOLLOW_MAX: Duration = Duration::from_secs(10);

/// A server that exports `data`, read-only, and `in`, writable; and its folders.
struct World {
    serve: Serve,
    dir: TempDir,
    home: Arc<Home>,
}

impl World {
    /// Starts a server with more arguments; its user is not the one the tests come as.
    fn new(arguments: &[&str]) -> Self {
        let (dir, home) = (folders(), Arc::new(Home::new()));
        let serve = Self::start(&home, &dir, arguments);
        Self { serve, dir, home }
    }

    /// Starts a server with this configuration; `DIR` in it is the folder of this world.
    fn configured(toml: &str) -> Self {
        Self::prepared(toml, |_| ())
    }

    /// The same, with more in that folder before it starts.
    fn prepared(toml: &str, prepare: impl FnOnce(&Path)) -> Self {
        let (dir, home) = (folders(), Arc::new(Home::new()));
        prepare(dir.path());
        let config = dir.path().join("serve.toml");
        fs::write(&config, toml.replace("DIR", &text(dir.path()))).expect("a file");
        let arguments = ["--config", &text(&config)];
        let serve = Serve::of(&home, "127.0.0.1:0", &arguments);
        Self { serve, dir, home }
    }

    fn start(home: &Arc<Home>, dir: &TempDir, arguments: &[&str]) -> Serve {
        let exports = [
            format!("data={}", text(&dir.path().join("data"))),
            format!("in={}:rw", text(&dir.path().join("in"))),
        ];
        let more = arguments.iter().map(|&argument| argument.to_owned());
        let all: Vec<String> = exports.into_iter().chain(more).collect();
        Serve::of(home, "127.0.0.1:0", &all)
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    fn text(&self, below: &str) -> String {
        text(&self.path(below))
    }

    /// Runs `rdma-token` on the state of this server.
    #[track_caller]
    fn token(&self, arguments: &[&str]) -> Ended {
        Running::start(self.home.command("rdma-token", arguments)).end()
    }

    /// Makes a token, and returns it once the server lets it in.
    #[track_caller]
    fn add(&self, name: &str, arguments: &[&str]) -> String {
        let added = self.token(&[&["add", name][..], arguments].concat()).done();
        let token = added.stdout.trim().to_owned();
        process::wait_for(&format!("the server accepts the token {name}"), FOLLOW_MAX, || {
            let ended = self.cp(&token, &["--list", &self.serve.at("")]);
            process::seen(ended.code == Some(0), (ended, process::Text(self.serve.log())))
        });
        token
    }

    /// Prepares `rdma-cp` of another user who has a token.
    fn command(&self, token: &str, arguments: &[&str]) -> (Home, std::process::Command) {
        let home = Home::new();
        let trusted = ["--fingerprint", self.serve.fingerprint.as_str()];
        let mut command = home.command("rdma-cp", &[&trusted[..], arguments].concat());
        command.env("RDMA_TOKEN", token);
        (home, command)
    }

    /// Begins to copy `data/large` to `out` with this token, so slowly that it never ends by
    /// itself; returns when it has begun.
    #[track_caller]
    fn start_slowly(&self, token: &str) -> (Home, Running) {
        let (from, out) = (self.serve.at("data/large"), self.text("out"));
        let slow = ["--bwlimit", "256K", "--timeout", "30", &from, &out];
        let (home, command) = self.command(token, &slow);
        let mut running = Running::start(command);
        self.wait_until_begun(&mut running);
        (home, running)
    }

    /// Waits for the first file in `out`, which this copy makes.
    #[track_caller]
    fn wait_until_begun(&self, copy: &mut Running) {
        process::wait_for("the copy has begun: a file is in out", FOLLOW_MAX, || {
            let begun = !names(&self.path("out")).is_empty();
            process::seen(begun, (copy.report(), process::Text(self.serve.log())))
        });
    }

    /// How the user of the server connects, by hand.
    fn options(&self) -> ConnectOptions {
        ConnectOptions {
            host: "127.0.0.1".into(),
            port: self.serve.address.port(),
            state_dir: self.home.state(),
            config_dir: self.home.path().join("config"),
            key: None,
            fingerprint: None,
            trust_on_first_use: false,
            certificates: Default::default(),
            agent: "trust test".into(),
            chunk_bytes: CHUNK_BYTES_DEFAULT,
            timeout: FOLLOW_MAX,
        }
    }

    /// Runs it to its end.
    #[track_caller]
    fn cp(&self, token: &str, arguments: &[&str]) -> Ended {
        let (_home, command) = self.command(token, arguments);
        Running::start(command).end()
    }
}

/// Makes `data` with files of several chunks, and empty `in` and `out`.
fn folders() -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for folder in ["data", "in", "out"] {
        fs::create_dir(dir.path().join(folder)).expect("a folder");
    }
    fs::write(dir.path().join("data/small"), b"small").expect("a file");
    let bytes: Vec<u8> = (0..(8_u32 << 20) / 4).flat_map(|n| (n * 7).to_le_bytes()).collect();
    fs::write(dir.path().join("data/large"), bytes).expect("a file");
    dir
}

fn text(path: &Path) -> String {
    path.to_str().expect("temporary folders have plain names").to_owned()
}

/// The names in a folder, hidden ones too, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
