//! Uploads: opens sources as there is room, hands chunks to workers with the
//! files they come from, and looks at each source again before it is committed.

use super::endings::Within;
use super::{Core, Event};
use crate::report::FileDone;
use crate::worker::Command;
use rustix::fs::OFlags;
use std::collections::{HashMap, VecDeque};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use verbatim_files::{Folder, Source};
use verbatim_proto::message::{ClientMessage, FileId};
use verbatim_proto::write::{ClientEffect, Post};
use verbatim_proto::{Code, Digest, Fault, WirePath};

/// A file to send.
pub struct Upload {
    /// Where it is.
    pub source: UploadSource,
    /// Where to, export first.
    pub remote: WirePath,
    /// How long it is, as far as is known.
    pub size: u64,
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
    queue: VecDeque<(Upload, Within)>,
    files: HashMap<FileId, File>,
    /// Sent whole; their sources are looked at again, many in one job.
    unchecked: Vec<(FileId, Digest, Arc<Source>)>,
}

struct File {
    upload: Upload,
    /// Ends after this file.
    within: Within,
    source: Arc<Source>,
}

impl Uploads {
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.files.is_empty()
    }

    pub fn queued(&self) -> usize {
        self.queue.len()
    }
}

impl UploadSource {
    fn open(&self, label: &str) -> Result<Source, Fault> {
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
    pub(super) fn add_upload(&mut self, upload: Upload, within: Within) {
        self.progress.files_known += 1;
        self.progress.bytes_known += upload.size;
        self.uploads.queue.push_back((upload, within));
    }

    pub(super) fn pump_uploads(&mut self) {
        while self.write.room() > 0 && self.uploads.files.len() < self.open_max {
            let Some((upload, within)) = self.uploads.queue.pop_front() else { return };
            let id = self.file();
            self.begin_upload(id, upload, within);
        }
    }

    fn begin_upload(&mut self, id: FileId, upload: Upload, within: Within) {
        match upload.source.open(&upload.label) {
            Ok(source) => {
                let now = self.now();
                let mut info = source.info();
                if self.options.preserve {
                    // Nobody else's business until it has all of its metadata.
                    info.mode &= 0o700;
                }
                self.write.create(id, upload.remote.clone(), info, now);
                self.uploads.files.insert(id, File { upload, within, source: Arc::new(source) });
            }
            Err(fault) => {
                self.write.fail(id, fault.clone());
                self.failed(upload.label, fault);
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
                self.job(move || {
                    let answer = source.hash(extent);
                    Event::Hashed { file, extent, answer }
                });
            }
            ClientEffect::CheckSource { file, root } => {
                let source = self.uploads.files[&file].source.clone();
                self.uploads.unchecked.push((file, root, source));
            }
            ClientEffect::DropLink { link } => self.tell(link, Command::Drop(link)),
            ClientEffect::Restart { file } => {
                let known = self.uploads.files.remove(&file).expect("begun files are known");
                self.begin_upload(file, known.upload, known.within);
            }
            ClientEffect::Finished { file, root } => {
                let file = self.uploads.files.remove(&file).expect("finished files are known");
                let bytes = file.source.identity().size;
                let (path, local) = (file.upload.label.clone(), file.upload.label);
                self.done(FileDone { path, local, bytes, digest: root });
            }
            ClientEffect::Failed { file, fault } => {
                // One that could not be opened again has been reported.
                if let Some(file) = self.uploads.files.remove(&file) {
                    self.failed(file.upload.label, fault);
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

    fn post(&mut self, post: Post) {
        let source = |(id, _): &(FileId, _)| self.uploads.files[id].source.clone();
        let sources = post.pieces.iter().map(source).collect();
        self.tell(post.grant.link, Command::Post(post, sources));
    }

    pub(super) fn drop_uploads(&mut self, fault: &Fault) {
        let uploads = std::mem::take(&mut self.uploads);
        let begun = uploads.files.into_values().map(|file| file.upload);
        for upload in begun.chain(uploads.queue.into_iter().map(|(upload, _)| upload)) {
            self.failed(upload.label, fault.clone());
        }
    }
}
