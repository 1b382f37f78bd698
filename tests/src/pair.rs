//! A pair: a server over temporary folders, in this process, and copies run
//! against it as the command would run them. Owns the folders, the server's
//! thread and the deadline of every copy. When a pair goes, it checks that no
//! temporary file is left on either side, that the server has given back what
//! its clients had, and that no thread of either panicked.

use crate::holding::Served;
use crate::proxy::Proxy;
use crate::tree;
use crate::wait::{wait_for, when};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::oneshot;
use verbatim_client::session::command_error::CopyError;
use verbatim_client::sync::{SyncOptions, sync};
use verbatim_client::{
    CarrierOptions, CopyOptions, CopyPolicy, Failure, FileDone, Location, NO_TRANSPORT, Observer,
    Progress, SessionOptions, Skipped, Summary, Transport, copy,
};
use verbatim_control::{ConnectOptions, LocalDoor};
use verbatim_fabric::sim::{Faults, SimClock, SimNet};
use verbatim_proto::units::CHUNK_BYTES_DEFAULT;
use verbatim_proto::{Filter, plan};
use verbatim_server::config::export::{Export, Mode};
use verbatim_server::config::{Config, Metrics};
use verbatim_server::{Server, ServerOptions};

/// The longest any copy of any test may take; one that takes longer hangs.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// How long a server may take to listen.
const START_MAX: Duration = Duration::from_secs(20);

/// How long a server may take to tidy up behind a client that left.
const TIDY_MAX: Duration = Duration::from_secs(5);

/// What carries the data.
pub enum Backend {
    /// Loopback sockets.
    Tcp,
    /// A simulated network.
    Sim(SimNet),
    /// An RDMA device of this machine, and nothing else: what falls back to TCP fails.
    Verbs,
}

impl Backend {
    /// A simulated network without faults.
    pub fn sim() -> Self {
        Self::Sim(SimNet::new(1, Faults::default(), SimClock::Real))
    }
}

