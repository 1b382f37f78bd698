//! What RDMA devices this machine has: their ports, the state of those, and the
//! addresses each port has, as plain data. Opens every device for a moment and
//! closes it again. Choosing among them is `choose`; using one is `context`.

use super::choose::Reason;
use super::context::Context;
use super::ffi::{self, Plain as _};
use super::library::library;
use std::ffi::CStr;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;

/// Addresses of a device that are looked at; tables have 16 to 1024 places, most empty.
const GIDS_MAX: usize = 4096;

/// Where the kernel describes its devices.
const SYSFS: &str = "/sys/class/infiniband";

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The kernel's name: `mlx5_0`.
    pub name: String,
    /// What it speaks.
    pub transport: Transport,
    /// Its ports.
    pub ports: Vec<PortInfo>,
}

/// What a device speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// InfiniBand or RoCE.
    Ib,
    /// iWARP.
    Iwarp,
    /// Something without reliable connections.
    Other,
    /// It could not be asked; why.
    Unknown(String),
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Its number, from 1.
    pub number: u8,
    /// Whether it is up.
    pub state: PortState,
    /// What runs on its cable.
    pub link_layer: LinkLayer,
    /// The largest packet in use, as `IBV_MTU_*`: 256 bytes times two to one less than this.
    pub mtu: u32,
    /// Its local identifier; 0 on Ethernet.
    pub lid: u16,
    /// The largest message.
    pub message_bytes_max: u32,
    /// Its addresses; empty places are left out.
    pub gids: Vec<GidInfo>,
}

/// The state of a port, as the device tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortState(pub u32);

impl PortState {
    /// The state of a port that carries traffic.
    pub const ACTIVE: Self = Self(ffi::IBV_PORT_ACTIVE);

    /// Whether it carries traffic.
    pub fn is_active(self) -> bool {
        self == Self::ACTIVE
    }

    /// What tools call it.
    pub fn name(self) -> &'static str {
        const NAMES: [&str; 6] = ["NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"];
        NAMES.get(self.0 as usize).copied().unwrap_or("in an unknown state")
    }
}

/// What runs on a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: addressed by LID, between subnets by GID.
    Infiniband,
    /// RoCE: addressed by GID.
    Ethernet,
}

/// What an address is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    Ib,
    /// RoCE within one Ethernet segment.
    RoceV1,
    /// RoCE over UDP, which is routed.
    RoceV2,
}

/// An address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidInfo {
    /// Its place in the port's table.
    pub index: u8,
    /// The address itself.
    pub raw: [u8; 16],
    /// What it is of.
    pub kind: GidKind,
}

impl GidInfo {
    /// The address as IP: RoCE addresses are the IP addresses of the network device.
    pub fn ip(&self) -> IpAddr {
        Ipv6Addr::from(self.raw).to_canonical()
    }
}

/// Lists the devices of this machine. No device is not an error; no library is.
pub fn devices() -> Result<Vec<DeviceInfo>, Reason> {
    let list = DeviceList::new()?;
    Ok(list.iter().map(describe).collect())
}

/// The address this machine would send from to reach a peer. Nothing is sent.
pub fn local_address_towards(peer: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = match peer {
        SocketAddr::V4(_) => "0.0.0.0:0".parse().ok()?,
        SocketAddr::V6(_) => "[::]:0".parse().ok()?,
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(peer).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

fn describe(listed: Listed<'_>) -> DeviceInfo {
    let name = listed.name();
    let unknown = |cause: String| DeviceInfo {
        name: listed.name(),
        transport: Transport::Unknown(cause),
        ports: Vec::new(),
    };
    let transport = match listed.transport() {
        ffi::IBV_TRANSPORT_IB => Transport::Ib,
        ffi::IBV_TRANSPORT_IWARP => Transport::Iwarp,
        _ => Transport::Other,
    };
    if transport != Transport::Ib {
        return DeviceInfo { name, transport, ports: Vec::new() };
    }
    let context = match listed.open() {
        Ok(context) => context,
        Err(error) => return unknown(error.to_string()),
    };
    let gids = gids_of(&context);
    let ports = (1..=context.limits().ports).filter_map(|number| {
        let attr = context.query_port(number).ok()?;
        let of_port = gids.iter().filter(|(port, _)| *port == number).map(|(_, gid)| *gid);
        Some(port_info(number, &attr, of_port.collect()))
    });
    DeviceInfo { name, transport, ports: ports.collect() }
}

fn port_info(number: u8, attr: &ffi::PortAttr, gids: Vec<GidInfo>) -> PortInfo {
    PortInfo {
        number,
        state: PortState(attr.state),
        link_layer: match attr.link_layer {
            ffi::IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            // Unspecified is how drivers older than RoCE say InfiniBand.
            _ => LinkLayer::Infiniband,
        },
        mtu: attr.active_mtu.clamp(ffi::IBV_MTU_256, ffi::IBV_MTU_4096),
        lid: attr.lid,
        message_bytes_max: attr.max_msg_sz,
        gids,
    }
}

/// The addresses of a device, with their ports.
fn gids_of(context: &Context) -> Vec<(u8, GidInfo)> {
    match context.query_gid_table(GIDS_MAX) {
        Some(entries) => entries.iter().filter_map(from_entry).collect(),
        None => {
            let ports = 1..=context.limits().ports;
            let folder = Path::new(SYSFS).join(context.name()).join("ports");
            let of_port = |port: u8| {
                let gids = gids_from_sysfs(&folder.join(port.to_string()));
                gids.into_iter().map(move |gid| (port, gid))
            };
            ports.flat_map(of_port).collect()
        }
    }
}

fn from_entry(entry: &ffi::GidEntry) -> Option<(u8, GidInfo)> {
    let kind = match entry.gid_type {
        ffi::IBV_GID_TYPE_IB => GidKind::Ib,
        ffi::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
        ffi::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
        _ => return None,
    };
    // A path names our address in 8 bits; what is beyond cannot be used.
    let index = u8::try_from(entry.gid_index).ok()?;
    let port = u8::try_from(entry.port_num).ok()?;
    let raw = entry.gid.raw;
    (raw != [0; 16]).then_some((port, GidInfo { index, raw, kind }))
}

/// The addresses of a port as sysfs tells them, for libraries that do not.
fn gids_from_sysfs(port: &Path) -> Vec<GidInfo> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let gid_at = |index: u8| {
        // An empty place has no type: reading it fails.
        let kind = read(&port.join(format!("gid_attrs/types/{index}")))?;
        let raw: Ipv6Addr = read(&port.join(format!("gids/{index}")))?.trim().parse().ok()?;
        let kind = match kind.trim() {
            "RoCE v2" => GidKind::RoceV2,
            "IB/RoCE v1" if read(&port.join("link_layer"))?.trim() == "Ethernet" => GidKind::RoceV1,
            "IB/RoCE v1" => GidKind::Ib,
            _ => return None,
        };
        (!raw.is_unspecified()).then_some(GidInfo { index, raw: raw.octets(), kind })
    };
    (0..=u8::MAX).filter_map(gid_at).collect()
}

/// The library's list of devices; those opened from it outlive it.
pub(super) struct DeviceList {
    list: *mut *mut ffi::Device,
    count: usize,
}

/// A device of the list.
#[derive(Clone, Copy)]
pub(super) struct Listed<'a> {
    raw: *mut ffi::Device,
    _list: std::marker::PhantomData<&'a DeviceList>,
}

