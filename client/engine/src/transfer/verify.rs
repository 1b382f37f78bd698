//! Compares without writing (`--verify`): the client opens a remote file as for a download, but
//! uses only the digests of its leases, which come over TLS. Workers hash the local file and
//! compare. No data moves, and no link connects.

use crate::connection::Engine;
use crate::connection::jobs::Jobs;
use crate::connection::largest_first::LargestFirst;
use crate::connection::ledger::ItemKey;
use crate::connection::worker::Command;
use crate::local_io::verify_file::ComparedFile;
use crate::local_io::waker::Waker;
use crate::model::report::FileDone;
use crate::transfer::upload::UploadSource;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use verbatim_files::Source;
use verbatim_files::hash::hash_extent;
use verbatim_files::holes::hash_zeros;
use verbatim_proto::message::{FileId, Piece};
use verbatim_proto::numbered::FileMap;
use verbatim_proto::read::{ClientEffect, Fetch, Zero};
use verbatim_proto::{Code, Digest, Fault, WirePath};

/// A file to compare with its copy.
pub(crate) struct Comparison {
    pub item: ItemKey,
    /// The path on the server, export first.
    pub remote: WirePath,
    /// The local file.
    pub source: UploadSource,
    /// The size of the copy's source, as far as it is known.
    pub size: u64,
    /// The source, as the user would name it.
    pub label: String,
    /// The local path, for messages.
    pub shown: String,
}

/// The comparisons of a session.
pub(crate) struct Verifier {
    queue: LargestFirst<Comparison>,
    files: FileMap<File>,
    /// Files compared completely; one job checks many for changes.
    unchecked: Vec<(FileId, Digest, Arc<Source>)>,
    jobs: Jobs<Answer>,
}

/// The answers of comparison jobs.
enum Answer {
    Zeroed(Zero, Result<Vec<Digest>, Fault>),
    /// Whether the local files are unchanged.
    Checked(Vec<(FileId, Digest, Result<(), Fault>)>),
}

struct File {
    item: ItemKey,
    label: String,
    shown: String,
    source: Arc<Source>,
    /// The size of the remote file.
    size: u64,
}

