//! The `[rdma]` table of the configuration: which port is used, how its queue pairs
//! are made, what one client and all of them may take. Nothing set means: choose.
//! Every key has a default, a range and an effect; what one may not be, because it
//! cannot work here, is refused with the reason. `configs/rdma-serve.toml` explains.

use crate::rdma::pin_budget::Pins;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use toml::Value;
use verbatim_fabric::ports::{Hints, Wish};
use verbatim_fabric::verbs::{DomainLimits, Options};
use verbatim_proto::units::WINDOW_BYTES;

/// How RDMA is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rdma {
    /// Whether it is offered at all.
    pub enable: bool,
    /// The device; empty stands for choosing one.
    pub device: String,
    /// The port, from 1; 0 stands for choosing one.
    pub port: u32,
    /// The place in the port's table of addresses; -1 stands for choosing one.
    pub gid_index: i32,
    /// The largest packet, in bytes.
    pub mtu: u32,
    /// Writes up to this long travel in the request itself.
    pub max_inline_data: u32,
    /// Requests of ours that one queue pair holds.
    pub max_send_wr: u32,
    /// Notifications of the client that one queue pair holds.
    pub max_recv_wr: u32,
    /// Pieces of memory of one request.
    pub max_sge: u32,
    /// The kind of queue pair.
    pub qp_type: String,
    /// Whether clients share a receive queue.
    pub use_srq: bool,
    /// Whether workers sleep until an event comes, instead of polling for ever.
    pub use_event_channel: bool,
    /// What files of one session are staged in where they cannot be registered, in MiB.
    pub send_buffer_mb: u32,
    /// What uploads of one session land in, in MiB.
    pub recv_buffer_mb: u32,
    /// Queue pairs of one session.
    pub qps: u32,
    /// The traffic class of packets.
    pub traffic_class: u32,
    /// The service level of packets.
    pub service_level: u32,
    /// The place in the port's table of partitions.
    pub pkey_index: u32,
    /// What one client's session may pin, in MiB.
    pub pinned_mb_per_session: u32,
    /// What all clients together may pin, in MiB.
    pub pin_budget_mb: u32,
    /// Whether uploads may be written straight into temporary files in memory.
    pub write_into_files: bool,
}

impl Default for Rdma {
    fn default() -> Self {
        let options = Options::default();
        Self {
            enable: true,
            device: String::new(),
            port: 0,
            gid_index: -1,
            mtu: options.mtu_bytes_max,
            max_inline_data: options.inline_bytes,
            max_send_wr: options.requests_max,
            max_recv_wr: options.receives,
            max_sge: 1,
            qp_type: "RC".into(),
            use_srq: false,
            use_event_channel: !options.busy_poll,
            send_buffer_mb: 64,
            recv_buffer_mb: 256,
            qps: 16,
            traffic_class: options.traffic_class.into(),
            service_level: options.service_level.into(),
            pkey_index: options.pkey_index.into(),
            pinned_mb_per_session: 1024,
            pin_budget_mb: 4096,
            write_into_files: false,
        }
    }
}

impl Rdma {
    /// The same, as the server uses it. Values are within their ranges.
    pub(crate) fn options(&self) -> crate::rdma::rails::Rdma {
        let small = |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
        let wish = Wish {
            device: (!self.device.is_empty()).then(|| self.device.clone()),
            port: Some(small(self.port)).filter(|&port| port > 0),
            gid_index: u8::try_from(self.gid_index).ok(),
            hints: Hints::from_env(),
            ..Wish::default()
        };
        let pinned_bytes_max = u64::from(self.pinned_mb_per_session) << 20;
        let options = Options {
            requests_max: self.max_send_wr,
            receives: self.max_recv_wr,
            inline_bytes: self.max_inline_data,
            service_level: small(self.service_level),
            traffic_class: small(self.traffic_class),
            pkey_index: u16::try_from(self.pkey_index).unwrap_or(u16::MAX),
            mtu_bytes_max: self.mtu,
            busy_poll: !self.use_event_channel,
            ..Options::default()
        };
        crate::rdma::rails::Rdma {
            enable: self.enable,
            wish,
            limits: DomainLimits { pinned_bytes_max, ..DomainLimits::default() },
            options,
            qps_max: self.qps as u16,
            copied_windows_max: ((u64::from(self.send_buffer_mb) << 20) / WINDOW_BYTES) as usize,
            upload_bytes_max: u64::from(self.recv_buffer_mb) << 20,
            write_into_files: self.write_into_files,
            pins: Some(Pins::new(u64::from(self.pin_budget_mb) << 20, pinned_bytes_max)),
            devices: Arc::default(),
        }
    }
}

