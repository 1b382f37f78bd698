//! Checks of ports: whether they are up, how large their packets are, which
//! addresses they have, what they count. How quick they are is in `speed`.

use super::{Case, bus};
use crate::facts::{DeviceFacts, NetdevFacts, PortFacts};
use crate::finding::{Finding, Fix, Severity};
use verbatim_fabric::ports::{Access, DeviceInfo, GidKind, LinkLayer, PortInfo, Transport};

/// Where options of the driver of ConnectX-3 go.
const MLX4_OPTIONS: &str = "/etc/modprobe.d/mlx4.conf";

/// The least MTU of a network device that carries RDMA packets of 4,096 bytes.
const MTU_FOR_4096: u64 = 4200;

pub(super) fn check(case: &Case<'_>, found: &mut Vec<Finding>) {
    let facts = case.facts;
    for (device, more) in facts.machine.devices.iter().zip(&facts.devices) {
        // Of a device that cannot be used it is enough to say so once.
        let unusable = device.access != Access::Granted || more.refused.is_some();
        if device.transport != Transport::Ib || unusable {
            continue;
        }
        found.extend(bus::check(&facts.machine.devices, device, more));
        for (port, told) in device.ports.iter().zip(&more.ports) {
            let it = Port { case, device, more, port, told };
            found.extend(it.state());
            if port.state.is_active() {
                found.extend(it.rate());
                found.extend(it.width());
                found.extend(it.mtu());
                found.extend(it.packets());
                found.extend(it.addresses());
                found.extend(it.congestion());
            }
        }
    }
    found.extend(counters(case));
}

/// A port, and what is known of it.
pub(super) struct Port<'c> {
    pub case: &'c Case<'c>,
    pub device: &'c DeviceInfo,
    pub more: &'c DeviceFacts,
    pub port: &'c PortInfo,
    pub told: &'c PortFacts,
}

