//! What a copy reports to its observer: finished files, failures, progress, and a summary. Plain
//! values; the commands print them, tests compare them.

use std::time::Duration;
use verbatim_fabric::ports::Place;
use verbatim_proto::message::EntryKind;
use verbatim_proto::plan::Why;
use verbatim_proto::{Code, Digest, Dropped, Fault};

/// Receives the reports of a copy.
pub trait Observer: Send {
    /// Whether the observer wants a report for every file and change; asked once, when a copy
    /// begins. If not, the copy does not build these reports.
    fn wants_per_file_events(&self) -> bool {
        true
    }
    /// A file is verified and has its final name.
    fn file_done(&mut self, _file: &FileDone) {}
    /// A file, folder or link could not be copied.
    fn failed(&mut self, _failure: &Failure) {}
    /// The policy of the copy left a file or link alone.
    fn skipped(&mut self, _skipped: &Skipped) {}
    /// A dry run would copy this file, folder or link.
    fn planned(&mut self, _planned: &Planned) {}
    /// A mirror changes an entry of its target; a dry run would.
    fn altered(&mut self, _altered: &Altered) {}
    /// The progress of the copy; called a few times a second.
    fn progress(&mut self, _progress: &Progress) {}
    /// The connection to the server was lost; the copy retries after a pause.
    fn retrying(&mut self, _retry: &Retry) {}
    /// The server was reached again, and the copy continues.
    fn reconnected(&mut self) {}
    /// The status of a mirror that follows its source has changed.
    fn followed(&mut self, _status: &crate::model::follow_status::FollowStatus) {}
}

/// Ignores all reports.
impl Observer for () {}

/// A copied file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDone {
    /// The source, as the user would name it.
    pub path: String,
    /// The path on this machine, be it source or target.
    pub local: String,
    /// The size of the file.
    pub bytes: u64,
    /// Its digest, as b3sum prints it.
    pub digest: Digest,
}

/// An entry that could not be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The source, as the user would name it.
    pub path: String,
    /// The server.
    pub peer: String,
    /// The cause.
    pub fault: Fault,
}

/// An entry that the policy of the copy left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The source, as the user would name it.
    pub path: String,
    /// The reason.
    pub reason: SkipReason,
}

/// Why the policy of the copy left an entry alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// The target exists, and the policy replaces none.
    Exists,
    /// The target is as new as the source, or newer.
    AsNew,
    /// The entry is a fifo, socket or device in a tree.
    Special,
}

impl std::fmt::Display for SkipReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Exists => "the target is there",
            Self::AsNew => "the target is as new",
            Self::Special => "it is not a regular file, folder or link",
        })
    }
}

/// An entry that a dry run would copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The source, as the user would name it.
    pub path: String,
    /// The target path.
    pub target: String,
    /// The kind of the entry.
    pub kind: EntryKind,
    /// The size of a file.
    pub bytes: u64,
}

/// A change that a mirror makes at its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Altered {
    /// The action: folder, copy, link, symlink, metadata or delete.
    pub action: &'static str,
    /// The path below the target; `.` is the target itself.
    pub path: String,
    /// The differences that call for it.
    pub why: Why,
    /// The size of a file.
    pub bytes: u64,
}

impl Failure {
    /// The next step for the user.
    pub fn hint(&self) -> Option<&'static str> {
        hint_of(self.fault.code)
    }
}

/// The transport of a copy that moved no data.
pub const NO_TRANSPORT: &str = "none";

/// Returns the hint for a fault of this code, where the user can do something about it.
pub fn hint_of(code: Code) -> Option<&'static str> {
    Some(match code {
        Code::ReadOnly => {
            "mount it rw, or export it with :rw on the server, if it is yours to write"
        }
        Code::NoSpace => "make room at the target and run the same command again",
        Code::Changed => "copy it when nobody writes to it, or copy a snapshot",
        Code::Mismatch => {
            "some memory, disk or cable between the two alters data; run it again, and compare \
             b3sum of the file on both sides"
        }
        Code::LinkLost | Code::TimedOut | Code::Stopping => "run the same command again",
        Code::Denied => "the user of the server, or you on this machine, may not do this",
        Code::IsFolder => {
            "copy folders with -r; a file never replaces a folder: move the folder, or name another target"
        }
        Code::Exists => "name another target",
        Code::Special => {
            "read it with cat, or a folder with tar, and copy the output: \
             cat FILE | rdma-cp - HOST:/EXPORT/NAME"
        }
        Code::BadPath => {
            "names must fit both sides, and links that lead out of an export are not followed"
        }
        _ => return None,
    })
}

