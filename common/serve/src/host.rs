//! The interface between `ReadService` and the program that it runs in. The program decides which
//! paths a client may read, caches digests and holes, limits memory, and keeps counters; the
//! service does none of that.
//!
//! Jobs of many sessions call these traits concurrently, and may block, except in [`Pace`].

use std::sync::Arc;
use std::time::{Duration, Instant};
use verbatim_control::Loan;
use verbatim_files::{Identity, Source};
use verbatim_proto::message::FileId;
use verbatim_proto::{Digest, Extent, Fault, Survey, WirePath};
use verbatim_telemetry::labels::{Operation, Step};

/// Opens files for one client, and knows their digests and holes.
pub trait ReadHost: Send + Sync + 'static {
    /// Opens a file by the path that the client named, if the client may read it.
    fn open(&self, path: &WirePath) -> Result<HostFile, Fault>;

    /// The digests of the grains of a range, which lies in one window of the file. For ranges on a
    /// grid of `cell` bytes the host may hash and cache the whole window. `fresh` bypasses the
    /// cache.
    fn digests(
        &self,
        source: &Source,
        extent: Extent,
        cell: u64,
        fresh: bool,
    ) -> Result<Vec<Digest>, Fault>;

    /// Drops cached digests of a file: a client read something else.
    fn forget(&self, identity: &Identity);

    /// The holes of a file from `from` on.
    fn holes(&self, source: &Source, from: u64) -> Survey;

    /// Lends the client memory for copies of file data, until the loan is dropped.
    fn lend(&self, bytes: usize) -> Option<Loan>;

    /// The error for a client that has no memory left for this.
    fn no_memory(&self, what: &str) -> Fault;
}

/// A folder of a host, as a client may read it.
pub trait SourceFolder: Send + Sync {
    /// Opens a file by its path in the folder.
    fn open(&self, path: &WirePath) -> Result<Source, Fault>;

    /// Whether clients receive extended attributes that only root may set.
    fn tells_privileged_xattrs(&self) -> bool;
}

/// A file that a host has opened.
pub struct HostFile {
    /// The file.
    pub source: Source,
    /// The folder of the file, to reopen it after a mismatch.
    pub folder: Arc<dyn SourceFolder>,
    /// Its path in the folder.
    pub path: WirePath,
}

/// Observes the files and windows of one client: counts them, logs them, shows them.
pub trait ReadObserver: Send + Sync + 'static {
    /// A file was opened, with this path and length.
    fn began(&self, file: FileId, path: &WirePath, bytes: u64);

    /// The client has finished a file, which is about to be closed.
    fn over(&self, file: FileId);

    /// A file was closed. It failed if it changed meanwhile, or if some of it could not be read.
    fn log(&self, of: &FileRecord, answer: Result<(), &Fault>);

    /// The client released a window, and has verified its contents.
    fn window_returned(&self, window: &LeaseRecord);

    /// The client reports this many mismatched pieces, which the server could read again.
    fn mismatched(&self, pieces: usize);

    /// A job took this long, including the wait for a thread.
    fn took(&self, step: Step, time: Duration);

    /// An operation ended for these files, each with its fault, if any.
    fn ended(&self, operation: Operation, faults: &mut dyn Iterator<Item = Option<&Fault>>);
}

/// Limits the rate of a client. The task of its session calls it.
pub trait Pace {
    /// The longest window.
    fn window_bytes(&self) -> u64;

    /// Takes the bytes of the next window from the token bucket, unless the client is over its
    /// rate; returns whether it did. If not, the session retries later.
    fn may_lease(&mut self, bytes: u64) -> bool;

    /// Returns the bytes of a window that is not made now.
    fn refund(&self, bytes: u64);
}

/// A file, as its log line describes it.
pub struct FileRecord {
    /// Its path as the client names it.
    pub path: WirePath,
    /// Its length.
    pub bytes: u64,
    /// When it was opened.
    pub began: Instant,
}

/// A window that was leased to a client.
pub struct LeaseRecord {
    /// The file, if the window is of one file.
    pub file: Option<FileId>,
    /// The bytes that the client had to read, without those that it reads again.
    pub bytes: u64,
    /// When the window was made.
    pub leased: Instant,
}