impl Port<'_> {
    pub fn about(&self) -> String {
        format!("{}/{}", self.device.name, self.port.number)
    }

    pub fn netdev(&self) -> Option<&NetdevFacts> {
        self.told.netdev.as_ref().filter(|_| self.port.link_layer == LinkLayer::Ethernet)
    }

    fn is_connectx3(&self) -> bool {
        self.more.driver.as_deref() == Some("mlx4_core")
    }

    fn state(&self) -> Option<Finding> {
        if self.port.state.is_active() {
            return None;
        }
        let physical = self.told.physical.as_deref().unwrap_or("unknown");
        let state = self.port.state.name();
        let is_infiniband = self.port.link_layer == LinkLayer::Infiniband;
        let fix = match (self.netdev(), physical, state) {
            (_, "LinkUp", "INIT" | "ARMED") if is_infiniband => {
                Fix::Run("systemctl start opensm".into())
            }
            (Some(netdev), physical, _) if physical != "Polling" => {
                Fix::Run(format!("ip link set {} up", netdev.name))
            }
            _ => Fix::Person("check the cable, its seat, and that the other side is on".into()),
        };
        let why = match (physical, state) {
            ("Polling", _) => {
                "the port looks for the other side and sees no signal: the cable, \
                               or the other side is off"
            }
            (_, "INIT" | "ARMED") if is_infiniband => {
                "the cable is well, and no subnet manager \
                                                       has set the port up"
            }
            _ => "a port that is not ACTIVE carries nothing",
        };
        Some(Finding {
            check: "port",
            severity: self.case.lost(),
            about: self.about(),
            is: format!("the port is {state} (physically {physical})"),
            should: "ACTIVE (physically LinkUp)".into(),
            why: why.into(),
            fix,
        })
    }

    fn mtu(&self) -> Option<Finding> {
        let netdev = self.netdev()?;
        let mtu = netdev.mtu.filter(|&mtu| mtu < MTU_FOR_4096)?;
        let name = &netdev.name;
        Some(Finding {
            check: "mtu",
            severity: Severity::Limits,
            about: self.about(),
            is: format!("{name} has an MTU of {mtu}, so RDMA packets carry {} bytes", inner(mtu)),
            should: "an MTU of 9000 on both ends and on the switches, for packets of 4096 bytes"
                .into(),
            why: "small packets cost more of the wire and of the device for the same data".into(),
            fix: Fix::Run(format!("ip link set {name} mtu 9000")),
        })
    }

    /// Whether the port agreed on smaller packets than it could, and than its network device
    /// is the cause of.
    fn packets(&self) -> Option<Finding> {
        let (active, most) = self.told.packet?;
        let of_netdev = self.netdev().and_then(|netdev| netdev.mtu).map(inner);
        if u64::from(active) >= of_netdev.unwrap_or(4096).min(most.into()) {
            return None;
        }
        let (why, fix) = match self.port.link_layer {
            LinkLayer::Infiniband if self.is_connectx3() => (
                "its driver may have been told to use smaller ones, or the switch's port can do no \
                 more",
                Fix::Line {
                    file: MLX4_OPTIONS.into(),
                    line: "options mlx4_core set_4k_mtu=1".into(),
                    then: "load the driver anew".into(),
                },
            ),
            LinkLayer::Infiniband => (
                "both ends of a cable use what the lesser of them can do, which is the switch's \
                 port",
                Fix::Person(
                    "see what both ends can do (MtuCap): smpquery portinfo LID PORT; then set the \
                     port of the switch to 4096"
                        .into(),
                ),
            ),
            LinkLayer::Ethernet => (
                "the driver has not followed a change of the network device",
                Fix::Person(
                    "take the network device down and up again, or load the driver anew".into(),
                ),
            ),
        };
        Some(Finding {
            check: "packet",
            severity: Severity::Limits,
            about: self.about(),
            is: format!("its packets carry {active} bytes"),
            should: format!("{most} bytes, which the port can do"),
            why: format!("small packets cost more of the device for the same data; {why}"),
            fix,
        })
    }

    fn addresses(&self) -> Option<Finding> {
        if self.port.link_layer == LinkLayer::Infiniband {
            return None;
        }
        let gids: Vec<_> = self.port.gids.iter().filter(|gid| gid.kind != GidKind::Ib).collect();
        let netdev = self.port.netdevs.first().map_or("DEV", String::as_str);
        let add = Fix::Run(format!("ip addr add ADDRESS/LENGTH dev {netdev}"));
        let (severity, is, why, fix) = if gids.is_empty() {
            let why = "RoCE takes its addresses from the IP addresses of the network device";
            (self.case.lost(), "the GID table is empty", why, add)
        } else if gids.iter().all(|gid| gid.kind == GidKind::RoceV1) {
            let why = "version 1 is not routed and ends at the first router; many switches and \
                       peers know version 2 only";
            let fix = match self.is_connectx3() {
                true => Fix::Line {
                    file: MLX4_OPTIONS.into(),
                    line: "options mlx4_core roce_mode=2".into(),
                    then: "load the driver anew; a ConnectX-3 that is no Pro has version 1 only"
                        .into(),
                },
                false => {
                    Fix::Person("a newer driver and firmware, or a card that has RoCE v2".into())
                }
            };
            (Severity::Limits, "the GID table has RoCE v1 entries only", why, fix)
        } else if gids.iter().all(|gid| gid.is_link_local()) {
            let why = "link-local addresses end at the switch: a peer behind a router cannot be \
                       reached";
            (Severity::Limits, "the GID table has link-local entries only", why, add)
        } else {
            return None;
        };
        Some(Finding {
            check: "gid",
            severity,
            about: self.about(),
            is: is.into(),
            should: "a RoCE v2 entry of an IPv4 or global IPv6 address".into(),
            why: why.into(),
            fix,
        })
    }

    fn congestion(&self) -> Option<Finding> {
        let netdev = self.netdev()?;
        let no_ecn = matches!(netdev.ecn, Some((0, _)));
        let no_pfc = netdev.pfc.as_ref().is_some_and(Vec::is_empty);
        let (is, name) = match (no_ecn, no_pfc) {
            (true, true) => ("neither ECN nor priority flow control is on", &netdev.name),
            (true, false) if netdev.pfc.is_none() => ("ECN is off for RoCE", &netdev.name),
            (false, true) if netdev.ecn.is_none() => {
                ("priority flow control is off for every priority", &netdev.name)
            }
            _ => return None,
        };
        Some(Finding {
            check: "congestion",
            severity: Severity::Note,
            about: self.about(),
            is: is.into(),
            should: "one of them for the class that RDMA uses, as the switches have it".into(),
            why: "where several senders meet, packets are dropped, and RDMA sends whole ranges \
                  again"
                .into(),
            fix: Fix::Person(format!(
                "ask who runs the switches for the lossless class, then: dcb pfc set dev {name} \
                 prio-pfc all:off CLASS:on; echo 1 > /sys/class/net/{name}/ecn/roce_np/enable/CLASS"
            )),
        })
    }
}

