//! Uploads: opens sources as there is room, hands chunks to workers with the
//! files they come from, and looks at each source again before it is committed.

use super::endings::Mark;
use super::queue::LargestFirst;
use super::{Core, Event};
use crate::report::FileDone;
use crate::worker::Command;
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use verbatim_files::target::LASTING_BYTES_MIN;
use verbatim_files::{Folder, Source};
use verbatim_proto::message::{ClientMessage, FileId, WriteReply};
use verbatim_proto::write::{ClientEffect, Post};
use verbatim_proto::{Code, Digest, Fault, WirePath};

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
pub(super) struct Uploads {
    queue: LargestFirst<(Mark, Upload)>,
    files: HashMap<FileId, File>,
    /// Sent or compared whole; their sources are looked at again, many in one job.
    unchecked: Vec<(FileId, Digest, Arc<Source>)>,
}

struct File {
    mark: Mark,
    upload: Upload,
    source: Arc<Source>,
}

impl Uploads {
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.files.is_empty()
    }

    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Has a source looked at again, once it was read to its end.
    pub fn check_later(&mut self, file: FileId, root: Digest, source: Arc<Source>) {
        self.unchecked.push((file, root, source));
    }
}

impl UploadSource {
    pub(super) fn open(&self, label: &str) -> Result<Source, Fault> {
        let file = match self {
            Self::Below(folder, path) => folder.open_file(path)?,
            Self::Path(path) => {
                let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
                let what = format!("cannot open {label}");
                let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
                let file = file.map_err(|e| Fault::from_io(&what, &e))?;
                let kind = file.metadata().map_err(|e| Fault::from_io(&what, &e))?.file_type();
                if !kind.is_file() {
                    let text = format!("{what}: it is not a regular file");
                    return Err(Fault::new(Code::Special, text));
                }
                file
            }
        };
        Source::new(file, label)
    }
}

impl Core {
    pub(super) fn queue_upload(&mut self, mark: Mark, upload: Upload) {
        self.progress.files_known += 1;
        self.progress.bytes_known += upload.size;
        self.uploads.queue.push(upload.size, (mark, upload));
    }

    pub(super) fn pump_uploads(&mut self) {
        while self.write.room() > 0 && self.uploads.files.len() < self.open_max {
            let Some((mark, upload)) = self.uploads.queue.pop() else { return };
            let id = self.file();
            self.begin_upload(id, mark, upload);
        }
    }

    fn begin_upload(&mut self, id: FileId, mark: Mark, upload: Upload) {
        match upload.source.open(&upload.label) {
            Ok(mut source) => {
                // Only what lasts on the server can be gone on with.
                if source.identity().size >= LASTING_BYTES_MIN {
                    source = source.remember_in(&self.memos());
                }
                let now = self.now();
                let mut info = source.info();
                if self.options.preserve {
                    // Nobody else's business until it has all of its metadata.
                    info.mode &= 0o700;
                }
                self.write.create(id, upload.remote.clone(), info, now);
                let source = Arc::new(source);
                self.uploads.files.insert(id, File { mark, upload, source });
            }
            Err(fault) => {
                self.write.fail(id, fault.clone());
                self.failed(mark.item, upload.label, fault);
            }
        }
    }

    pub(super) fn write_effect(&mut self, effect: ClientEffect) {
        match effect {
            ClientEffect::Send(request) => {
                self.sending.push_back(ClientMessage::Write(request));
            }
            ClientEffect::Post(post) => self.post(post),
            ClientEffect::Hash { file, extent } => {
                let source = self.uploads.files[&file].source.clone();
                self.hashing += 1;
                self.job(move || {
                    let answer = source.recall(extent);
                    Event::Hashed { file, extent, answer }
                });
            }
            ClientEffect::CheckSource { file, root } => {
                let source = self.uploads.files[&file].source.clone();
                self.uploads.check_later(file, root, source);
            }
            ClientEffect::DropLink { link } => self.tell(link, Command::Drop(link)),
            ClientEffect::Restart { file } => {
                let known = self.uploads.files.remove(&file).expect("begun files are known");
                self.begin_upload(file, known.mark, known.upload);
            }
            ClientEffect::Finished { file, root } => {
                let file = self.uploads.files.remove(&file).expect("finished files are known");
                let bytes = file.source.identity().size;
                file.source.forget();
                let (path, local) = (file.upload.label.clone(), file.upload.label);
                self.done(file.mark.item, FileDone { path, local, bytes, digest: root });
            }
            ClientEffect::Failed { file, fault } => {
                // One that could not be opened again has been reported.
                if let Some(file) = self.uploads.files.remove(&file) {
                    self.failed(file.mark.item, file.upload.label, fault);
                }
            }
            ClientEffect::Broken(fault) => self.broke(fault),
        }
    }

    /// Looks again at the sources of files that are sent: have they changed meanwhile?
    pub(super) fn check_sources(&mut self) {
        if self.uploads.unchecked.is_empty() {
            return;
        }
        let files = std::mem::take(&mut self.uploads.unchecked);
        self.hashing += 1;
        let preserve = self.options.preserve;
        self.job(move || {
            let kept = |source: &Source| {
                source.check()?;
                preserve.then(|| source.meta(true).map(Box::new)).transpose()
            };
            let check = |(file, root, source): (_, _, Arc<Source>)| (file, root, kept(&source));
            Event::SourcesChecked(files.into_iter().map(check).collect())
        });
    }

    /// Where digests of unfinished uploads are kept.
    pub(super) fn memos(&self) -> PathBuf {
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
    pub(super) fn created(&mut self, reply: &WriteReply) {
        let WriteReply::Created { files } = reply else { return };
        for (id, answer) in files {
            let (Ok(have), Some(file)) = (answer, self.uploads.files.get(id)) else { continue };
            let bytes = have.iter().map(|extent| extent.len).sum();
            if bytes > 0 {
                let item = file.mark.item;
                tracing::info!(path = file.upload.label, bytes, "copy resumed");
                self.found(item, bytes);
                self.stats.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
        }
    }

    /// Lets go of all files; the server keeps what lasts of them.
    pub(super) fn leave_uploads(&mut self) {
        let uploads = std::mem::take(&mut self.uploads);
        for file in uploads.files.into_values() {
            self.ledger.leave(file.mark.item, file.upload.label, true);
        }
        for (mark, upload) in uploads.queue.into_items() {
            self.ledger.leave(mark.item, upload.label, false);
        }
    }
}
