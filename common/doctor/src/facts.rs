//! What is known of a machine, as plain data: `devices` and `host` read it, checks
//! look at it. Reading is done on a thread that may be given up: a device that
//! hangs must not hang who asks. What did not answer is named.

mod container;
mod control_group;
mod devices;
mod firewall;
mod host;
mod library;

use crate::counters::{Port, read_ports};
use crate::tree::Tree;
pub(crate) use control_group::{ControlGroup, DeviceShare};
pub(crate) use devices::{DeviceFacts, NetdevFacts, OrphanCard, PortFacts};
pub(crate) use firewall::{CONTROL, Door, Firewall, ROCE, Tool};
pub(crate) use host::Host;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use verbatim_fabric::ports::{Machine, Wish};

/// How long one part of the machine may take to answer.
const PART_TIME_MAX: Duration = Duration::from_secs(8);

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

impl std::fmt::Display for ReadPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Mapped => "files are registered as they are",
            Self::Staged(_) => "files are read into registered memory",
        })
    }
}

impl Facts {
    /// Reads the machine of a tree, its counters twice with a pause between. Each part has a
    /// deadline, and what does not depend on each other is read at the same time.
    pub fn read(root: &Path, wish: Wish, exports: Vec<PathBuf>, pause: Duration) -> Self {
        let at = root.to_owned();
        let devices = Part::begin(move || devices::read(&Tree::below(at)));
        let at = root.to_owned();
        let host = Part::begin(move || {
            let tree = Tree::below(at);
            let host = host::read(&tree);
            (host, library::providers(&tree), tree.denied())
        });
        let mut facts = Self { wish, ..Self::default() };
        let mut silent = Vec::new();
        match devices.end() {
            Some((machine, devices, orphans, denied)) => {
                (facts.machine, facts.devices, facts.orphans) = (machine, devices, orphans);
                facts.denied.extend(denied);
                facts.ask_library(root);
                facts.machine = facts.machine.with_open(&facts.wish.open);
                facts.count(root, pause);
            }
            None => silent.push("the RDMA devices in /sys".to_owned()),
        }
        match host.end() {
            Some((host, providers, denied)) => {
                (facts.host, facts.providers) = (host, providers);
                facts.denied.extend(denied);
            }
            None => silent.push("/proc and /sys".to_owned()),
        }
        facts.silent.extend(silent);
        facts.look_at(root, exports);
        facts
    }

    /// Leaves out some exports: not everybody is told of them.
    pub fn without_exports(mut self, paths: &[PathBuf]) -> Self {
        let names: Vec<_> = paths.iter().map(|path| file_system_of(path)).collect();
        self.exports.retain(|export| !paths.contains(&export.path));
        self.silent.retain(|what| !names.contains(what));
        self
    }

    /// Leaves out what may not be read: a process that gave up its rights says nothing by that.
    pub fn confined(mut self) -> Self {
        self.denied.clear();
        self
    }

    /// Reads this machine, as it is for this process.
    pub fn here(wish: Wish, exports: Vec<PathBuf>, pause: Duration) -> Self {
        Self::read(Path::new("/"), wish, exports, pause)
    }

    fn ask_library(&mut self, root: &Path) {
        let (at, machine) = (root.to_owned(), self.machine.clone());
        let asked = Part::begin(move || library::ask(&Tree::below(at), &machine)).end();
        let Some(told) = asked else {
            return self.silent.push("the RDMA devices, when they are opened".into());
        };
        self.library = told.fault;
        let names = self.machine.devices.iter().map(|device| &device.name);
        for ((device, name), told) in self.devices.iter_mut().zip(names).zip(told.devices) {
            // One that this process has open works, whether or not it opens again.
            device.refused = told.refused.filter(|_| !self.wish.open.contains(name));
            for (port, packet) in device.ports.iter_mut().zip(told.packets) {
                port.packet = packet;
            }
        }
    }

