//! The fill: fetches all files of the tree in the background, several at a time, so
//! that small files share round trips. Readers go first. Ends when all is cached or the
//! cache is full; it never evicts. Cached blocks cost nothing. A failed file is
//! counted, left to its readers, and makes the fill incomplete. Waits for a server that
//! is away.

use super::cache::{BLOCK_BYTES, CacheFile};
use super::connection::is_connection_fault;
use super::content::{Content, OpenError};
use super::walk::Walk;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;
use verbatim_client::remote_fs::attributes::{Facts, Kind};
use verbatim_engine::local_io::range_buffer::RANGE_BYTES_MAX;
use verbatim_proto::{Code, Fault, WirePath};

/// Files that are fetched at a time.
const FILES_MAX: usize = 16;

/// How often a file that changes meanwhile is tried.
const TRIES_MAX: usize = 3;

/// The pause between two looks for a server that is away.
const AWAY_POLL: Duration = Duration::from_secs(1);

/// Whether the fill runs, and its rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Only blocks that are read are fetched.
    Off,
    /// All files are fetched, at most at this rate in bytes a second; `None` is unlimited.
    On(Option<u64>),
}

/// The progress of the fill.
#[derive(Debug, Default)]
pub(super) struct FillProgress {
    stage: AtomicU8,
    files: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    /// Notified once, when the fill ends.
    pub ended: Notify,
}

const STAGES: [&str; 5] = ["off", "filling", "complete", "cache full", "incomplete"];

impl FillProgress {
    /// The progress for the status.
    pub fn to_json(&self) -> Value {
        let stage = STAGES[usize::from(self.stage.load(Ordering::Relaxed)) % STAGES.len()];
        let number = |it: &AtomicU64| it.load(Ordering::Relaxed);
        json!({
            "state": stage, "files": number(&self.files), "bytes": number(&self.bytes),
            "failed": number(&self.failed), "complete": stage == STAGES[2],
        })
    }
}

/// The outcome of one file.
#[derive(Debug, PartialEq, Eq)]
enum FileOutcome {
    /// The cache has all of it.
    Complete,
    /// The file was removed or replaced by something else.
    Gone,
    /// The cache has no room for it.
    CacheFull,
    Failed,
}

/// The state that the fetches of all files share.
struct Filler {
    content: Arc<Content>,
    progress: Arc<FillProgress>,
    rate: Option<u64>,
    begin: Instant,
    fetched: AtomicU64,
}

/// Fetches every file of a walk.
pub(super) async fn fill(
    content: Arc<Content>,
    mut walk: Walk,
    rate: Option<u64>,
    progress: Arc<FillProgress>,
) {
    progress.stage.store(1, Ordering::Relaxed);
    let (begin, fetched) = (Instant::now(), AtomicU64::new(0));
    let filling = Arc::new(Filler { content, progress: progress.clone(), rate, begin, fetched });
    let (mut under_way, mut full) = (JoinSet::new(), false);
    let mut tries = 0;
    while !full && let Some(found) = walk.next(&filling.content).await {
        match found {
            Ok((path, facts)) if facts.kind == Kind::File => {
                while under_way.len() >= FILES_MAX {
                    full |= filling.count_finished(under_way.join_next().await);
                }
                under_way.spawn(filling.clone().fill_file(path, facts));
                tries = 0;
            }
            Ok(_) => tries = 0,
            Err((path, fault)) if is_connection_fault(&fault) && tries < TRIES_MAX => {
                tries += 1;
                walk.queue_folder(path);
                filling.wait_for_server().await;
            }
            Err((path, fault)) => {
                tries = 0;
                progress.failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(path = %path, cause = fault.text, "cannot be filled");
            }
        }
    }
    while !under_way.is_empty() {
        full |= filling.count_finished(under_way.join_next().await);
    }
    if full {
        tracing::info!("the cache is full, the fill ends");
    }
    let stage = match progress.failed.load(Ordering::Relaxed) {
        _ if full => 3,
        0 => 2,
        _ => 4,
    };
    progress.stage.store(stage, Ordering::Relaxed);
    progress.ended.notify_one();
}

impl Filler {
    /// Waits until there is a session, and `AWAY_POLL` at least.
    async fn wait_for_server(&self) {
        sleep(AWAY_POLL).await;
        while !self.content.connection.is_up() {
            sleep(AWAY_POLL).await;
        }
    }

