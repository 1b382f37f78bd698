//! Downloads: opens files within the bounds, sends chunks with their targets to workers, and
//! commits complete files in batches.

use crate::connection::Engine;
use crate::connection::dir_guard::WorkItem;
use crate::connection::fd_budget::FdReservation;
use crate::connection::jobs::Jobs;
use crate::connection::largest_first::LargestFirst;
use crate::connection::receive::ChunkTarget;
use crate::connection::worker::Command;
use crate::local_io::delta_source::Basis;
use crate::local_io::download_file::DownloadFile;
use crate::local_io::endpoint::DataSink;
use crate::local_io::waker::Waker;
use crate::model::report::FileDone;
use crate::transfer::id_translation::IdTranslation;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use verbatim_files::{Folder, Over, Rules, Target};
use verbatim_proto::message::{FileId, Piece};
use verbatim_proto::numbered::FileMap;
use verbatim_proto::read::{ClientEffect, Fetch, Have, Zero};
use verbatim_proto::units::BATCH_FILES_MAX;
use verbatim_proto::{Class, Code, Digest, Dropped, Fault, Kept, WirePath};

/// Commits in flight: one flushes while the next one gathers.
const COMMITS_MAX: usize = 2;

/// A file to download.
#[derive(Clone)]
pub struct Download {
    /// The source path, export first.
    pub remote: WirePath,
    /// The folder that the target must not leave.
    pub folder: Arc<Folder>,
    /// The target path below that folder.
    pub local: WirePath,
    /// The size, as far as it is known.
    pub size: u64,
    /// The modification time, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// The source, as the user would name it.
    pub label: String,
    /// Local files that may share chunks with it.
    pub basis: Option<Basis>,
}

/// The downloads of a session.
pub(crate) struct Downloads {
    queue: LargestFirst<(WorkItem, Download)>,
    /// Downloads whose partial file a job looks for, with their source paths.
    resuming: HashMap<FileId, (WirePath, File)>,
    files: FileMap<File>,
    complete: Vec<CompleteFile>,
    commits: usize,
    /// A verified file that its pipe has not written completely.
    in_pipe: Option<(FileId, Digest)>,
    jobs: Jobs<Answer>,
}

/// The answers of download jobs.
enum Answer {
    /// The partial file of an earlier run, if there is one.
    Resumed(FileId, Option<Box<Have>>),
    Zeroed(Zero, Result<Vec<Digest>, Fault>),
    Committed(CommitResults),
}

struct File {
    work_item: WorkItem,
    label: String,
    sink: DataSink,
    size: u64,
    _fds: Option<FdReservation>,
}

/// A file whose bytes are all verified.
struct CompleteFile {
    id: FileId,
    root: Digest,
    local_file: Arc<DownloadFile>,
    meta: Kept,
}

/// The outcomes of a batch of commits, with the metadata that could not be stored.
type CommitResults = (Vec<(FileId, Digest, Result<(), Fault>)>, Dropped);

