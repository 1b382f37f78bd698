//! The check of the firewall: whether it drops what this machine has to be sent. A
//! card takes RoCE off the wire before the kernel filters; only a device in software
//! gets it through there, as ordinary packets.

use super::Case;
use crate::facts::{CONTROL, Door, Firewall, ROCE, Tool};
use crate::finding::{Finding, Fix, Severity};
use verbatim_fabric::ports::{LinkLayer, Transport};

pub(super) fn check(case: &Case<'_>, found: &mut Vec<Finding>) {
    found.extend(case.facts.host.firewall.as_ref().and_then(|it| closed(case, it)));
}

fn closed(case: &Case<'_>, firewall: &Firewall) -> Option<Finding> {
    let soft = has_soft_roce(case);
    let doors = firewall.closed.iter().copied().filter(|door| *door != ROCE || soft);
    let doors: Vec<Door> = doors.collect();
    if doors.is_empty() {
        return None;
    }
    let told = |of: fn(&Door) -> String, between: &str| {
        doors.iter().map(of).collect::<Vec<_>>().join(between)
    };
    let mending = opening(&firewall.tool, &doors);
    // Who copies connects to others, and nobody to it.
    let (severity, fix) = match serves(case) || doors.contains(&ROCE) {
        true => (Severity::Limits, Fix::Run(mending)),
        false => (Severity::Note, Fix::Person(format!("where rdma-serve is to run: {mending}"))),
    };
    Some(Finding {
        check: "firewall",
        severity,
        about: firewall.tool.name().into(),
        is: format!(
            "what has no rule is dropped, and there is none for {}",
            told(|(protocol, port)| format!("{protocol} {port}"), ", ")
        ),
        should: told(|door| should(*door).into(), ", and "),
        why: told(|door| why(*door).into(), "; "),
        fix,
    })
}

/// Whether there is a device whose packets go through the firewall.
fn has_soft_roce(case: &Case<'_>) -> bool {
    let facts = case.facts;
    facts.machine.devices.iter().zip(&facts.devices).any(|(device, more)| {
        let soft = device.pci.is_none() && more.driver.is_none();
        let ethernet = device.ports.iter().any(|port| port.link_layer == LinkLayer::Ethernet);
        soft && ethernet && device.transport == Transport::Ib
    })
}

/// Whether a server runs here, or is to.
fn serves(case: &Case<'_>) -> bool {
    !case.facts.exports.is_empty() || case.facts.host.memlock.service.is_some()
}

fn should(door: Door) -> &'static str {
    match door {
        CONTROL => "tcp 20490 is let in on a server",
        _ => "udp 4791 is let in on both ends of RoCE in software",
    }
}

fn why(door: Door) -> &'static str {
    match door {
        CONTROL => "clients cannot connect",
        _ => "RDMA links are made and carry nothing",
    }
}

/// The command that lets these in, and nothing else.
fn opening(tool: &Tool, doors: &[Door]) -> String {
    let each = |of: &dyn Fn(&str, &str) -> String| -> Vec<String> {
        doors.iter().map(|(protocol, port)| of(protocol, port)).collect()
    };
    let all = " && ";
    match tool {
        Tool::Ufw => each(&|protocol, port| format!("ufw allow {port}/{protocol}")).join(all),
        Tool::Firewalld => {
            let ports = each(&|protocol, port| format!("--add-port={port}/{protocol}")).join(" ");
            format!("firewall-cmd --permanent {ports} && firewall-cmd --reload")
        }
        Tool::Iptables => {
            let rule = |protocol: &str, port: &str| {
                format!("iptables -I INPUT -p {protocol} --dport {port} -j ACCEPT")
            };
            each(&rule).join(all)
        }
        // Inserted: what is added comes behind a last rule that takes everything.
        Tool::Nft { chain } => {
            let rule = |protocol: &str, port: &str| {
                format!("nft insert rule {chain} {protocol} dport {port} accept")
            };
            each(&rule).join(all)
        }
    }
}
