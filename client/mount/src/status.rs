//! What a mount tells of itself, as JSON: read by `rdma-mount --status` as an extended
//! attribute of the root, so that whoever may look into the mount may look at its
//! status, and nothing else listens. Only told here; counted elsewhere.

use super::fill::FillProgress;
use super::tree::Tree;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The name of the attribute. It is not listed.
pub(super) const STATUS_XATTR: &str = "user.verbatim.status";

/// The longest status.
const STATUS_BYTES_MAX: usize = 16 << 10;

/// The status of a mount that stands somewhere.
pub fn read(mountpoint: &Path) -> std::io::Result<Value> {
    let mut bytes = vec![0_u8; STATUS_BYTES_MAX];
    let len = rustix::fs::getxattr(mountpoint, STATUS_XATTR, &mut bytes[..])?;
    serde_json::from_slice(&bytes[..len]).map_err(std::io::Error::other)
}

/// Says how a mount of this process is, for as long as it lives.
#[derive(Clone)]
pub struct StatusHandle {
    pub(super) tree: Arc<Tree>,
    pub(super) fill_progress: Arc<FillProgress>,
}

impl StatusHandle {
    /// How it is now.
    pub fn status(&self) -> Value {
        self.tree.status(&self.fill_progress)
    }
}

impl Tree {
    /// How it is.
    pub(super) fn status(&self, fill: &FillProgress) -> Value {
        let server = self.content.connection.status();
        let counters = &self.content.counters;
        let (bytes, bytes_max, evictions) = self.content.cache.usage();
        let number = |it: &AtomicU64| it.load(Ordering::Relaxed);
        json!({
            "server": {
                "up": server.up, "offline": server.offline, "cause": server.cause,
                "reconnects": server.reconnects,
            },
            "transport": server.carried.transport, "reason": server.carried.reason,
            "rdma_reads": server.carried.rdma_reads,
            "cache": { "bytes": bytes, "bytes_max": bytes_max, "evictions": evictions },
            "passthrough": {
                "used": self.passthrough.is_usable(), "why_not": self.passthrough.why_not(),
                "opens": number(&counters.passthrough_opens),
            },
            "opens": number(&counters.opens),
            "fetched_bytes": number(&counters.fetched_bytes),
            "read_bytes": number(&counters.read_bytes),
            "failures": number(&counters.failures),
            "known_entries": self.nodes().len(),
            "watched": self.watched.load(Ordering::Relaxed),
            "fill": fill.to_json(),
        })
    }
}
