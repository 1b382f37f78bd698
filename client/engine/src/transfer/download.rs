//! Downloads: opens files as there is room, hands chunks to workers with the
//! places they go to, and commits what is whole in batches.

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

/// Commits at a time: one flushes while the next one gathers.
const COMMITS_MAX: usize = 2;

/// A file to fetch.
#[derive(Clone)]
pub struct Download {
    /// Where from, export first.
    pub remote: WirePath,
    /// The folder it may not leave.
    pub folder: Arc<Folder>,
    /// Where to, below that folder.
    pub local: WirePath,
    /// How long it is, as far as is known.
    pub size: u64,
    /// When its content changed, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// How the user would name it.
    pub label: String,
    /// A file here that may have some of it.
    pub basis: Option<Basis>,
}

/// The files that are fetched.
pub(crate) struct Downloads {
    queue: LargestFirst<(WorkItem, Download)>,
    /// Those whose remains of an earlier run are looked for, and where they come from.
    resuming: HashMap<FileId, (WirePath, File)>,
    files: FileMap<File>,
    complete: Vec<CompleteFile>,
    commits: usize,
    /// Verified, and not yet all through its pipe.
    in_pipe: Option<(FileId, Digest)>,
    jobs: Jobs<Answer>,
}

/// What jobs of downloads answer.
enum Answer {
    /// What an earlier run left of a file.
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

/// A file that is all here.
struct CompleteFile {
    id: FileId,
    root: Digest,
    local_file: Arc<DownloadFile>,
    meta: Kept,
}

/// What became of a batch of such files, and what of their metadata was not kept.
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

    /// Whether files that are all here are being made durable, or will be, or what is left of an
    /// earlier run is being hashed: the next session would do it again.
    pub fn is_committing(&self) -> bool {
        self.commits > 0 || !self.complete.is_empty() || self.may_finish_slowly()
    }

    /// Whether that may take longer than anybody would wait who wants to end it.
    pub fn may_finish_slowly(&self) -> bool {
        self.in_pipe.is_some() || !self.resuming.is_empty()
    }

    /// Does not wait for that.
    pub fn abandon_slow_finishers(&mut self) {
        self.in_pipe = None;
        let left = self.resuming.drain().map(|(id, (_, file))| (id, file));
        self.files.extend(left);
    }

    /// Counts a pipe as begun.
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
        // Nobody would hear of what a session opens that is over.
        if engine.session_fault().is_some() {
            return;
        }
        // A file holds descriptors until it is durable; a slow disk slows down what is opened.
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
                // After another boot all that is left is hashed, which takes as long as it takes.
                let stats = engine.stats().clone();
                self.jobs.run(move || {
                    Answer::Resumed(id, local_file.resume(&stats.rehashed).map(Box::new))
                });
            } else {
                self.open(engine, id, remote, file, None);
            }
        }
    }

    /// It is known what an earlier run left of a file.
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

    /// Does what the machine that reads asks.
    pub fn effect(&mut self, engine: &mut Engine, ids: &IdTranslation, effect: ClientEffect) {
        match effect {
            ClientEffect::Opened { file: id, mut info, had } => {
                if engine.options().preserve {
                    // Nobody else's business until it has all of its metadata.
                    info.mode &= 0o700;
                }
                let file = self.files.get_mut(&id).expect("opened files are known");
                engine.outcomes().expect_instead(file.size, info.size);
                file.size = info.size;
                if let Err(fault) = file.sink.set_info(info) {
                    // What an earlier run left is as good as it was.
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
                    // The pipe may end when it has taken all.
                    (DataSink::Pipe(stdout), size) => {
                        self.in_pipe = Some((id, root));
                        stdout.end_at(size);
                    }
                    // Parts are not downloads.
                    (DataSink::Part(_), _) => {}
                }
            }
            ClientEffect::Failed { file, fault } => self.failed(engine, file, fault),
            // The engine has done these.
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
            // The target must not outlive the answer: a restart removes it.
            let answer = sink.zero(zero.extent, size);
            if answer.is_ok() {
                stats.zeroed(zero.extent.len, begin.elapsed());
            }
            Answer::Zeroed(zero, answer)
        });
    }

    fn failed(&mut self, engine: &mut Engine, id: FileId, fault: Fault) {
        if let Some(file) = self.files.remove(&id) {
            // What is verified of it stays so, unless it is not worth going on with.
            let lasts = !matches!(file.sink, DataSink::Pipe(_)) && fault.code != Code::Changed;
            match fault.class() {
                Class::Retry if lasts => file.sink.suspend(),
                _ => file.sink.discard(),
            }
            engine.outcomes().failed(file.work_item.item, file.label, file.sink.explain(fault));
        }
    }

    /// Makes whole files durable under their names, in batches.
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

    /// A file is where it goes.
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

    /// Takes the answers of jobs.
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

    /// The same in a session that is over: files that are all here get their names. Whether what
    /// an earlier run left of a file was found, which the next session finds at once.
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

    /// A pipe has taken all of its file.
    pub fn pipe_ended(&mut self, engine: &mut Engine, id: FileId) {
        if let Some((_, digest)) = self.in_pipe.take_if(|(in_pipe, _)| *in_pipe == id) {
            self.done(engine, id, digest);
        }
    }

    /// A pipe can be written no more. True where all of its file had come.
    pub fn pipe_failed(&mut self, engine: &mut Engine, id: FileId, fault: &Fault) -> bool {
        let came = self.in_pipe.take_if(|(in_pipe, _)| *in_pipe == id).is_some();
        if came {
            self.failed(engine, id, fault.clone());
        }
        came
    }

    /// Lets go of all files; what lasts of them is there for the next session.
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
        // An empty file has no first byte that would have made its target.
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
            // Closed here, with the others, and not by whoever answers all messages.
            drop(complete.local_file.suspend());
        }
        (complete.id, complete.root, result)
    });
    (told.collect(), dropped)
}
