//! Uploads: opens sources within the bounds, sends chunks with their sources to workers, and checks
//! each source again before the server commits it.

use crate::connection::Engine;
use crate::connection::dir_guard::WorkItem;
use crate::connection::fd_budget::FdReservation;
use crate::connection::jobs::Jobs;
use crate::connection::largest_first::LargestFirst;
use crate::connection::worker::Command;
use crate::local_io::delta_source::Basis;
use crate::local_io::endpoint::DataSource;
use crate::local_io::waker::Waker;
use crate::model::report::FileDone;
use crate::transfer::id_translation::IdTranslation;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use verbatim_files::holes::hash_zeros;
use verbatim_files::regular::open_own;
use verbatim_files::target::LASTING_BYTES_MIN;
use verbatim_files::{Folder, Source};
use verbatim_proto::message::{FileId, WriteReply};
use verbatim_proto::numbered::FileMap;
use verbatim_proto::units::{BATCH_FILES_MAX, STREAM_BYTES_MAX};
use verbatim_proto::write::{ClientEffect, Post};
use verbatim_proto::{Digest, Extent, Fault, Kept, Survey, WirePath};

/// A file to upload.
#[derive(Clone)]
pub struct Upload {
    /// The source file.
    pub source: UploadSource,
    /// The target path, export first.
    pub remote: WirePath,
    /// The size, as far as it is known.
    pub size: u64,
    /// The modification time, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// The source, as the user would name it.
    pub label: String,
    /// Files of the server that may share chunks with it.
    pub basis: Option<Basis>,
}

/// The source file of an upload.
#[derive(Clone)]
pub enum UploadSource {
    /// A path that the user named: links are followed.
    Path(PathBuf),
    /// A path below an uploaded folder, which must not lead out of it.
    Below(Arc<Folder>, WirePath),
}

/// The uploads of a session.
pub(crate) struct Uploads {
    queue: LargestFirst<(WorkItem, Upload)>,
    /// Uploads whose sources a job opens; the job shares them until it answers.
    opening: Option<Arc<Vec<OpeningUpload>>>,
    files: FileMap<File>,
    /// Files sent completely; one job checks many sources for changes.
    unchecked: Vec<(FileId, Digest, Arc<Source>)>,
    /// Sources of finished files, closed by the next job.
    finished: Vec<(DataSource, Option<FdReservation>)>,
    jobs: Jobs<Answer>,
}

/// The answers of upload jobs.
enum Answer {
    Opened(Vec<OpenedSource>),
    /// Whether the sources are unchanged, with their metadata if it is preserved.
    Checked(Vec<(FileId, Digest, Result<Kept, Fault>)>),
    /// The digests of a range, and how many bytes were hashed for them.
    Hashed {
        file: FileId,
        extent: Extent,
        answer: Result<(Vec<Digest>, u64), Fault>,
    },
    /// The digests of a range, to offer to the server.
    OfferHashed {
        file: FileId,
        extent: Extent,
        answer: Result<Vec<Digest>, Fault>,
    },
    ZerosHashed {
        file: FileId,
        extent: Extent,
        digests: Vec<Digest>,
    },
    HolesFound(FileId, Survey),
}

/// A file whose source is being opened.
struct OpeningUpload {
    id: FileId,
    work_item: WorkItem,
    upload: Upload,
    fds: FdReservation,
}

/// An opened source, and its first holes.
type OpenedSource = Result<(Arc<Source>, Survey), Fault>;

struct File {
    work_item: WorkItem,
    /// The source, as the user would name it.
    label: String,
    /// The upload to restart if the source changes, without its label; `None` for a pipe.
    upload: Option<Upload>,
    source: DataSource,
    fds: Option<FdReservation>,
}