/// The keys that have no range but a choice.
pub(super) const CHOICES: [&str; 4] = ["rdma.mtu", "rdma.max_sge", "rdma.use_srq", "rdma.qp_type"];

/// What a key with a choice may be, and why; none where it is that.
pub(super) fn refusal(key: &str, value: &Value) -> Option<&'static str> {
    let (fits, choice) = match key {
        "rdma.mtu" => {
            let fits = value.as_integer().is_some_and(|size| MTUS.contains(&size));
            (fits, "one of 256, 512, 1024, 2048, 4096")
        }
        "rdma.max_sge" => {
            (value.as_integer() == Some(1), "1, because a request moves one piece of memory here")
        }
        "rdma.use_srq" => (
            value.as_bool() == Some(false),
            "false, because of a receive queue that clients share one can take what another needs",
        ),
        "rdma.qp_type" => (
            value.as_str() == Some("RC"),
            "\"RC\", because only reliable connections have one-sided reads and writes",
        ),
        _ => return None,
    };
    (!fits).then_some(choice)
}

/// The sizes that a packet can have.
const MTUS: [i64; 5] = [256, 512, 1024, 2048, 4096];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn rdma(line: &str) -> Rdma {
        Config::from_toml(&format!("[rdma]\n{line}"), "test").expect(line).rdma
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_reason_and_the_default() {
        for (line, reason, default) in [
            ("qp_type = \"UD\"", "only reliable connections have one-sided", "\"RC\""),
            ("use_srq = true", "one can take what another needs", "false"),
            ("max_sge = 2", "a request moves one piece of memory", "1"),
            ("mtu = 9000", "one of 256, 512, 1024, 2048, 4096", "4096"),
        ] {
            let error = Config::from_toml(&format!("[rdma]\n{line}"), "test").expect_err(line);
            let text = error.to_string();
            assert!(text.starts_with(&format!("test: rdma.{line} is out of range")), "{text}");
            assert!(text.contains(reason), "{text}");
            assert!(text.ends_with(&format!("; default: {default}")), "{text}");
        }
    }

    #[test]
    fn every_key_has_an_effect() {
        let options = |line: &str| rdma(line).options();
        assert!(!options("enable = false").enable);
        assert_eq!(options("device = \"mlx5_1\"").wish.device.as_deref(), Some("mlx5_1"));
        assert_eq!((options("port = 2").wish.port, options("port = 0").wish.port), (Some(2), None));
        assert_eq!(options("gid_index = 0").wish.gid_index, Some(0));
        assert_eq!(options("gid_index = -1").wish.gid_index, None);
        assert_eq!(options("mtu = 1024").options.mtu_bytes_max, 1024);
        assert_eq!(options("max_inline_data = 0").options.inline_bytes, 0);
        assert_eq!(options("max_send_wr = 64").options.requests_max, 64);
        assert_eq!(options("max_recv_wr = 16").options.receives, 16);
        assert!(options("use_event_channel = false").options.busy_poll);
        assert_eq!(options("send_buffer_mb = 33").copied_windows_max, 2);
        assert_eq!(options("recv_buffer_mb = 17").upload_bytes_max, 17 << 20);
        assert_eq!(options("qps = 3").qps_max, 3);
        assert_eq!(options("traffic_class = 106").options.traffic_class, 106);
        assert_eq!(options("service_level = 7").options.service_level, 7);
        assert_eq!(options("pkey_index = 65535").options.pkey_index, 65535);
        assert_eq!(options("pinned_mb_per_session = 64").limits.pinned_bytes_max, 64 << 20);
        assert_eq!(options("pin_budget_mb = 8").pins.map(|pins| pins.budget()), Some(8 << 20));
        assert!(options("write_into_files = true").write_into_files);
        assert!(!options("").write_into_files, "only who is trusted to that degree");
        // The defaults are those of a link.
        assert_eq!(options("").options, Options::default());
        // `max_sge`, `qp_type` and `use_srq` have one value each.
    }
}