/// A running server and the folders of both sides.
pub struct Pair {
    folder: TempDir,
    port: u16,
    sim: Option<SimNet>,
    transport: Transport,
    served: Served,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Pair {
    /// Starts a server that exports one folder as `ro` and another as `rw`.
    pub fn start(backend: Backend) -> Self {
        Self::start_in(&std::env::temp_dir(), backend)
    }

    /// Starts a server as `start` does, with all folders in memory where there is such a place:
    /// for tests with short waits, which a disk that flushes for somebody else would exceed.
    pub fn in_memory(backend: Backend) -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::start_in(memory, backend) } else { Self::start(backend) }
    }

    /// Starts a server over verbs, in memory, that lets uploads be written into files.
    pub fn writing_into_files() -> Self {
        Self::set(Backend::Verbs, |config| config.rdma.write_into_files = true)
    }

    /// Starts a server in memory whose configuration is changed first.
    pub fn set(backend: Backend, set: impl FnOnce(&mut Config)) -> Self {
        Self::start_with(Path::new("/dev/shm"), backend, set)
    }

    fn start_in(folder: &Path, backend: Backend) -> Self {
        Self::start_with(folder, backend, |_| ())
    }

    fn start_with(folder: &Path, backend: Backend, set: impl FnOnce(&mut Config)) -> Self {
        watch_panics();
        let folder = tempfile::tempdir_in(folder).expect("a folder for the pair");
        for name in ["state", "config", "ro", "rw", "local"] {
            std::fs::create_dir(folder.path().join(name)).expect("makes a folder");
        }
        let (sim, transport) = match backend {
            Backend::Tcp => (None, Transport::Tcp),
            Backend::Sim(net) => (Some(net), Transport::Auto),
            Backend::Verbs => (None, Transport::Verbs),
        };
        let export = |name: &str, mode| {
            Export::new(name, &folder.path().join(name), mode).expect("is an export")
        };
        let mut config = Config {
            listen: ([127, 0, 0, 1], 0).into(),
            state: folder.path().join("state"),
            workers: 2,
            drain_seconds: 1,
            metrics: Metrics { listen: "127.0.0.1:0".into(), asked_for: true },
            exports: vec![export("ro", Mode::ReadOnly), export("rw", Mode::ReadWrite)],
            ..Config::default()
        };
        set(&mut config);
        let (stop, stopped) = oneshot::channel();
        let (ready, ports) = mpsc::channel();
        let options = ServerOptions { sim: sim.clone(), ..ServerOptions::default() };
        let serve = move || {
            runtime("server").block_on(async {
                let server = Server::bind(config, options).await.expect("binds");
                let metrics = server.metrics_address().expect("it shows metrics");
                ready.send((server.address().port(), metrics)).expect("the test waits");
                // A pair that is gone stops its server too.
                server.run(async { drop(stopped.await) }).await;
            });
        };
        let thread = std::thread::Builder::new().name("server".into()).spawn(serve);
        let thread = Some(thread.expect("starts a thread"));
        let (port, metrics) = ports.recv_timeout(START_MAX).expect("the server starts");
        let folders = ["ro", "rw", "local"].map(|name| folder.path().join(name));
        let served = Served::new(port, folders.to_vec(), metrics);
        Self { folder, port, sim, transport, served, stop: Some(stop), thread }
    }

    /// The port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of the server's keys and caches.
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// A path in the folder that holds the exports, as `ro/a` or `rw/a`.
    pub fn served(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// A path in the client's folder.
    pub fn local(&self, path: &str) -> PathBuf {
        self.folder.path().join("local").join(path)
    }

    /// A copy from the server to a path in the client's folder.
    pub fn down(&self, sources: &[&str], target: &str) -> Job {
        let sources = sources.iter().map(|source| self.remote(source)).collect();
        self.job(sources, Location::Local(self.local(target)))
    }

    /// A copy from the client's folder to the server.
    pub fn up(&self, sources: &[&str], target: &str) -> Job {
        let sources = sources.iter().map(|source| Location::Local(self.local(source))).collect();
        self.job(sources, self.remote(target))
    }

    fn remote(&self, path: &str) -> Location {
        let text = format!("rdma://127.0.0.1:{}/{path}", self.port);
        Location::parse(OsStr::new(&text)).expect("is a location")
    }

    fn job(&self, sources: Vec<Location>, target: Location) -> Job {
        let timeout = Duration::from_secs(20);
        let connect = ConnectOptions {
            host: "127.0.0.1".into(),
            port: self.port,
            state_dir: self.state(),
            config_dir: self.folder.path().join("config"),
            key: None,
            fingerprint: None,
            trust_on_first_use: false,
            certificates: Default::default(),
            agent: "verbatim-tests".into(),
            chunk_bytes: CHUNK_BYTES_DEFAULT,
            timeout,
        };
        Job {
            session: SessionOptions {
                connect,
                streams: 2,
                timeout,
                carrier: CarrierOptions { transport: self.transport, ..Default::default() },
                bytes_per_second: None,
                chunk_by_carrier: false,
                preserve: false,
                sim: self.sim.clone(),
                trace: None,
            },
            options: CopyOptions {
                sources,
                target,
                recursive: true,
                policy: CopyPolicy::default(),
            },
            stop: None,
            moved: None,
            mirror: None,
            root: self.folder.path().to_owned(),
        }
    }

    /// Waits until no temporary file is left on either side, and fails if one stays.
    #[track_caller]
    pub fn assert_tidy(&self) {
        wait_for("no temporary file is left on either side", TIDY_MAX, || {
            when(tree::parts(self.folder.path()), Vec::is_empty)
        });
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let failing = std::thread::panicking();
        if !failing {
            // Before the server stops: sessions tidy up, not the end of the process.
            self.assert_tidy();
            self.served.comes_back();
        }
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        if !failing {
            assert!(matches!(ended, Some(Ok(()))), "the server panicked");
            // Only one test reports a panic, perhaps not the one that caused it.
            let panics = std::mem::take(&mut *lock(&PANICS));
            assert!(panics.is_empty(), "threads panicked: {panics:#?}");
        }
    }
}

/// A copy that has not begun.
pub struct Job {
    /// What is copied.
    pub options: CopyOptions,
    /// How the session is made.
    pub session: SessionOptions,
    stop: Option<oneshot::Receiver<()>>,
    moved: Option<(u64, mpsc::Sender<()>)>,
    /// Whether it is a mirror, and whether that is seen at once.
    mirror: Option<bool>,
    root: PathBuf,
}

