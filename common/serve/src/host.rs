//! What a service of reads asks of the program that it runs in, and what it reports to it. The
//! program decides which paths a client may read, knows digests and holes, counts memory, and
//! shows people what moves; the service knows none of that.
//!
//! All but [`Pace`] is called by the jobs of many sessions at a time, and may block.

use std::sync::Arc;
use std::time::{Duration, Instant};
use verbatim_control::Loan;
use verbatim_files::{Identity, Source};
use verbatim_proto::message::FileId;
use verbatim_proto::{Digest, Extent, Fault, Survey, WirePath};
use verbatim_telemetry::labels::{Operation, Step};

/// Opens files for one client, and knows what is in them.
pub trait ReadHost: Send + Sync + 'static {
    /// Opens a file by the path that the client named, if the client may read it.
    fn open(&self, path: &WirePath) -> Result<HostFile, Fault>;

    /// The digests of the grains of a range, which lies in one window of the file. Ranges that
    /// are whole cells of a grid of `cell` bytes may make known all of their window. `fresh`
    /// trusts nothing that was known before.
    fn digests(
        &self,
        source: &Source,
        extent: Extent,
        cell: u64,
        fresh: bool,
    ) -> Result<Vec<Digest>, Fault>;

    /// Forgets what is known of a file: a client read something else.
    fn forget(&self, identity: &Identity);

    /// The holes of a file from `from` on.
    fn holes(&self, source: &Source, from: u64) -> Survey;

    /// Lends the client memory for a copy of what is in files, until the loan is dropped.
    fn lend(&self, bytes: usize) -> Option<Loan>;

    /// The error for a client that is lent no memory for this.
    fn no_memory(&self, what: &str) -> Fault;
}

/// A folder of a host, as a client may read it.
pub trait SourceFolder: Send + Sync {
    /// Opens a file by its path in the folder.
    fn open(&self, path: &WirePath) -> Result<Source, Fault>;

    /// Whether clients are told the extended attributes that only root may set.
    fn tells_privileged_xattrs(&self) -> bool;
}

/// A file that a host has opened.
pub struct HostFile {
    /// The file.
    pub source: Source,
    /// The folder that it lies in, to open it anew after a mismatch.
    pub folder: Arc<dyn SourceFolder>,
    /// Its path in the folder.
    pub path: WirePath,
}

/// Hears what becomes of the files and windows of one client: counts them, logs them, shows them.
pub trait ReadObserver: Send + Sync + 'static {
    /// A file is open, of this path and length.
    fn began(&self, file: FileId, path: &WirePath, bytes: u64);

    /// The client is done with a file, which is about to be closed.
    fn over(&self, file: FileId);

    /// A file was closed. It failed if it changed while it was read, or some of it could not be
    /// read.
    fn log(&self, of: &FileRecord, answer: Result<(), &Fault>);

    /// The client gave a window back, and has verified what was in it.
    fn window_returned(&self, window: &LeaseRecord);

    /// The client says that so many pieces did not match, and they could be read here.
    fn mismatched(&self, pieces: usize);

    /// A job took this long, from when it was asked for.
    fn took(&self, step: Step, time: Duration);

    /// An operation is over for files, each with the fault that it failed of.
    fn ended(&self, operation: Operation, faults: &mut dyn Iterator<Item = Option<&Fault>>);
}

/// Holds a client back that may move only so much a second. Asked by the task of its session.
pub trait Pace {
    /// The longest window.
    fn window_bytes(&self) -> u64;

    /// Counts the bytes of a window that is about to be made, unless the client owes; says
    /// whether it may be made now. If not, the session says later when it may.
    fn may_lease(&mut self, bytes: u64) -> bool;

    /// A window whose bytes were counted is not made now.
    fn refund(&self, bytes: u64);
}

/// A file, as its line in the log names it.
pub struct FileRecord {
    /// Its path as the client names it.
    pub path: WirePath,
    /// Its length.
    pub bytes: u64,
    /// Since when it is open.
    pub began: Instant,
}

/// A window that a client had.
pub struct LeaseRecord {
    /// The file, if it is of one alone.
    pub file: Option<FileId>,
    /// The bytes that the client was to read, without those that it reads again.
    pub bytes: u64,
    /// When the window was made.
    pub leased: Instant,
}
