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
    pub(super) filled: Arc<FillProgress>,
}

impl StatusHandle {
    /// How it is now.
    pub fn status(&self) -> Value {
        self.tree.status(&self.filled)
    }
}

impl Tree {
    /// How it is.
    pub(super) fn status(&self, fill: &FillProgress) -> Value {
        let line = self.content.line.condition();
        let counts = &self.content.counts;
        let (bytes, bytes_max, evictions) = self.content.cache.usage();
        let number = |it: &AtomicU64| it.load(Ordering::Relaxed);
        json!({
            "server": {
                "up": line.up, "offline": line.offline, "cause": line.cause,
                "reconnects": line.reconnects,
            },
            "transport": line.carried.transport, "reason": line.carried.reason,
            "rdma_reads": line.carried.rdma_reads,
            "cache": { "bytes": bytes, "bytes_max": bytes_max, "evictions": evictions },
            "passthrough": {
                "used": self.passthrough.may(), "why_not": self.passthrough.why_not(),
                "opens": number(&counts.passthrough_opens),
            },
            "opens": number(&counts.opens),
            "fetched_bytes": number(&counts.fetched_bytes),
            "read_bytes": number(&counts.read_bytes),
            "failures": number(&counts.failures),
            "known_entries": self.nodes().len(),
            "watched": self.watched.load(Ordering::Relaxed),
            "fill": fill.told(),
        })
    }
}