/// The progress of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Files that are finished.
    pub files: u64,
    /// Files found so far, with the finished ones.
    pub files_known: u64,
    /// Bytes that are verified and stored in their targets.
    pub bytes: u64,
    /// Bytes found so far, with the finished ones.
    pub bytes_known: u64,
    /// Whether a scan may still find more files.
    pub searching: bool,
    /// Links that are up.
    pub links: usize,
    /// The time since the copy began.
    pub elapsed: Duration,
    /// Whether this side or the server hashes zeros of holes. No data moves meanwhile, and it takes
    /// as long as hashing data.
    pub hashing_holes: bool,
    /// The silence of the server, while it owes an answer.
    pub quiet: Option<ServerSilence>,
}

impl Progress {
    /// Counts bytes that are still to move. The sizes come from the other side.
    pub(crate) fn expect(&mut self, bytes: u64) {
        self.bytes_known = self.bytes_known.saturating_add(bytes);
    }
}

/// A server that owes an answer and is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerSilence {
    /// How long the server has been silent.
    pub so_far: Duration,
    /// After how long the copy gives up the server.
    pub at_most: Duration,
}

/// A lost connection that the copy retries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The server.
    pub peer: String,
    /// Why the connection was lost, or why the last retry failed.
    pub cause: String,
    /// The number of the next try in a row.
    pub attempt: u32,
    /// The pause before it.
    pub pause: Duration,
    /// How long the copy will still retry without progress.
    pub left: Duration,
}

/// An RDMA port that was chosen for a copy, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The port.
    pub place: Place,
    /// Why the server refuses data over this port, if it does.
    pub refused: Option<String>,
}

/// Requests to RDMA devices, posted and completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdmaCounters {
    /// One-sided reads.
    pub reads: u64,
    /// One-sided writes.
    pub writes: u64,
    /// Reads that completed successfully.
    pub reads_done: u64,
    /// Writes that completed successfully.
    pub writes_done: u64,
}

/// The result of a copy, with its totals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Files copied.
    pub files: u64,
    /// Files, folders and links that failed.
    pub failed: u64,
    /// Files and links that the policy of the copy left alone.
    pub skipped: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// Bytes of these from partial files of an earlier run.
    pub resumed_bytes: u64,
    /// Bytes that either side hashed again to resume: of partial files that may not be on disk, and
    /// of upload sources without stored digests.
    pub rehashed_bytes: u64,
    /// Bytes that links carried, with retransmitted ones.
    pub moved_bytes: u64,
    /// Bytes of these that a device wrote directly into files of the server.
    pub in_place_bytes: u64,
    /// Bytes of holes, which no link carried.
    pub hole_bytes: u64,
    /// Changes that a mirror made, or a dry run would make.
    pub changes: u64,
    /// Deletions among these changes.
    pub deletes: u64,
    /// Whether a file at the target had other content.
    pub differs: bool,
    /// Metadata that the target could not store.
    pub dropped: Dropped,
    /// How long the copy took.
    pub elapsed: Duration,
    /// The id of the last session in the server's log.
    pub request: String,
    /// The transport of the data.
    pub transport: String,
    /// Why the transport was not RDMA, if it was not.
    pub reason: Option<String>,
    /// The RDMA ports that were chosen.
    pub ports: Vec<Port>,
    /// The requests to RDMA devices of this machine.
    pub rdma: RdmaCounters,
    /// The most bytes of huge pages that the buffers occupied.
    pub huge_page_bytes: u64,
    /// Where most of the time went.
    pub limited_by: &'static str,
    /// Chunks that failed verification and were transferred again.
    pub mismatches: u64,
    /// Links that were lost and reconnected.
    pub links_lost: u64,
    /// How often the copy lost the server and reached it again.
    pub reconnects: u64,
    /// Whether a mismatch remained after all retries.
    pub mismatch: bool,
    /// The fault that ended the session before its work was done.
    pub broken: Option<Fault>,
}

impl Summary {
    /// Bytes per second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}
