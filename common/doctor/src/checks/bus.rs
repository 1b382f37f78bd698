//! The check of a card's PCIe connection: lanes and speed against what the card can do,
//! and whether they carry what its cables do.

use crate::facts::DeviceFacts;
use crate::finding::{Finding, Fix, Severity};
use verbatim_fabric::ports::DeviceInfo;

/// Which card a device is of: ports of one may be devices of their own, which share its slot.
fn card(device: &DeviceInfo) -> &str {
    let pci = device.pci.as_deref().and_then(|pci| Some(pci.rsplit_once('.')?.0));
    pci.unwrap_or(&device.name)
}

/// Whether the slot or its generation is less than the card can do.
pub(super) fn check(
    all: &[DeviceInfo],
    device: &DeviceInfo,
    more: &DeviceFacts,
) -> Option<Finding> {
    let (now, best) = more.bus?;
    let less = now.speed < best.speed || now.width < best.width;
    let ports = all.iter().filter(|it| card(it) == card(device)).flat_map(|it| &it.ports);
    let active = ports.filter(|port| port.state.is_active());
    let cables: u64 = active.map(|port| u64::from(port.rate_mbit)).sum();
    let (severity, why) = match now.carries_mbit() < cables {
        true => (Severity::Limits, "the slot carries less than the cables"),
        false => (Severity::Note, "the slot carries as much as the cables do now"),
    };
    (less && now.width > 0).then(|| Finding {
        check: "bus",
        severity,
        about: device.name.clone(),
        is: format!("it is connected by PCIe {now}"),
        should: format!("{best}, which the card can do"),
        why: why.into(),
        fix: Fix::Person(
            "move the card to a slot of that width and generation, seat it anew, or raise the \
             slot's speed in the firmware's set-up"
                .into(),
        ),
    })
}
