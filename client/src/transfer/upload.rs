//! Uploads: opens sources as there is room, hands chunks to workers with the
//! files they come from, and looks at each source again before it is committed.

use crate::engine::fd_budget::Taken;
use crate::engine::largest_first::LargestFirst;
use crate::engine::worker::Command;
use crate::local_io::delta_source::Basis;
use crate::local_io::endpoint::Origin;
use crate::model::report::FileDone;
use crate::session::Event;
use crate::session::dispatch::Core;
use crate::transfer::dir_metadata::Mark;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use verbatim_files::holes::hash_zeros;
use verbatim_files::regular::open_own;
use verbatim_files::target::LASTING_BYTES_MIN;
use verbatim_files::{Folder, Source};
use verbatim_proto::message::{ClientMessage, FileId, WriteReply};
use verbatim_proto::numbered::FileMap;
use verbatim_proto::units::{BATCH_FILES_MAX, STREAM_BYTES_MAX};
use verbatim_proto::write::{ClientEffect, Post};
use verbatim_proto::{Digest, Extent, Fault, Survey, WirePath};

/// A file to send.
#[derive(Clone)]
pub struct Upload {
    /// Where it is.
    pub source: UploadSource,
    /// Where to, export first.
    pub remote: WirePath,
    /// How long it is, as far as is known.
    pub size: u64,
    /// When its content changed, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// How the user would name it.
    pub label: String,
    /// A file of the server that may have some of it.
    pub basis: Option<Basis>,
}

/// Where a file to send is.
#[derive(Clone)]
pub enum UploadSource {
    /// At a path the user gave: links are followed.
    Path(PathBuf),
    /// Below a folder that is sent: nothing outside it is read.
    Below(Arc<Folder>, WirePath),
}

#[derive(Default)]
pub(crate) struct Uploads {
    queue: LargestFirst<(Mark, Upload)>,
    /// Those whose sources a job opens. It has them too, until it answers.
    opening: Option<Arc<Vec<Begun>>>,
    files: FileMap<File>,
    /// Sent or compared whole; their sources are looked at again, many in one job.
    unchecked: Vec<(FileId, Digest, Arc<Source>)>,
    /// Sources of files that are over, for the next job to close.
    over: Vec<(Origin, Option<Taken>)>,
}

/// A file whose source is to be opened.
struct Begun {
    id: FileId,
    mark: Mark,
    upload: Upload,
    taken: Taken,
}

/// A source that was opened, and its first holes.
pub(crate) type Opened = Result<(Arc<Source>, Survey), Fault>;

struct File {
    mark: Mark,
    /// How the user would name it.
    label: String,
    /// What to send again if it changes, without its name; none of a pipe.
    upload: Option<Upload>,
    source: Origin,
    taken: Option<Taken>,
}

impl Uploads {
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.opening.is_none() && self.files.is_empty()
    }

    pub fn queued(&self) -> usize {
        self.queue.len() + self.opening.as_ref().map_or(0, |batch| batch.len())
    }

    /// Has a source looked at again, once it was read to its end.
    pub fn check_later(&mut self, file: FileId, root: Digest, source: Arc<Source>) {
        self.unchecked.push((file, root, source));
    }

    /// Counts a pipe as begun.
    pub fn begin(&mut self, id: FileId, mark: Mark, label: &str, source: Origin) {
        let file = File { mark, label: label.into(), upload: None, source, taken: None };
        self.files.insert(id, file);
    }

    /// Whether a pipe is being read that has not ended.
    pub fn is_streaming(&self) -> bool {
        self.files.values().any(|file| file.source.size() == STREAM_BYTES_MAX)
    }

    /// The file of an upload that is no pipe.
    fn source(&self, id: FileId) -> Arc<Source> {
        self.files[&id].source.file().expect("pipes are not looked at").clone()
    }
}

