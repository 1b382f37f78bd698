//! Checks of all of a machine: what may be pinned, what is in the way between
//! device and memory, how processors run.

use super::Case;
use crate::facts::Host;
use crate::finding::{Finding, Fix, Severity};
use verbatim_fabric::ports::Place;

/// What a copy pins with its defaults: four streams with four chunks of a mebibyte each.
const MEMLOCK_MIN: u64 = 16 << 20;

/// What is enough for many.
pub(super) const MEMLOCK_GOOD: u64 = 1 << 30;

pub(super) fn check(case: &Case<'_>, found: &mut Vec<Finding>) {
    let host = &case.facts.host;
    if !case.has_device() {
        return;
    }
    found.extend(memlock(host));
    found.extend(memlock_of_service(host));
    found.extend(iommu(case));
    found.extend(huge_pages(host));
    found.extend(huge_pages_reserved(host));
    found.extend(governor(host));
    found.extend(numa(case));
}

/// Bytes for people, in the unit that fits.
pub(crate) fn shown(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

fn memlock(host: &Host) -> Option<Finding> {
    let limit = host.memlock.here.flatten().filter(|&limit| limit < MEMLOCK_GOOD)?;
    if host.memlock.exempt {
        return None;
    }
    let blocks = limit < MEMLOCK_MIN;
    let fix = match host.memlock.container {
        true => Fix::Person(
            "docker run --ulimit memlock=-1, or LimitMEMLOCK=infinity for the runtime's service \
             (containerd, crio) and a restart of it"
                .into(),
        ),
        false => Fix::Line {
            file: "/etc/security/limits.d/90-rdma.conf".into(),
            line: "* - memlock unlimited".into(),
            then: "log in again".into(),
        },
    };
    Some(Finding {
        check: "memlock",
        severity: if blocks { Severity::Blocks } else { Severity::Limits },
        about: match host.memlock.container {
            true => "memlock of this container".into(),
            false => "memlock of this user".into(),
        },
        is: format!("{} of memory may be locked", shown(limit)),
        should: "no limit, or 1 GiB at least".into(),
        why: "memory that a device reads or writes is locked; where that is refused, TCP is used"
            .into(),
        fix,
    })
}

fn memlock_of_service(host: &Host) -> Option<Finding> {
    let (file, limit) = host.memlock.service.clone()?;
    let limit = limit.filter(|&limit| limit < MEMLOCK_GOOD)?;
    Some(Finding {
        check: "memlock",
        severity: Severity::Limits,
        about: "rdma-serve.service".into(),
        is: format!("{file} lets it lock {} of memory", shown(limit)),
        should: "LimitMEMLOCK=infinity".into(),
        why: "the server's budget of pinned memory is no more than this".into(),
        fix: Fix::Line {
            file: "/etc/systemd/system/rdma-serve.service.d/override.conf".into(),
            line: "[Service]\nLimitMEMLOCK=infinity".into(),
            then: "systemctl daemon-reload && systemctl restart rdma-serve".into(),
        },
    })
}

fn iommu(case: &Case<'_>) -> Vec<Finding> {
    let facts = case.facts;
    let devices = facts.machine.devices.iter().zip(&facts.devices);
    let translated = |kind: &str| kind.starts_with("DMA");
    let finding = |name: &str, kind: &str| Finding {
        check: "iommu",
        severity: Severity::Limits,
        about: name.to_owned(),
        is: format!("the IOMMU translates its addresses (mode {kind})"),
        should: "passed through (mode identity)".into(),
        why: "every access of the device goes through a table that misses often; large transfers \
              lose up to half, and GPU memory may not be reached at all"
            .into(),
        fix: match facts.host.memlock.container {
            true => Fix::Person("iommu=pt on the command line of the node's kernel".into()),
            false => Fix::Line {
                file: "/etc/default/grub".into(),
                line: "GRUB_CMDLINE_LINUX=\"... iommu=pt\"".into(),
                then: "update-grub and restart the machine".into(),
            },
        },
    };
    let told = devices.filter_map(|(device, more)| Some((&device.name, more.iommu.as_deref()?)));
    told.filter(|(_, kind)| translated(kind)).map(|(name, kind)| finding(name, kind)).collect()
}

fn huge_pages(host: &Host) -> Option<Finding> {
    (host.huge_pages.as_deref() == Some("never")).then(|| Finding {
        check: "hugepages",
        severity: Severity::Note,
        about: "transparent huge pages".into(),
        is: "they are off (never)".into(),
        should: "madvise or always".into(),
        why: "registering memory takes about four times as long in small pages".into(),
        fix: Fix::Run("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled".into()),
    })
}

fn huge_pages_reserved(host: &Host) -> Option<Finding> {
    (host.huge_pages_reserved == Some(0)).then(|| Finding {
        check: "hugepages",
        severity: Severity::Note,
        about: "huge pages".into(),
        is: "none is reserved".into(),
        should: "64 of 2 MiB for a client, as many as the pin budget holds for a server".into(),
        why: "slots that devices use are parts of them where there are some: they are registered \
              in a quarter of the time"
            .into(),
        fix: Fix::Run("sysctl -w vm.nr_hugepages=64".into()),
    })
}

fn governor(host: &Host) -> Option<Finding> {
    let (governor, driver) = host.governor.as_ref()?;
    // These drivers choose well by themselves under a name that sounds otherwise.
    let adaptive = ["intel_pstate", "amd-pstate-epp"].contains(&driver.as_str());
    let severity = match governor.as_str() {
        "powersave" if adaptive => Severity::Note,
        "powersave" | "conservative" | "ondemand" => Severity::Limits,
        _ => return None,
    };
    Some(Finding {
        check: "governor",
        severity,
        about: "processors".into(),
        is: format!("their governor is {governor} ({driver})"),
        should: "performance".into(),
        why: "a core that clocks down between two completions answers late, and hashing is a \
              core's work"
            .into(),
        fix: Fix::Run("cpupower frequency-set -g performance".into()),
    })
}

/// Whether this process is bound to other memory than its port is at.
fn numa(case: &Case<'_>) -> Option<Finding> {
    let host = &case.facts.host;
    let Place { device, numa_node, .. } = case.chosen.as_ref().ok()?.first()?;
    let node = (*numa_node)?;
    let (memory, processors) = &host.allowed;
    if host.nodes.len() < 2 {
        return None;
    }
    let other_memory = memory.parse::<u32>().ok().filter(|&bound| bound != node);
    // Bound to the processors of another node as that writes them.
    let other_cpus = host
        .nodes
        .iter()
        .find(|(number, cpus)| *number != node && !cpus.is_empty() && inside(processors, cpus));
    let bound = other_memory.or(other_cpus.map(|(number, _)| *number))?;
    Some(Finding {
        check: "numa",
        severity: Severity::Limits,
        about: device.clone(),
        is: format!("this process is bound to node {bound}, the device is at node {node}"),
        should: "both at one node".into(),
        why: "every byte crosses between the sockets, twice when it is hashed".into(),
        fix: Fix::Run(format!("numactl --cpunodebind={node} --membind={node} COMMAND")),
    })
}

/// Whether all processors of one list are in another; lists as the kernel writes them.
fn inside(some: &str, of: &str) -> bool {
    let ranges = |list: &str| -> Vec<(u32, u32)> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
        };
        list.split(',').filter_map(range).collect()
    };
    let (some, of) = (ranges(some), ranges(of));
    let holds = |(first, last): &(u32, u32)| of.iter().any(|(a, b)| a <= first && last <= b);
    !some.is_empty() && some.iter().all(holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_compared_as_sets() {
        assert!(inside("16-31", "16-31,48-63") && inside("17,20-21", "16-31"));
        assert!(!inside("0-63", "16-31") && !inside("", "16-31"));
    }
}
