//! Copies through pipes: a stream from standard input, a file to standard
//! output. The machines see a file that grows, or one that is read in order;
//! what the pipe does comes as events.

use crate::local_io::endpoint::{Goal, Origin};
use crate::local_io::pipe::PipeEvent;
use crate::local_io::stdin_source::Inlet;
use crate::local_io::stdout_sink::{Outlet, Tap};
use crate::session::Work;
use crate::session::dispatch::Core;
use crate::transfer::dir_metadata::Mark;
use std::sync::Arc;
use std::time::SystemTime;
use verbatim_proto::message::{FileId, FileInfo};
use verbatim_proto::{Digest, Fault, WirePath};

/// A file to write to standard output.
#[derive(Clone)]
pub struct ToPipe {
    /// Where from, export first.
    pub remote: WirePath,
    /// How long it is, as far as is known.
    pub size: u64,
    /// How the user would name it.
    pub label: String,
    /// What it goes through.
    pub(crate) outlet: Arc<Outlet>,
}

/// Standard input, to be sent.
#[derive(Clone)]
pub struct FromPipe {
    /// Where to, export first.
    pub remote: WirePath,
}

impl Work {
    /// Whether another session could go on with it: what came out of a pipe is gone.
    pub(crate) fn can_go_on(&self) -> bool {
        match self {
            Self::ToPipe(work) => work.outlet.can_go_on(),
            Self::FromPipe(_) => false,
            _ => true,
        }
    }

    /// No session will go on with it, for this reason; returns what that means to people.
    pub(crate) fn give_up(&self, fault: Fault) -> Fault {
        let Self::ToPipe(work) = self else { return fault };
        work.outlet.close();
        work.outlet.explain(fault)
    }
}

/// How people are told of standard input.
const STDIN_LABEL: &str = "standard input";

/// The permission bits of a file that comes out of a pipe, before the server's umask.
const PIPE_MODE: u32 = 0o666;

impl Core {
    pub(crate) fn add_to_pipe(&mut self, mark: Mark, work: ToPipe) {
        if self.ledger.is_over(mark.item) {
            return;
        }
        let (id, now) = (self.file(), self.now());
        self.progress.files_known += 1;
        self.progress.expect(work.size);
        let (tap, begun) = work.outlet.tap(id, self.events.clone());
        self.read.open_ordered(id, work.remote, begun, now);
        if let Some(fault) = tap.failure() {
            self.read.fail(id, fault);
        }
        self.downloads.begin(id, mark, work.label, Goal::Pipe(tap), work.size);
    }

    pub(crate) fn add_from_pipe(&mut self, mark: Mark, work: FromPipe) {
        let (id, now) = (self.file(), self.now());
        self.progress.files_known += 1;
        let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let mtime_ns = age.map_or(0, |age| age.as_nanos() as i64);
        let info = FileInfo { size: 0, mode: PIPE_MODE, mtime_ns, allocated: 0, version: None };
        self.write.create_stream(id, work.remote, info, now);
        let chunk_bytes = self.options.connect.chunk_bytes as usize;
        let inlet = Inlet::of_stdin(id, chunk_bytes, self.events.clone());
        self.uploads.begin(id, mark, STDIN_LABEL, Origin::Pipe(inlet));
    }

    pub(crate) fn pipe_event(&mut self, id: FileId, event: PipeEvent) {
        let now = self.now();
        match event {
            PipeEvent::Read { extent, size } => {
                self.progress.expect(extent.len);
                if let Some(size) = size {
                    self.write.ended(id, size, now);
                }
                if extent.len > 0 {
                    self.write.grew(id, extent, now);
                }
            }
            PipeEvent::Written(offset) => self.read.taken(offset, now),
            PipeEvent::Ended => self.pipe_ended(id),
            PipeEvent::Failed(fault) => match self.downloads.piped {
                // All of it came, and not all of it could be written.
                Some((piped, _)) if piped == id => {
                    self.downloads.piped = None;
                    self.download_failed(id, fault);
                }
                _ => {
                    self.read.fail(id, fault.clone());
                    self.write.fail(id, fault);
                }
            },
        }
    }

    /// All of a file is verified: the pipe may end when it has taken all.
    pub(crate) fn pipe_whole(&mut self, id: FileId, root: Digest, tap: &Tap, size: u64) {
        self.downloads.piped = Some((id, root));
        tap.end_at(size);
    }

    fn pipe_ended(&mut self, id: FileId) {
        let Some((_, digest)) = self.downloads.piped.take_if(|(piped, _)| *piped == id) else {
            return;
        };
        self.download_done(id, digest);
    }

    /// Whether standard input has not ended, so that the size of the work is not known.
    pub(crate) fn is_streaming(&self) -> bool {
        self.uploads.is_streaming()
    }
}
