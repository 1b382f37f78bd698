//! Every check there is: pure functions of facts that yield findings. A check is
//! silent where its fact is missing: what was not told is not wrong.

mod bus;
mod container;
mod devices;
mod exports;
mod firewall;
mod host;
mod ports;
mod speed;

use crate::facts::Facts;
use crate::finding::{Finding, Severity};
pub(crate) use host::shown;
use verbatim_fabric::ports::{Place, Reason, Transport, choose};

/// What all checks look at: the facts, and what links would choose.
pub(crate) struct Case<'f> {
    pub facts: &'f Facts,
    /// Where links would start, or why they cannot.
    pub chosen: &'f Result<Vec<Place>, Vec<Reason>>,
}

impl Case<'_> {
    /// How bad it is that one device or port cannot be used: where others can, it is less.
    fn lost(&self) -> Severity {
        if self.chosen.is_ok() { Severity::Limits } else { Severity::Blocks }
    }

    /// Whether there is a device that links could ever use.
    fn has_device(&self) -> bool {
        self.facts.machine.devices.iter().any(|device| device.transport == Transport::Ib)
    }
}

/// What links would choose on this machine, of what opens. The library is a finding of its own.
pub(crate) fn choice(facts: &Facts) -> Result<Vec<Place>, Vec<Reason>> {
    let mut places = choose(&facts.machine, &facts.wish)?;
    let mut refusals = Vec::new();
    for (device, more) in facts.machine.devices.iter().zip(&facts.devices) {
        if let Some(reason) = &more.refused {
            places.retain(|place| place.device != device.name);
            refusals.push(reason.clone());
        }
    }
    if places.is_empty() { Err(refusals) } else { Ok(places) }
}

/// Everything that is not as it should be, the worst first.
pub(crate) fn all(case: &Case<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    devices::check(case, &mut found);
    ports::check(case, &mut found);
    host::check(case, &mut found);
    firewall::check(case, &mut found);
    container::check(case, &mut found);
    exports::check(case, &mut found);
    // Stable: of one severity in the order of the checks.
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    found
}
