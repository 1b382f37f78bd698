//! Why RDMA is not used: a sentence, and what to do about it. Made by `choose` and
//! by the verbs modules; told to users in logs, summaries and errors.

use crate::error::FabricError;

/// Addresses of a port that are named when the one asked for is not there.
const NAMED_GIDS_MAX: usize = 8;

/// Why RDMA is not used: a sentence, and a fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The library is not there.
    #[error("cannot open libibverbs: {cause}")]
    NoLibrary {
        /// What the loader said.
        cause: String,
    },
    /// No device at all.
    #[error("this machine has no RDMA device")]
    NoDevice,
    /// Not the device that was asked for.
    #[error("there is no RDMA device {name}; there are: {known}")]
    NoSuchDevice {
        /// The one asked for.
        name: String,
        /// Those there are.
        known: String,
    },
    /// The kernel has a device that the library has no driver for.
    #[error("libibverbs has no driver for {device}")]
    NoDriver {
        /// Which one.
        device: String,
    },
    /// A device that could not be opened.
    #[error("cannot use {device}: {cause}")]
    Unusable {
        /// Which one.
        device: String,
        /// What the system said.
        cause: String,
    },
    /// A device whose file is not there.
    #[error("cannot use {device}: {node} is not there")]
    NotGiven {
        /// Which one.
        device: String,
        /// Its file.
        node: String,
    },
    /// A device of another kind.
    #[error("{device} speaks iWARP, which needs the connection manager")]
    Iwarp {
        /// Which one.
        device: String,
    },
    /// A device of another kind.
    #[error("{device} has no reliable connections (EFA, usNIC)")]
    NoConnections {
        /// Which one.
        device: String,
    },
    /// Not the port that was asked for.
    #[error("{device} has no port {port}")]
    NoSuchPort {
        /// The device.
        device: String,
        /// The one asked for.
        port: u8,
    },
    /// The port is not up.
    #[error("port {device}/{port} is {state}")]
    NotActive {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The state it is in.
        state: &'static str,
        /// Its network device; none on InfiniBand.
        netdev: Option<String>,
    },
    /// The port has no address at all.
    #[error("port {device}/{port} has no address")]
    NoGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Its network device.
        netdev: Option<String>,
    },
    /// The port does not have the address that was asked for.
    #[error("port {device}/{port} has no address {index}; it has {}", listed(known))]
    NoSuchGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The place in its table that was asked for.
        index: u8,
        /// Those it has.
        known: Vec<String>,
    },
}

impl Reason {
    /// What to do about it.
    pub fn hint(&self) -> String {
        let text = match self {
            Self::NoLibrary { .. } | Self::NoDriver { .. } => {
                "install rdma-core (Debian: apt install ibverbs-providers)"
            }
            Self::NoDevice => "check that the card's driver is loaded: rdma link",
            Self::NoSuchDevice { .. } => "rdma link lists the devices",
            Self::Unusable { .. } => "check that /dev/infiniband/uverbs* may be opened",
            Self::NotGiven { .. } => "give the container this device, or load the module ib_uverbs",
            Self::Iwarp { .. } | Self::NoConnections { .. } => "TCP is used; that is expected here",
            Self::NoSuchPort { .. } => "ports are counted from 1: ibv_devinfo lists them",
            Self::NotActive { netdev: Some(netdev), .. } => {
                return format!("ip link set {netdev} up, and check its cable");
            }
            Self::NotActive { .. } => "check the cable, and that a subnet manager runs",
            Self::NoGid { netdev: Some(netdev), .. } => {
                return format!("give {netdev} an IP address: ip addr add ADDRESS dev {netdev}");
            }
            Self::NoGid { .. } => "give the network device of the port an IP address",
            Self::NoSuchGid { .. } => "leave the index out, and the best one is chosen",
        };
        text.into()
    }
}

impl From<Reason> for FabricError {
    fn from(reason: Reason) -> Self {
        Self::device("no RDMA", reason.to_string(), reason.hint())
    }
}

fn listed(known: &[String]) -> String {
    let shown = known.iter().take(NAMED_GIDS_MAX).map(String::as_str).collect::<Vec<_>>();
    match known.len().saturating_sub(NAMED_GIDS_MAX) {
        _ if known.is_empty() => "none".into(),
        0 => shown.join(", "),
        more => format!("{}, and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_table_is_not_named_in_full() {
        let known = |count: usize| (0..count).map(|index| format!("a{index}")).collect::<Vec<_>>();
        assert_eq!(listed(&known(0)), "none");
        assert_eq!(listed(&known(2)), "a0, a1");
        assert!(listed(&known(11)).ends_with("a7, and 3 more"), "{}", listed(&known(11)));
    }
}
