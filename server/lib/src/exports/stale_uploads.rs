//! Removes leftovers of abandoned uploads from writable exports: when the server starts, then
//! once a day, throttled, on a thread of the blocking pool. `files::reap` spares files that a
//! session holds, that are young, or that Verbatim did not create. Stops when its handle is
//! dropped.

use crate::config::export::Mode;
use crate::exports::open::{ExportFolder, Exports};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use tokio::task::JoinHandle;
use verbatim_files::Walk;
use verbatim_files::reap::{Reaped, is_leftover, reap};
use verbatim_proto::{Fault, WirePath};

/// How often exports are cleaned.
const CLEAN_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// Entries between two pauses, so that a large export does not keep a disk busy.
const ENTRIES_PER_BURST: usize = 500;

/// The length of a pause.
const REST: Duration = Duration::from_millis(5);

/// The running cleaner; dropping it stops it.
pub(crate) struct UploadCleaner {
    stop: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl UploadCleaner {
    /// Starts to look in these exports for what nobody wrote to for `keep`.
    pub fn start(exports: Exports, keep: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let exports = Arc::new(exports);
        let task = tokio::spawn(async move {
            loop {
                let (exports, stopped) = (exports.clone(), stopped.clone());
                let clean = move || clean_all(&exports, keep, &stopped);
                if tokio::task::spawn_blocking(clean).await.is_err() {
                    tracing::error!("looking for leftovers of uploads failed");
                }
                tokio::time::sleep(CLEAN_INTERVAL).await;
            }
        });
        Self { stop, task }
    }
}

impl Drop for UploadCleaner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.abort();
    }
}

fn clean_all(exports: &Exports, keep: Duration, stop: &AtomicBool) {
    for (name, export) in exports {
        if export.mode == Mode::ReadWrite {
            let name = String::from_utf8_lossy(name);
            if let Err(fault) = clean_export(&name, export, keep, stop) {
                tracing::warn!(export = %name, cause = %fault, "export not scanned for stale uploads");
            }
        }
    }
}

/// Walks one export; memory grows with its depth only.
fn clean_export(
    name: &str,
    export: &ExportFolder,
    keep: Duration,
    stop: &AtomicBool,
) -> Result<(), Fault> {
    let root = export.folder.open_folder(&WirePath::root())?;
    let walk = Walk::new(root, true)?.crossing(export.folder.crosses());
    for (count, entry) in walk.enumerate() {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        if count % ENTRIES_PER_BURST == ENTRIES_PER_BURST - 1 {
            std::thread::sleep(REST);
        }
        // An unreadable entry is not a leftover, or is retried tomorrow.
        let Ok(entry) = entry else { continue };
        if !entry.path.name().is_some_and(is_leftover) {
            continue;
        }
        let path = &entry.path;
        match reap(&export.folder, path, keep, SystemTime::now()) {
            Ok(None) => {}
            Ok(Some(Reaped { bytes, age })) => {
                let hours = age.as_secs() / 3600;
                tracing::info!(export = name, %path, bytes, hours, "leftover removed");
            }
            Err(fault) => tracing::warn!(export = name, %path, cause = %fault, "leftover stays"),
        }
    }
    Ok(())
}