impl Job {
    /// Makes the target equal to its one source instead, and has that seen at once or not.
    pub fn mirrored(mut self, atomic: bool) -> Self {
        self.mirror = Some(atomic);
        self
    }

    /// Refuses folders, as the command does without `-r`.
    pub fn flat(mut self) -> Self {
        self.options.recursive = false;
        self
    }

    /// Gives the peer up after this long without an answer.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.session.timeout = timeout;
        self
    }

    /// Uses this many links.
    pub fn streams(mut self, streams: u16) -> Self {
        self.session.streams = streams;
        self
    }

    /// Stops when this is sent to.
    pub fn stop_when(mut self, stop: oneshot::Receiver<()>) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Moves no more than this many bytes a second.
    pub fn paced(mut self, bytes_per_second: u64) -> Self {
        self.session.bytes_per_second = Some(bytes_per_second);
        self
    }

    /// Says when this many bytes are verified; nothing, if the copy is over before.
    pub fn tell_when(mut self, bytes: u64) -> (Self, mpsc::Receiver<()>) {
        let (sender, receiver) = mpsc::channel();
        self.moved = Some((bytes, sender));
        (self, receiver)
    }

    /// Goes through a proxy: the local door is for the server's port only, so what it says is
    /// handed over.
    pub fn through(mut self, proxy: &Proxy) -> Self {
        let connect = &mut self.session.connect;
        let door = LocalDoor::find(&connect.state_dir, connect.port).expect("reads the door");
        let (fingerprint, key) = door.expect("the server left a door");
        (connect.fingerprint, connect.key) = (Some(fingerprint), Some(key));
        connect.port = proxy.port();
        self
    }

    /// Runs the copy, which must have a session.
    pub fn run(self) -> Copied {
        self.try_run().unwrap_or_else(|error| panic!("no session: {error}"))
    }

    /// Runs the copy on a thread of its own, so that not even one that blocks can hang a test.
    pub fn try_run(self) -> Result<Copied, CopyError> {
        let Self { options, session, stop, moved, mirror, root } = self;
        let told = Arc::new(Mutex::new(Told::default()));
        let mut observer = Recorder { told: told.clone(), moved };
        let (sim, transport) = (session.sim.clone(), session.carrier.transport);
        let (sender, receiver) = mpsc::channel();
        let client = move || {
            let runtime = runtime("client");
            let stop = async {
                match stop {
                    Some(stop) => drop(stop.await),
                    None => std::future::pending().await,
                }
            };
            let result = match mirror {
                Some(atomic) => {
                    let options = mirror_of(options, atomic);
                    runtime.block_on(sync(&options, session, &mut observer, stop))
                }
                None => runtime.block_on(copy(&options, session, &mut observer, stop)),
            };
            // Jobs of the session end first: what they leave behind counts.
            drop(runtime);
            // A test that gave up does not listen.
            let _ = sender.send(result);
        };
        let thread = std::thread::Builder::new().name("client".into()).spawn(client);
        thread.expect("starts a thread");
        match receiver.recv_timeout(DEADLINE) {
            Ok(result) => {
                let told = std::mem::take(&mut *lock(&told));
                let Told { done, failed, skipped, underway, .. } = told;
                let copied =
                    result.map(|summary| Copied { summary, done, failed, skipped, underway });
                if let (Ok(copied), Transport::Verbs) = (&copied, transport) {
                    copied.assert_verbs();
                }
                copied
            }
            Err(RecvTimeoutError::Disconnected) => panic!("the client panicked"),
            Err(RecvTimeoutError::Timeout) => {
                let told = lock(&told);
                let (done, parts) = (told.done.len(), tree::parts(&root));
                let Told { failed, progress, .. } = &*told;
                panic!(
                    "copy hangs: {done} files done, failed {failed:?}, {progress:?}, \
                     sim {sim:?}, temporary files {parts:?}"
                );
            }
        }
    }
}

