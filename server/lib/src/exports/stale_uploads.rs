//! Removes what abandoned uploads left in writable exports: looks at them when
//! the server starts and once a day, slowly, on a thread of the blocking pool.
//! What a session holds, what is young and what is not ours is left alone; that
//! is decided in `files::reap`. Ends with its handle.

use crate::config::export::Mode;
use crate::exports::open::{ExportFolder, Exports};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use tokio::task::JoinHandle;
use verbatim_files::Walk;
use verbatim_files::reap::{Reaped, is_leftover, reap};
use verbatim_proto::{Fault, WirePath};

/// How often exports are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(24 * 3600);

/// After this many entries it rests, so that a large export does not keep a disk busy.
const ENTRIES_AT_ONCE: usize = 500;

/// How long it rests.
const REST: Duration = Duration::from_millis(5);

/// A running reaper; dropping it ends it.
pub(crate) struct Reaper {
    stop: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Reaper {
    /// Starts to look in these exports for what nobody wrote to for `keep`.
    pub fn start(exports: Exports, keep: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let exports = Arc::new(exports);
        let task = tokio::spawn(async move {
            loop {
                let (exports, stopped) = (exports.clone(), stopped.clone());
                let look = move || look_at_all(&exports, keep, &stopped);
                if tokio::task::spawn_blocking(look).await.is_err() {
                    tracing::error!("looking for leftovers of uploads failed");
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        Self { stop, task }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.abort();
    }
}

fn look_at_all(exports: &Exports, keep: Duration, stop: &AtomicBool) {
    for (name, export) in exports {
        if export.mode == Mode::ReadWrite {
            let name = String::from_utf8_lossy(name);
            if let Err(fault) = look_at(&name, export, keep, stop) {
                tracing::warn!(export = %name, cause = %fault, "leftovers not looked for");
            }
        }
    }
}

/// Walks one export; memory grows with its depth only.
fn look_at(
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
        if count % ENTRIES_AT_ONCE == ENTRIES_AT_ONCE - 1 {
            std::thread::sleep(REST);
        }
        // What cannot be looked at is not ours, or will be seen tomorrow.
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
