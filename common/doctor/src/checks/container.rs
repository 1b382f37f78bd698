//! Checks of what a container or a unit was given by its control group: memory, of
//! which what is pinned is part, and objects of RDMA devices.

use super::host::MEMLOCK_GOOD;
use super::{Case, shown};
use crate::facts::{ControlGroup, DeviceShare};
use crate::finding::{Finding, Fix, Severity};

/// Objects of a device that a server with a few clients has: queue pairs, regions, queues.
const OBJECTS_GOOD: u64 = 1000;

pub(super) fn check(case: &Case<'_>, found: &mut Vec<Finding>) {
    if !case.has_device() {
        return;
    }
    let ControlGroup { memory, devices } = &case.facts.host.control_group;
    found.extend(memory.and_then(self::memory));
    found.extend(devices.iter().filter_map(share));
}

fn memory(limit: u64) -> Option<Finding> {
    (limit < MEMLOCK_GOOD).then(|| Finding {
        check: "cgroup",
        severity: Severity::Limits,
        about: "memory of this control group".into(),
        is: format!("{} are allowed, and what is pinned counts", shown(limit)),
        should: "1 GiB at least".into(),
        why: "memory that is pinned cannot be reclaimed: what is left is soon too little, and the \
              kernel ends the process"
            .into(),
        fix: Fix::Person(
            "resources.limits.memory in Kubernetes, docker run --memory, MemoryMax= in a unit"
                .into(),
        ),
    })
}

fn share(share: &DeviceShare) -> Option<Finding> {
    let DeviceShare { device, handles, objects } = share;
    let (severity, is) = match (handles, objects) {
        (Some(0), _) | (_, Some(0)) => (Severity::Blocks, "it may not be opened at all".into()),
        (_, Some(few)) if *few < OBJECTS_GOOD => {
            (Severity::Limits, format!("{few} objects of it may be made"))
        }
        _ => return None,
    };
    Some(Finding {
        check: "cgroup",
        severity,
        about: device.clone(),
        is,
        should: format!("no limit, or {OBJECTS_GOOD} objects at least"),
        why: "every queue pair, completion queue and region is one; links that cannot be made are \
              TCP"
        .into(),
        fix: Fix::Person(
            "whoever runs the containers sets it: rdma.max of the control group, \
             linux.resources.rdma of the runtime"
                .into(),
        ),
    })
}
