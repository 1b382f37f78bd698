//! Reads a `Machine` as the kernel describes it, below a root that is a parameter:
//! `/` for this machine, a folder for a recorded one. Opens no device. What is
//! missing or cannot be read is left out: devices come and go while we look.

use super::machine::{
    Access, DeviceInfo, GidInfo, GidKind, LinkLayer, Machine, Network, PortInfo, PortState,
    Transport,
};
use super::memory_nodes::{MemoryNodes, numbers};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// Devices that are looked at.
const DEVICES_MAX: usize = 256;

/// Networks that are looked at: a router may have a million routes.
const NETWORKS_MAX: usize = 4096;

/// Memory nodes that are looked at, and processors: as many as the kernel can be built for.
const NODES_MAX: usize = 1024;
const PROCESSORS_MAX: usize = 8192;

/// Reads the addresses of a port.
type ReadGids = fn(&Path, LinkLayer) -> Vec<GidInfo>;

impl Machine {
    /// Reads this machine.
    pub fn here() -> Self {
        Self::read(Path::new("/"))
    }

    /// Whether this machine has any device, of use or not.
    pub fn has_devices() -> bool {
        fs::read_dir("/sys/class/infiniband").is_ok_and(|mut names| names.next().is_some())
    }

    /// Reads the machine whose `sys`, `proc` and `dev` are below this folder.
    pub fn read(root: &Path) -> Self {
        let devices = Self::devices(root, gids);
        Self { devices, networks: networks(root), memory: memory(root) }
    }

    /// Reads its devices and the state of their ports alone, and no addresses: of those every
    /// port has room for hundreds, each in a file of its own.
    pub fn outline(root: &Path) -> Self {
        let devices = Self::devices(root, |_, _| Vec::new());
        Self { devices, ..Self::default() }
    }

    fn devices(root: &Path, gids: ReadGids) -> Vec<DeviceInfo> {
        let class = root.join("sys/class/infiniband");
        let mut names = names_in(&class);
        names.sort_by_key(|name| natural(name));
        names.truncate(DEVICES_MAX);
        let nodes = nodes(root);
        let devices = names.into_iter().map(|name| {
            let node = nodes.iter().find(|(device, _)| *device == name).map(|(_, node)| node);
            device(&class.join(&name), name, access(root, node), gids)
        });
        devices.collect()
    }
}

fn device(folder: &Path, name: String, access: Access, gids: ReadGids) -> DeviceInfo {
    // "1: CA"; RNIC is iWARP, and what has no name speaks no InfiniBand.
    let transport = match text(&folder.join("node_type")).as_deref().map(first_number) {
        Some(Some(1..=3)) | None => Transport::Ib,
        Some(Some(4)) => Transport::Iwarp,
        Some(_) => Transport::Other,
    };
    let on_bus = folder.join("device");
    let uevent = text(&on_bus.join("uevent")).unwrap_or_default();
    let pci = uevent.lines().find_map(|line| line.strip_prefix("PCI_SLOT_NAME="));
    // -1 is a machine with one node.
    let numa_node = text(&on_bus.join("numa_node")).and_then(|it| it.parse().ok());
    let mut numbers: Vec<u8> =
        names_in(&folder.join("ports")).iter().filter_map(|it| it.parse().ok()).collect();
    numbers.sort_unstable();
    let ports = numbers.into_iter().filter_map(|number| port(folder, number, gids));
    let (pci, ports) = (pci.map(str::to_owned), ports.collect());
    DeviceInfo { name, transport, pci, numa_node, access, ports }
}

fn port(device: &Path, number: u8, gids: ReadGids) -> Option<PortInfo> {
    let folder = device.join("ports").join(number.to_string());
    let state = text(&folder.join("state"))?;
    let link_layer = match text(&folder.join("link_layer")).as_deref() {
        Some("Ethernet") => LinkLayer::Ethernet,
        // Unknown is how drivers older than RoCE say InfiniBand.
        _ => LinkLayer::Infiniband,
    };
    let gids = gids(&folder, link_layer);
    let mut netdevs: Vec<String> = gids.iter().filter_map(|gid| gid.netdev.clone()).collect();
    netdevs.extend(netdevs_of(device, number));
    netdevs.dedup();
    let lid = text(&folder.join("lid")).unwrap_or_default();
    Some(PortInfo {
        number,
        state: PortState(first_number(&state).unwrap_or(0)),
        link_layer,
        rate_mbit: rate_mbit(&text(&folder.join("rate")).unwrap_or_default()),
        lid: u16::from_str_radix(lid.trim_start_matches("0x"), 16).unwrap_or(0),
        netdevs,
        gids,
    })
}

