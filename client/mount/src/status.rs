//! The status of a mount as JSON. `rdma-mount --status` reads it as an extended
//! attribute of the root, so access to the mount decides who may read it, and no socket
//! is needed. Only reports here; `counters` counts.

use super::fill::FillProgress;
use super::tree::Tree;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The name of the attribute; listxattr omits it.
pub(super) const STATUS_XATTR: &str = "user.verbatim.status";

/// The longest status.
const STATUS_BYTES_MAX: usize = 16 << 10;

/// Reads the status of the mount at this path.
pub fn read(mountpoint: &Path) -> std::io::Result<Value> {
    let mut bytes = vec![0_u8; STATUS_BYTES_MAX];
    let len = rustix::fs::getxattr(mountpoint, STATUS_XATTR, &mut bytes[..])?;
    serde_json::from_slice(&bytes[..len]).map_err(std::io::Error::other)
}

/// Reads the status of a mount of this process, for as long as it lives.
#[derive(Clone)]
pub struct StatusHandle {
    pub(super) tree: Arc<Tree>,
    pub(super) fill_progress: Arc<FillProgress>,
}

impl StatusHandle {
    /// The status now.
    pub fn status(&self) -> Value {
        self.tree.status(&self.fill_progress)
    }
}

impl Tree {
    /// The status as JSON.
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
