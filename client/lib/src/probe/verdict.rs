//! Conclusions from an examination: findings, the transport that a copy would use, and its
//! bottleneck. Pure.

use crate::probe::{Examination, Measured, Operation, Packets, ProbeFailure, TransportProbe};
use verbatim_doctor::{Finding, Fix, Severity};
use verbatim_fabric::ports::Machine;

/// The streams of a copy: this many cores hash.
const STREAMS: usize = 4;

/// A link is slow if it carries less than the rate of its port divided by this.
const SLOW_RATIO: f64 = 2.0;

/// The problems on the path to the server.
pub fn findings(found: &Examination, machine: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(trouble) = &found.trouble {
        findings.push(unreached(found, trouble));
    }
    findings.extend(other_network(found, machine));
    findings.extend(small_packets(found));
    for tried in &found.tried {
        match &tried.outcome {
            Err(trouble) => findings.extend(untried(found, tried, trouble, machine)),
            Ok(measured) => findings.extend(slow(measured, machine)),
        }
    }
    findings
}

fn fix_of(hint: Option<&String>, other: &str) -> Fix {
    Fix::Person(hint.cloned().unwrap_or_else(|| other.to_owned()))
}

fn unreached(found: &Examination, trouble: &ProbeFailure) -> Finding {
    let (should, other) = match trouble.step {
        "name" => ("a name that resolves", "see /etc/hosts and the resolver: getent hosts NAME"),
        _ => ("a server that answers and lets this client in", "see that rdma-serve runs there"),
    };
    Finding {
        check: "server",
        severity: Severity::Blocks,
        about: found.peer.clone(),
        is: trouble.cause.clone(),
        should: should.into(),
        why: "nothing can be copied to or from it".into(),
        fix: fix_of(trouble.hint.as_ref(), other),
    }
}

/// Reports a route over a network without RDMA, while another network has RDMA ports.
fn other_network(found: &Examination, machine: &Machine) -> Option<Finding> {
    let route = found.route.as_ref()?;
    let netdev = route.netdev.as_ref()?;
    if route.local.is_none_or(|local| local.to_canonical().is_loopback()) {
        return None;
    }
    let ports = || machine.devices.iter().flat_map(|device| &device.ports);
    let fast: Vec<_> = ports()
        .filter(|port| port.state.is_active())
        .flat_map(|port| &port.netdevs)
        .map(String::as_str)
        .collect();
    (!fast.is_empty() && !fast.contains(&netdev.as_str())).then(|| Finding {
        check: "route",
        severity: Severity::Limits,
        about: found.peer.clone(),
        is: format!("the way there is by {netdev}, which no RDMA port is on"),
        should: format!("by one of: {}", fast.join(", ")),
        why: "where data moves over TCP it moves there, and RDMA may not reach it at all".into(),
        fix: Fix::Person(
            "name the server by its address in the fast network, or see: ip route get ADDRESS"
                .into(),
        ),
    })
}

/// Reports a path MTU below that of the network device.
fn small_packets(found: &Examination) -> Option<Finding> {
    let Packets { path, netdev } = found.packets?;
    let name = found.route.as_ref()?.netdev.as_ref()?;
    (path < netdev).then(|| Finding {
        check: "path-mtu",
        severity: Severity::Limits,
        about: found.peer.clone(),
        is: format!("packets of {path} bytes get there, and {name} has an MTU of {netdev}"),
        should: "one MTU on both ends and on everything between".into(),
        why: "TCP is cut into more packets, and RDMA packets of the port's own size are dropped \
              without a word"
            .into(),
        fix: Fix::Person("raise the MTU where it shrinks; tracepath HOST shows where".into()),
    })
}