/// The network devices on a port of a device, whether they have addresses or not.
fn netdevs_of(device: &Path, number: u8) -> Vec<String> {
    // A software device is on one network device and says which.
    if let Some(parent) = text(&device.join("parent")) {
        return vec![parent];
    }
    let folder = device.join("device/net");
    let on_port = |name: &String| {
        let counted = |file: &str| text(&folder.join(name).join(file));
        // Counted from 0; older drivers tell only the second, in hexadecimal.
        let of_port = counted("dev_port").and_then(|it| it.parse::<u8>().ok()).unwrap_or(0);
        let of_id = counted("dev_id").unwrap_or_default();
        let of_id = u8::from_str_radix(of_id.trim_start_matches("0x"), 16).unwrap_or(0);
        of_port.max(of_id).checked_add(1) == Some(number)
    };
    let mut names: Vec<_> = names_in(&folder).into_iter().filter(on_port).collect();
    names.sort_by_key(|name| natural(name));
    names
}

fn gids(port: &Path, link_layer: LinkLayer) -> Vec<GidInfo> {
    let old = !port.join("gid_attrs/types").exists();
    let folder = port.join("gids");
    let Ok(opened) = fs::File::open(&folder) else { return Vec::new() };
    let gid_at = |index: u8| {
        let ip = gid_in(&opened, index)?;
        // An empty place is zero, or has the subnet of the port alone.
        if ip.to_bits() as u64 == 0 {
            return None;
        }
        let kind = text(&port.join(format!("gid_attrs/types/{index}")));
        let kind = match (kind.as_deref(), link_layer) {
            (Some("RoCE v2"), _) => GidKind::RoceV2,
            (Some("IB/RoCE v1"), LinkLayer::Ethernet) => GidKind::RoceV1,
            (Some("IB/RoCE v1"), LinkLayer::Infiniband) => GidKind::Ib,
            (None, LinkLayer::Ethernet) if old => GidKind::RoceV1,
            (None, LinkLayer::Infiniband) if old => GidKind::Ib,
            _ => return None,
        };
        let netdev = text(&port.join(format!("gid_attrs/ndevs/{index}")));
        Some(GidInfo { index, raw: ip.octets(), kind, netdev })
    };
    // A path names our address in 8 bits; what is beyond cannot be used.
    let names = names_in(&folder);
    let mut indexes: Vec<u8> = names.iter().filter_map(|name| name.parse().ok()).collect();
    indexes.sort_unstable();
    indexes.into_iter().filter_map(gid_at).collect()
}

