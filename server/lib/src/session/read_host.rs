//! Connects the `ReadService` to the server: the client's exports, digests, holes, its memory
//! limit, and the counters of the session. Decides nothing: `exports` says which paths a client may
//! read, `limits` how much memory it may have.

use super::Services;
use super::client::Client;
use crate::exports::client_view::ClientView;
use crate::exports::open::{ExportFolder, open_source};
use crate::limits::memory_budget::{SessionBudget, out_of_budget};
use crate::observe::session_stats::SessionStats;
use std::sync::Arc;
use std::time::Duration;
use verbatim_control::{Budget, Loan};
use verbatim_files::{Identity, Source};
use verbatim_proto::message::FileId;
use verbatim_proto::{Digest, Extent, Fault, Survey, WirePath};
use verbatim_serve::host::{
    FileRecord, HostFile, LeaseRecord, ReadHost, ReadObserver, SourceFolder,
};
use verbatim_serve::{EventPort, JobLimits, Jobs, ReadEvent, ReadService};
use verbatim_telemetry::labels::{Direction, Operation, Step};

/// The files that one client may read.
pub(super) struct ReadableFiles {
    services: Arc<Services>,
    reach: Arc<ClientView>,
    memory: SessionBudget,
    view: Arc<SessionStats>,
    chunk_bytes: u32,
}

/// The `ReadService` of this client; its jobs answer to this port.
pub(super) fn serve_reads(
    client: &Client,
    limits: &Arc<JobLimits>,
    port: EventPort<ReadEvent>,
) -> ReadService<ReadableFiles> {
    let files = Arc::new(ReadableFiles {
        services: client.services.clone(),
        reach: client.reach.clone(),
        memory: SessionBudget(client.memory.clone()),
        view: client.view.clone(),
        chunk_bytes: client.chunk_bytes,
    });
    let semaphores = [&client.share.threads, &client.share.name.threads].map(Arc::clone);
    let observer = files.clone();
    let count = move |event: &ReadEvent, time| event.count(&*observer, time);
    let jobs = Jobs::new(limits.clone(), semaphores, port, count);
    let copied_windows_max = client.services.rdma.copied_windows_max;
    ReadService::new((client.id, files), client.domain.clone(), jobs, copied_windows_max)
}

impl ReadHost for ReadableFiles {
    fn open(&self, path: &WirePath) -> Result<HostFile, Fault> {
        let (export, path) = self.reach.resolve_for_data(path)?;
        let source = open_source(&export, &path)?;
        Ok(HostFile { source, folder: export, path })
    }

    fn digests(
        &self,
        source: &Source,
        extent: Extent,
        cell: u64,
        fresh: bool,
    ) -> Result<Vec<Digest>, Fault> {
        self.services.hashing.digests(source, extent, cell, fresh)
    }

    fn forget(&self, identity: &Identity) {
        self.services.hashing.forget(identity);
    }

    fn holes(&self, source: &Source, from: u64) -> Survey {
        self.services.surveys.holes(source, from)
    }

    fn lend(&self, bytes: usize) -> Option<Loan> {
        self.memory.lend(bytes)
    }

    fn no_memory(&self, what: &str) -> Fault {
        out_of_budget(what)
    }
}

impl SourceFolder for ExportFolder {
    fn open(&self, path: &WirePath) -> Result<Source, Fault> {
        open_source(self, path)
    }

    fn tells_privileged_xattrs(&self) -> bool {
        self.rules.privileged_xattrs
    }
}

impl ReadObserver for ReadableFiles {
    fn began(&self, file: FileId, path: &WirePath, bytes: u64) {
        self.view.file_began(Direction::Read, file, path, bytes, 0);
    }

    fn over(&self, file: FileId) {
        self.view.file_ended(Direction::Read, file);
    }

    fn log(&self, of: &FileRecord, answer: Result<(), &Fault>) {
        self.view.log(Direction::Read, of, answer);
    }

    fn window_returned(&self, window: &LeaseRecord) {
        self.view.window_released(window, self.chunk_bytes);
    }

    fn mismatched(&self, pieces: usize) {
        self.view.mismatched(pieces);
    }

    fn took(&self, step: Step, time: Duration) {
        self.view.took(step, time);
    }

    fn ended(&self, operation: Operation, faults: &mut dyn Iterator<Item = Option<&Fault>>) {
        self.view.ended(operation, faults);
    }
}