/// Reports a transport that does not work. A machine without devices is reported elsewhere.
fn untried(
    found: &Examination,
    tried: &TransportProbe,
    trouble: &ProbeFailure,
    machine: &Machine,
) -> Option<Finding> {
    if trouble.step == "device" && machine.devices.is_empty() {
        return None;
    }
    let check = match trouble.step {
        "mtu" => "path-mtu",
        "attach" => "server-rdma",
        "sealed" => "encrypted",
        _ => "transport",
    };
    // Encryption is a choice of the administrator, and not a fault.
    let severity = if check == "encrypted" { Severity::Limits } else { Severity::Blocks };
    Some(Finding {
        check,
        severity,
        about: format!("{} to {}", tried.transport, found.peer),
        is: trouble.cause.clone(),
        should: "data read over it arrives".into(),
        why: match tried.transport {
            "verbs" => "copies to this server move over TCP".into(),
            _ => "copies have nothing to fall back to".into(),
        },
        fix: fix_of(trouble.hint.as_ref(), "run rdma-doctor on the server, and see its log"),
    })
}

/// Reports a hardware device that is much slower than its port.
fn slow(measured: &Measured, machine: &Machine) -> Option<Finding> {
    let (_, place) = measured.carrier.split_once(' ')?;
    let (name, number) = place.split_once('/')?;
    // A software device is limited by the processor.
    let device = machine.devices.iter().find(|it| it.name == name && it.pci.is_some())?;
    let port = device.ports.iter().find(|it| it.number.to_string() == number)?;
    let (best, could) = (best(measured, Operation::Read)?, f64::from(port.rate_mbit) * 1e6 / 8.0);
    (best * SLOW_RATIO < could).then(|| Finding {
        check: "throughput",
        severity: Severity::Limits,
        about: place.to_owned(),
        is: format!("reads carry {:.2} GB/s", best / 1e9),
        should: format!("near {:.2} GB/s, the rate of the port", could / 1e9),
        why: "something between the two memories is slower than the wire".into(),
        fix: Fix::Person(
            "mend what else is found here first, on both machines; then the MTU, the slot of the \
             card, its memory node, and packets that are lost"
                .into(),
        ),
    })
}

/// The highest rate of an operation.
pub fn best(measured: &Measured, way: Operation) -> Option<f64> {
    let rates = measured.rates.iter().filter(|rate| rate.way == way);
    rates.map(|rate| rate.bytes_per_second).max_by(f64::total_cmp)
}

/// The transport that a copy would use, and its bottleneck.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The transport, such as `verbs mlx5_0/1` or `tcp`.
    pub path: String,
    /// The bottleneck: `link`, `hash`, `memory` or `disk`.
    pub limited_by: &'static str,
    /// The rate of the bottleneck, in bytes per second.
    pub bytes_per_second: f64,
}

/// The verdict on downloads; `None` if no transport works.
pub fn verdict(found: &Examination) -> Option<Verdict> {
    let measured = found.tried.iter().find_map(|tried| tried.outcome.as_ref().ok())?;
    let cores = found.own.cores.clamp(1, STREAMS) as f64;
    let limits = [
        ("link", best(measured, Operation::Read)?),
        ("hash", found.own.hash * cores),
        ("memory", found.own.memory * cores),
        ("disk", found.own.disk),
    ];
    // A rate that was not measured is 0, and no bottleneck.
    let known = limits.into_iter().filter(|(_, rate)| *rate > 0.0);
    let (limited_by, bytes_per_second) = known.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
    Some(Verdict { path: measured.carrier.clone(), limited_by, bytes_per_second })
}

#[cfg(test)]
mod tests {
    use super::super::{LocalRates, Rate, Route};
    use super::*;
    use verbatim_fabric::ports::{
        Access, DeviceInfo, LinkLayer, PortInfo, PortState, Transport as Speaks,
    };

    fn machine(netdev: &str) -> Machine {
        let port = PortInfo {
            number: 1,
            state: PortState::ACTIVE,
            link_layer: LinkLayer::Ethernet,
            rate_mbit: 100_000,
            lid: 0,
            netdevs: vec![netdev.into()],
            gids: Vec::new(),
        };
        let device = DeviceInfo {
            name: "mlx5_0".into(),
            transport: Speaks::Ib,
            pci: Some("0000:1a:00.0".into()),
            numa_node: None,
            access: Access::Granted,
            ports: vec![port],
        };
        Machine { devices: vec![device], ..Machine::default() }
    }