impl Downloads {
    pub fn new(waker: &Waker) -> Self {
        Self {
            queue: LargestFirst::default(),
            resuming: HashMap::new(),
            files: FileMap::default(),
            complete: Vec::new(),
            commits: 0,
            in_pipe: None,
            jobs: Jobs::new(waker),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.files.is_empty() && self.resuming.is_empty()
    }

    /// Whether complete files are being committed, or a partial file is being hashed. A session
    /// that ends waits for both: the next one would do them again.
    pub fn is_committing(&self) -> bool {
        self.commits > 0 || !self.complete.is_empty() || self.may_finish_slowly()
    }

    /// Whether that may take longer than a user waits for an interrupted copy.
    pub fn may_finish_slowly(&self) -> bool {
        self.in_pipe.is_some() || !self.resuming.is_empty()
    }

    /// Stops waiting for pipes and for partial files that are being hashed.
    pub fn abandon_slow_finishers(&mut self) {
        self.in_pipe = None;
        let left = self.resuming.drain().map(|(id, (_, file))| (id, file));
        self.files.extend(left);
    }

    /// Counts a pipe as started.
    pub fn begin(
        &mut self,
        id: FileId,
        work_item: WorkItem,
        label: String,
        sink: DataSink,
        size: u64,
    ) {
        self.files.insert(id, File { work_item, label, sink, size, _fds: None });
    }

    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    pub fn add(&mut self, engine: &mut Engine, work_item: WorkItem, download: Download) {
        engine.outcomes().expect(download.size);
        self.queue.push(download.size, (work_item, download));
    }

    pub fn pump(&mut self, engine: &mut Engine) {
        // Nobody would receive the answers of a session that has ended.
        if engine.session_fault().is_some() {
            return;
        }
        // A file holds descriptors until it is committed, so a slow disk slows down opening.
        while engine.read().room() > self.resuming.len() && engine.fds().has_room() {
            let Some((work_item, download)) = self.queue.pop() else { return };
            let id = engine.file();
            let Download { remote, folder, local, .. } = download;
            let local_file = DownloadFile::new(folder, local, engine.server(), remote.clone());
            let has_basis = download.basis.is_some();
            if let Some(basis) = &download.basis {
                local_file.set_basis(basis);
            }
            let fds = engine.fds().reserve(download.size, has_basis);
            let (label, sink, size) =
                (download.label, DataSink::File(local_file.clone()), download.size);
            let file = File { work_item, label, sink, size, _fds: Some(fds) };
            if DownloadFile::may_resume(size) {
                self.resuming.insert(id, (remote, file));
                // After a reboot the job hashes the whole partial file, which takes long.
                let stats = engine.stats().clone();
                self.jobs.run(move || {
                    Answer::Resumed(id, local_file.resume(&stats.rehashed).map(Box::new))
                });
            } else {
                self.open(engine, id, remote, file, None);
            }
        }
    }

    /// Opens a file, after a job has looked for its partial file.
    fn resumed(&mut self, engine: &mut Engine, id: FileId, have: Option<Have>) {
        let Some((remote, file)) = self.resuming.remove(&id) else { return };
        self.open(engine, id, remote, file, have);
    }

    fn open(
        &mut self,
        engine: &mut Engine,
        id: FileId,
        remote: WirePath,
        file: File,
        have: Option<Have>,
    ) {
        let now = engine.now();
        engine.read().open(id, remote, have, now);
        self.files.insert(id, file);
    }

    /// Carries out an effect of the machine that reads.
    pub fn effect(&mut self, engine: &mut Engine, ids: &IdTranslation, effect: ClientEffect) {
        match effect {
            ClientEffect::Opened { file: id, mut info, had } => {
                if engine.options().preserve {
                    // Private until the file has all of its metadata.
                    info.mode &= 0o700;
                }
                let file = self.files.get_mut(&id).expect("opened files are known");
                engine.outcomes().replace_expected(file.size, info.size);
                file.size = info.size;
                if let Err(fault) = file.sink.set_info(info) {
                    // The partial file of the earlier run is still good.
                    file.sink.suspend();
                    engine.read().fail(id, fault);
                } else if had > 0 {
                    let (item, label) = (file.work_item.item, file.label.clone());
                    engine.outcomes().note_resumed(item, &label, had);
                }
            }
            ClientEffect::Fetch(fetch) => self.fetch(engine, fetch),
            ClientEffect::Zero(zero) => self.zero(engine, zero),
            ClientEffect::Restart { file } => self.files[&file].sink.discard(),
            ClientEffect::Finished { file: id, root, meta } => {
                let root = root.expect("whole files have one");
                let meta = ids.translated(meta);
                let File { sink, size, .. } = &self.files[&id];
                match (sink.clone(), *size) {
                    (DataSink::File(local_file), _) => {
                        self.complete.push(CompleteFile { id, root, local_file, meta });
                    }
                    // The pipe may end once it has written everything.
                    (DataSink::Pipe(stdout), size) => {
                        self.in_pipe = Some((id, root));
                        stdout.end_at(size);
                    }
                    // Ranges for a mount are not downloads.
                    (DataSink::Part(_), _) => {}
                }
            }
            ClientEffect::Failed { file, fault } => self.failed(engine, file, fault),
            // The engine has handled these.
            ClientEffect::Send(_) | ClientEffect::DropLink { .. } | ClientEffect::Broken(_) => {}
        }
    }

    fn fetch(&self, engine: &mut Engine, fetch: Fetch) {
        let target = |piece: &Piece| {
            let file = &self.files[&piece.file];
            ChunkTarget { sink: file.sink.clone(), size: file.size }
        };
        let targets = fetch.chunk.pieces.iter().map(target).collect();
        let (link, bytes) = (fetch.link, u64::from(fetch.chunk.bytes));
        engine.send_paced(link, bytes, Command::Fetch(fetch, targets));
    }

    fn zero(&self, engine: &mut Engine, zero: Zero) {
        let file = &self.files[&zero.file];
        let (sink, size, stats) = (file.sink.clone(), file.size, engine.stats().clone());
        self.jobs.run(move || {
            let begin = Instant::now();
            // Drop the target before the answer: a restart removes it.
            let answer = sink.zero(zero.extent, size);
            if answer.is_ok() {
                stats.zeroed(zero.extent.len, begin.elapsed());
            }
            Answer::Zeroed(zero, answer)
        });
    }

    fn failed(&mut self, engine: &mut Engine, id: FileId, fault: Fault) {
        if let Some(file) = self.files.remove(&id) {
            // Verified bytes stay in the partial file, unless the source changed.
            let lasts = !matches!(file.sink, DataSink::Pipe(_)) && fault.code != Code::Changed;
            match fault.class() {
                Class::Retry if lasts => file.sink.suspend(),
                _ => file.sink.discard(),
            }
            engine.outcomes().failed(file.work_item.item, file.label, file.sink.explain(fault));
        }
    }

    /// Starts jobs that commit complete files in batches: flush, then rename.
    pub fn commit_complete_files(&mut self, engine: &mut Engine) {
        while !self.complete.is_empty() && self.commits < COMMITS_MAX {
            let count = self.complete.len().min(BATCH_FILES_MAX);
            let batch: Vec<_> = self.complete.drain(..count).collect();
            self.commits += 1;
            let over = engine.policy().overwrite();
            self.jobs.run(move || Answer::Committed(commit(over, batch)));
        }
    }

    fn committed(&mut self, engine: &mut Engine, (answers, dropped): CommitResults) {
        self.commits -= 1;
        engine.outcomes().ledger().summary.dropped += dropped;
        for (id, root, answer) in answers {
            match answer {
                Err(fault) if fault.code == Code::Exists => {
                    if let Some(file) = self.files.remove(&id) {
                        file.sink.discard();
                        engine.outcomes().commit_refused(file.work_item.item, file.label, fault);
                    }
                }
                Err(fault) => self.failed(engine, id, fault),
                Ok(()) => self.done(engine, id, root),
            }
        }
    }

    /// Counts a committed file.
    fn done(&mut self, engine: &mut Engine, id: FileId, digest: Digest) {
        let Some(file) = self.files.remove(&id) else { return };
        let File { work_item, label: path, sink, size: bytes, .. } = file;
        engine.outcomes().done(work_item.item, bytes, || FileDone {
            path,
            local: sink.shown(),
            bytes,
            digest,
        });
    }

    /// Handles the answers of jobs.
    pub fn take_answers(&mut self, engine: &mut Engine) {
        while let Some(answer) = self.jobs.next_answer() {
            match answer {
                Answer::Resumed(id, have) => self.resumed(engine, id, have.map(|have| *have)),
                Answer::Zeroed(zero, answer) => {
                    let now = engine.now();
                    engine.read().zeroed(zero, answer, now);
                }
                Answer::Committed(results) => self.committed(engine, results),
            }
        }
    }

    /// Handles the answers of jobs in a session that has ended, and commits complete files. Returns
    /// whether a partial file was found, which counts as progress.
    pub fn take_last_answers(&mut self, engine: &mut Engine) -> bool {
        let mut resumed = false;
        while let Some(answer) = self.jobs.next_answer() {
            match answer {
                Answer::Resumed(id, _) => {
                    resumed = true;
                    let file = self.resuming.remove(&id).map(|(_, file)| (id, file));
                    self.files.extend(file);
                }
                Answer::Committed(results) => self.committed(engine, results),
                Answer::Zeroed(..) => {}
            }
        }
        resumed
    }

    /// Notes that a pipe has written its whole file.
    pub fn pipe_ended(&mut self, engine: &mut Engine, id: FileId) {
        if let Some((_, digest)) = self.in_pipe.take_if(|(in_pipe, _)| *in_pipe == id) {
            self.done(engine, id, digest);
        }
    }

    /// Fails the download of a broken pipe. Returns whether its whole file had been received.
    pub fn pipe_failed(&mut self, engine: &mut Engine, id: FileId, fault: &Fault) -> bool {
        let came = self.in_pipe.take_if(|(in_pipe, _)| *in_pipe == id).is_some();
        if came {
            self.failed(engine, id, fault.clone());
        }
        came
    }

    /// Notes unfinished downloads in the ledger. Their partial files stay for the next session.
    pub fn suspend(&mut self, engine: &mut Engine) {
        let ledger = engine.outcomes().ledger();
        let resuming = self.resuming.drain().map(|(_, (_, file))| file);
        for file in std::mem::take(&mut self.files).into_values().chain(resuming) {
            file.sink.suspend();
            ledger.note_unfinished(file.work_item.item, file.label, true);
        }
        for (work_item, download) in std::mem::take(&mut self.queue).into_items() {
            ledger.note_unfinished(work_item.item, download.label, false);
        }
        (self.complete, self.in_pipe) = (Vec::new(), None);
    }
}

fn commit(over: Over, batch: Vec<CompleteFile>) -> CommitResults {
    let rules = Rules::of_user();
    let mut dropped = Dropped::default();
    let mut place = |complete: &CompleteFile| {
        // An empty file has no first chunk whose worker would have created the target.
        let target = complete.local_file.target()?;
        if let Some(meta) = &complete.meta {
            dropped += target.describe(meta, &rules)?;
        }
        Ok(target)
    };
    let made: Vec<Result<Arc<Target>, Fault>> = batch.iter().map(&mut place).collect();
    let targets: Vec<Arc<Target>> = made.iter().filter_map(|made| made.clone().ok()).collect();
    let mut answers = Target::commit_over(over, &targets).into_iter();
    let results = made.into_iter().map(|made| match made {
        Ok(_) => answers.next().expect("one answer per target"),
        Err(fault) => Err(fault),
    });
    let told = batch.iter().zip(results).map(|(complete, result)| {
        if result.is_ok() {
            // Close the file in this job: closing many would delay the session's task.
            drop(complete.local_file.suspend());
        }
        (complete.id, complete.root, result)
    });
    (told.collect(), dropped)
}
