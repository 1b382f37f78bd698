//! Checks of devices: whether there is one, whether the kernel, the library and this
//! user can use it, and what it speaks.

use super::Case;
use crate::facts::DeviceFacts;
use crate::finding::{Finding, Fix, Severity};
use verbatim_fabric::ports::{Access, DeviceInfo, Reason, Transport};

/// Kernel drivers and the library's driver for each.
const PROVIDERS: &[(&str, &str)] = &[
    ("mlx5_core", "mlx5"),
    ("mlx4_core", "mlx4"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("hns3", "hns"),
    ("qede", "qedr"),
    ("mana", "mana"),
    ("erdma", "erdma"),
    ("efa", "efa"),
    ("cxgb4", "cxgb4"),
];

/// The same by how names of software devices begin.
const SOFT_PROVIDERS: &[(&str, &str)] = &[("rxe", "rxe"), ("siw", "siw")];

pub(super) fn check(case: &Case<'_>, found: &mut Vec<Finding>) {
    let facts = case.facts;
    if facts.machine.devices.is_empty() {
        found.extend(no_device(case));
    }
    if case.has_device() {
        found.extend(library(case));
        found.extend(modules(case));
    }
    for (device, more) in facts.machine.devices.iter().zip(&facts.devices) {
        // Without its driver it does not open: that is said once.
        found.extend(provider(case, device, more).or_else(|| refused(case, device, more)));
        found.extend(other_kind(device));
        found.extend(access(case, device));
        found.extend(virtual_functions(device, more));
    }
    found.extend(not_given(case));
    found.extend(wished(case));
}

fn no_device(case: &Case<'_>) -> Vec<Finding> {
    let finding = |about: String, is: String, fix: Fix| Finding {
        check: "device",
        severity: Severity::Blocks,
        about,
        is,
        should: "an RDMA device in /sys/class/infiniband".into(),
        why: "without one, data moves over TCP: right, but slower and with more CPU".into(),
        fix,
    };
    if case.facts.orphans.is_empty() {
        let fix = "nothing to mend where the machine has no such card; software RDMA for a trial: \
                   rdma link add rxe0 type rxe netdev DEV";
        return vec![finding(
            "this machine".into(),
            "there is no RDMA device".into(),
            Fix::Person(fix.into()),
        )];
    }
    let orphan = |card: &crate::facts::OrphanCard| {
        let is = format!("the card at {} has no RDMA driver", card.pci);
        finding("this machine".into(), is, Fix::Run(format!("modprobe {}", card.module)))
    };
    case.facts.orphans.iter().map(orphan).collect()
}

fn library(case: &Case<'_>) -> Option<Finding> {
    let cause = case.facts.library.clone()?;
    Some(Finding {
        check: "library",
        severity: Severity::Blocks,
        about: "libibverbs".into(),
        is: cause,
        should: "libibverbs.so.1 is installed".into(),
        why: "devices are opened through it; it is loaded at run time, and TCP is used without"
            .into(),
        fix: Fix::Run("apt install libibverbs1 ibverbs-providers".into()),
    })
}

fn modules(case: &Case<'_>) -> Option<Finding> {
    let modules = &case.facts.host.modules;
    // Where nothing is told of modules, nothing can be said of them.
    if modules.is_empty() || modules.iter().any(|module| module == "ib_uverbs") {
        return None;
    }
    Some(Finding {
        check: "modules",
        severity: Severity::Blocks,
        about: "ib_uverbs".into(),
        is: "the module is not loaded".into(),
        should: "it is loaded".into(),
        why: "programs reach RDMA devices through it".into(),
        fix: Fix::Run("modprobe ib_uverbs".into()),
    })
}

fn provider(case: &Case<'_>, device: &DeviceInfo, more: &DeviceFacts) -> Option<Finding> {
    let providers = case.facts.providers.as_ref()?;
    let by_driver = more.driver.as_deref().and_then(|driver| named(PROVIDERS, |it| it == driver));
    let needed = by_driver.or_else(|| named(SOFT_PROVIDERS, |it| device.name.starts_with(it)))?;
    if providers.iter().any(|known| known == needed) || device.transport != Transport::Ib {
        return None;
    }
    Some(Finding {
        check: "provider",
        severity: Severity::Blocks,
        about: device.name.clone(),
        is: format!("libibverbs has no driver {needed} in /etc/libibverbs.d"),
        should: format!("{needed}.driver is there"),
        why: "the library does not see devices that it has no driver for".into(),
        fix: Fix::Run("apt install ibverbs-providers".into()),
    })
}

/// A device that is there and may be used, and that the library does not open.
fn refused(case: &Case<'_>, device: &DeviceInfo, more: &DeviceFacts) -> Option<Finding> {
    let reason = more.refused.as_ref()?;
    Some(Finding {
        check: "open",
        severity: case.lost(),
        about: device.name.clone(),
        is: reason.to_string(),
        should: "libibverbs opens it".into(),
        why: "a device that does not open carries nothing".into(),
        fix: Fix::Person(reason.hint()),
    })
}

fn named(table: &[(&str, &'static str)], fits: impl Fn(&str) -> bool) -> Option<&'static str> {
    table.iter().find(|(name, _)| fits(name)).map(|(_, provider)| *provider)
}

fn other_kind(device: &DeviceInfo) -> Option<Finding> {
    let (is, needs) = match device.transport {
        Transport::Ib => return None,
        Transport::Iwarp => (
            "it speaks iWARP",
            "the RDMA connection manager to make its connections, which Verbatim does not use",
        ),
        Transport::Other => (
            "it has no reliable connections (EFA, usNIC)",
            "the SRD transport of libfabric, which Verbatim does not speak",
        ),
    };
    Some(Finding {
        check: "kind",
        severity: Severity::Note,
        about: device.name.clone(),
        is: is.into(),
        should: "InfiniBand or RoCE".into(),
        why: format!("it would need {needs}; TCP is used on it"),
        fix: Fix::Person("nothing to mend: give --transport tcp to skip looking for RDMA".into()),
    })
}

fn access(case: &Case<'_>, device: &DeviceInfo) -> Option<Finding> {
    let container = case.facts.host.memlock.container;
    let give = |node: &str| {
        format!(
            "give the container the device: docker run --device {node}, or a device plugin in \
             Kubernetes"
        )
    };
    let (node, is, fix) = match &device.access {
        Access::Granted => return None,
        Access::Missing(node) if container => (node, "is not there", Fix::Person(give(node))),
        Access::Missing(node) => {
            let fix = Fix::Run("modprobe ib_uverbs && udevadm trigger".into());
            (node, "is not there", fix)
        }
        // A file that is mounted from the node is seen, and its control group keeps it closed.
        Access::Denied(node) if container => {
            let fix = format!("{}; mounting it is not enough", give(node));
            (node, "may not be opened in this container", Fix::Person(fix))
        }
        Access::Denied(node) => {
            let fix = Fix::Line {
                file: "/etc/udev/rules.d/90-rdma.rules".into(),
                line: "KERNEL==\"uverbs*\", MODE=\"0666\"".into(),
                then: "udevadm control --reload && udevadm trigger".into(),
            };
            (node, "may not be opened by this user", fix)
        }
    };
    (device.transport == Transport::Ib).then(|| Finding {
        check: "access",
        severity: case.lost(),
        about: device.name.clone(),
        is: format!("{node} {is}"),
        should: "it can be read and written by this user".into(),
        why: "a device that cannot be opened is not used".into(),
        fix,
    })
}

fn virtual_functions(device: &DeviceInfo, more: &DeviceFacts) -> Option<Finding> {
    if more.virtual_count == 0 {
        return None;
    }
    Some(Finding {
        check: "sriov",
        severity: Severity::Note,
        about: device.name.clone(),
        is: format!("it is split into {} virtual functions", more.virtual_count),
        should: "known to whoever measures".into(),
        why: "its functions share the wire: what one moves the others cannot".into(),
        fix: Fix::Person(
            "nothing to mend; cat /sys/class/infiniband/DEVICE/device/sriov_numvfs".into(),
        ),
    })
}

/// Devices that a scheduler says it gave, and that are not here.
fn not_given(case: &Case<'_>) -> Vec<Finding> {
    let here = |address: &str| {
        case.facts.machine.devices.iter().any(|it| it.pci.as_deref() == Some(address))
    };
    let finding = |(address, variable): &(String, String)| {
        (!here(address)).then(|| Finding {
            check: "sriov",
            severity: Severity::Limits,
            about: address.clone(),
            is: format!("{variable} names it, and there is no RDMA device of that address here"),
            should: "the device is moved into the container".into(),
            why: "what the scheduler counts as given cannot be used".into(),
            fix: Fix::Person(
                "set isRdma: true in the device plugin's resource, and rdma in the network's \
                 chain of plugins"
                    .into(),
            ),
        })
    };
    case.facts.wish.hints.devices_given().iter().filter_map(finding).collect()
}

/// A device, port or address that was asked for and is not there.
fn wished(case: &Case<'_>) -> Vec<Finding> {
    let Err(reasons) = case.chosen else { return Vec::new() };
    let of = |reason: &&Reason| {
        matches!(
            reason,
            Reason::NoSuchDevice { .. } | Reason::NoSuchPort { .. } | Reason::NoSuchGid { .. }
        )
    };
    let finding = |reason: &Reason| Finding {
        check: "choice",
        severity: Severity::Blocks,
        about: "what was asked for".into(),
        is: reason.to_string(),
        should: "one that is there".into(),
        why: "what is named is used or nothing is".into(),
        fix: Fix::Person(reason.hint()),
    };
    reasons.iter().filter(of).map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;

    #[test]
    fn a_device_that_a_container_may_not_open_is_given_and_no_rule_of_udev_is_made() {
        let device = DeviceInfo {
            name: "mlx5_0".into(),
            transport: Transport::Ib,
            pci: None,
            numa_node: None,
            access: Access::Denied("/dev/infiniband/uverbs0".into()),
            ports: Vec::new(),
        };
        let mut facts = Facts::default();
        let mut fix = |container| {
            facts.host.memlock.container = container;
            let case = Case { facts: &facts, chosen: &Err(Vec::new()) };
            access(&case, &device).expect("a finding").fix.to_string()
        };
        assert!(fix(false).contains("udev"), "{}", fix(false));
        let given = "docker run --device /dev/infiniband/uverbs0";
        assert!(fix(true).contains(given) && !fix(true).contains("udev"), "{}", fix(true));
    }
}
