//! The memory that clients have the server keep for them: answers they have not read,
//! requests that wait, upload slots, windows that are copies, files that are open,
//! watched folders and changes in them, names of files in trees that are staged.
//! All of it is taken from one budget (`limits.memory_mb`), of which a client has
//! half at most and a name three quarters, as `fair_pool` counts. Owns how large that
//! budget is, what each kind of thing counts for, and that the heap is given back to
//! the system after clients are gone. What a device pins has a budget of its own as
//! well, in `rdma::pin_budget`.

use crate::config::Limits;
use crate::limits::fair_pool::{Place, Taker};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use verbatim_control::{Budget, Loan};
use verbatim_fabric::memory::trim_heap;
use verbatim_proto::units::{CHUNK_BYTES_MAX, FRAME_BYTES_MAX, GRAIN_BYTES, RANGES_MAX};
use verbatim_proto::{Code, Fault, WirePath};

/// What an open file counts for, beside its path and the ranges of it that are known.
const FILE_BYTES: usize = 2 << 10;

/// What a range counts for that a client has written, or is missing.
const RANGE_BYTES: usize = 32;

/// What a walk counts for: the pages that are made before they are asked for.
pub(crate) const WALK_BYTES: usize = 2 * FRAME_BYTES_MAX;

/// What a watched folder counts for: its places in three tables, its name in two of them, and what
/// its comparison keeps of the names in it.
pub(crate) const WATCHED_FOLDER_BYTES: usize = 512;

/// The budget where nobody set one is a quarter of the machine's memory, and this at least.
const BUDGET_BYTES_MIN: u64 = 256 << 20;

/// A budget is this at least, whatever was set: a session that is alone has a third of it, and
/// needs room for the longest chunk.
const SET_BYTES_MIN: u64 = 64 << 20;
const _: () = assert!(SET_BYTES_MIN / 3 > CHUNK_BYTES_MAX as u64);

/// How long after a client is gone its memory is given back to the system, at most: one look does
/// for all that went meanwhile.
const TRIM_EVERY: Duration = Duration::from_secs(2);

/// How many bytes all clients may have.
pub(crate) fn budget_bytes(limits: &Limits) -> usize {
    let bytes = match limits.memory_mb {
        0 => (machine_bytes(Path::new("/")) / 4).max(BUDGET_BYTES_MIN),
        mb => (u64::from(mb) << 20).max(SET_BYTES_MIN),
    };
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The memory of this machine, or of the container, if that has less.
fn machine_bytes(root: &Path) -> u64 {
    let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let meminfo = text("proc/meminfo");
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    let machine = kib.map_or(0, |kib| kib << 10);
    let groups = text("proc/self/cgroup");
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    // Each group above it has a limit that counts as well.
    let limits = Path::new(group).ancestors().filter_map(|group| {
        let path = Path::new("sys/fs/cgroup").join(group).join("memory.max");
        fs::read_to_string(root.join(path)).ok()?.trim().parse().ok()
    });
    limits.chain([machine]).min().unwrap_or(machine)
}

/// What an open file counts for. A file of which nothing is known has no ranges yet.
pub(crate) fn file_bytes(path: &WirePath, size: Option<u64>) -> usize {
    let ranges = size.map_or(0, |size| size.div_ceil(GRAIN_BYTES).min(RANGES_MAX as u64));
    FILE_BYTES + 2 * path.as_bytes().len() + ranges as usize * RANGE_BYTES
}

/// What a client is told that gets no memory for this.
pub(crate) fn refusal(what: &str) -> Fault {
    let text = format!(
        "the server has no memory for {what}: this client, or all together, have what \
         limits.memory_mb allows"
    );
    Fault::new(Code::Limit, text)
}

/// Lends a session's connection what is the session's to take.
pub(crate) struct Lender(pub Arc<Taker>);

impl Budget for Lender {
    fn lend(&self, bytes: usize) -> Option<Loan> {
        self.0.take(bytes).map(|place: Place| Box::new(place) as Loan)
    }
}

/// Gives the heap back to the system, some time after clients are gone: a library keeps what was
/// freed for what is asked for next, and a flood would be remembered for ever.
#[derive(Default)]
pub(crate) struct Trimmer {
    left: Notify,
}

impl Trimmer {
    /// A client, or somebody who wanted to be one, is gone.
    pub fn left(&self) {
        self.left.notify_one();
    }

    /// Trims for ever. What else clients leave behind is let go of by `let_go`.
    pub async fn run(self: Arc<Self>, let_go: impl Fn() + Clone + Send + 'static) {
        loop {
            self.left.notified().await;
            // Those who come together go together, and one look does for all.
            tokio::time::sleep(TRIM_EVERY).await;
            // It looks through all that is free, and nobody who serves should wait for that.
            let let_go = let_go.clone();
            let trimmed = tokio::task::spawn_blocking(move || {
                let_go();
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
        assert_eq!(machine_bytes(root.path()), 0);
        write("proc/meminfo", "MemTotal:       16384 kB\nMemFree:  1 kB\n");
        assert_eq!(machine_bytes(root.path()), 16 << 20);
        write("proc/self/cgroup", "0::/system.slice/rdma-serve.service\n");
        let group = "sys/fs/cgroup/system.slice/rdma-serve.service/memory.max";
        write(group, "max\n");
        assert_eq!(machine_bytes(root.path()), 16 << 20);
        write("sys/fs/cgroup/system.slice/memory.max", "8388608\n");
        assert_eq!(machine_bytes(root.path()), 8 << 20);
        write(group, "4194304\n");
        assert_eq!(machine_bytes(root.path()), 4 << 20);
    }

    #[test]
    fn the_budget_is_what_was_set_or_a_quarter_of_the_machine() {
        let of = |memory_mb| budget_bytes(&Limits { memory_mb, ..Limits::default() });
        assert_eq!([of(1), of(64), of(65)], [64 << 20, 64 << 20, 65 << 20]);
        assert!(of(0) >= BUDGET_BYTES_MIN as usize);
        let quarter = machine_bytes(Path::new("/")) / 4;
        assert!(quarter > 0 && of(0) as u64 == quarter.max(BUDGET_BYTES_MIN));
    }
}
