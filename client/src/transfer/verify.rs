//! Comparing without writing: a remote file is opened for reading as for a
//! download, but of its windows only the digests are used, which came over TLS.
//! Workers hash the file here and compare; no data moves and no link is made.

use crate::engine::largest_first::LargestFirst;
use crate::engine::ledger::Item;
use crate::engine::worker::Command;
use crate::local_io::verify_file::Likeness;
use crate::model::report::FileDone;
use crate::session::Event;
use crate::session::dispatch::Core;
use crate::transfer::upload::UploadSource;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use verbatim_files::Source;
use verbatim_files::hash::hash_extent;
use verbatim_files::holes::hash_zeros;
use verbatim_proto::message::{ClientMessage, FileId, LinkId};
use verbatim_proto::numbered::FileMap;
use verbatim_proto::read::{ClientEffect, Fetch, Zero};
use verbatim_proto::{Code, Digest, Fault, WirePath};

/// A file that is on both sides, or should be.
pub(crate) struct Compare {
    pub item: Item,
    /// Where it is on the server, export first.
    pub remote: WirePath,
    /// Where it is here.
    pub source: UploadSource,
    /// How long the source of the two is, as far as is known.
    pub size: u64,
    /// How the user would name it.
    pub label: String,
    /// Where it is here, for people.
    pub shown: String,
}

#[derive(Default)]
pub(crate) struct Compares {
    queue: LargestFirst<Compare>,
    files: FileMap<File>,
}

struct File {
    item: Item,
    label: String,
    shown: String,
    source: Arc<Source>,
    /// How long the remote one is.
    size: u64,
}

impl Compares {
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.files.is_empty()
    }

    pub fn queued(&self) -> usize {
        self.queue.len()
    }
}

impl Core {
    /// Gives the read machine slots without links: workers need none to compare.
    pub(crate) fn pretend_links(&mut self) {
        for index in 0..self.streams {
            self.read.link_up(LinkId { index, epoch: 0 });
        }
    }

    pub(crate) fn add_compare(&mut self, compare: Compare) {
        if self.ledger.is_over(compare.item) {
            return;
        }
        self.progress.files_known += 1;
        self.progress.expect(compare.size);
        self.compares.queue.push(compare.size, compare);
    }

    pub(crate) fn pump_compares(&mut self) {
        while self.read.room() > 0 && self.compares.files.len() < self.open_max {
            let Some(compare) = self.compares.queue.pop() else { return };
            let source = match compare.source.open(&compare.shown) {
                Ok(source) => Arc::new(source),
                Err(fault) => {
                    self.failed(compare.item, compare.label, fault);
                    continue;
                }
            };
            let (id, now) = (self.file(), self.now());
            self.read.open(id, compare.remote, None, now);
            let Compare { item, label, shown, size, .. } = compare;
            self.compares.files.insert(id, File { item, label, shown, source, size });
        }
    }

    pub(crate) fn compare_effect(&mut self, effect: ClientEffect) {
        match effect {
            ClientEffect::Send(request) => {
                self.sending.push_back(ClientMessage::Read(request));
            }
            ClientEffect::Opened { file: id, info, .. } => {
                let file = self.compares.files.get_mut(&id).expect("opened files are known");
                file.size = info.size;
                let here = file.source.identity().size;
                if here != info.size {
                    let text = format!("it has {here} bytes here, {} on the server", info.size);
                    self.read.fail(id, Fault::new(Code::Mismatch, text));
                }
            }
            ClientEffect::Fetch(fetch) => self.compare(fetch),
            ClientEffect::Zero(zero) => self.compare_hole(zero),
            ClientEffect::DropLink { .. } => {
                let seconds = self.options.timeout.as_secs();
                let text = format!("reading a chunk on this machine took longer than {seconds} s");
                self.broke(Fault::new(Code::TimedOut, text));
            }
            // Nothing has landed that could be forgotten.
            ClientEffect::Restart { .. } => {}
            ClientEffect::Finished { file, root, .. } => {
                let source = self.compares.files[&file].source.clone();
                let root = root.expect("whole files have one");
                self.uploads.check_later(file, root, source);
            }
            ClientEffect::Failed { file, fault } => {
                if let Some(file) = self.compares.files.remove(&file) {
                    self.failed(file.item, file.label, fault);
                }
            }
            ClientEffect::Broken(fault) => self.broke(fault),
        }
    }

    fn compare(&mut self, fetch: Fetch) {
        // One that was given up by its size may still share a chunk with others.
        let likeness = |piece: &verbatim_proto::message::Piece| {
            let file = self.compares.files.get(&piece.file)?;
            Some(Likeness { source: file.source.clone(), size: file.size })
        };
        let likenesses = fetch.chunk.pieces.iter().map(likeness).collect();
        self.tell(fetch.link, Command::Compare(fetch, likenesses));
    }

    /// A hole on the server reads as zeros: so must the same range here.
    fn compare_hole(&mut self, zero: Zero) {
        let Some(file) = self.compares.files.get(&zero.file) else { return };
        let (source, size, extent) = (file.source.clone(), file.size, zero.extent);
        let stats = self.stats.clone();
        self.job(move || {
            let zeros = hash_zeros(size, extent);
            // As long as it is there, as its zeros: the file here may have another length.
            let here = hash_extent(source.file(), size, extent);
            let answer = here.map_err(|error| source.read_fault(&error)).and_then(|here| {
                source.hand_out(extent, &here);
                match here == zeros {
                    true => Ok(zeros),
                    false => {
                        let text = format!("it is no hole here, from byte {}", extent.offset);
                        Err(Fault::new(Code::Mismatch, text))
                    }
                }
            });
            if answer.is_ok() {
                stats.bytes.fetch_add(extent.len, Ordering::Relaxed);
            }
            Event::Zeroed(zero, answer)
        });
    }

    /// The file here was looked at again: what was compared is one version of it, or not.
    pub(crate) fn compared(&mut self, id: FileId, root: Digest, answer: Result<(), Fault>) {
        let Some(file) = self.compares.files.remove(&id) else { return };
        match answer {
            Ok(()) => {
                let (path, local, bytes) = (file.label, file.shown, file.size);
                self.done(file.item, bytes, || FileDone { path, local, bytes, digest: root });
            }
            Err(fault) => self.failed(file.item, file.label, fault),
        }
    }

    /// Lets go of all files.
    pub(crate) fn leave_compares(&mut self) {
        let compares = std::mem::take(&mut self.compares);
        let begun = compares.files.into_values().map(|file| (file.item, file.label));
        let queued = compares.queue.into_items().map(|compare| (compare.item, compare.label));
        for (item, label) in begun.chain(queued) {
            self.ledger.leave(item, label, false);
        }
    }
}
