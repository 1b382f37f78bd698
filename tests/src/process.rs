//! The real commands, as a user runs them: `rdma-serve` and `rdma-cp` out of the
//! build folder, each with folders of its own for state and configuration. Owns
//! the children it starts and ends them, and only them; every wait has a bound.
//! Used by the tests of the command line. What they check is their own business.

use crate::output::{Output, Report};
use crate::sockets::listener;
use crate::wait::LOOK_EVERY;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub use crate::wait::{Text, contents, exists, seen, wait_for, when};
pub use rustix::process::Signal;

/// How long a command may take.
const COMMAND_MAX: Duration = Duration::from_secs(60);

/// How long a server may take to listen, and to say something that is waited for.
const SERVE_MAX: Duration = Duration::from_secs(20);

/// Who has no rights at all.
pub const NOBODY: u32 = 65534;

/// Where the commands are, if not beside the folder of the running test.
static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();

/// Takes the commands from this folder, from now on. The first call counts.
#[allow(dead_code, reason = "not every test target attacks other builds")]
pub fn take_programs_from(folder: &Path) {
    PROGRAMS.get_or_init(|| folder.to_owned());
}

/// Finds a command of this build, beside the folder of the running test.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a file");
    let beside = test.parent().and_then(Path::parent).expect("tests are built two folders deep");
    let path = PROGRAMS.get().map_or(beside, PathBuf::as_path).join(name);
    assert!(path.exists(), "{} is missing: run cargo build --workspace first", path.display());
    path
}

/// Says that a test cannot run here, in the file that `tests/run` counts.
#[allow(clippy::print_stderr)]
pub fn skip(test: &str, reason: &str) {
    eprintln!("SKIP {test}: {reason}");
    if let Some(path) = std::env::var_os("VERBATIM_SKIPS") {
        let file = fs::OpenOptions::new().append(true).create(true).open(path);
        let mut file = file.expect("VERBATIM_SKIPS can be written");
        file.write_all(format!("{test}: {reason}\n").as_bytes()).expect("the line is written");
    }
}

/// What a command runs under to be in another boot, with a file in this folder; none where that
/// cannot be had.
#[allow(dead_code, reason = "not every test target restarts a machine")]
pub fn another_boot(folder: &Path) -> Option<[String; 6]> {
    const BOOT: &str = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
    let id = folder.join("boot");
    fs::write(&id, "00000000-1111-2222-3333-444444444444\n").expect("writes");
    let wrapper = ["unshare", "-m", "sh", "-c", BOOT, id.to_str().expect("plain")];
    let tried = Command::new(wrapper[0]).args(&wrapper[1..]).arg("true").output();
    tried.is_ok_and(|output| output.status.success()).then(|| wrapper.map(str::to_owned))
}

/// How often something is tried: VERBATIM_TRIALS times as often as a plain run does.
#[allow(dead_code, reason = "not every test target tries its luck")]
pub fn trials(plain: u64) -> u64 {
    let times = std::env::var("VERBATIM_TRIALS").ok();
    plain * times.map_or(1, |text| text.parse().expect("VERBATIM_TRIALS is a number"))
}

/// How much must be free in memory for folders to be made there.
const MEMORY_BYTES_MIN: u64 = 1 << 30;

/// Makes a folder in memory where there is room for one, else an ordinary one: for tests with
/// short waits, which a disk that flushes for somebody else would exceed.
pub fn memory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let free = rustix::fs::statvfs(memory).map_or(0, |it| it.f_bavail * it.f_frsize);
    let made = match free >= MEMORY_BYTES_MIN {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    made.expect("a temporary folder")
}

/// The folders of one user: state and configuration, shared with nobody.
pub struct Home {
    dir: Arc<TempDir>,
    wrapper: Vec<String>,
}