impl Verifier {
    pub fn new(waker: &Waker) -> Self {
        let (queue, files) = (LargestFirst::default(), FileMap::default());
        Self { queue, files, unchecked: Vec::new(), jobs: Jobs::new(waker) }
    }

    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.files.is_empty()
    }

    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    pub fn add(&mut self, engine: &mut Engine, compare: Comparison) {
        if engine.outcomes().ledger().is_finished(compare.item) {
            return;
        }
        engine.outcomes().expect(compare.size);
        self.queue.push(compare.size, compare);
    }

    pub fn pump(&mut self, engine: &mut Engine) {
        while engine.read().room() > 0 && self.files.len() < engine.fds().max() {
            let Some(compare) = self.queue.pop() else { return };
            let source = match compare.source.open(&compare.shown) {
                Ok(source) => Arc::new(source),
                Err(fault) => {
                    engine.outcomes().failed(compare.item, compare.label, fault);
                    continue;
                }
            };
            let (id, now) = (engine.file(), engine.now());
            engine.read().open(id, compare.remote, None, now);
            let Comparison { item, label, shown, size, .. } = compare;
            self.files.insert(id, File { item, label, shown, source, size });
        }
    }

    pub fn effect(&mut self, engine: &mut Engine, effect: ClientEffect) {
        match effect {
            ClientEffect::Opened { file: id, info, .. } => {
                let file = self.files.get_mut(&id).expect("opened files are known");
                file.size = info.size;
                let here = file.source.identity().size;
                if here != info.size {
                    let text = format!("it has {here} bytes here, {} on the server", info.size);
                    engine.read().fail(id, Fault::new(Code::Mismatch, text));
                }
            }
            ClientEffect::Fetch(fetch) => self.compare(engine, fetch),
            ClientEffect::Zero(zero) => self.compare_hole(engine, zero),
            // A comparison has written nothing that a restart would remove.
            ClientEffect::Restart { .. } => {}
            ClientEffect::Finished { file, root, .. } => {
                let source = self.files[&file].source.clone();
                let root = root.expect("whole files have one");
                self.unchecked.push((file, root, source));
            }
            ClientEffect::Failed { file, fault } => {
                if let Some(file) = self.files.remove(&file) {
                    engine.outcomes().failed(file.item, file.label, fault);
                }
            }
            // The engine has handled these.
            ClientEffect::Send(_) | ClientEffect::DropLink { .. } | ClientEffect::Broken(_) => {}
        }
    }

    fn compare(&self, engine: &mut Engine, fetch: Fetch) {
        // A file that failed by its size may still share a chunk with others.
        let compared_file = |piece: &Piece| {
            let file = self.files.get(&piece.file)?;
            Some(ComparedFile { source: file.source.clone(), size: file.size })
        };
        let compared_files = fetch.chunk.pieces.iter().map(compared_file).collect();
        engine.send_command(fetch.link, Command::Compare(fetch, compared_files));
    }

    /// Starts a job that compares a remote hole with the same local range, which must be zeros.
    fn compare_hole(&self, engine: &mut Engine, zero: Zero) {
        let Some(file) = self.files.get(&zero.file) else { return };
        let (source, size, extent) = (file.source.clone(), file.size, zero.extent);
        let stats = engine.stats().clone();
        self.jobs.run(move || {
            let zeros = hash_zeros(size, extent);
            // Hash with the size of the remote file: the local one may differ.
            let here = hash_extent(source.file(), size, extent);
            let answer = here.map_err(|error| source.read_fault(&error)).and_then(|here| {
                source.hand_out(extent, &here);
                match here == zeros {
                    true => Ok(zeros),
                    false => {
                        let text = format!(
                            "the source has a hole and the target has data, from byte {}",
                            extent.offset
                        );
                        Err(Fault::new(Code::Mismatch, text))
                    }
                }
            });
            if answer.is_ok() {
                stats.bytes.fetch_add(extent.len, Ordering::Relaxed);
            }
            Answer::Zeroed(zero, answer)
        });
    }

    /// Finishes a comparison, after the check of the local file for changes.
    fn compared(
        &mut self,
        engine: &mut Engine,
        id: FileId,
        root: Digest,
        answer: Result<(), Fault>,
    ) {
        let Some(file) = self.files.remove(&id) else { return };
        match answer {
            Ok(()) => {
                let (path, local, bytes) = (file.label, file.shown, file.size);
                engine.outcomes().done(file.item, bytes, || FileDone {
                    path,
                    local,
                    bytes,
                    digest: root,
                });
            }
            Err(fault) => engine.outcomes().failed(file.item, file.label, fault),
        }
    }

    /// Starts a job that checks whether the compared files have changed meanwhile.
    pub fn check_files(&mut self, engine: &mut Engine) {
        if self.unchecked.is_empty() {
            return;
        }
        let files = std::mem::take(&mut self.unchecked);
        engine.begin_hashing();
        self.jobs.run(move || {
            let check = |(file, root, source): (_, _, Arc<Source>)| (file, root, source.check());
            Answer::Checked(files.into_iter().map(check).collect())
        });
    }

    /// Handles the answers of jobs.
    pub fn take_answers(&mut self, engine: &mut Engine) {
        while let Some(answer) = self.jobs.next_answer() {
            match answer {
                Answer::Zeroed(zero, answer) => {
                    let now = engine.now();
                    engine.read().zeroed(zero, answer, now);
                }
                Answer::Checked(answers) => {
                    engine.end_hashing();
                    for (file, root, answer) in answers {
                        self.compared(engine, file, root, answer);
                    }
                }
            }
        }
    }

    /// Notes all comparisons as unfinished.
    pub fn suspend(&mut self, engine: &mut Engine) {
        let begun = std::mem::take(&mut self.files).into_values();
        let begun = begun.map(|file| (file.item, file.label));
        let queued = std::mem::take(&mut self.queue).into_items();
        let queued = queued.map(|compare| (compare.item, compare.label));
        for (item, label) in begun.chain(queued) {
            engine.outcomes().ledger().note_unfinished(item, label, false);
        }
        self.unchecked.clear();
    }
}