    /// Counts a finished file; returns whether the cache is full.
    fn count_finished(&self, done: Option<Result<FileOutcome, tokio::task::JoinError>>) -> bool {
        let outcome = done.and_then(Result::ok).unwrap_or(FileOutcome::Failed);
        let count = match outcome {
            FileOutcome::Complete => &self.progress.files,
            FileOutcome::Failed => &self.progress.failed,
            FileOutcome::Gone | FileOutcome::CacheFull => return outcome == FileOutcome::CacheFull,
        };
        count.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Fetches the current version of a file.
    async fn fill_file(self: Arc<Self>, path: WirePath, mut facts: Facts) -> FileOutcome {
        let mut cause = Fault::new(Code::Changed, "it changes all the time");
        for _ in 0..TRIES_MAX {
            if !self.content.connection.is_up() {
                self.wait_for_server().await;
            }
            match self.fill_version(&path, facts).await {
                Ok(outcome) => return outcome,
                Err(OpenError::Stale) => {}
                Err(OpenError::Fault(fault)) if fault.code == Code::Changed => {}
                Err(OpenError::Fault(fault)) if fault.code == Code::NotFound => {
                    return FileOutcome::Gone;
                }
                Err(OpenError::Fault(fault)) if is_connection_fault(&fault) => {
                    cause = fault;
                    self.wait_for_server().await;
                }
                Err(OpenError::Fault(fault)) => {
                    cause = fault;
                    break;
                }
            }
            match self.content.connection.stat(&path).await.map(|seen| seen.facts()) {
                Ok(now) if now.kind == Kind::File => facts = now,
                Ok(_) => return FileOutcome::Gone,
                Err(fault) if fault.code == Code::NotFound => return FileOutcome::Gone,
                Err(fault) => cause = fault,
            }
        }
        tracing::warn!(path = %path, cause = cause.text, "cannot be filled");
        FileOutcome::Failed
    }

    /// Whether this many bytes fit in the cache without eviction.
    fn has_room(&self, bytes: u64) -> bool {
        let (used, most, _) = self.content.cache.usage();
        bytes == 0 || used.saturating_add(bytes) <= most
    }

    /// Fetches the missing blocks of a version.
    async fn fill_version(&self, path: &WirePath, facts: Facts) -> Result<FileOutcome, OpenError> {
        let content = &self.content;
        let found = content.find_cached(path, facts).await;
        let (new, missing) =
            (found.is_none(), found.map_or(facts.size, |file| file.missing_bytes(0..=u32::MAX)));
        // A sparse file takes only its allocated bytes.
        let most = match self.has_room(missing) {
            true => u64::MAX,
            false => content.allocated_bytes(path, facts).await.map_err(OpenError::Fault)?,
        };
        // Opening stores the first block, which must not evict anything.
        if !self.has_room(missing.min(most)) {
            return Ok(FileOutcome::CacheFull);
        }
        let first = if new { facts.size.min(BLOCK_BYTES) } else { 0 };
        let permit = content.gate.acquire(first).await;
        let file = content.open(path, facts, false).await?;
        if new {
            permit.received(content.counters.fetched_bytes.load(Ordering::Relaxed));
            let received = file.in_flight.received(0).map_or(first, |first| first.byte_count());
            self.fetched.fetch_add(received, Ordering::Relaxed);
        }
        drop(permit);
        if !self.has_room(file.missing_bytes(0..=u32::MAX).min(most)) {
            return Ok(FileOutcome::CacheFull);
        }
        for offset in (0..file.size).step_by(RANGE_BYTES_MAX as usize) {
            let len = RANGE_BYTES_MAX.min(file.size - offset);
            // More may arrive than is allocated at the source: its file system may compress.
            let missing = file.missing_bytes(file.block_range(offset, len));
            if most < u64::MAX && !self.has_room(missing.min(most)) {
                return Ok(FileOutcome::CacheFull);
            }
            self.fill_part(path, &file, offset, len).await.map_err(OpenError::Fault)?;
        }
        // Blocks that the cache refused are missing still.
        match file.missing_bytes(0..=u32::MAX) {
            0 => {
                // The next open then need not verify the version again.
                content.cache.touch(&file);
                Ok(FileOutcome::Complete)
            }
            missing if self.has_room(missing.min(most)) => Ok(FileOutcome::Failed),
            _ => Ok(FileOutcome::CacheFull),
        }
    }

    async fn fill_part(
        &self,
        path: &WirePath,
        file: &Arc<CacheFile>,
        offset: u64,
        len: u64,
    ) -> Result<(), Fault> {
        let missing = file.missing_bytes(file.block_range(offset, len));
        let permit = self.content.gate.acquire(missing).await;
        let received = self.content.fetch_range(path, file, offset, len).await?;
        // A hole tells nothing about the link.
        if received > 0 {
            permit.received(self.content.counters.fetched_bytes.load(Ordering::Relaxed));
        }
        drop(permit);
        self.progress.bytes.fetch_add(len, Ordering::Relaxed);
        // The rate limit counts only bytes from the network.
        let bytes = self.fetched.fetch_add(received, Ordering::Relaxed) + received;
        if let Some(rate) = self.rate {
            let due = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            sleep(due.saturating_sub(self.begin.elapsed())).await;
        }
        Ok(())
    }
}