impl Home {
    /// Makes the folders of a user nobody knows.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        Self { dir: Arc::new(dir), wrapper: Vec::new() }
    }

    /// The same in memory.
    pub fn in_memory() -> Self {
        Self { dir: Arc::new(memory()), wrapper: Vec::new() }
    }

    /// The folders of the same user, for commands that are run by themselves again.
    #[allow(dead_code, reason = "not every test target has commands run by others")]
    pub fn again(&self) -> Self {
        Self { dir: self.dir.clone(), wrapper: Vec::new() }
    }

    /// The folders of a user without rights, because permissions mean nothing to root. None where
    /// root cannot become one, or nobody may run this build.
    #[allow(dead_code, reason = "not every test target needs somebody without rights")]
    pub fn powerless() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return Some(Self::new());
        }
        let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
        let words = ["setpriv", &ids[0], &ids[1], "--clear-groups"];
        let mut tried = Command::new(words[0]);
        tried.args(&words[1..]).arg(binary("rdma-cp")).arg("--version");
        if !tried.output().is_ok_and(|output| output.status.success()) {
            return None;
        }
        let home = Self::new().wrapped(&words);
        std::os::unix::fs::chown(home.path(), Some(NOBODY), Some(NOBODY)).expect("root may");
        Some(home)
    }

    /// Has every command run by another one, such as setpriv, that is given it at its end.
    pub fn wrapped(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// The folder all of this is in.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// What `--state` is given.
    pub fn state(&self) -> PathBuf {
        self.dir.path().join("state/verbatim")
    }

    /// Prepares a command of this build, with the state and configuration of this user.
    pub fn command<A: AsRef<OsStr>>(&self, name: &str, arguments: &[A]) -> Command {
        let binary = binary(name);
        let mut command = match self.wrapper.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(binary);
                command
            }
            None => Command::new(binary),
        };
        command.arg("--state").arg(self.state()).args(arguments);
        self.surround(&mut command);
        command
    }

    /// Prepares a command of the system, in the surroundings of this user.
    #[allow(dead_code, reason = "not every test target asks somebody")]
    pub fn command_of(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        self.surround(&mut command);
        command
    }

    fn surround(&self, command: &mut Command) {
        command
            .env("HOME", self.dir.path())
            .env("XDG_STATE_HOME", self.dir.path().join("state"))
            .env("XDG_CONFIG_HOME", self.dir.path().join("config"))
            .env_remove("RUST_LOG")
            .env_remove("RDMA_TOKEN")
            .env_remove("RDMA_TOKEN_FILE")
            .env_remove("NCCL_IB_HCA")
            .env_remove("NCCL_IB_GID_INDEX")
            .stdin(Stdio::null());
    }

    /// Runs `rdma-cp` to its end.
    #[track_caller]
    pub fn cp<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Ended {
        Running::start(self.command("rdma-cp", arguments)).end()
    }

    /// Runs `rdma-serve` where it is expected to refuse, to its end.
    #[track_caller]
    pub fn serve<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Ended {
        Running::start(self.command("rdma-serve", arguments)).end()
    }
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}

/// A command that runs; ended, if it is still there, when this is dropped.
pub struct Running {
    /// Its program and arguments, for messages.
    line: String,
    child: Child,
    stdout: Output,
    stderr: Output,
}

impl Running {
    /// Starts a command and reads what it prints.
    pub fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
        let stdout = Output::of(child.stdout.take().expect("it is piped"));
        let stderr = Output::of(child.stderr.take().expect("it is piped"));
        Self { line: line_of(&command), child, stdout, stderr }
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it reads, where the command has a pipe for it.
    #[allow(dead_code, reason = "not every test target types")]
    pub fn stdin(&mut self) -> std::process::ChildStdin {
        self.child.stdin.take().expect("it is piped")
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("our own child").is_some()
    }

    /// How it is, for a test that fails: what it does or how it ended, and what it printed.
    pub fn report(&mut self) -> Report {
        Report::of(&mut self.child, &[("stdout", &self.stdout), ("stderr", &self.stderr)])
    }

    /// Fails if it has ended, with what it printed.
    #[track_caller]
    pub fn assert_runs(&mut self, what: &str) {
        let report = self.report();
        assert!(!self.has_ended(), "{what}: {}: {report:?}", self.line);
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        send_signal(&self.child, signal);
    }

    /// Waits for its end; one that takes too long is killed, and the test fails, with what it
    /// printed and what its threads do.
    #[track_caller]
    pub fn end(mut self) -> Ended {
        let what = format!("{} ends", self.line);
        let status = wait_for(&what, COMMAND_MAX, || {
            let status = self.child.try_wait().expect("our own child");
            status.ok_or_else(|| self.report())
        });
        let (stdout, stderr) = (self.stdout.all(), self.stderr.all());
        Ended { code: status.code(), stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        end_now(&mut self.child);
    }
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// What it printed as data.
    pub stdout: String,
    /// What it said.
    pub stderr: String,
}

impl Ended {
    /// Fails unless all went well.
    #[track_caller]
    pub fn done(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    /// Fails unless it ended with this code and said each of these, and nothing panicked.
    #[track_caller]
    pub fn refused(self, code: i32, said: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        for words in said {
            assert!(self.stderr.contains(words), "it does not say {words:?}: {self:#?}");
        }
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        self
    }
}

/// A server that listens.
pub struct Serve {
    child: Child,
    log: Output,
    home: Arc<Home>,
    /// Where it listens.
    pub address: SocketAddr,
    /// Who it is: `SHA256:...`.
    pub fingerprint: String,
    /// Where it shows metrics, if it does.
    pub metrics: Option<SocketAddr>,
}

impl Serve {
    /// Starts a server for a new user, on a free port of 127.0.0.1.
    #[track_caller]
    pub fn start<A: AsRef<OsStr>>(arguments: &[A]) -> Self {
        Self::of(&Arc::new(Home::new()), "127.0.0.1:0", arguments)
    }

