//! Files that wait for file descriptors and memory before they are opened. Limits keep descriptors
//! for other clients and for the server. A file waits as long as its session has other files open.
//! A session without an open file waits a minute, then each of its files fails alone.
//!
//! Owns the queue, and opens nothing: the dispatcher hands ready files to the `ReadService` and to
//! `writing`.

use crate::limits::fair_pool::PoolShare;
use crate::limits::file_permits::FilePermits;
use crate::limits::memory_budget::file_bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use verbatim_files::target::LASTING_BYTES_MIN;
use verbatim_proto::message::{CreateFile, FileId, OpenFile};
use verbatim_proto::units::BATCH_FILES_MAX;
use verbatim_proto::{Code, Fault};

/// How long a session without an open file waits for descriptors.
pub(super) const FD_WAIT_MAX: Duration = Duration::from_secs(60);

/// Descriptors of a file that is read.
const READ_DESCRIPTORS: usize = 1;

/// Descriptors of a file that is written: its own and its folder's.
const WRITE_DESCRIPTORS: usize = 2;

/// Descriptors of a file whose upload can be resumed: also its journal's.
const LASTING_DESCRIPTORS: usize = 3;

/// The waiting files of a session; the machines bound their number.
pub(super) struct FdQueue {
    descriptors: Arc<PoolShare>,
    memory: Arc<PoolShare>,
    reads: VecDeque<OpenFile>,
    writes: VecDeque<CreateFile>,
    /// Since when files wait although the session has none open.
    pub since: Option<Instant>,
}

/// Files with descriptors and memory, ready to be opened.
pub(super) struct ReadyFiles {
    pub reads: Vec<(OpenFile, FilePermits)>,
    pub writes: Vec<(CreateFile, FilePermits)>,
}

/// Files that waited too long, and the error of each.
pub(super) struct TimedOut {
    pub reads: Vec<(FileId, Fault)>,
    pub writes: Vec<(FileId, Fault)>,
}

impl FdQueue {
    /// No file waits yet.
    pub fn new(descriptors: Arc<PoolShare>, memory: Arc<PoolShare>) -> Self {
        let (reads, writes) = Default::default();
        Self { descriptors, memory, reads, writes, since: None }
    }

    /// Whether files wait.
    pub fn waits(&self) -> bool {
        !self.reads.is_empty() || !self.writes.is_empty()
    }

    /// Queues files to read.
    pub fn queue_reads(&mut self, files: Vec<OpenFile>) {
        self.reads.extend(files);
    }

    /// Queues files to write.
    pub fn queue_writes(&mut self, files: Vec<CreateFile>) {
        self.writes.extend(files);
    }

    /// The next files that have descriptors and memory; `None` where all others must wait.
    pub fn next_ready(&mut self) -> Option<ReadyFiles> {
        if self.waits() {
            let Self { descriptors, memory, reads, writes, .. } = self;
            let from = (&*descriptors, &*memory);
            let reads =
                take_ready(from, reads, |it| (READ_DESCRIPTORS, file_bytes(&it.path, None)));
            let writes = take_ready(from, writes, |it| {
                (descriptors_of(it), file_bytes(&it.path, Some(it.info.size)))
            });
            if !reads.is_empty() || !writes.is_empty() {
                return Some(ReadyFiles { reads, writes });
            }
        }
        let starved = self.waits() && self.descriptors.used() == 0;
        self.since = starved.then(|| self.since.unwrap_or_else(Instant::now));
        None
    }

    /// The files that waited too long.
    pub fn time_out(&mut self) -> Option<TimedOut> {
        if self.since.is_none_or(|since| since.elapsed() < FD_WAIT_MAX) {
            return None;
        }
        let reads = self.reads.drain(..).map(|it| (it.file, none_free())).collect();
        let writes = self.writes.drain(..).map(|it| (it.file, none_free())).collect();
        Some(TimedOut { reads, writes })
    }
}

/// Takes files in order while descriptors and memory last, at most one batch.
fn take_ready<T>(
    (descriptors, memory): (&Arc<PoolShare>, &Arc<PoolShare>),
    files: &mut VecDeque<T>,
    wants: impl Fn(&T) -> (usize, usize),
) -> Vec<(T, FilePermits)> {
    let next = || {
        let (count, bytes) = wants(files.front()?);
        let room = FilePermits::new(descriptors.take(count)?, memory.take(bytes)?);
        files.pop_front().zip(Some(room))
    };
    std::iter::from_fn(next).take(BATCH_FILES_MAX).collect()
}

fn descriptors_of(file: &CreateFile) -> usize {
    match file.stream || file.info.size < LASTING_BYTES_MIN {
        true => WRITE_DESCRIPTORS,
        false => LASTING_DESCRIPTORS,
    }
}

fn none_free() -> Fault {
    let text = format!(
        "the server had no descriptor or no memory for it in {} s: this client has its share of \
         them, or others have the rest; run fewer copies at a time, or raise LimitNOFILE or \
         limits.memory_mb of the server",
        FD_WAIT_MAX.as_secs()
    );
    Fault::new(Code::Limit, text)
}
