//! What is true of all of a machine: modules, limits, memory, processors, firewall.
//! Read from files and one command; what is not told is left open, and judged by
//! nobody here.

use super::container;
use super::control_group::{self, ControlGroup};
use super::firewall::{self, Firewall};
use crate::tree::Tree;
use std::path::Path;

/// A limit in bytes; none where there is no limit.
pub(crate) type Bytes = Option<u64>;

/// What is true of all of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Host {
    /// Modules of the kernel, loaded or built in.
    pub modules: Vec<String>,
    pub memlock: Memlock,
    /// The kernel's command line.
    pub command_line: String,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub huge_pages: Option<String>,
    /// Huge pages that are reserved, of those that slots are parts of.
    pub huge_pages_reserved: Option<u64>,
    /// How processors are governed, and by which driver; the first that says.
    pub governor: Option<(String, String)>,
    /// Memory nodes, each with its processors as the kernel writes them.
    pub nodes: Vec<(u32, String)>,
    /// The memory and the processors that this process may use.
    pub allowed: (String, String),
    pub control_group: ControlGroup,
    pub firewall: Option<Firewall>,
}

/// How much memory may be pinned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memlock {
    /// By this process; none where it cannot be told.
    pub here: Option<Bytes>,
    /// By the service, and the file that says so.
    pub service: Option<(String, Bytes)>,
    /// Whether this is inside of a container.
    pub container: bool,
    /// Whether limits do not count here: CAP_IPC_LOCK.
    pub exempt: bool,
}

/// Where units may be, the first of a name counts; drop-ins of all of them do.
const UNIT_FOLDERS: &[&str] =
    &["etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"];

const UNIT: &str = "rdma-serve.service";

/// The bit of CAP_IPC_LOCK.
const IPC_LOCK: u64 = 1 << 14;

pub(super) fn read(tree: &Tree) -> Host {
    let loaded = tree.text("proc/modules").unwrap_or_default();
    let loaded = loaded.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned);
    let mut modules: Vec<_> = loaded.chain(tree.names("sys/module")).collect();
    // One that is built in is named nowhere, but what it makes is there.
    if tree.has("sys/class/infiniband_verbs") {
        modules.push("ib_uverbs".into());
    }
    modules.sort();
    modules.dedup();
    let status = tree.text("proc/self/status").unwrap_or_default();
    let of = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_default().trim().to_owned()
    };
    let capabilities = u64::from_str_radix(&of("CapEff:"), 16).unwrap_or(0);
    Host {
        modules,
        memlock: memlock(tree, capabilities & IPC_LOCK != 0),
        command_line: tree.text("proc/cmdline").unwrap_or_default(),
        huge_pages: tree
            .text("sys/kernel/mm/transparent_hugepage/enabled")
            .and_then(|text| Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())),
        huge_pages_reserved: tree.number("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"),
        governor: governor(tree),
        nodes: nodes(tree),
        allowed: (of("Mems_allowed_list:"), of("Cpus_allowed_list:")),
        control_group: control_group::read(tree),
        firewall: firewall::read(tree),
    }
}

