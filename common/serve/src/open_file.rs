//! A file that is open for a client that reads it: opened by a job, checked again when it is
//! closed. Owns why some of it could not be sent. What the file takes of the limits of its client
//! is given back behind its descriptor.

use crate::host::{FileRecord, HostFile, ReadHost, SourceFolder};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use verbatim_files::Source;
use verbatim_proto::message::{FileId, OpenFile};
use verbatim_proto::{Code, Fault, Kept, Survey, WirePath};

/// What an open file takes of the limits of its client; dropping it gives that back.
pub type Guard = Box<dyn Send + Sync>;

/// A file that is open for a client.
pub struct OpenedFile {
    folder: Arc<dyn SourceFolder>,
    /// Its path in the folder.
    pub(crate) path: WirePath,
    /// The path as the client names it, and since when it is open.
    pub(crate) record: FileRecord,
    pub(crate) source: Source,
    /// Why some of it could not be sent.
    fault: OnceLock<Fault>,
    /// Behind the source, which is closed before it is given back.
    _guard: Guard,
}

impl OpenedFile {
    /// Notes why some of it could not be sent; the first reason counts.
    pub(crate) fn failed(&self, fault: &Fault) {
        self.fault.get_or_init(|| fault.clone());
    }

    /// Why some of it could not be sent.
    pub(crate) fn fault(&self) -> Option<&Fault> {
        self.fault.get()
    }

    /// Says whether it is still what was opened; its metadata, where it is asked for.
    pub(crate) fn close(&self, describe: bool) -> Result<Kept, Fault> {
        self.source.check()?;
        let trusted = self.folder.tells_privileged_xattrs();
        let meta = describe.then(|| self.source.meta(trusted)).transpose()?;
        Ok(meta.map(Box::new))
    }

    /// Opens the file anew after a mismatch: a pinned window can be stale for ever.
    pub(crate) fn reopen(&self, host: &impl ReadHost) -> Result<Source, Fault> {
        host.forget(self.source.identity());
        let anew = self.folder.open(&self.path)?;
        if anew.identity() != self.source.identity() {
            let text = format!("{} changed while it was read", self.path);
            return Err(Fault::new(Code::Changed, text));
        }
        Ok(anew)
    }
}

/// A file that was opened, and the holes it begins with.
pub type Opened = (Arc<OpenedFile>, Survey);

/// Opens files, each with what it takes of the limits of its client.
pub(crate) fn open_all(
    host: &impl ReadHost,
    files: Vec<(OpenFile, Guard)>,
) -> Vec<(FileId, Result<Opened, Fault>)> {
    let until = Instant::now() + SETTLE_MAX;
    let open = |path: &WirePath| {
        let HostFile { source, folder, path } = host.open(path)?;
        let source = settle(source, until, || folder.open(&path))?;
        let survey = host.holes(&source, 0);
        Ok((folder, path, source, survey))
    };
    let open_one = |(request, guard): (OpenFile, Guard)| {
        let opened = open(&request.path).map(|(folder, path, source, survey)| {
            let (bytes, began) = (source.identity().size, Instant::now());
            let record = FileRecord { path: request.path, bytes, began };
            let fault = OnceLock::new();
            (Arc::new(OpenedFile { folder, path, record, source, fault, _guard: guard }), survey)
        });
        (request.file, opened)
    };
    files.into_iter().map(open_one).collect()
}

/// Waits for a large source that was just written, until a later write could not hide. It costs
/// no more than hashing all of it again at the end, and a copy that is cut short can go on.
fn settle(
    source: Source,
    until: Instant,
    again: impl FnOnce() -> Result<Source, Fault>,
) -> Result<Source, Fault> {
    if !source.is_racy() || source.identity().size < SETTLE_BYTES_MIN {
        return Ok(source);
    }
    while !source.is_settled() && Instant::now() < until {
        std::thread::sleep(SETTLE_LOOK_EVERY);
    }
    again()
}

/// Sources from this size on are waited for: hashing them takes about as long.
const SETTLE_BYTES_MIN: u64 = 8 << 30;

/// How long all files of one request wait for that.
const SETTLE_MAX: Duration = Duration::from_millis(2100);

/// How often it is looked whether they still must.
const SETTLE_LOOK_EVERY: Duration = Duration::from_millis(50);
