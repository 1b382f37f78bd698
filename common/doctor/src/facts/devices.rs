//! What sysfs tells of RDMA devices beyond what links need to know: driver, model,
//! place on the bus, the network device of each port and how it is set up.

use crate::tree::Tree;
use verbatim_fabric::ports::{Machine, PortInfo, Reason};

/// A device, beyond what `Machine` has of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceFacts {
    /// The kernel's driver, where it is told.
    pub driver: Option<String>,
    /// The model: `MT4129`.
    pub model: Option<String>,
    /// The exact board, by which two cards are known to be alike.
    pub board: Option<String>,
    /// How it is connected to the machine, and how it could be.
    pub bus: Option<(Lane, Lane)>,
    /// How the IOMMU treats it: `DMA`, `DMA-FQ`, `identity`.
    pub iommu: Option<String>,
    /// How many virtual functions it has.
    pub virtual_count: u64,
    /// Why the library does not open it, if it was tried and does not.
    pub refused: Option<Reason>,
    /// Its ports, in the order of `Machine`.
    pub ports: Vec<PortFacts>,
}

/// Lanes of a bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lane {
    /// Mega-transfers a second of one lane.
    pub speed: u32,
    /// How many.
    pub width: u32,
}

impl Lane {
    /// What all of them carry, in Mbit/s: below 8 GT/s eight bits of ten are data, then 128 of 130.
    pub fn carries_mbit(self) -> u64 {
        let transfers = u64::from(self.speed) * u64::from(self.width);
        let (data, of) = if self.speed < 8000 { (8, 10) } else { (128, 130) };
        transfers.saturating_mul(data) / of
    }
}

impl std::fmt::Display for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} GT/s x{}", f64::from(self.speed) / 1000.0, self.width)
    }
}

/// A port, beyond what `Machine` has of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortFacts {
    /// `LinkUp`, `Polling`, `Disabled`.
    pub physical: Option<String>,
    /// The rate as it is told: `10 Gb/sec (4X SDR)`.
    pub rate: String,
    /// Bytes of its packets, and of the largest it could; the library tells.
    pub packet: Option<(u32, u32)>,
    /// Its network device.
    pub netdev: Option<NetdevFacts>,
}

/// A network device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NetdevFacts {
    pub name: String,
    pub mtu: Option<u64>,
    /// What its cable carries, in Mbit/s.
    pub speed: Option<u32>,
    /// The most that it could, of all it knows to do.
    pub speed_max: Option<u32>,
    /// Priorities whose packets are marked where a queue grows, of how many that are told.
    pub ecn: Option<(usize, usize)>,
    /// Priorities that are paused instead of dropped: what `dcb` says of them.
    pub pfc: Option<Vec<u8>>,
}

/// A network card of which a driver could make an RDMA device, and that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OrphanCard {
    pub pci: String,
    /// The module that would drive it.
    pub module: &'static str,
}

/// Network controllers: Ethernet, InfiniBand, and those that can be either.
const NETWORK: &[&str] = &["0x0200", "0x0207", "0x0280"];

/// Drivers that make a network device of a card, and the module that makes an RDMA device of it.
const HALVES: &[(&str, &str)] =
    &[("mlx5_core", "mlx5_ib"), ("mlx4_core", "mlx4_ib"), ("bnxt_en", "bnxt_re")];

/// The maker whose cards are all for RDMA, whatever drives them.
const MELLANOX: &str = "0x15b3";

/// Its older ones, ConnectX-3 and what it is split into, which have a driver of their own.
const CONNECTX3: &[&str] = &["0x1003", "0x1004", "0x1007"];

/// Reads all of them, and what may not be read.
pub(super) fn read(tree: &Tree) -> (Machine, Vec<DeviceFacts>, Vec<OrphanCard>, Vec<String>) {
    let machine = Machine::read(tree.root());
    // What links cannot read they leave out; that it may not be read is to be told here.
    for folder in ["sys/class/infiniband", "sys/class/infiniband_verbs"] {
        tree.names(folder);
    }
    let devices = machine.devices.iter().map(|device| {
        let folder = format!("sys/class/infiniband/{}", device.name);
        let ports = device.ports.iter().map(|it| port(tree, &folder, it)).collect();
        DeviceFacts { ports, ..self::device(tree, &folder) }
    });
    let devices = devices.collect();
    let orphans = orphans(tree, &machine);
    (machine, devices, orphans, tree.denied())
}

fn device(tree: &Tree, folder: &str) -> DeviceFacts {
    let of = |name: &str| tree.text(&format!("{folder}/device/{name}"));
    let uevent = of("uevent").unwrap_or_default();
    let lane = |speed: &str, width: &str| {
        let speed = of(speed)?.split_whitespace().next()?.parse::<f64>().ok()?;
        let width = of(width)?.parse().ok()?;
        Some(Lane { speed: (speed * 1000.0) as u32, width })
    };
    let now = lane("current_link_speed", "current_link_width");
    DeviceFacts {
        driver: driver_in(&uevent).map(str::to_owned),
        model: tree.text(&format!("{folder}/hca_type")),
        board: tree.text(&format!("{folder}/board_id")),
        bus: now.zip(lane("max_link_speed", "max_link_width")),
        iommu: of("iommu_group/type"),
        virtual_count: tree.number(&format!("{folder}/device/sriov_numvfs")).unwrap_or(0),
        refused: None,
        ports: Vec::new(),
    }
}