fn memlock(tree: &Tree, exempt: bool) -> Memlock {
    let limits = tree.text("proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let here = line.and_then(|line| line.split_whitespace().next()).and_then(bytes);
    let container = container::is_here(tree);
    Memlock { here, service: memlock_of_service(tree), container, exempt }
}

/// What the service may lock, and the file that says so: the last of its drop-ins by name that
/// does, or else its unit.
fn memlock_of_service(tree: &Tree) -> Option<(String, Bytes)> {
    let units = UNIT_FOLDERS.iter().map(|folder| format!("{folder}/{UNIT}"));
    let (unit, text) =
        units.into_iter().find_map(|unit| Some((unit.clone(), tree.text(&unit)?)))?;
    let said = |text: &str| {
        // The last line counts.
        let value = text.lines().rev().find_map(|line| line.trim().strip_prefix("LimitMEMLOCK="));
        value.and_then(unit_bytes)
    };
    let mut drop_ins: Vec<_> = UNIT_FOLDERS
        .iter()
        .map(|folder| format!("{folder}/{UNIT}.d"))
        .flat_map(|folder| {
            let names = tree.names(&folder);
            names.into_iter().map(move |name| (name.clone(), format!("{folder}/{name}")))
        })
        .filter(|(name, _)| name.ends_with(".conf"))
        .collect();
    drop_ins.sort();
    let of_drop_in = |(_, path): &(String, String)| {
        let limit = said(&tree.text(path)?)?;
        Some((format!("/{path}"), limit))
    };
    let of_drop_in = drop_ins.iter().rev().find_map(of_drop_in);
    let of_unit = || (format!("/{unit}"), said(&text).unwrap_or(Some(SERVICE_MEMLOCK)));
    Some(of_drop_in.unwrap_or_else(of_unit))
}

/// What systemd gives a service that says nothing: 8 MiB.
const SERVICE_MEMLOCK: u64 = 8 << 20;

/// `unlimited` or a number.
fn bytes(text: &str) -> Option<Bytes> {
    match text {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    }
}

/// `infinity`, or a number with K, M, G or T behind it; `soft:hard` means the soft one.
fn unit_bytes(text: &str) -> Option<Bytes> {
    let text = text.trim().split(':').next()?;
    if text == "infinity" {
        return Some(None);
    }
    let digits = text.trim_end_matches(['K', 'M', 'G', 'T']);
    let shift = match &text[digits.len()..] {
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => 0,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).map(Some)
}

fn governor(tree: &Tree) -> Option<(String, String)> {
    let folder = "sys/devices/system/cpu";
    let cpus = tree.names(folder);
    let mut told = cpus.iter().filter_map(|cpu| {
        let of = |name: &str| tree.text(&format!("{folder}/{cpu}/cpufreq/scaling_{name}"));
        Some((of("governor")?, of("driver").unwrap_or_default()))
    });
    told.next()
}

fn nodes(tree: &Tree) -> Vec<(u32, String)> {
    let folder = "sys/devices/system/node";
    let node = |name: String| {
        let number = name.strip_prefix("node")?.parse().ok()?;
        Some((number, tree.text(&format!("{folder}/{name}/cpulist")).unwrap_or_default()))
    };
    let mut nodes: Vec<_> = tree.names(folder).into_iter().filter_map(node).collect();
    nodes.sort_unstable();
    nodes
}

/// The type of the file system that holds a path: of the mounts above it the nearest.
pub(super) fn file_system_of(mounts: &str, path: &Path) -> Option<String> {
    let mount = |line: &str| {
        let (place, rest) = line.split_once(" - ")?;
        let at = place.split(' ').nth(4)?.replace("\\040", " ");
        let is_above = path.starts_with(&at);
        is_above.then(|| (at.len(), rest.split(' ').next().unwrap_or_default().to_owned()))
    };
    // Of two mounts at one place the later covers the other.
    let nearest = mounts.lines().filter_map(mount).enumerate();
    nearest.max_by_key(|(order, (length, _))| (*length, *order)).map(|(_, (_, kind))| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_systemd_and_the_kernel_write_them() {
        assert_eq!((bytes("unlimited"), bytes("65536")), (Some(None), Some(Some(65536))));
        assert_eq!((unit_bytes("infinity"), unit_bytes("64M")), (Some(None), Some(Some(64 << 20))));
        assert_eq!((unit_bytes("8M:infinity"), unit_bytes("much")), (Some(Some(8 << 20)), None));
    }

    #[test]
    fn the_nearest_mount_says_the_file_system() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      30 22 0:5 / /data rw shared:1 - xfs /dev/sdb rw\n\
                      31 22 0:5 / /da rw - tmpfs none rw";
        let of = |path: &str| file_system_of(mounts, Path::new(path));
        assert_eq!(of("/data/x").as_deref(), Some("xfs"));
        assert_eq!(of("/database").as_deref(), Some("ext4"));
    }
}