    /// Starts a server of a user on an address, and waits until it listens. A server that was
    /// killed there may have been about to run a command: the child has all of its parent's
    /// descriptors until it becomes that command, and is waited for.
    #[track_caller]
    pub fn of<A: AsRef<OsStr>>(home: &Arc<Home>, listen: &str, arguments: &[A]) -> Self {
        let port = listen.parse().map_or(0, |address: SocketAddr| address.port());
        let what = format!("nobody listens on {listen}, where the server is to start");
        wait_for(&what, SERVE_MAX, || listener(port).map_or(Ok(()), |line| Err(Text(line))));
        let given = ["--listen", listen, "--metrics", "127.0.0.1:0"].map(OsStr::new);
        let arguments = given.into_iter().chain(arguments.iter().map(AsRef::as_ref));
        Self::plain(home, &arguments.collect::<Vec<_>>())
    }

    /// Starts a server with these arguments alone, and waits until it listens.
    #[track_caller]
    pub fn plain<A: AsRef<OsStr>>(home: &Arc<Home>, arguments: &[A]) -> Self {
        let mut command = home.command("rdma-serve", arguments);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
        let stderr = child.stderr.take().expect("it is piped");
        let mut serve = Self {
            child,
            log: Output::of_lines(stderr),
            home: home.clone(),
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            fingerprint: String::new(),
            metrics: None,
        };
        let line = serve.said(" listening ");
        let field = |line: &str, name: &str| {
            let found = line.split_whitespace().find_map(|word| word.strip_prefix(name));
            found.unwrap_or_else(|| panic!("no {name} in {line}")).to_owned()
        };
        serve.address = field(&line, "address=").parse().expect("an address and a port");
        serve.fingerprint = field(&line, "fingerprint=");
        let log = serve.log();
        let shown = log.lines().find(|line| line.contains(" metrics and page "));
        serve.metrics =
            shown.map(|line| field(line, "address=").parse().expect("an address and a port"));
        serve
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whose server it is.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// A path of this server, as `rdma://HOST:PORT/PATH`.
    pub fn at(&self, path: &str) -> String {
        format!("rdma://{}/{path}", self.address)
    }

    /// Runs `rdma-cp` as the user of this server, to its end.
    #[track_caller]
    pub fn cp<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Ended {
        self.home.cp(arguments)
    }

    /// Starts `rdma-cp` as the user of this server.
    pub fn start_cp<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Running {
        Running::start(self.home.command("rdma-cp", arguments))
    }

    /// What it has logged so far. Lines of info may be a tenth of a second late.
    pub fn log(&self) -> String {
        self.log.so_far()
    }

    /// How it is, for a test that fails: what it does or how it ended, and what it logged.
    pub fn report(&mut self) -> Report {
        Report::of(&mut self.child, &[("log", &self.log)])
    }

    /// Waits until so many of its lines have these words, and returns all it has logged.
    #[allow(dead_code, reason = "not every test target counts lines")]
    #[track_caller]
    pub fn logged(&self, words: &str, times: usize) -> String {
        let what = format!("the server has {times} lines with {words:?} in its log");
        let count = |log: &String| log.lines().filter(|line| line.contains(words)).count() >= times;
        wait_for(&what, SERVE_MAX, || when(self.log(), count).map_err(Text))
    }

    /// Waits until it has logged these words, and returns their line.
    #[track_caller]
    pub fn said(&mut self, words: &str) -> String {
        let begin = Instant::now();
        loop {
            // Asked first: what it said before its end is in the log by then.
            let ended = self.child.try_wait().expect("our own child");
            let log = if ended.is_some() { self.log.all() } else { self.log() };
            if let Some(line) = log.lines().find(|line| line.contains(words)) {
                return line.to_owned();
            }
            let waits = ended.is_none() && begin.elapsed() < SERVE_MAX;
            let limit_s = SERVE_MAX.as_secs();
            assert!(waits, "{words:?} is logged: not within {limit_s} s: {:?}", self.report());
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Its process.
    #[allow(dead_code, reason = "not every test target asks the kernel about it")]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        send_signal(&self.child, signal);
    }

    /// Waits for its end, and returns its exit code.
    #[track_caller]
    pub fn end(mut self) -> Option<i32> {
        self.gone()
    }

    /// The same, of one that is to be followed by another.
    #[track_caller]
    pub fn gone(&mut self) -> Option<i32> {
        let status = wait_for("the server ends", SERVE_MAX, || {
            let status = self.child.try_wait().expect("our own child");
            status.ok_or_else(|| self.report())
        });
        status.code()
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        end_now(&mut self.child);
    }
}

fn send_signal(child: &Child, signal: Signal) {
    let id = rustix::process::Pid::from_raw(child.id() as i32).expect("a child has a number");
    rustix::process::kill_process(id, signal).expect("our own child takes signals");
}

/// Ends a child that may have ended already.
fn end_now(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// The program of a command, and its arguments.
fn line_of(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
