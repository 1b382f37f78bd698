//! The fill: brings all of a tree in the background, one file after the other, and lets
//! readers go first. Ends when all is here or the cache is full: it never has anything
//! removed. What fails is counted and left to its readers.

use super::content::{Content, Refusal};
use super::listing::{Facts, Kind};
use crate::part::PART_BYTES_MAX;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::time::sleep;
use verbatim_proto::{Fault, WirePath};

/// How long the fill waits while readers have much under way.
const YIELD: Duration = Duration::from_millis(20);

/// How long it waits for a server that is away.
const AWAY: Duration = Duration::from_secs(1);

/// How much a tree is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Only what is read is brought.
    Off,
    /// All of it, so many bytes a second at most; none for as fast as it goes.
    On(Option<u64>),
}

/// How far it is.
#[derive(Debug, Default)]
pub(super) struct Progress {
    stage: AtomicU8,
    files: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
}

const STAGES: [&str; 4] = ["off", "filling", "complete", "cache full"];

impl Progress {
    /// For the status.
    pub fn told(&self) -> Value {
        let stage = STAGES[usize::from(self.stage.load(Ordering::Relaxed)) % STAGES.len()];
        let number = |it: &AtomicU64| it.load(Ordering::Relaxed);
        json!({
            "state": stage, "files": number(&self.files), "bytes": number(&self.bytes),
            "failed": number(&self.failed),
        })
    }
}

/// Brings all that is below a path.
pub(super) async fn fill(
    content: Arc<Content>,
    base: WirePath,
    rate: Option<u64>,
    progress: Arc<Progress>,
) {
    progress.stage.store(1, Ordering::Relaxed);
    let begin = Instant::now();
    // Folders that are still to be listed; a folder is listed when those before it are done.
    let mut folders = vec![base];
    while let Some(folder) = folders.pop() {
        let listing = match content.line.list(&folder).await {
            Ok(listing) => listing,
            Err(fault) => {
                progress.failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(path = %folder, cause = fault.text, "cannot be filled");
                continue;
            }
        };
        for index in 0..listing.len() {
            let Some((name, facts)) = listing.at(index) else { break };
            let Ok(path) = folder.with(name) else { continue };
            match facts.kind {
                Kind::Folder => folders.push(path),
                Kind::File => {
                    let (used, most, _) = content.cache.usage();
                    if used + facts.size > most {
                        progress.stage.store(3, Ordering::Relaxed);
                        tracing::info!(bytes = used, "the cache is full, the fill ends");
                        return;
                    }
                    let brought = bring(&content, &path, facts, rate, begin, &progress).await;
                    let count = match brought {
                        Ok(()) => &progress.files,
                        Err(_) => &progress.failed,
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Kind::Symlink | Kind::Special => {}
            }
        }
    }
    progress.stage.store(2, Ordering::Relaxed);
}

async fn bring(
    content: &Arc<Content>,
    path: &WirePath,
    facts: Facts,
    rate: Option<u64>,
    begin: Instant,
    progress: &Progress,
) -> Result<(), Fault> {
    while !content.line.is_up() {
        sleep(AWAY).await;
    }
    let file = match content.open(path, facts).await {
        Ok(file) => file,
        // Its next reader gets what it has become.
        Err(Refusal::Outdated) => return Ok(()),
        Err(Refusal::Fault(fault)) => return Err(fault),
    };
    for offset in (0..file.size).step_by(PART_BYTES_MAX as usize) {
        while content.is_busy() {
            sleep(YIELD).await;
        }
        let len = PART_BYTES_MAX.min(file.size - offset);
        content.bring(path, &file, offset, len).await?;
        let bytes = progress.bytes.fetch_add(len, Ordering::Relaxed) + len;
        if let Some(rate) = rate {
            let due = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            sleep(due.saturating_sub(begin.elapsed())).await;
        }
    }
    Ok(())
}
