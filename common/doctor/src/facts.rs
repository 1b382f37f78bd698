//! What is known of a machine, as plain data: `devices` and `host` read it, checks
//! look at it. Reading is done on a thread that may be given up: a device that
//! hangs must not hang who asks. What did not answer is named.

mod devices;
mod host;

use crate::counters::{Port, read_ports};
use crate::tree::Tree;
pub(crate) use devices::{DeviceFacts, NetdevFacts, OrphanCard, PortFacts};
pub(crate) use host::{Firewall, Host};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;
use verbatim_fabric::ports::{Machine, Wish};
use verbatim_fabric::verbs;

/// How long one part of the machine may take to answer.
pub(crate) const PART_TIME_MAX: Duration = Duration::from_secs(8);

/// What is known of a machine.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Its devices as links see them.
    pub machine: Machine,
    /// What the user names and the environment hints.
    pub wish: Wish,
    /// What else is known of each device, in the same order.
    pub(crate) devices: Vec<DeviceFacts>,
    /// Cards without a driver for RDMA.
    pub(crate) orphans: Vec<OrphanCard>,
    /// The library: why it does not open, if it does not.
    pub(crate) library: Option<String>,
    /// The drivers that the library knows; none where its folder is missing.
    pub(crate) providers: Option<Vec<String>>,
    /// What is true of all of the machine.
    pub(crate) host: Host,
    /// What ports counted at first, and some time later.
    pub counters: [Vec<Port>; 2],
    /// How much later.
    pub(crate) sampled: Duration,
    /// Folders that are, or would be, exported.
    pub exports: Vec<ExportFacts>,
    /// What may not be read.
    pub(crate) denied: Vec<String>,
    /// What did not answer.
    pub(crate) silent: Vec<String>,
}

/// A folder that is exported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportFacts {
    /// Where it is.
    pub path: PathBuf,
    /// Its file system; empty where unknown.
    pub file_system: String,
    /// Room in it, and all of it.
    pub free_bytes: u64,
    /// All of it.
    pub size_bytes: u64,
    /// Why it cannot be looked at.
    pub error: Option<String>,
    /// How its files are offered; none where there is no device to try with.
    pub read_path: Option<ReadPath>,
}

/// How files are offered to one-sided reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadPath {
    /// Registered as they are.
    Mapped,
    /// Read into registered slots, and why.
    Staged(String),
}

impl Facts {
    /// Reads the machine of a tree, its counters twice with a pause between. Each part has a
    /// deadline.
    pub fn read(root: &Path, wish: Wish, exports: Vec<PathBuf>, pause: Duration) -> Self {
        let at = root.to_owned();
        let devices = within(move || devices::read(&Tree::below(at)));
        let at = root.to_owned();
        let host = within(move || {
            let tree = Tree::below(at);
            let host = host::read(&tree);
            (host, providers(&tree), tree.denied())
        });
        let mut facts = Self { wish, ..Self::default() };
        let silent = |what: &str| vec![what.to_owned()];
        match devices {
            Some((machine, devices, orphans, denied)) => {
                (facts.machine, facts.devices, facts.orphans) = (machine, devices, orphans);
                facts.denied.extend(denied);
            }
            None => facts.silent.extend(silent("the RDMA devices in /sys")),
        }
        match host {
            Some((host, providers, denied)) => {
                (facts.host, facts.providers) = (host, providers);
                facts.denied.extend(denied);
            }
            None => facts.silent.extend(silent("/proc and /sys")),
        }
        facts.look_for_library(root);
        facts.count(root, pause);
        for path in exports {
            let (at, name) = (root.to_owned(), format!("the file system of {}", path.display()));
            let machine = facts.machine.clone();
            let wish = facts.wish.clone();
            match within(move || export(&Tree::below(at), &path, &machine, &wish)) {
                Some(export) => facts.exports.push(export),
                None => facts.silent.push(name),
            }
        }
        facts
    }

