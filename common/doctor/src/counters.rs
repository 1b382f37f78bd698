//! What RDMA ports count, from sysfs: ordinary network counters do not see RDMA.
//! Which ports there are is `fabric`'s to tell. Reads files below a root that is
//! given, and nothing else; what a driver does not count is left out. The server
//! shows them, the doctor looks at them twice.

use std::fs;
use std::path::Path;
use verbatim_fabric::ports::{Machine, PortInfo};
use verbatim_telemetry::serve::PortLevels;

/// The data counters count words of this many bytes.
const COUNTER_BYTES: u64 = 4;

/// Errors that InfiniBand counts for every port, and those of drivers: mlx5, then rxe.
const ERRORS: &[&str] = &[
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
];
const DRIVER_ERRORS: &[&str] = &[
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "out_of_buffer",
    "rx_icrc_encapsulated",
    "roce_slow_restart",
    "np_cnp_sent",
    "retry_exceeded_err",
    "retry_rnr_exceeded_err",
    "rcvd_seq_err",
    "send_err",
];

/// A port and its state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Port {
    /// What it counts.
    pub levels: PortLevels,
    /// As the kernel calls it: ACTIVE, DOWN.
    pub state: &'static str,
    /// InfiniBand or Ethernet.
    pub link_layer: &'static str,
}

impl Port {
    /// What is wrong with it, and what to do about it.
    pub fn finding(&self) -> Option<(String, &'static str)> {
        let PortLevels { device, port, active, .. } = &self.levels;
        if *active {
            return None;
        }
        let text = format!("port {port} of {device} is {}", self.state);
        let hint = match self.state {
            "DOWN" => "check the cable, the switch port, and that the network device is up",
            "INIT" | "ARMED" => "on InfiniBand a subnet manager must run: see sminfo",
            _ => "see rdma link and the kernel's log",
        };
        Some((text, hint))
    }
}

/// Reads all ports of all devices of the machine below `root`, which is / but in tests.
pub fn read_ports(root: &Path) -> Vec<Port> {
    let mut ports = Vec::new();
    for device in Machine::outline(root).devices {
        let folder = root.join("sys/class/infiniband").join(&device.name).join("ports");
        for port in &device.ports {
            let folder = folder.join(port.number.to_string());
            ports.push(read_port(&folder, &device.name, port));
        }
    }
    ports
}

fn read_port(folder: &Path, device: &str, port: &PortInfo) -> Port {
    let counter = |name: &str| number(&folder.join("counters").join(name));
    let of_driver = |name: &str| number(&folder.join("hw_counters").join(name));
    let bytes = counter("port_rcv_data").zip(counter("port_xmit_data"));
    // rxe has no port counters, but its own of packets.
    let packets = counter("port_rcv_packets")
        .zip(counter("port_xmit_packets"))
        .or_else(|| of_driver("rcvd_pkts").zip(of_driver("sent_pkts")));
    let errors = ERRORS.iter().map(|&name| (name, counter(name)));
    let errors = errors.chain(DRIVER_ERRORS.iter().map(|&name| (name, of_driver(name))));
    let levels = PortLevels {
        device: device.to_owned(),
        port: port.number,
        active: port.state.is_active(),
        bytes_per_second: f64::from(port.rate_mbit) * 1e6 / 8.0,
        bytes: bytes.map(|(received, sent)| {
            (received.saturating_mul(COUNTER_BYTES), sent.saturating_mul(COUNTER_BYTES))
        }),
        packets,
        errors: errors.filter_map(|(name, count)| Some((name.to_owned(), count?))).collect(),
        requests: of_driver("rx_read_requests").zip(of_driver("rx_write_requests")),
    };
    Port { levels, state: port.state.name(), link_layer: port.link_layer.name() }
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (path, value) in files {
            let path = root.join("sys/class/infiniband").join(path);
            fs::create_dir_all(path.parent().expect("has one")).expect("a folder");
            fs::write(path, format!("{value}\n")).expect("a file");
        }
    }

    #[test]
    fn data_counters_are_in_units_of_four_bytes() {
        let root = tempfile::tempdir().expect("a folder");
        let files = [
            ("mlx5_0/ports/1/state", "4: ACTIVE"),
            ("mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)"),
            ("mlx5_0/ports/1/link_layer", "InfiniBand"),
            ("mlx5_0/ports/1/counters/port_rcv_data", "1000"),
            ("mlx5_0/ports/1/counters/port_xmit_data", "25"),
            ("mlx5_0/ports/1/counters/port_rcv_packets", "7"),
            ("mlx5_0/ports/1/counters/port_xmit_packets", "8"),
            ("mlx5_0/ports/1/counters/link_downed", "2"),
            ("mlx5_0/ports/1/hw_counters/rx_read_requests", "11"),
            ("mlx5_0/ports/1/hw_counters/rx_write_requests", "12"),
            ("mlx5_0/ports/1/hw_counters/out_of_sequence", "0"),
        ];
        write(root.path(), &files);
        let port = read_ports(root.path()).pop().expect("a port");
        let PortLevels { bytes, packets, errors, requests, .. } = &port.levels;
        assert_eq!((*bytes, *packets), (Some((4000, 100)), Some((7, 8))));
        assert_eq!(*requests, Some((11, 12)));
        assert_eq!(*errors, [("link_downed".to_owned(), 2), ("out_of_sequence".to_owned(), 0)]);
        assert!(port.levels.active && port.finding().is_none());
        assert!((port.levels.bytes_per_second - 5e10).abs() < 1.0);
    }

    #[test]
    fn a_soft_device_counts_packets_and_a_port_that_is_down_is_a_finding() {
        let root = tempfile::tempdir().expect("a folder");
        let files = [
            ("rxe0/ports/1/state", "1: DOWN"),
            ("rxe0/ports/1/rate", "2.5 Gb/sec (1X SDR)"),
            ("rxe0/ports/1/hw_counters/rcvd_pkts", "5"),
            ("rxe0/ports/1/hw_counters/sent_pkts", "6"),
            ("rxe0/ports/notes", "not a port"),
        ];
        write(root.path(), &files);
        let ports = read_ports(root.path());
        assert_eq!(ports.len(), 1);
        assert_eq!((ports[0].levels.bytes, ports[0].levels.packets), (None, Some((5, 6))));
        let (text, hint) = ports[0].finding().expect("it is down");
        assert_eq!(text, "port 1 of rxe0 is DOWN");
        assert!(hint.contains("cable"), "{hint}");
    }

    #[test]
    fn a_machine_without_devices_has_no_ports() {
        let root = tempfile::tempdir().expect("a folder");
        assert!(read_ports(root.path()).is_empty());
    }
}