/// A mirror of what would be copied, that deletes what it must.
fn mirror_of(options: CopyOptions, atomic: bool) -> SyncOptions {
    let source = options.sources.into_iter().next().expect("a source");
    let (target, dry_run, chosen) = (options.target, false, None);
    let plan = plan::Options { delete: true, ..plan::Options::default() };
    let limit = "100%".parse().expect("a limit");
    let (filter, numeric_ids) = (Filter::default(), false);
    let exact = false;
    SyncOptions { source, target, plan, filter, chosen, limit, dry_run, atomic, numeric_ids, exact }
}

/// What became of a copy.
#[derive(Debug)]
pub struct Copied {
    /// The numbers.
    pub summary: Summary,
    /// Files that arrived.
    pub done: Vec<FileDone>,
    /// What did not.
    pub failed: Vec<Failure>,
    /// What was left alone.
    pub skipped: Vec<Skipped>,
    /// How far it was told to be while some bytes were done and some were not.
    pub underway: Vec<Progress>,
}

impl Copied {
    /// Fails unless a device moved the data: a silent fall-back must not pass.
    fn assert_verbs(&self) {
        let Summary { transport, bytes, resumed_bytes, rdma, .. } = &self.summary;
        let moved = *bytes > *resumed_bytes;
        let idle = !moved && transport == NO_TRANSPORT;
        assert!(idle || transport.starts_with("verbs ") && !transport.contains("tcp"), "{self:?}");
        assert!(!moved || rdma.reads + rdma.writes > 0, "no request was posted: {self:?}");
        assert!(!moved || rdma.reads_done + rdma.writes_done > 0, "none was done: {self:?}");
    }

    /// Fails unless everything was copied.
    pub fn whole(self) -> Self {
        assert!(
            self.failed.is_empty() && self.summary.failed == 0 && self.summary.broken.is_none(),
            "{:?}, failed, to begin with: {:#?}",
            self.summary,
            &self.failed[..self.failed.len().min(4)]
        );
        assert_eq!(self.summary.files, self.done.len() as u64, "every file is told once");
        self
    }

    /// The one thing that failed.
    pub fn only_failure(&self) -> &Failure {
        assert_eq!(self.failed.len(), 1, "{:?} {:#?}", self.summary, self.failed);
        assert_eq!(self.summary.failed, 1);
        &self.failed[0]
    }

    /// The digest of the file whose name ends like this, as b3sum prints it.
    pub fn digest(&self, name: &str) -> String {
        let file = self.done.iter().find(|file| file.path.ends_with(name));
        file.unwrap_or_else(|| panic!("{name} was not copied: {self:#?}")).digest.to_string()
    }
}

/// The digest of bytes, by the reference.
pub fn digest_of(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// Reads a file of a test.
pub fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

#[derive(Default)]
struct Told {
    done: Vec<FileDone>,
    failed: Vec<Failure>,
    skipped: Vec<Skipped>,
    progress: Progress,
    underway: Vec<Progress>,
}

struct Recorder {
    told: Arc<Mutex<Told>>,
    moved: Option<(u64, mpsc::Sender<()>)>,
}

impl Observer for Recorder {
    fn file_done(&mut self, file: &FileDone) {
        lock(&self.told).done.push(file.clone());
    }

    fn failed(&mut self, failure: &Failure) {
        lock(&self.told).failed.push(failure.clone());
    }

    fn skipped(&mut self, skipped: &Skipped) {
        lock(&self.told).skipped.push(skipped.clone());
    }

    fn progress(&mut self, progress: &Progress) {
        let mut told = lock(&self.told);
        told.progress = progress.clone();
        if progress.bytes > 0 && progress.bytes < progress.bytes_known {
            told.underway.push(progress.clone());
        }
        drop(told);
        if self.moved.as_ref().is_some_and(|(bytes, _)| progress.bytes >= *bytes)
            && let Some((_, sender)) = self.moved.take()
        {
            // A test that looks elsewhere need not know.
            let _ = sender.send(());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn runtime(name: &str) -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).thread_name(name).enable_all().build().expect("starts a runtime")
}

/// What panicked on a thread of a client or server, where no test would notice.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or_default();
            if ["client", "server", "stream-", "worker-"].iter().any(|ours| name.starts_with(ours))
            {
                lock(&PANICS).push(format!("{name}: {info}"));
            }
            before(info);
        }));
    });
}
