//! The ranges of numeric keys of the configuration: one table. Loading checks values against
//! it, and messages and tests take their bounds from it.

use std::ops::RangeInclusive;
use verbatim_proto::units::LINKS_MAX;

/// Each key with a number, and its least and greatest.
pub(super) const RANGES: [(&str, RangeInclusive<i64>); 26] = [
    ("workers", 0..=256),
    ("drain_seconds", 0..=3600),
    ("limits.sessions_max", 1..=65536),
    ("limits.links_per_session_max", 1..=LINKS_MAX as i64),
    ("limits.handshake_seconds", 1..=300),
    ("limits.handshakes_per_second", 1..=100_000),
    ("limits.handshakes_per_second_per_address", 1..=100_000),
    ("limits.idle_seconds", 10..=86400),
    ("limits.client_mb_per_second", 0..=1_000_000),
    ("limits.name_mb_per_second", 0..=1_000_000),
    ("limits.memory_mb", 0..=16_777_216),
    ("cache.size_mb", 1..=65536),
    ("uploads.keep_hours", 0..=87600),
    ("rdma.port", 0..=255),
    ("rdma.gid_index", -1..=255),
    ("rdma.max_inline_data", 0..=1024),
    ("rdma.max_send_wr", 64..=32768),
    ("rdma.max_recv_wr", 16..=32768),
    ("rdma.send_buffer_mb", 16..=65536),
    ("rdma.recv_buffer_mb", 16..=65536),
    ("rdma.qps", 1..=LINKS_MAX as i64),
    ("rdma.traffic_class", 0..=255),
    ("rdma.service_level", 0..=15),
    ("rdma.pkey_index", 0..=65535),
    ("rdma.pinned_mb_per_session", 64..=1_048_576),
    ("rdma.pin_budget_mb", 8..=16_777_216),
];