/// The address in one place of a port. There are hundreds of places and most are empty, so it
/// takes no more system calls than it must.
fn gid_in(gids: &fs::File, index: u8) -> Option<Ipv6Addr> {
    let name = index.to_string();
    let file = openat(gids, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    // Written in full it is 39 characters and the line's end.
    let mut text = [0; 64];
    let len = rustix::io::read(&file, &mut text).ok()?;
    std::str::from_utf8(&text[..len]).ok()?.trim().parse().ok()
}

/// The device of each file that programs open, and the file's name.
fn nodes(root: &Path) -> Vec<(String, String)> {
    let class = root.join("sys/class/infiniband_verbs");
    let device_of = |node: String| Some((text(&class.join(&node).join("ibdev"))?, node));
    names_in(&class).into_iter().filter_map(device_of).collect()
}

fn access(root: &Path, node: Option<&String>) -> Access {
    let Some(node) = node else { return Access::Missing("/dev/infiniband/uverbs*".into()) };
    let shown = format!("/dev/infiniband/{node}");
    // The library looks in the second place where it does not find the first.
    let number = text(&root.join("sys/class/infiniband_verbs").join(node).join("dev"));
    let places = [Some(format!("infiniband/{node}")), number.map(|it| format!("char/{it}"))];
    let both = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
    let mut found = Access::Missing(shown.clone());
    for place in places.into_iter().flatten() {
        match rustix::fs::access(root.join("dev").join(place), both) {
            Ok(()) => return Access::Granted,
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(_) => found = Access::Denied(shown.clone()),
        }
    }
    found
}

/// The memory nodes, how far they are from each other, and which of them this process uses.
fn memory(root: &Path) -> MemoryNodes {
    let folder = root.join("sys/devices/system/node");
    let of_node = |node: u32, file: &str| {
        text(&folder.join(format!("node{node}")).join(file)).unwrap_or_default()
    };
    let online = numbers(&text(&folder.join("online")).unwrap_or_default(), NODES_MAX);
    let mut distances = BTreeMap::new();
    for &from in &online {
        // A number for each node that is online, in their order.
        let row = of_node(from, "distance");
        let row = row.split_whitespace().map_while(|word| word.parse::<u32>().ok());
        distances.extend(online.iter().zip(row).map(|(&to, distance)| ((from, to), distance)));
    }
    let status = text(&root.join("proc/self/status")).unwrap_or_default();
    let allowed = |key: &str, count_max| {
        let list = status.lines().find_map(|line| line.strip_prefix(key));
        numbers(list.unwrap_or_default(), count_max)
    };
    let may_use = allowed("Mems_allowed_list:", NODES_MAX);
    let runs_on = allowed("Cpus_allowed_list:", PROCESSORS_MAX);
    // Memory comes from the node of the processor that first touches it, where that may be used.
    let runs_there = |node: &&u32| {
        let processors = numbers(&of_node(**node, "cpulist"), PROCESSORS_MAX);
        processors.iter().any(|processor| runs_on.contains(processor))
    };
    let local: Vec<u32> = may_use.iter().filter(runs_there).copied().collect();
    MemoryNodes { used: if local.is_empty() { may_use } else { local }, distances }
}

/// The networks of the kernel's main table, and the IPv6 addresses themselves.
fn networks(root: &Path) -> Vec<Network> {
    let read = |name: &str| fs::read_to_string(root.join("proc/net").join(name));
    let (routes, addresses) = (read("route"), read("if_inet6"));
    let routes = routes.iter().flat_map(|text| text.lines().skip(1).filter_map(route));
    let addresses = addresses.iter().flat_map(|text| text.lines().filter_map(address));
    routes.chain(addresses).take(NETWORKS_MAX).collect()
}

/// `eth0 0000010A 00000000 0001 0 0 0 00FFFFFF ...`: device, base, gateway, ..., mask.
fn route(line: &str) -> Option<Network> {
    let words: Vec<_> = line.split_whitespace().collect();
    // The kernel prints the bytes of an address as a number of its own.
    let number = |at: usize| Some(u32::from_str_radix(words.get(at)?, 16).ok()?.to_ne_bytes());
    let (base, mask) = (Ipv4Addr::from(number(1)?), Ipv4Addr::from(number(7)?));
    let bits = mask.to_bits().leading_ones() as u8;
    Some(Network { netdev: (*words.first()?).to_owned(), base: base.into(), bits })
}

/// `20010db8... 02 40 00 80 eth0`: address, ..., device.
fn address(line: &str) -> Option<Network> {
    let words: Vec<_> = line.split_whitespace().collect();
    let bits = u128::from_str_radix(words.first()?, 16).ok()?;
    let base = IpAddr::from(Ipv6Addr::from_bits(bits));
    Some(Network { netdev: (*words.get(5)?).to_owned(), base, bits: 128 })
}

/// `100 Gb/sec (4X EDR)`.
fn rate_mbit(text: &str) -> u32 {
    let gigabits = text.split_whitespace().next().and_then(|it| it.parse::<f64>().ok());
    (gigabits.unwrap_or(0.0) * 1000.0) as u32
}

/// `4: ACTIVE`.
fn first_number(text: &str) -> Option<u32> {
    text.split(':').next()?.trim().parse().ok()
}

/// The words of a file without the line's end; none where there is nothing.
fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Sorts `mlx5_10` behind `mlx5_9`.
fn natural(name: &str) -> (String, u64) {
    let letters = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    (letters.to_owned(), name[letters.len()..].parse().unwrap_or(0))
}