impl Upload {
    /// Opens its source, for a job. Only of what lasts on the server are digests kept: it alone can
    /// be gone on with.
    fn open(&self, memos: &Path) -> Opened {
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

impl Core {
    pub(crate) fn queue_upload(&mut self, mark: Mark, upload: Upload) {
        self.progress.files_known += 1;
        self.progress.expect(upload.size);
        self.uploads.queue.push(upload.size, (mark, upload));
    }

    /// Has sources opened, a batch at a time: each costs several calls of the system, and whoever
    /// answers all messages has no time for them.
    pub(crate) fn pump_uploads(&mut self) {
        if self.uploads.opening.is_some() || self.uploads.queue.is_empty() {
            return;
        }
        if self.descriptors.taken() >= self.open_max {
            self.uploads.over.clear();
        }
        let room = self.write.room().min(BATCH_FILES_MAX);
        let mut batch = Vec::with_capacity(room.min(self.uploads.queue.len()));
        while batch.len() < room && self.descriptors.taken() < self.open_max {
            let Some((mark, upload)) = self.uploads.queue.pop() else { break };
            let (id, taken) = (self.file(), self.descriptors.take(upload.size, false));
            batch.push(Begun { id, mark, upload, taken });
        }
        if batch.is_empty() {
            return;
        }
        let (batch, memos) = (Arc::new(batch), self.memos());
        self.uploads.opening = Some(batch.clone());
        self.job(move || {
            let opened = batch.iter().map(|begun| begun.upload.open(&memos)).collect();
            drop(batch);
            Event::SourcesOpened(opened)
        });
    }

    /// Sources are open, or cannot be opened.
    pub(crate) fn sources_opened(&mut self, answers: Vec<Opened>) {
        let Some(batch) = self.uploads.opening.take().and_then(Arc::into_inner) else { return };
        for (Begun { id, mark, upload, taken }, answer) in batch.into_iter().zip(answers) {
            self.begin_upload(id, mark, upload, taken, answer);
        }
    }

    fn begin_upload(
        &mut self,
        id: FileId,
        mark: Mark,
        mut upload: Upload,
        taken: Taken,
        opened: Opened,
    ) {
        match opened {
            Ok((source, survey)) => {
                let now = self.now();
                let mut info = source.info();
                if self.options.preserve {
                    // Nobody else's business until it has all of its metadata.
                    info.mode &= 0o700;
                }
                self.write.create(id, upload.remote.clone(), info, survey, now);
                if let Some(Basis { paths, guess }) = upload.basis.clone() {
                    self.write.compare_with(id, paths, guess);
                }
                let (label, source) = (std::mem::take(&mut upload.label), Origin::File(source));
                let file = File { mark, label, upload: Some(upload), source, taken: Some(taken) };
                self.uploads.files.insert(id, file);
            }
            Err(fault) => {
                self.write.fail(id, fault.clone());
                self.failed(mark.item, upload.label, fault);
            }
        }
    }

    /// Its source changed: all of it is sent anew.
    fn begin_again(&mut self, id: FileId) {
        let known = self.uploads.files.remove(&id).expect("begun files are known");
        let mut upload = known.upload.expect("pipes are not begun again");
        upload.label = known.label;
        let taken = self.descriptors.take(upload.size, false);
        let opened = upload.open(&self.memos());
        self.begin_upload(id, known.mark, upload, taken, opened);
    }

    pub(crate) fn write_effect(&mut self, effect: ClientEffect) {
        match effect {
            ClientEffect::Send(request) => self.sending.push_back(ClientMessage::Write(request)),
            ClientEffect::Post(post) => self.post(post),
            ClientEffect::Hash { file, extent } => {
                let source = self.uploads.source(file);
                self.hashing += 1;
                self.job(move || {
                    let answer = source.recall(extent);
                    Event::Hashed { file, extent, answer }
                });
            }
            ClientEffect::HashOffer { file, extent } => self.hash_offer(file, extent),
            ClientEffect::Taken { file, extent, digests } => {
                self.uploads.source(file).hand_out(extent, &digests);
                self.stats.bytes.fetch_add(extent.len, Ordering::Relaxed);
            }
            ClientEffect::HashZeros { file, extent } => self.hash_zeros(file, extent),
            ClientEffect::FindHoles { file, from } => {
                let source = self.uploads.source(file);
                self.job(move || Event::HolesFound(file, source.find_holes(from)));
            }
            ClientEffect::Stored { file, extent } => {
                if let Some(Origin::Pipe(inlet)) =
                    self.uploads.files.get(&file).map(|file| &file.source)
                {
                    inlet.release(extent);
                }
            }
            ClientEffect::CheckSource { file, root } => match &self.uploads.files[&file].source {
                Origin::File(source) => {
                    let source = source.clone();
                    self.uploads.check_later(file, root, source);
                }
                // What was read was read once, and no second look would tell more.
                Origin::Pipe(_) => self.write.source_checked(file, root, Ok(None)),
            },
            ClientEffect::DropLink { link } => self.tell(link, Command::Drop(link)),
            ClientEffect::Restart { file } => self.begin_again(file),
            ClientEffect::Finished { file, root } => {
                let file = self.uploads.files.remove(&file).expect("finished files are known");
                let (path, bytes) = (file.label, file.source.size());
                if let Origin::File(source) = &file.source {
                    source.forget();
                }
                let piped = matches!(file.source, Origin::Pipe(_));
                self.uploads.over.push((file.source, file.taken));
                self.done(file.mark.item, bytes, || {
                    let local = if piped { "-".into() } else { path.clone() };
                    FileDone { path, local, bytes, digest: root }
                });
            }
            ClientEffect::Failed { file, fault } => {
                // One that could not be opened again has been reported.
                if let Some(file) = self.uploads.files.remove(&file) {
                    file.source.close();
                    let fault = file.source.explain(fault);
                    self.not_placed_there(file.mark.item, file.label, fault);
                }
            }
            ClientEffect::Broken(fault) => self.broke(fault),
        }
    }

    /// Hashes what the server may have.
    fn hash_offer(&mut self, file: FileId, extent: Extent) {
        let source = self.uploads.source(file);
        self.hashing += 1;
        self.job(move || {
            let answer = source.look_up(extent).map(|(digests, _)| digests);
            Event::OfferHashed { file, extent, answer }
        });
    }

    /// Hashes a hole, which is not read. What comes out is noted if a write since it was found
    /// would have changed the identity: it was found after the source was opened.
    fn hash_zeros(&mut self, file: FileId, extent: Extent) {
        let (source, stats) = (self.uploads.files[&file].source.clone(), self.stats.clone());
        self.job(move || {
            let begin = Instant::now();
            let digests = hash_zeros(source.size(), extent);
            if source.was_settled() {
                source.note(extent, &digests);
            }
            stats.zeroed(extent.len, begin.elapsed());
            Event::ZerosHashed { file, extent, digests }
        });
    }

    /// Looks again at the sources of files that are sent: have they changed meanwhile?
    pub(crate) fn check_sources(&mut self) {
        if self.uploads.unchecked.is_empty() {
            return;
        }
        let files = std::mem::take(&mut self.uploads.unchecked);
        let over = std::mem::take(&mut self.uploads.over);
        self.hashing += 1;
        let preserve = self.options.preserve;
        self.job(move || {
            drop(over);
            let kept = |source: &Source| {
                source.check()?;
                preserve.then(|| source.meta(true).map(Box::new)).transpose()
            };
            let check = |(file, root, source): (_, _, Arc<Source>)| (file, root, kept(&source));
            Event::SourcesChecked(files.into_iter().map(check).collect())
        });
    }

    /// Where digests of unfinished uploads are kept.
    pub(crate) fn memos(&self) -> PathBuf {
        self.options.connect.state_dir.join("uploads")
    }

    fn post(&mut self, post: Post) {
        let source = |(id, _): &(FileId, _)| self.uploads.files[id].source.clone();
        let sources = post.pieces.iter().map(source).collect();
        let (link, bytes) =
            (post.grant.link, post.pieces.iter().map(|(_, extent)| extent.len).sum());
        self.tell_paced(link, bytes, Command::Post(post, sources));
    }

    /// Notes what the server has of files that it was asked to create.
    pub(crate) fn created(&mut self, reply: &WriteReply) {
        let WriteReply::Created { files } = reply else { return };
        for (id, answer) in files {
            let (Ok(have), Some(file)) = (answer, self.uploads.files.get(id)) else { continue };
            let bytes = have.iter().map(|extent| extent.len).sum();
            if bytes > 0 {
                let (item, label) = (file.mark.item, file.label.clone());
                self.found(item, &label, bytes);
            }
        }
    }

    /// Lets go of all files; the server keeps what lasts of them.
    pub(crate) fn leave_uploads(&mut self) {
        let uploads = std::mem::take(&mut self.uploads);
        for file in uploads.files.into_values() {
            file.source.close();
            match (&file.source, &self.broken) {
                // What came through a pipe cannot be gone on with.
                (Origin::Pipe(_), Some(fault)) => {
                    let fault = file.source.explain(fault.clone());
                    self.failed(file.mark.item, file.label, fault);
                }
                _ => self.ledger.leave(file.mark.item, file.label, true),
            }
        }
        for Begun { mark, upload, .. } in uploads.opening.iter().flat_map(|batch| batch.iter()) {
            self.ledger.leave(mark.item, upload.label.clone(), false);
        }
        for (mark, upload) in uploads.queue.into_items() {
            self.ledger.leave(mark.item, upload.label, false);
        }
    }
}