impl Uploads {
    pub fn new(waker: &Waker) -> Self {
        Self {
            queue: LargestFirst::default(),
            opening: None,
            files: FileMap::default(),
            unchecked: Vec::new(),
            finished: Vec::new(),
            jobs: Jobs::new(waker),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.opening.is_none() && self.files.is_empty()
    }

    pub fn queued(&self) -> usize {
        self.queue.len() + self.opening.as_ref().map_or(0, |batch| batch.len())
    }

    /// Counts a pipe as started.
    pub fn begin(&mut self, id: FileId, work_item: WorkItem, label: &str, source: DataSource) {
        let file = File { work_item, label: label.into(), upload: None, source, fds: None };
        self.files.insert(id, file);
    }

    /// Whether a pipe is still being read.
    pub fn is_streaming(&self) -> bool {
        self.files.values().any(|file| file.source.size() == STREAM_BYTES_MAX)
    }

    /// The source of a file that is no pipe.
    fn source(&self, id: FileId) -> Arc<Source> {
        self.files[&id].source.file().expect("pipes are not looked at").clone()
    }

    pub fn add(&mut self, engine: &mut Engine, work_item: WorkItem, upload: Upload) {
        engine.outcomes().expect(upload.size);
        self.queue.push(upload.size, (work_item, upload));
    }

    /// Starts a job that opens a batch of sources: each costs several system calls, which would
    /// block the session's task.
    pub fn pump(&mut self, engine: &mut Engine) {
        if self.opening.is_some() || self.queue.is_empty() {
            return;
        }
        if !engine.fds().has_room() {
            self.finished.clear();
        }
        let room = engine.write().room().min(BATCH_FILES_MAX);
        let mut batch = Vec::with_capacity(room.min(self.queue.len()));
        while batch.len() < room && engine.fds().has_room() {
            let Some((work_item, upload)) = self.queue.pop() else { break };
            let (id, fds) = (engine.file(), engine.fds().reserve(upload.size, false));
            batch.push(OpeningUpload { id, work_item, upload, fds });
        }
        if batch.is_empty() {
            return;
        }
        let (batch, memos) = (Arc::new(batch), engine.upload_memos());
        self.opening = Some(batch.clone());
        self.jobs.run(move || {
            let opened =
                batch.iter().map(|opening_upload| opening_upload.upload.open(&memos)).collect();
            drop(batch);
            Answer::Opened(opened)
        });
    }

    /// Handles a batch of opened sources.
    fn opened(&mut self, engine: &mut Engine, answers: Vec<OpenedSource>) {
        let Some(batch) = self.opening.take().and_then(Arc::into_inner) else { return };
        for (OpeningUpload { id, work_item, upload, fds }, answer) in batch.into_iter().zip(answers)
        {
            self.begin_file(engine, id, work_item, upload, fds, answer);
        }
    }

    fn begin_file(
        &mut self,
        engine: &mut Engine,
        id: FileId,
        work_item: WorkItem,
        mut upload: Upload,
        fds: FdReservation,
        opened: OpenedSource,
    ) {
        match opened {
            Ok((source, survey)) => {
                let now = engine.now();
                let mut info = source.info();
                if engine.options().preserve {
                    // Private until the file has all of its metadata.
                    info.mode &= 0o700;
                }
                engine.write().create(id, upload.remote.clone(), info, survey, now);
                if let Some(Basis { paths, fuzzy }) = upload.basis.clone() {
                    engine.write().compare_with(id, paths, fuzzy);
                }
                let (label, source) = (std::mem::take(&mut upload.label), DataSource::File(source));
                let file = File { work_item, label, upload: Some(upload), source, fds: Some(fds) };
                self.files.insert(id, file);
            }
            Err(fault) => {
                engine.write().fail(id, fault.clone());
                engine.outcomes().failed(work_item.item, upload.label, fault);
            }
        }
    }

    /// Restarts an upload whose source changed.
    fn restart(&mut self, engine: &mut Engine, id: FileId) {
        let known = self.files.remove(&id).expect("begun files are known");
        let mut upload = known.upload.expect("pipes are not begun again");
        upload.label = known.label;
        let fds = engine.fds().reserve(upload.size, false);
        let opened = upload.open(&engine.upload_memos());
        self.begin_file(engine, id, known.work_item, upload, fds, opened);
    }

    /// Carries out an effect of the machine that writes.
    pub fn effect(&mut self, engine: &mut Engine, effect: ClientEffect) {
        match effect {
            ClientEffect::Post(post) => self.post(engine, post),
            ClientEffect::Hash { file, extent } => {
                let source = self.source(file);
                engine.begin_hashing();
                self.jobs.run(move || {
                    let answer = source.recall(extent);
                    Answer::Hashed { file, extent, answer }
                });
            }
            ClientEffect::HashOffer { file, extent } => self.hash_offer(engine, file, extent),
            ClientEffect::Taken { file, extent, digests } => {
                self.source(file).hand_out(extent, &digests);
                engine.stats().bytes.fetch_add(extent.len, Ordering::Relaxed);
            }
            ClientEffect::HashZeros { file, extent } => self.hash_zeros(engine, file, extent),
            ClientEffect::FindHoles { file, from } => {
                let source = self.source(file);
                self.jobs.run(move || Answer::HolesFound(file, source.find_holes(from)));
            }
            ClientEffect::Stored { file, extent } => {
                if let Some(DataSource::Pipe(stdin)) =
                    self.files.get(&file).map(|file| &file.source)
                {
                    stdin.release(extent);
                }
            }
            ClientEffect::CheckSource { file, root } => match &self.files[&file].source {
                DataSource::File(source) => {
                    let source = source.clone();
                    self.unchecked.push((file, root, source));
                }
                // A pipe was read once; checking it again shows nothing.
                DataSource::Pipe(_) => engine.write().source_checked(file, root, Ok(None)),
            },
            ClientEffect::Restart { file } => self.restart(engine, file),
            ClientEffect::Finished { file, root } => {
                let file = self.files.remove(&file).expect("finished files are known");
                let (path, bytes) = (file.label, file.source.size());
                if let DataSource::File(source) = &file.source {
                    source.forget();
                }
                let piped = matches!(file.source, DataSource::Pipe(_));
                self.finished.push((file.source, file.fds));
                engine.outcomes().done(file.work_item.item, bytes, || {
                    let local = if piped { "-".into() } else { path.clone() };
                    FileDone { path, local, bytes, digest: root }
                });
            }
            ClientEffect::Failed { file, fault } => {
                // A source that could not be reopened was reported before.
                if let Some(file) = self.files.remove(&file) {
                    file.source.close();
                    let fault = file.source.explain(fault);
                    engine.outcomes().remote_commit_refused(file.work_item.item, file.label, fault);
                }
            }
            // The engine has handled these.
            ClientEffect::Send(_) | ClientEffect::DropLink { .. } | ClientEffect::Broken(_) => {}
        }
    }

    /// Starts a job that hashes a range to offer to the server.
    fn hash_offer(&self, engine: &mut Engine, file: FileId, extent: Extent) {
        let source = self.source(file);
        engine.begin_hashing();
        self.jobs.run(move || {
            let answer = source.look_up(extent).map(|(digests, _)| digests);
            Answer::OfferHashed { file, extent, answer }
        });
    }

    /// Starts a job that hashes the zeros of a hole. The digests may be stored, because a later
    /// write would change the file's identity: the hole was found after the source was opened.
    fn hash_zeros(&self, engine: &mut Engine, file: FileId, extent: Extent) {
        let (source, stats) = (self.files[&file].source.clone(), engine.stats().clone());
        self.jobs.run(move || {
            let begin = Instant::now();
            let digests = hash_zeros(source.size(), extent);
            if source.was_settled() {
                source.note(extent, &digests);
            }
            stats.zeroed(extent.len, begin.elapsed());
            Answer::ZerosHashed { file, extent, digests }
        });
    }

    /// Starts a job that checks whether sent sources have changed meanwhile.
    pub fn check_sources(&mut self, engine: &mut Engine) {
        if self.unchecked.is_empty() {
            return;
        }
        let files = std::mem::take(&mut self.unchecked);
        let finished = std::mem::take(&mut self.finished);
        engine.begin_hashing();
        let preserve = engine.options().preserve;
        self.jobs.run(move || {
            drop(finished);
            let kept = |source: &Source| {
                source.check()?;
                preserve.then(|| source.meta(true).map(Box::new)).transpose()
            };
            let check = |(file, root, source): (_, _, Arc<Source>)| (file, root, kept(&source));
            Answer::Checked(files.into_iter().map(check).collect())
        });
    }

    fn post(&self, engine: &mut Engine, post: Post) {
        let source = |(id, _): &(FileId, _)| self.files[id].source.clone();
        let sources = post.pieces.iter().map(source).collect();
        let (link, bytes) =
            (post.grant.link, post.pieces.iter().map(|(_, extent)| extent.len).sum());
        engine.send_paced(link, bytes, Command::Post(post, sources));
    }

    /// Counts bytes that the server already has of created files.
    pub fn created(&self, engine: &mut Engine, reply: &WriteReply) {
        let WriteReply::Created { files } = reply else { return };
        for (id, answer) in files {
            let (Ok(have), Some(file)) = (answer, self.files.get(id)) else { continue };
            let bytes = have.iter().map(|extent| extent.len).sum();
            if bytes > 0 {
                let (item, label) = (file.work_item.item, file.label.clone());
                engine.outcomes().note_resumed(item, &label, bytes);
            }
        }
    }

    /// Handles the answers of jobs.
    pub fn take_answers(&mut self, engine: &mut Engine, ids: &IdTranslation) {
        while let Some(answer) = self.jobs.next_answer() {
            let now = engine.now();
            match answer {
                Answer::Opened(answers) => self.opened(engine, answers),
                Answer::Checked(answers) => {
                    engine.end_hashing();
                    for (file, root, answer) in answers {
                        let answer = answer.map(|kept| ids.translated(kept));
                        engine.write().source_checked(file, root, answer);
                    }
                }
                Answer::Hashed { file, extent, answer } => {
                    engine.end_hashing();
                    let hashed = answer.as_ref().map_or(0, |(_, bytes)| *bytes);
                    engine.outcomes().ledger().summary.rehashed_bytes += hashed;
                    engine.write().hashed(file, extent, answer.map(|(digests, _)| digests));
                }
                Answer::OfferHashed { file, extent, answer } => {
                    engine.end_hashing();
                    engine.write().offer_hashed(file, extent, answer, now);
                }
                Answer::ZerosHashed { file, extent, digests } => {
                    engine.write().zeros_hashed(file, extent, &digests, now);
                }
                Answer::HolesFound(file, survey) => engine.write().found(file, survey),
            }
        }
    }

    /// Notes unfinished uploads in the ledger. The server keeps their partial files.
    pub fn suspend(&mut self, engine: &mut Engine) {
        let broken = engine.session_fault().cloned();
        for file in std::mem::take(&mut self.files).into_values() {
            file.source.close();
            match (&file.source, &broken) {
                // An upload from a pipe cannot resume.
                (DataSource::Pipe(_), Some(fault)) => {
                    let fault = file.source.explain(fault.clone());
                    engine.outcomes().failed(file.work_item.item, file.label, fault);
                }
                _ => engine.outcomes().ledger().note_unfinished(
                    file.work_item.item,
                    file.label,
                    true,
                ),
            }
        }
        let ledger = engine.outcomes().ledger();
        for OpeningUpload { work_item, upload, .. } in
            self.opening.take().iter().flat_map(|batch| batch.iter())
        {
            ledger.note_unfinished(work_item.item, upload.label.clone(), false);
        }
        for (work_item, upload) in std::mem::take(&mut self.queue).into_items() {
            ledger.note_unfinished(work_item.item, upload.label, false);
        }
        self.unchecked.clear();
        self.finished.clear();
    }
}

impl Upload {
    /// Opens the source, in a job. Stores digests only of large files: only those can resume.
    fn open(&self, memos: &Path) -> OpenedSource {
        let mut source = self.source.open(&self.label)?;
        if source.identity().size >= LASTING_BYTES_MIN {
            source = source.remember_in(memos);
        }
        let survey = source.find_holes(0);
        Ok((Arc::new(source), survey))
    }
}

impl UploadSource {
    pub(crate) fn open(&self, label: &str) -> Result<Source, Fault> {
        let path = match self {
            Self::Below(folder, path) => return Source::open(folder, path, label),
            Self::Path(path) => path,
        };
        let file = open_own(path, &format!("cannot open {label}"))?;
        Source::new(file, label)
    }
}