/// The driver that the kernel bound to something.
fn driver_in(uevent: &str) -> Option<&str> {
    uevent.lines().find_map(|line| line.strip_prefix("DRIVER="))
}

fn port(tree: &Tree, folder: &str, port: &PortInfo) -> PortFacts {
    let folder = format!("{folder}/ports/{}", port.number);
    // "5: LinkUp".
    let physical = tree.text(&format!("{folder}/phys_state"));
    let physical = physical.and_then(|it| Some(it.split_once(':')?.1.trim().to_owned()));
    let rate = tree.text(&format!("{folder}/rate")).unwrap_or_default();
    let netdev = port.netdevs.first().map(|name| netdev(tree, name));
    PortFacts { physical, rate, packet: None, netdev }
}

fn netdev(tree: &Tree, name: &str) -> NetdevFacts {
    let folder = format!("sys/class/net/{name}");
    let notes = format!("{folder}/ecn/roce_np/enable");
    let marks: Vec<_> = tree
        .names(&notes)
        .iter()
        .filter_map(|priority| tree.number(&format!("{notes}/{priority}")))
        .collect();
    let ecn =
        (!marks.is_empty()).then(|| (marks.iter().filter(|&&on| on > 0).count(), marks.len()));
    let pfc = tree.output("dcb", &["pfc", "show", "dev", name]).and_then(|text| paused(&text));
    let mtu = tree.number(&format!("{folder}/mtu"));
    // -1 where there is no carrier.
    let speed = tree.number(&format!("{folder}/speed")).and_then(|it| u32::try_from(it).ok());
    let speed_max = tree.output("ethtool", &[name]).and_then(|text| quickest(&text));
    NetdevFacts { name: name.to_owned(), mtu, speed, speed_max, ecn, pfc }
}

/// `Supported link modes: 10000baseT/Full`, and more on the lines that follow: the quickest.
fn quickest(text: &str) -> Option<u32> {
    let modes = text.split_once("Supported link modes:")?.1;
    // The next title ends the list.
    let modes = modes.split_once(':').map_or(modes, |(modes, _)| modes);
    let speed = |word: &str| word.split_once("base")?.0.parse().ok();
    modes.split_whitespace().filter_map(speed).max()
}

/// `prio-pfc 0:off 1:off 2:off 3:on ...`: the priorities that are on.
fn paused(text: &str) -> Option<Vec<u8>> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("prio-pfc "))?;
    let on = line.split_whitespace().filter_map(|word| word.strip_suffix(":on"));
    Some(on.filter_map(|priority| priority.parse().ok()).collect())
}

/// Cards on the bus that could be RDMA devices and are none. Where others are, such a card was
/// switched off or handed on: it is told of only where there is no device at all.
fn orphans(tree: &Tree, machine: &Machine) -> Vec<OrphanCard> {
    let of = |pci: &str, name: &str| tree.text(&format!("sys/bus/pci/devices/{pci}/{name}"));
    let orphan = |pci: String| {
        let class = of(&pci, "class")?;
        let is_network = NETWORK.iter().any(|kind| class.starts_with(kind));
        let uevent = of(&pci, "uevent").unwrap_or_default();
        let module = match driver_in(&uevent) {
            Some(driver) => HALVES.iter().find(|(half, _)| *half == driver)?.1,
            None if of(&pci, "vendor")? != MELLANOX => return None,
            None => match of(&pci, "device") {
                Some(card) if CONNECTX3.contains(&card.as_str()) => "mlx4_ib",
                _ => "mlx5_ib",
            },
        };
        let is_known = machine.devices.iter().any(|it| it.pci.as_deref() == Some(pci.as_str()));
        (is_network && !is_known).then_some(OrphanCard { pci, module })
    };
    tree.names("sys/bus/pci/devices").into_iter().filter_map(orphan).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickest_mode_is_what_a_port_can_do() {
        let text = "Settings for eth0:\n\tSupported ports: [ FIBRE ]\n\tSupported link modes:   \
                    1000baseKX/Full\n\t                        40000baseCR4/Full\n\tSupported \
                    pause frame use: Symmetric\n\tAdvertised link modes:  100000baseCR4/Full\n";
        assert_eq!(quickest(text), Some(40_000));
        assert_eq!(quickest("Supported link modes:   Not reported\n"), None);
        assert_eq!(quickest("Cannot get device settings"), None);
    }

    #[test]
    fn what_a_slot_carries_is_less_than_its_transfers() {
        let carries = |speed, width| Lane { speed, width }.carries_mbit();
        assert_eq!((carries(5000, 8), carries(8000, 8)), (32_000, 63_015));
        assert_eq!((carries(16_000, 16), carries(0, 0)), (252_061, 0));
        assert!(carries(u32::MAX, u32::MAX) > 0, "whatever the kernel tells");
    }

    #[test]
    fn paused_priorities_are_those_that_are_on() {
        let text = "pfc-cap 8 macsec-bypass off delay 0\nprio-pfc 0:off 1:off 3:on 4:on\n";
        assert_eq!(paused(text), Some(vec![3, 4]));
        assert_eq!(paused("prio-pfc 0:off"), Some(vec![]));
        assert_eq!(paused("RTNETLINK answers: Operation not supported"), None);
    }
}