/// The RDMA packet that fits a network device: what is left after headers, a power of two.
fn inner(mtu: u64) -> u64 {
    [4096, 2048, 1024, 512].into_iter().find(|bytes| bytes + 104 <= mtu).unwrap_or(256)
}

/// Counters that mean loss or a bad cable, when they grow: part of the name, and what it means.
const TELLING: &[(&str, &str)] = &[
    ("symbol_error", "bits arrive wrong: the cable, its ends or the transceiver"),
    ("link_error_recovery", "the link is set up again and again: the cable or its ends"),
    ("link_downed", "the link went down: the cable, or the other side"),
    ("local_link_integrity_errors", "bits arrive wrong: the cable or its ends"),
    ("port_rcv_errors", "packets arrive broken: the cable, or the switch"),
    ("port_xmit_discards", "packets cannot be sent: the other side is overrun"),
    ("rx_icrc_encapsulated", "packets arrive altered: a switch or the cable"),
    ("out_of_sequence", "packets are lost on the way, and sent again"),
    ("packet_seq_err", "packets are lost on the way, and sent again"),
    ("rcvd_seq_err", "packets are lost on the way, and sent again"),
    ("local_ack_timeout_err", "answers do not come in time: loss, or a peer that is gone"),
    ("retry_exceeded_err", "peers do not answer"),
    ("rnr_nak_retry_err", "peers have no room for what is sent"),
    ("retry_rnr_exceeded_err", "peers have no room for what is sent"),
    ("out_of_buffer", "this machine has no room for what arrives"),
];

fn counters(case: &Case<'_>) -> Vec<Finding> {
    let [before, after] = &case.facts.counters;
    let seconds = case.facts.sampled.as_secs_f64();
    let mut found = Vec::new();
    for port in after {
        let same = |it: &&crate::counters::Port| {
            (&it.levels.device, it.levels.port) == (&port.levels.device, port.levels.port)
        };
        let Some(earlier) = before.iter().find(same) else { continue };
        for (name, count) in &port.levels.errors {
            let was = earlier.levels.errors.iter().find(|(it, _)| it == name);
            let more = was.map_or(0, |(_, was)| count.saturating_sub(*was));
            let meaning = TELLING.iter().find(|(it, _)| it == name);
            let Some((_, meaning)) = meaning.filter(|_| more > 0) else { continue };
            found.push(Finding {
                check: "counters",
                severity: Severity::Limits,
                about: format!("{}/{}", port.levels.device, port.levels.port),
                is: format!("{name} grew by {more} in {seconds} s, to {count}"),
                should: "it stands still".into(),
                why: (*meaning).into(),
                fix: Fix::Person(
                    "change the cable, then watch it; where packets are lost without bad bits, set \
                     up flow control or ECN on the switches"
                        .into(),
                ),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::inner;

    #[test]
    fn a_packet_is_the_largest_power_of_two_that_fits() {
        let sizes = [9000, 4200, 4199, 1500, 576, 300].map(inner);
        assert_eq!(sizes, [4096, 4096, 2048, 1024, 256, 256]);
    }
}
