//! The `[rdma]` table of the configuration: which device is used, and what one
//! client may pin. Nothing set means: choose by the address the client used.

use crate::pins::Pins;
use serde::{Deserialize, Serialize};
use verbatim_fabric::verbs::{DomainLimits, Options, Wish};

/// How RDMA is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rdma {
    /// Whether it is offered at all.
    pub enabled: bool,
    /// The device; empty stands for choosing one.
    pub device: String,
    /// The port, from 1; 0 stands for choosing one.
    pub port: u32,
    /// The place in the port's table of addresses; -1 stands for choosing one.
    pub gid_index: i32,
    /// Whether workers poll for ever instead of sleeping.
    pub busy_poll: bool,
    /// What one client's session may pin, in MiB.
    pub pinned_mb_per_session: u32,
    /// What all clients together may pin, in MiB.
    pub pin_budget_mb: u32,
}

impl Default for Rdma {
    fn default() -> Self {
        Self {
            enabled: true,
            device: String::new(),
            port: 0,
            gid_index: -1,
            busy_poll: false,
            pinned_mb_per_session: 1024,
            pin_budget_mb: 4096,
        }
    }
}

impl Rdma {
    /// The same, as the server uses it.
    pub(crate) fn options(&self) -> crate::rdma::Rdma {
        let wish = Wish {
            device: (!self.device.is_empty()).then(|| self.device.clone()),
            port: u8::try_from(self.port).ok().filter(|&port| port > 0),
            gid_index: u8::try_from(self.gid_index).ok(),
            ..Wish::default()
        };
        let pinned_bytes_max = u64::from(self.pinned_mb_per_session) << 20;
        crate::rdma::Rdma {
            enabled: self.enabled,
            wish,
            limits: DomainLimits { pinned_bytes_max, ..DomainLimits::default() },
            options: Options { busy_poll: self.busy_poll, ..Options::default() },
            pins: Some(Pins::new(u64::from(self.pin_budget_mb) << 20)),
        }
    }
}
