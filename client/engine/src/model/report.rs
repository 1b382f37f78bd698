//! What a copy tells whoever started it: files that are done, files that
//! failed, progress on the way, and a summary at the end. Plain values; the
//! binary prints them, tests compare them.

use std::time::Duration;
use verbatim_fabric::ports::Place;
use verbatim_proto::message::EntryKind;
use verbatim_proto::plan::Why;
use verbatim_proto::{Code, Digest, Dropped, Fault};

/// Takes what a copy tells.
pub trait Observer: Send {
    /// Whether it wants to hear of every single file and change; asked once, when a copy begins.
    /// Where it does not, nobody makes up what would be told.
    fn wants_per_file_events(&self) -> bool {
        true
    }
    /// A file is under its final name, whole and verified.
    fn file_done(&mut self, _file: &FileDone) {}
    /// A file, folder or link was not copied.
    fn failed(&mut self, _failure: &Failure) {}
    /// A file or link was left alone, as the rules of the copy say.
    fn skipped(&mut self, _skipped: &Skipped) {}
    /// A file, folder or link would be copied, were this not a dry run.
    fn planned(&mut self, _planned: &Planned) {}
    /// A mirror changes something at its target, or would, were this not a dry run.
    fn altered(&mut self, _altered: &Altered) {}
    /// How far it is; called a few times a second.
    fn progress(&mut self, _progress: &Progress) {}
    /// The server was lost, and is tried again after a pause.
    fn retrying(&mut self, _retry: &Retry) {}
    /// The server is there again, and the copy goes on.
    fn reconnected(&mut self) {}
    /// How a mirror that follows its source is, whenever that changes.
    fn followed(&mut self, _status: &crate::model::follow_status::FollowStatus) {}
}

/// Takes nothing in particular.
impl Observer for () {}

/// A file that was copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDone {
    /// What was copied, as the user would name it.
    pub path: String,
    /// Where it is on this machine, whichever side that is.
    pub local: String,
    /// How long it is.
    pub bytes: u64,
    /// Its digest, as b3sum prints it.
    pub digest: Digest,
}

/// Something that was not copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What, as the user would name it.
    pub path: String,
    /// The server.
    pub peer: String,
    /// Why.
    pub fault: Fault,
}

/// Something that was left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// What, as the user would name it.
    pub path: String,
    /// Why.
    pub reason: SkipReason,
}

/// Why something was left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// The target is there, and nothing is to be replaced.
    Exists,
    /// The target is as new as the source, or newer.
    AsNew,
    /// It is a fifo, socket or device in a tree.
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

/// Something that would be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// What, as the user would name it.
    pub path: String,
    /// Where it would go.
    pub target: String,
    /// What it is.
    pub kind: EntryKind,
    /// How long it is.
    pub bytes: u64,
}

/// Something that a mirror changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Altered {
    /// What is done: folder, copy, link, symlink, metadata or delete.
    pub action: &'static str,
    /// Where, below the target; `.` is the target itself.
    pub path: String,
    /// Why.
    pub why: Why,
    /// How long a file is.
    pub bytes: u64,
}

impl Failure {
    /// The next step for whoever reads it.
    pub fn hint(&self) -> Option<&'static str> {
        hint_of(self.fault.code)
    }
}

/// The transport of a copy that moved nothing.
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
            "copy folders with -r; one in the place of a file stays: move it, or name another target"
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

/// How far a copy is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Files done.
    pub files: u64,
    /// Files known so far, done ones included.
    pub files_known: u64,
    /// Bytes verified and in their targets.
    pub bytes: u64,
    /// Bytes known so far, done ones included.
    pub bytes_known: u64,
    /// Whether more files may still be found.
    pub searching: bool,
    /// Links that carry data.
    pub links: usize,
    /// Since the copy began.
    pub elapsed: Duration,
    /// Whether zeros of holes are hashed, on this side or by the server: no byte moves for them,
    /// and they take as long as hashing data.
    pub hashing_holes: bool,
    /// Set while the server owes an answer.
    pub quiet: Option<ServerSilence>,
}

impl Progress {
    /// Counts in what is to come. The sizes are what the other side says.
    pub(crate) fn expect(&mut self, bytes: u64) {
        self.bytes_known = self.bytes_known.saturating_add(bytes);
    }
}

/// A server that has not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerSilence {
    /// For how long nothing was heard of it.
    pub so_far: Duration,
    /// For how long that may be, before it is given up.
    pub at_most: Duration,
}

/// A server that was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The server.
    pub peer: String,
    /// How it was lost, or why it could not be reached again.
    pub cause: String,
    /// Which try in a row comes next.
    pub attempt: u32,
    /// How long until then.
    pub pause: Duration,
    /// How much longer it is tried, unless there is progress.
    pub left: Duration,
}

/// An RDMA port that was chosen to carry a copy, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Which.
    pub place: Place,
    /// Why the server did not let data move to it, where it did not.
    pub refused: Option<String>,
}

/// Requests to an RDMA device: those posted, and those it has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdmaCounters {
    /// One-sided reads.
    pub reads: u64,
    /// One-sided writes.
    pub writes: u64,
    /// Reads that completed well.
    pub reads_done: u64,
    /// Writes that completed well.
    pub writes_done: u64,
}

/// What a copy took and what held it back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Files copied.
    pub files: u64,
    /// Files, folders and links that were not.
    pub failed: u64,
    /// Files and links that were left alone, as the rules of the copy say.
    pub skipped: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// Bytes of these that an earlier run had copied.
    pub resumed_bytes: u64,
    /// Bytes that either side hashed again to go on with a copy: of a partial file that was not
    /// known to be on disk, and of the source of an upload whose digests were not stored.
    pub rehashed_bytes: u64,
    /// Bytes that links carried, those that were moved again included.
    pub moved_bytes: u64,
    /// Bytes of these that the device wrote straight into files of the server.
    pub in_place_bytes: u64,
    /// Bytes of these that were holes, and not moved.
    pub hole_bytes: u64,
    /// What a mirror changed, or would have.
    pub changes: u64,
    /// Of these, what was deleted.
    pub deletes: u64,
    /// Whether a file was there with another content.
    pub differs: bool,
    /// What of the metadata was not kept.
    pub dropped: Dropped,
    /// How long it took.
    pub elapsed: Duration,
    /// What the server's log calls the last session of the copy.
    pub request: String,
    /// What carried the data.
    pub transport: String,
    /// Why it was not RDMA, where it was not.
    pub reason: Option<String>,
    /// The RDMA ports that were chosen.
    pub ports: Vec<Port>,
    /// What the RDMA device of this side was asked to do.
    pub rdma: RdmaCounters,
    /// The most bytes of huge pages that its buffers had.
    pub huge_page_bytes: u64,
    /// What most of the time went into.
    pub limited_by: &'static str,
    /// Digests that did not match and were fetched or sent again.
    pub mismatches: u64,
    /// Links that were lost and made anew.
    pub links_lost: u64,
    /// How often the server was lost and reached again.
    pub reconnects: u64,
    /// Whether a mismatch survived all retries.
    pub mismatch: bool,
    /// Whether the session ended before its work was done.
    pub broken: Option<Fault>,
}

impl Summary {
    /// Bytes a second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}
