//! What the control group of this process allows, where the kernel says so: memory,
//! of which what is pinned is part, and objects of RDMA devices. A container sees
//! its own group at the top, others find theirs by name.

use crate::tree::Tree;

/// What a control group allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ControlGroup {
    /// Bytes of memory; none where there is no limit.
    pub memory: Option<u64>,
    /// What it allows of each RDMA device.
    pub devices: Vec<DeviceShare>,
}

/// What of a device may be used; none where there is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceShare {
    pub device: String,
    /// How often it may be open.
    pub handles: Option<u64>,
    /// Queue pairs, completion queues, regions and domains together.
    pub objects: Option<u64>,
}

const ROOT: &str = "sys/fs/cgroup";

pub(super) fn read(tree: &Tree) -> ControlGroup {
    let own = tree.text("proc/self/cgroup").unwrap_or_default();
    // "0::/system.slice/rdma-serve.service"; other lines are of the kind before.
    let own = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let of = |name: &str| {
        let places =
            [format!("{ROOT}{}/{name}", own.trim_end_matches('/')), format!("{ROOT}/{name}")];
        places.iter().find_map(|place| tree.text(place))
    };
    let devices = of("rdma.max").unwrap_or_default();
    ControlGroup {
        memory: of("memory.max").and_then(|text| text.parse().ok()),
        devices: devices.lines().filter_map(share).collect(),
    }
}

/// `mlx5_0 hca_handle=2 hca_object=max`.
fn share(line: &str) -> Option<DeviceShare> {
    let (device, rest) = line.trim().split_once(' ')?;
    let of = |key: &str| {
        let value = rest.split_whitespace().find_map(|word| word.strip_prefix(key));
        value.and_then(|value| value.parse().ok())
    };
    Some(DeviceShare {
        device: device.to_owned(),
        handles: of("hca_handle="),
        objects: of("hca_object="),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_is_no_limit() {
        let line = |text: &str| share(text).map(|it| (it.handles, it.objects));
        assert_eq!(line("mlx5_0 hca_handle=2 hca_object=max"), Some((Some(2), None)));
        assert_eq!(line("mlx5_0 hca_object=100 hca_handle=max"), Some((None, Some(100))));
        assert_eq!(line(""), None);
    }
}
