//! Copies through pipes: standard input as an upload, standard output as a download. For the
//! machines the upload is a file that grows and the download a file read in order. The threads of
//! the pipes report what they have read and written.

use crate::connection::Engine;
use crate::connection::dir_guard::WorkItem;
use crate::local_io::endpoint::{DataSink, DataSource};
use crate::local_io::pipe::{PipeEvent, PipeSender};
use crate::local_io::stdin_source::StdinSource;
use crate::local_io::stdout_sink::StdoutSink;
use crate::local_io::waker::Waker;
use crate::transfer::download::Downloads;
use crate::transfer::upload::Uploads;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::mpsc;
use verbatim_proto::message::{FileId, FileInfo};
use verbatim_proto::{Fault, WirePath};

/// A file to download to standard output.
#[derive(Clone)]
pub struct ToPipe {
    /// The source path, export first.
    pub remote: WirePath,
    /// The size, as far as it is known.
    pub size: u64,
    /// The source, as the user would name it.
    pub label: String,
    /// The pipe, which outlives sessions.
    sink: Arc<StdoutSink>,
}

impl ToPipe {
    /// A download of the file at `remote` that has not started.
    pub fn new(remote: WirePath, size: u64, label: String) -> Self {
        Self { remote, size, label, sink: Arc::default() }
    }

    /// Whether another session could resume: the written bytes have a version to compare.
    pub fn can_resume(&self) -> bool {
        self.sink.can_resume()
    }

    /// Ends the download: nothing more is written. Adds to the fault what it means for the user.
    pub fn give_up(&self, fault: Fault) -> Fault {
        self.sink.close();
        self.sink.explain(fault)
    }
}

/// Standard input, to upload.
#[derive(Clone)]
pub struct FromPipe {
    /// The target path, export first.
    pub remote: WirePath,
}

/// The most pipe events in the queue; a pipe blocks while it is full.
const PIPE_EVENTS_MAX: usize = 16 << 10;

/// The label of standard input in messages.
const STDIN_LABEL: &str = "standard input";

/// The permission bits of a file from a pipe, before the server's umask.
const PIPE_MODE: u32 = 0o666;

/// The pipes of a session, and their events.
pub(crate) struct Pipes {
    sender: PipeSender,
    events: mpsc::Receiver<(FileId, PipeEvent)>,
}

impl Pipes {
    pub fn new(waker: &Waker) -> Self {
        let (sender, events) = PipeSender::new(PIPE_EVENTS_MAX, waker);
        Self { sender, events }
    }

    pub fn add_to_pipe(
        &mut self,
        engine: &mut Engine,
        downloads: &mut Downloads,
        work_item: WorkItem,
        work: ToPipe,
    ) {
        if engine.outcomes().ledger().is_finished(work_item.item) {
            return;
        }
        let (id, now) = (engine.file(), engine.now());
        engine.outcomes().expect(work.size);
        let (stdout, earlier) = work.sink.attach(id, self.sender.clone());
        engine.read().open_ordered(id, work.remote, earlier, now);
        if let Some(fault) = stdout.failure() {
            engine.read().fail(id, fault);
        }
        downloads.begin(id, work_item, work.label, DataSink::Pipe(stdout), work.size);
    }

    pub fn add_from_pipe(
        &mut self,
        engine: &mut Engine,
        uploads: &mut Uploads,
        work_item: WorkItem,
        work: FromPipe,
    ) {
        let (id, now) = (engine.file(), engine.now());
        engine.outcomes().expect(0);
        let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let mtime_ns = age.map_or(0, |age| age.as_nanos() as i64);
        let info = FileInfo { size: 0, mode: PIPE_MODE, mtime_ns, allocated: 0, version: None };
        engine.write().create_stream(id, work.remote, info, now);
        let chunk_bytes = engine.options().connect.chunk_bytes as usize;
        let stdin = StdinSource::of_stdin(id, chunk_bytes, self.sender.clone());
        uploads.begin(id, work_item, STDIN_LABEL, DataSource::Pipe(stdin));
    }

    /// Handles the events of pipes.
    pub fn take_events(&mut self, engine: &mut Engine, downloads: &mut Downloads) {
        while let Ok((id, event)) = self.events.try_recv() {
            let now = engine.now();
            match event {
                PipeEvent::Read { extent, size } => {
                    engine.outcomes().expect_more(extent.len);
                    if let Some(size) = size {
                        engine.write().ended(id, size, now);
                    }
                    if extent.len > 0 {
                        engine.write().grew(id, extent, now);
                    }
                }
                PipeEvent::Written(offset) => engine.read().taken(offset, now),
                PipeEvent::Ended => downloads.pipe_ended(engine, id),
                PipeEvent::Failed(fault) => {
                    // All bytes were received, but the pipe could not write them.
                    if !downloads.pipe_failed(engine, id, &fault) {
                        engine.read().fail(id, fault.clone());
                        engine.write().fail(id, fault);
                    }
                }
            }
        }
    }
}
