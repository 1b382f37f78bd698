//! The memory budget of all clients (`limits.memory_mb`): unread answers, queued requests,
//! upload slots, copied windows, open files, watched folders and their changes, names in staged
//! trees. One client has at most half, one name three quarters, as `fair_pool` counts. Owns the
//! size of the budget, the cost of each kind of object, and the trimming of the heap after
//! clients disconnect. Memory that a device pins has a second budget, in `rdma::pin_budget`.

use crate::config::Limits;
use crate::limits::fair_pool::{Permit, PoolShare};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use verbatim_control::{Budget, Loan};
use verbatim_fabric::memory::trim_heap;
use verbatim_proto::units::{CHUNK_BYTES_MAX, FRAME_BYTES_MAX, GRAIN_BYTES, RANGES_MAX};
use verbatim_proto::{Code, Fault, WirePath};

/// The cost of an open file, beside its path and its ranges.
const FILE_BYTES: usize = 2 << 10;

/// The cost of a range that a client has written, or that is missing.
const RANGE_BYTES: usize = 32;

/// The cost of a walk: the pages that it prepares ahead of requests.
pub(crate) const WALK_BYTES: usize = 2 * FRAME_BYTES_MAX;

/// The cost of a watched folder: its entries in three tables, its name in two of them, and the
/// state that its comparison keeps of the names in it.
pub(crate) const WATCHED_FOLDER_BYTES: usize = 512;

/// The least budget where none is configured; otherwise a quarter of the machine's memory.
const BUDGET_BYTES_MIN: u64 = 256 << 20;

/// The least configured budget: a session that is alone has a third of it, and needs room for the
/// longest chunk.
const SET_BYTES_MIN: u64 = 64 << 20;
const _: () = assert!(SET_BYTES_MIN / 3 > CHUNK_BYTES_MAX as u64);

/// The delay between a disconnect and the trim: one trim serves all clients that disconnect
/// meanwhile.
const TRIM_DELAY: Duration = Duration::from_secs(2);

/// The budget of all clients, in bytes.
pub(crate) fn budget_bytes(limits: &Limits) -> usize {
    let bytes = match limits.memory_mb {
        0 => (memory_limit_bytes(Path::new("/")) / 4).max(BUDGET_BYTES_MIN),
        mb => (u64::from(mb) << 20).max(SET_BYTES_MIN),
    };
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The memory of this machine, or of the container, if that has less.
fn memory_limit_bytes(root: &Path) -> u64 {
    let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let meminfo = text("proc/meminfo");
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    let machine = kib.map_or(0, |kib| kib << 10);
    let groups = text("proc/self/cgroup");
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    // The limits of its ancestors apply as well.
    let limits = Path::new(group).ancestors().filter_map(|group| {
        let path = Path::new("sys/fs/cgroup").join(group).join("memory.max");
        fs::read_to_string(root.join(path)).ok()?.trim().parse().ok()
    });
    limits.chain([machine]).min().unwrap_or(machine)
}

/// The cost of an open file. One of unknown size has no ranges yet.
pub(crate) fn file_bytes(path: &WirePath, size: Option<u64>) -> usize {
    let ranges = size.map_or(0, |size| size.div_ceil(GRAIN_BYTES).min(RANGES_MAX as u64));
    FILE_BYTES + 2 * path.as_bytes().len() + ranges as usize * RANGE_BYTES
}

/// The fault for a request that exceeds the budget.
pub(crate) fn out_of_budget(what: &str) -> Fault {
    let text = format!(
        "the server has no memory for {what}: this client, or all together, have what \
         limits.memory_mb allows"
    );
    Fault::new(Code::Limit, text)
}

/// Lends a connection memory from its session's share.
pub(crate) struct SessionBudget(pub Arc<PoolShare>);

impl Budget for SessionBudget {
    fn lend(&self, bytes: usize) -> Option<Loan> {
        self.0.take(bytes).map(|place: Permit| Box::new(place) as Loan)
    }
}

/// Returns free heap to the system after clients disconnect: malloc keeps freed memory, so the
/// process would stay as large as after a flood of clients.
#[derive(Default)]
pub(crate) struct HeapTrimmer {
    client_gone: Notify,
}

impl HeapTrimmer {
    /// Notes that a client, or a connection that did not authenticate, has disconnected.
    pub fn client_gone(&self) {
        self.client_gone.notify_one();
    }

    /// Trims for ever. `release_caches` drops other state that clients left.
    pub async fn run(self: Arc<Self>, release_caches: impl Fn() + Clone + Send + 'static) {
        loop {
            self.client_gone.notified().await;
            // Clients often disconnect together: one trim serves all of them.
            tokio::time::sleep(TRIM_DELAY).await;
            // It walks the free heap, so it must not block the runtime.
            let release_caches = release_caches.clone();
            let trimmed = tokio::task::spawn_blocking(move || {
                release_caches();
                trim_heap();
            });
            let _ = trimmed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_follows_the_machine_and_its_control_groups() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(memory_limit_bytes(root.path()), 0);
        write("proc/meminfo", "MemTotal:       16384 kB\nMemFree:  1 kB\n");
        assert_eq!(memory_limit_bytes(root.path()), 16 << 20);
        write("proc/self/cgroup", "0::/system.slice/rdma-serve.service\n");
        let group = "sys/fs/cgroup/system.slice/rdma-serve.service/memory.max";
        write(group, "max\n");
        assert_eq!(memory_limit_bytes(root.path()), 16 << 20);
        write("sys/fs/cgroup/system.slice/memory.max", "8388608\n");
        assert_eq!(memory_limit_bytes(root.path()), 8 << 20);
        write(group, "4194304\n");
        assert_eq!(memory_limit_bytes(root.path()), 4 << 20);
    }

    #[test]
    fn the_budget_is_what_was_set_or_a_quarter_of_the_machine() {
        let of = |memory_mb| budget_bytes(&Limits { memory_mb, ..Limits::default() });
        assert_eq!([of(1), of(64), of(65)], [64 << 20, 64 << 20, 65 << 20]);
        assert!(of(0) >= BUDGET_BYTES_MIN as usize);
        let quarter = memory_limit_bytes(Path::new("/")) / 4;
        assert!(quarter > 0 && of(0) as u64 == quarter.max(BUDGET_BYTES_MIN));
    }
}