    fn look_at(&mut self, root: &Path, exports: Vec<PathBuf>) {
        let begin = |path: PathBuf| {
            let name = file_system_of(&path);
            let (at, machine, wish) = (root.to_owned(), self.machine.clone(), self.wish.clone());
            (name, Part::begin(move || export(&Tree::below(at), &path, &machine, &wish)))
        };
        let parts: Vec<_> = exports.into_iter().map(begin).collect();
        for (name, part) in parts {
            match part.end() {
                Some(export) => self.exports.push(export),
                None => self.silent.push(name),
            }
        }
    }

    fn count(&mut self, root: &Path, pause: Duration) {
        let look = |root: PathBuf| Part::begin(move || read_ports(&root)).end();
        let first = look(root.to_owned());
        if !pause.is_zero() && first.as_ref().is_some_and(|ports| !ports.is_empty()) {
            std::thread::sleep(pause.min(SAMPLE_TIME_MAX));
        }
        // A record may hold what was counted later.
        let later = Some(root.join(LATER)).filter(|it| !Tree::below(root).is_here() && it.is_dir());
        let again = later.unwrap_or_else(|| root.to_owned());
        let second = first.is_some().then(|| look(again)).flatten();
        match (first, second) {
            (Some(first), Some(second)) => self.counters = [first, second],
            _ => self.silent.push("the counters of RDMA ports".into()),
        }
        self.sampled = pause;
    }
}

/// What is named when an export does not answer.
fn file_system_of(path: &Path) -> String {
    format!("the file system of {}", path.display())
}

/// The longest pause between two samples.
const SAMPLE_TIME_MAX: Duration = Duration::from_secs(60);

/// Where a record keeps what was counted later.
const LATER: &str = "later";

fn export(tree: &Tree, path: &Path, machine: &Machine, wish: &Wish) -> ExportFacts {
    // A link is followed as the server does; what is not there keeps its name.
    let place = match tree.is_here() {
        true => std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()),
        false => tree.root().join(path.strip_prefix("/").unwrap_or(path)),
    };
    let on = if tree.is_here() { &place } else { path };
    let mounts = tree.text("proc/self/mountinfo").unwrap_or_default();
    let mut facts = ExportFacts {
        path: path.to_owned(),
        file_system: host::file_system_of(&mounts, on).unwrap_or_default(),
        ..ExportFacts::default()
    };
    match rustix::fs::statvfs(&place) {
        Ok(stat) => {
            facts.free_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
            facts.size_bytes = stat.f_blocks.saturating_mul(stat.f_frsize);
        }
        Err(error) => facts.error = Some(std::io::Error::from(error).to_string()),
    }
    if facts.error.is_none() {
        facts.read_path = library::read_path(tree, path, machine, wish);
    }
    facts
}

/// Something that may hang, done on a thread of its own, which is left behind if it does.
struct Part<T> {
    answer: Receiver<T>,
    begun: Instant,
}

impl<T: Send + 'static> Part<T> {
    fn begin(work: impl FnOnce() -> T + Send + 'static) -> Self {
        let (done, answer) = channel();
        // Without a thread there is no answer, which `end` finds at once.
        let _ = std::thread::Builder::new().name("probe".into()).spawn(move || {
            // Who asked may be gone.
            let _ = done.send(work());
        });
        Self { answer, begun: Instant::now() }
    }

    /// Waits for it, and gives it up in time.
    fn end(self) -> Option<T> {
        self.answer.recv_timeout(PART_TIME_MAX.saturating_sub(self.begun.elapsed())).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Report;

    #[test]
    fn of_exports_that_are_left_out_and_of_given_up_rights_nothing_is_told() {
        let path = PathBuf::from("/secret/place");
        let error = Some("it is gone".into());
        let export = ExportFacts { path: path.clone(), error, ..ExportFacts::default() };
        let (silent, denied) = (vec![file_system_of(&path)], vec!["etc/ufw".into()]);
        let facts = Facts { exports: vec![export], silent, denied, ..Facts::default() };
        let told = |facts| format!("{:?}", Report::new(facts).findings);
        let all = told(facts.clone());
        assert_eq!((all.matches("/secret/place").count(), all.contains("etc/ufw")), (2, true));
        let some = told(facts.confined().without_exports(&[path]));
        assert!(!some.contains("secret") && !some.contains("ufw"), "{some}");
    }
}
