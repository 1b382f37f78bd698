//! Translates the `[rdma]` table of the configuration into settings for links, queue pairs and
//! the pin budget. Opens nothing. Stands above `config` and `rdma`, so that neither imports the
//! other; the server calls it once.

use crate::config;
use crate::rdma::pin_budget::PinBudget;
use crate::rdma::rails::Rdma;
use std::sync::Arc;
use verbatim_fabric::ports::{Hints, Wish};
use verbatim_fabric::verbs::{DomainLimits, Options};
use verbatim_proto::units::WINDOW_BYTES;

/// Translates the table. Its values are within their ranges.
pub(crate) fn rails_of(table: &config::Rdma) -> Rdma {
    let small = |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
    let wish = Wish {
        device: (!table.device.is_empty()).then(|| table.device.clone()),
        port: Some(small(table.port)).filter(|&port| port > 0),
        gid_index: u8::try_from(table.gid_index).ok(),
        hints: Hints::from_env(),
        ..Wish::default()
    };
    let pinned_bytes_max = u64::from(table.pinned_mb_per_session) << 20;
    let options = Options {
        requests_max: table.max_send_wr,
        receives: table.max_recv_wr,
        inline_bytes: table.max_inline_data,
        service_level: small(table.service_level),
        traffic_class: small(table.traffic_class),
        pkey_index: u16::try_from(table.pkey_index).unwrap_or(u16::MAX),
        mtu_bytes_max: table.mtu,
        busy_poll: !table.use_event_channel,
        ..Options::default()
    };
    Rdma {
        enable: table.enable,
        wish,
        limits: DomainLimits { pinned_bytes_max, ..DomainLimits::default() },
        options,
        qps_max: table.qps as u16,
        copied_windows_max: ((u64::from(table.send_buffer_mb) << 20) / WINDOW_BYTES) as usize,
        upload_bytes_max: u64::from(table.recv_buffer_mb) << 20,
        write_into_files: table.write_into_files,
        pins: Some(PinBudget::new(u64::from(table.pin_budget_mb) << 20, pinned_bytes_max)),
        devices: Arc::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn rdma(line: &str) -> config::Rdma {
        Config::from_toml(&format!("[rdma]\n{line}"), "test").expect(line).rdma
    }

    #[test]
    fn every_key_has_an_effect() {
        let options = |line: &str| rails_of(&rdma(line));
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
