//! What only libibverbs and the devices themselves tell: whether the library opens,
//! which drivers it knows, why a device does not open, the packets that ports agreed
//! on, and whether the kernel registers files of an export as they are. A record has
//! what was told in `library/`. A device that hangs hangs here: callers wait with a
//! deadline.

use super::ReadPath;
use crate::tree::Tree;
use std::path::Path;
use verbatim_fabric::ports::{
    Access, DeviceInfo, Machine, PortInfo, Reason, Transport, Wish, choose,
};
use verbatim_fabric::verbs;

/// What the library tells of a machine.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Why it does not open, if it does not.
    pub fault: Option<String>,
    /// What it tells of each device, in the order of `Machine`.
    pub devices: Vec<OfDevice>,
}

/// What the library tells of a device.
#[derive(Debug, Default)]
pub(super) struct OfDevice {
    /// Why it does not open, if it was tried and does not.
    pub refused: Option<Reason>,
    /// Of each port: bytes of its packets, and of the largest it could.
    pub packets: Vec<Option<(u32, u32)>>,
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
    let devices = machine.devices.iter().map(|device| {
        let usable = device.transport == Transport::Ib && device.access == Access::Granted;
        match usable && fault.is_none() {
            true if tree.is_here() => opened(device),
            true => recorded(tree, device),
            false => OfDevice::default(),
        }
    });
    let devices = devices.collect();
    Told { fault, devices }
}

fn opened(device: &DeviceInfo) -> OfDevice {
    match verbs::Context::open(&device.name) {
        Ok(context) => {
            let of = |port: &PortInfo| context.packet_bytes(port.number);
            OfDevice { refused: None, packets: device.ports.iter().map(of).collect() }
        }
        Err(reason) => OfDevice { refused: Some(reason), ..OfDevice::default() },
    }
}

fn recorded(tree: &Tree, device: &DeviceInfo) -> OfDevice {
    let DeviceInfo { name, ports, .. } = device;
    // What the system said, where it was asked.
    let refused = tree.text(&format!("library/{name}/refused"));
    let refused = refused.map(|cause| match cause.as_str() {
        NO_DRIVER => Reason::NoDriver { device: name.clone() },
        _ => Reason::Unusable { device: name.clone(), cause },
    });
    let packets = ports.iter().map(|port| {
        let of = |what: &str| tree.number(&format!("library/{name}/{}/{what}", port.number));
        Some((of("active_mtu")?.try_into().ok()?, of("max_mtu")?.try_into().ok()?))
    });
    OfDevice { refused, packets: packets.collect() }
}

/// How a record says that the library has no driver for a device.
const NO_DRIVER: &str = "no driver";

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