    fn tried(transport: &'static str, gigabytes: f64) -> TransportProbe {
        let rate = |way, bytes_per_second| Rate { way, bytes: 1 << 20, links: 4, bytes_per_second };
        let carrier = if transport == "verbs" { "verbs mlx5_0/1" } else { "tcp" };
        let rates = vec![rate(Operation::Read, gigabytes * 1e9), rate(Operation::Write, 1.0)];
        TransportProbe {
            transport,
            outcome: Ok(Measured { carrier: carrier.into(), latencies: Vec::new(), rates }),
        }
    }

    fn failed(step: &'static str) -> TransportProbe {
        let trouble = ProbeFailure { step, cause: "it broke".into(), hint: None };
        TransportProbe { transport: "verbs", outcome: Err(trouble) }
    }

    fn checks(found: &Examination) -> Vec<&'static str> {
        findings(found, &machine("eth1")).iter().map(|finding| finding.check).collect()
    }

    #[test]
    fn the_lowest_rate_is_the_bottleneck_of_a_copy() {
        let own = LocalRates { hash: 3e9, memory: 9e9, disk: 0.0, cores: 2 };
        let mut found =
            Examination { own, tried: vec![tried("verbs", 12.0)], ..Default::default() };
        let said = verdict(&found).expect("it moves");
        assert_eq!((said.path.as_str(), said.limited_by), ("verbs mlx5_0/1", "hash"));
        assert!((said.bytes_per_second - 6e9).abs() < 1.0, "two cores hash: {said:?}");
        found.own.memory = 1e9;
        assert_eq!(verdict(&found).map(|it| it.limited_by), Some("memory"));
        found.own.memory = 9e9;
        found.own.disk = 1e9;
        assert_eq!(verdict(&found).map(|it| it.limited_by), Some("disk"));
        found.tried = vec![failed("verbs"), tried("tcp", 0.5)];
        let said = verdict(&found).expect("it moves");
        assert_eq!((said.path.as_str(), said.limited_by), ("tcp", "link"));
        found.tried = vec![failed("verbs")];
        assert_eq!(verdict(&found), None);
    }

    #[test]
    fn each_failed_step_has_a_check_of_its_own() {
        let of = |tried| checks(&Examination { tried: vec![tried], ..Default::default() });
        assert_eq!(of(failed("mtu")), ["path-mtu"]);
        assert_eq!(of(failed("attach")), ["server-rdma"]);
        assert_eq!(of(failed("sealed")), ["encrypted"]);
        assert_eq!(of(failed("verbs")), ["transport"]);
        assert_eq!(of(tried("verbs", 12.0)), [""; 0], "12 of 12.5 GB/s");
        assert_eq!(of(tried("verbs", 6.0)), ["throughput"]);
        assert_eq!(of(tried("tcp", 0.1)), [""; 0]);
    }

    #[test]
    fn a_path_mtu_below_that_of_the_device_is_reported() {
        let route = Route {
            addresses: Vec::new(),
            resolved_in: std::time::Duration::ZERO,
            local: None,
            netdev: Some("eth1".into()),
        };
        let mut found = Examination { route: Some(route), ..Default::default() };
        found.packets = Some(Packets { path: 1500, netdev: 9000 });
        assert_eq!(checks(&found), ["path-mtu"]);
        found.packets = Some(Packets { path: 9000, netdev: 9000 });
        assert_eq!(checks(&found), [""; 0]);
    }

    #[test]
    fn a_route_over_a_network_without_rdma_is_reported() {
        let way = |netdev: &str, local: &str| {
            let route = Route {
                addresses: Vec::new(),
                resolved_in: std::time::Duration::ZERO,
                local: Some(local.parse().expect("an address")),
                netdev: Some(netdev.into()),
            };
            checks(&Examination { route: Some(route), ..Default::default() })
        };
        assert_eq!(way("eth0", "192.168.0.2"), ["route"]);
        assert_eq!(way("eth1", "10.0.0.2"), [""; 0]);
        assert_eq!(way("lo", "127.0.0.1"), [""; 0], "this machine is no network");
    }
}
