//! A file that is open for a reading client: a job opens it, and checks its identity again when it
//! closes it. Owns the first read error of the file. Returns its share of the client's limits after
//! its descriptor is closed.

use crate::host::{FileRecord, HostFile, ReadHost, SourceFolder};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use verbatim_files::Source;
use verbatim_proto::message::{FileId, OpenFile};
use verbatim_proto::{Code, Fault, Kept, Survey, WirePath};

/// An open file's share of the client's limits; dropping it returns that.
pub type Guard = Box<dyn Send + Sync>;

/// A file that is open for a client.
pub struct OpenedFile {
    folder: Arc<dyn SourceFolder>,
    /// Its path in the folder.
    pub(crate) path: WirePath,
    /// The path as the client names it, and the time of opening.
    pub(crate) record: FileRecord,
    pub(crate) source: Source,
    /// Why some of it could not be read.
    fault: OnceLock<Fault>,
    /// Dropped after the source, whose descriptor it counts.
    _guard: Guard,
}

impl OpenedFile {
    /// Records why some of it could not be read; the first reason counts.
    pub(crate) fn failed(&self, fault: &Fault) {
        self.fault.get_or_init(|| fault.clone());
    }

    /// Why some of it could not be read.
    pub(crate) fn fault(&self) -> Option<&Fault> {
        self.fault.get()
    }

    /// Checks that the file is unchanged; returns its metadata on request.
    pub(crate) fn close(&self, describe: bool) -> Result<Kept, Fault> {
        self.source.check()?;
        let trusted = self.folder.tells_privileged_xattrs();
        let meta = describe.then(|| self.source.meta(trusted)).transpose()?;
        Ok(meta.map(Box::new))
    }

    /// Opens the file again after a mismatch: the pages of a pinned window can be stale for ever.
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

/// A file that was opened, and its first holes.
pub type Opened = (Arc<OpenedFile>, Survey);

/// Opens files, each with its share of the client's limits.
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

/// Waits until a large, recently written source is so old that a later write would change its
/// identity. That costs no more than hashing it all again at the end, and an interrupted copy can
/// be resumed.
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

/// The wait for all files of one request.
const SETTLE_MAX: Duration = Duration::from_millis(2100);

/// The interval between two checks.
const SETTLE_LOOK_EVERY: Duration = Duration::from_millis(50);
