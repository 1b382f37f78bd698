//! What only libibverbs and the devices themselves tell: whether the library opens,
//! which drivers it knows, the packets that ports agreed on, and whether the kernel
//! registers files of an export as they are. A record has what was told in
//! `library/`. A device that hangs hangs here: callers wait with a deadline.

use super::ReadPath;
use crate::tree::Tree;
use std::path::Path;
use verbatim_fabric::ports::{Access, Machine, Transport, Wish, choose};
use verbatim_fabric::verbs;

/// What the library tells of a machine.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Why it does not open, if it does not.
    pub fault: Option<String>,
    /// Of each port of each device, in the order of `Machine`: bytes of its packets, and of
    /// the largest it could.
    pub packets: Vec<Vec<Option<(u32, u32)>>>,
}

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

/// Asks the library, where there is something to ask it for.
pub(super) fn ask(tree: &Tree, machine: &Machine) -> Told {
    let fault = if tree.is_here() {
        // Only where there is something for it: it is not loaded in vain.
        let wanted = !machine.devices.is_empty();
        wanted.then(verbs::library_opens).and_then(Result::err).map(|it| it.to_string())
    } else {
        // A record without libraries tells nothing of them.
        let told = LIBRARY_FOLDERS.iter().any(|it| tree.has(it));
        let found = LIBRARY_FOLDERS.iter().any(|it| tree.has(&format!("{it}/{LIBRARY}")));
        (told && !found).then(|| format!("cannot open libibverbs: there is no {LIBRARY}"))
    };
    let packets = machine.devices.iter().map(|device| {
        let usable = device.transport == Transport::Ib && device.access == Access::Granted;
        let usable = usable && fault.is_none() && tree.is_here();
        let context = usable.then(|| verbs::Context::open(&device.name).ok()).flatten();
        let of = |number: u8| match &context {
            Some(context) => context.packet_bytes(number),
            None => recorded_packets(tree, &device.name, number),
        };
        device.ports.iter().map(|port| of(port.number)).collect()
    });
    let packets = packets.collect();
    Told { fault, packets }
}

fn recorded_packets(tree: &Tree, device: &str, port: u8) -> Option<(u32, u32)> {
    if tree.is_here() {
        return None;
    }
    let of = |name: &str| tree.number(&format!("library/{device}/{port}/{name}"));
    Some((of("active_mtu")?.try_into().ok()?, of("max_mtu")?.try_into().ok()?))
}

/// The drivers that the library was told of.
pub(super) fn providers(tree: &Tree) -> Option<Vec<String>> {
    let names = tree.names("etc/libibverbs.d");
    let known = names.iter().filter_map(|name| name.strip_suffix(".driver").map(str::to_owned));
    tree.has("etc/libibverbs.d").then(|| known.collect())
}

/// How files of a folder are offered; none where there is no device to try with.
pub(super) fn read_path(
    tree: &Tree,
    path: &Path,
    machine: &Machine,
    wish: &Wish,
) -> Option<ReadPath> {
    if !tree.is_here() {
        // The word, then the reason.
        let told = tree.text(&format!("library/readpath{}", path.display()))?;
        return Some(match told.split_once(": ") {
            Some(("staged", reason)) => ReadPath::Staged(reason.to_owned()),
            _ => ReadPath::Mapped,
        });
    }
    let places = choose(machine, wish).ok()?;
    let context = verbs::Context::open(&places.first()?.device).ok()?;
    Some(match verbs::probe(&context, path) {
        verbs::FileWindows::Mapped => ReadPath::Mapped,
        verbs::FileWindows::Staged { reason } => ReadPath::Staged(reason.to_string()),
    })
}
