//! The `[rdma]` table of the configuration: port, queue pair settings, and limits per client
//! and in all. An unset key is chosen automatically. Every key has a default, a range and an
//! effect; a value that cannot work is rejected with its reason. `configs/rdma-serve.toml`
//! explains each key.

use serde::{Deserialize, Serialize};
use toml::Value;
use verbatim_fabric::verbs::Options;

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
    /// Staging memory of one session for files that cannot be registered, in MiB.
    pub send_buffer_mb: u32,
    /// Memory that receives the uploads of one session, in MiB.
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

/// The keys with a list of allowed values in place of a range.
pub(super) const FIXED_CHOICE_KEYS: [&str; 4] =
    ["rdma.mtu", "rdma.max_sge", "rdma.use_srq", "rdma.qp_type"];

/// The allowed values of such a key, and why; `None` if its value is one of them.
pub(super) fn allowed_values(key: &str, value: &Value) -> Option<&'static str> {
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
    use crate::config::Config;

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
}