impl DeviceList {
    pub fn new() -> Result<Self, Reason> {
        let library = library()?;
        let mut count = 0;
        // SAFETY: `count` is ours to be written.
        let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
        // No list means no kernel support: the same as no device.
        let count = if list.is_null() { 0 } else { usize::try_from(count).unwrap_or(0) };
        Ok(Self { list, count })
    }

    pub fn iter(&self) -> impl Iterator<Item = Listed<'_>> {
        (0..self.count).map(|index| {
            let place = self.list.wrapping_add(index);
            // SAFETY: the library made `count` entries, and frees them when `self` is dropped.
            let raw = unsafe { *place };
            Listed { raw, _list: std::marker::PhantomData }
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if let (false, Ok(library)) = (self.list.is_null(), library()) {
            // SAFETY: the list came from the library and is freed once.
            unsafe { (library.ibv_free_device_list)(self.list) };
        }
    }
}

impl Listed<'_> {
    pub fn name(self) -> String {
        let Ok(library) = library() else { return String::new() };
        // SAFETY: the device is in a list that is alive.
        let name = unsafe { (library.ibv_get_device_name)(self.raw) };
        // SAFETY: the name is part of the device and ends with a zero.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }

    fn transport(self) -> i32 {
        // SAFETY: the device is in a list that is alive, and has this field.
        unsafe { (*self.raw).transport_type }
    }

    pub fn open(self) -> Result<Context, std::io::Error> {
        let library = library().map_err(std::io::Error::other)?;
        // SAFETY: the device is in a list that is alive.
        let raw = unsafe { (library.ibv_open_device)(self.raw) };
        let error = std::io::Error::last_os_error();
        let raw = std::ptr::NonNull::new(raw).ok_or(error)?;
        // SAFETY: just opened, and nobody else has it.
        unsafe { Context::from_raw(raw, self.name()) }
    }
}

/// Zeroed entries for the library to fill.
pub(super) fn empty_entries(count: usize) -> Vec<ffi::GidEntry> {
    vec![ffi::GidEntry::zeroed(); count]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn sysfs_tells_addresses_and_skips_empty_places() {
        let folder = tempfile::tempdir().expect("folder");
        let port = folder.path();
        fs::create_dir_all(port.join("gid_attrs/types")).expect("folder");
        fs::create_dir_all(port.join("gids")).expect("folder");
        fs::write(port.join("link_layer"), "Ethernet\n").expect("writes");
        let add = |index: u8, gid: &str, kind: &str| {
            fs::write(port.join(format!("gids/{index}")), format!("{gid}\n")).expect("writes");
            fs::write(port.join(format!("gid_attrs/types/{index}")), kind).expect("writes");
        };
        add(0, "fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1\n");
        add(1, "0000:0000:0000:0000:0000:ffff:0a09:0001", "RoCE v2\n");
        add(2, "0000:0000:0000:0000:0000:0000:0000:0000", "RoCE v2\n");
        let gids = gids_from_sysfs(port);
        let told: Vec<_> = gids.iter().map(|gid| (gid.index, gid.ip(), gid.kind)).collect();
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let expected = [(0, ip("fe80::1"), GidKind::RoceV1), (1, ip("10.9.0.1"), GidKind::RoceV2)];
        assert_eq!(told, expected);
        fs::write(port.join("link_layer"), "InfiniBand\n").expect("writes");
        assert_eq!(gids_from_sysfs(port)[0].kind, GidKind::Ib);
    }

    #[test]
    fn the_way_to_this_machine_is_over_loopback() {
        let peer = "127.0.0.1:20490".parse().expect("an address");
        assert_eq!(local_address_towards(peer), Some("127.0.0.1".parse().expect("an address")));
    }

    #[test]
    fn a_port_state_has_its_usual_name() {
        assert_eq!((PortState(1).name(), PortState::ACTIVE.name()), ("DOWN", "ACTIVE"));
        assert_eq!(PortState(77).name(), "in an unknown state");
    }
}