    /// Reads this machine, as it is for this process.
    pub fn here(wish: Wish, exports: Vec<PathBuf>, pause: Duration) -> Self {
        Self::read(Path::new("/"), wish, exports, pause)
    }

    fn look_for_library(&mut self, root: &Path) {
        let tree = Tree::below(root);
        self.library = if tree.is_here() {
            // Only where there is something for it: it is not loaded in vain.
            let wanted = !self.machine.devices.is_empty();
            wanted.then(verbs::library_opens).and_then(Result::err).map(|it| it.to_string())
        } else {
            // A record without libraries tells nothing of them.
            let told = LIBRARY_FOLDERS.iter().any(|it| tree.has(it));
            let found = LIBRARY_FOLDERS.iter().any(|it| tree.has(&format!("{it}/{LIBRARY}")));
            (told && !found).then(|| format!("cannot open libibverbs: there is no {LIBRARY}"))
        };
    }

    fn count(&mut self, root: &Path, pause: Duration) {
        let look = || {
            let root = root.to_owned();
            within(move || read_ports(&root))
        };
        let first = look();
        let later = root.join(LATER);
        if !pause.is_zero() && first.as_ref().is_some_and(|ports| !ports.is_empty()) {
            std::thread::sleep(pause.min(SAMPLE_TIME_MAX));
        }
        // A record may hold what was counted later.
        let second = match later.is_dir() {
            true => within(move || read_ports(&later)),
            false => look(),
        };
        match (first, second) {
            (Some(first), Some(second)) => self.counters = [first, second],
            _ => self.silent.push("the counters of RDMA ports".into()),
        }
        self.sampled = pause;
    }
}

/// The longest pause between two samples.
const SAMPLE_TIME_MAX: Duration = Duration::from_secs(60);

/// Where a record keeps what was counted later.
const LATER: &str = "later";

const LIBRARY: &str = "libibverbs.so.1";

/// Where systems keep libraries.
const LIBRARY_FOLDERS: &[&str] = &[
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "lib64",
    "usr/local/lib",
];

/// The drivers that the library was told of.
fn providers(tree: &Tree) -> Option<Vec<String>> {
    let names = tree.names("etc/libibverbs.d");
    let known = names.iter().filter_map(|name| name.strip_suffix(".driver").map(str::to_owned));
    tree.has("etc/libibverbs.d").then(|| known.collect())
}

fn export(tree: &Tree, path: &Path, machine: &Machine, wish: &Wish) -> ExportFacts {
    let shown = path.strip_prefix("/").unwrap_or(path);
    let place = tree.root().join(shown);
    let mounts = tree.text("proc/self/mountinfo").unwrap_or_default();
    let mut facts = ExportFacts {
        path: path.to_owned(),
        file_system: host::file_system_of(&mounts, path).unwrap_or_default(),
        ..ExportFacts::default()
    };
    match rustix::fs::statvfs(&place) {
        Ok(stat) => {
            facts.free_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
            facts.size_bytes = stat.f_blocks.saturating_mul(stat.f_frsize);
        }
        Err(error) => facts.error = Some(std::io::Error::from(error).to_string()),
    }
    let places = verbatim_fabric::ports::choose(machine, wish);
    if let (true, Ok(places), None) = (tree.is_here(), places, &facts.error) {
        facts.read_path = verbs::Context::open(&places[0].device).ok().map(|context| {
            match verbs::probe(&context, path) {
                verbs::FileWindows::Mapped => ReadPath::Mapped,
                verbs::FileWindows::Staged { reason } => ReadPath::Staged(reason.to_string()),
            }
        });
    }
    facts
}

/// Does something that may hang, and gives it up in time. Its thread is left behind then.
pub(crate) fn within<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, answer) = channel();
    let spawned = std::thread::Builder::new().name("probe".into()).spawn(move || {
        // Who asked may be gone.
        let _ = done.send(work());
    });
    spawned.ok()?;
    answer.recv_timeout(PART_TIME_MAX).ok()
}
