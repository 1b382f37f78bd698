//! Downloads: opens files as there is room, hands chunks to workers with the
//! places they go to, and commits what is whole in batches.

use crate::engine::fd_budget::Taken;
use crate::engine::largest_first::LargestFirst;
use crate::engine::ledger::Item;
use crate::engine::worker::{Command, Landing};
use crate::local_io::delta_source::Basis;
use crate::local_io::download_file::Sink;
use crate::local_io::endpoint::Goal;
use crate::model::copy_policy::Task;
use crate::model::report::FileDone;
use crate::session::Event;
use crate::session::dispatch::Core;
use crate::transfer::dir_metadata::Mark;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use verbatim_files::{Folder, Over, Rules, Target};
use verbatim_proto::message::{ClientMessage, FileId};
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

#[derive(Default)]
pub(crate) struct Downloads {
    queue: LargestFirst<(Mark, Download)>,
    /// Those whose remains of an earlier run are looked for, and where they come from.
    resuming: HashMap<FileId, (WirePath, File)>,
    files: FileMap<File>,
    whole: Vec<Whole>,
    commits: usize,
    /// Verified, and not yet all through its pipe.
    pub piped: Option<(FileId, Digest)>,
}

struct File {
    mark: Mark,
    label: String,
    goal: Goal,
    size: u64,
    _taken: Option<Taken>,
}

/// A file that is all here.
struct Whole {
    id: FileId,
    root: Digest,
    sink: Arc<Sink>,
    meta: Kept,
}

/// What became of a batch of such files, and what of their metadata was not kept.
pub(crate) type Landed = (Vec<(FileId, Digest, Result<(), Fault>)>, Dropped);

impl Downloads {
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.files.is_empty() && self.resuming.is_empty()
    }

    /// Whether files that are all here are being made durable, or will be, or what is left of an
    /// earlier run is being hashed: the next session would do it again.
    pub fn is_landing(&self) -> bool {
        self.commits > 0 || !self.whole.is_empty() || self.may_take_long()
    }

    /// Whether that may take longer than anybody would wait who wants to end it.
    pub fn may_take_long(&self) -> bool {
        self.piped.is_some() || !self.resuming.is_empty()
    }

    /// Does not wait for that.
    pub fn wait_for_nobody(&mut self) {
        self.piped = None;
        let left = self.resuming.drain().map(|(id, (_, file))| (id, file));
        self.files.extend(left);
    }

    /// What is left of a file was found, by a session that is over.
    pub fn resumed_late(&mut self, id: FileId) {
        let file = self.resuming.remove(&id).map(|(_, file)| (id, file));
        self.files.extend(file);
    }

    /// Counts a pipe as begun.
    pub fn begin(&mut self, id: FileId, mark: Mark, label: String, goal: Goal, size: u64) {
        self.files.insert(id, File { mark, label, goal, size, _taken: None });
    }

    pub fn queued(&self) -> usize {
        self.queue.len()
    }
}

impl Core {
    pub(crate) fn queue_download(&mut self, mark: Mark, download: Download) {
        self.progress.files_known += 1;
        self.progress.expect(download.size);
        self.downloads.queue.push(download.size, (mark, download));
    }

    pub(crate) fn pump_downloads(&mut self) {
        // Nobody would hear of what a session opens that is over.
        if self.broken.is_some() {
            return;
        }
        // A file holds descriptors until it is durable; a slow disk slows down what is opened.
        while self.read.room() > self.downloads.resuming.len()
            && self.descriptors.taken() < self.open_max
        {
            let Some((mark, download)) = self.downloads.queue.pop() else { return };
            let id = self.file();
            let Download { remote, folder, local, .. } = download;
            let sink = Sink::new(folder, local, self.server, remote.clone());
            let has_basis = download.basis.is_some();
            if let Some(basis) = &download.basis {
                sink.compare_with(basis);
            }
            let taken = self.descriptors.take(download.size, has_basis);
            let (label, goal, size) = (download.label, Goal::File(sink.clone()), download.size);
            let file = File { mark, label, goal, size, _taken: Some(taken) };
            if Sink::may_resume(size) {
                self.downloads.resuming.insert(id, (remote, file));
                // After another boot all that is left is hashed, which takes as long as it takes.
                let stats = self.stats.clone();
                self.job(move || Event::Resumed(id, sink.resume(&stats.rehashed).map(Box::new)));
            } else {
                self.open_download(id, remote, file, None);
            }
        }
    }

    /// It is known what an earlier run left of a file.
    pub(crate) fn resumed(&mut self, id: FileId, have: Option<Have>) {
        let Some((remote, file)) = self.downloads.resuming.remove(&id) else { return };
        self.open_download(id, remote, file, have);
    }

    fn open_download(&mut self, id: FileId, remote: WirePath, file: File, have: Option<Have>) {
        self.read.open(id, remote, have, self.now());
        self.downloads.files.insert(id, file);
    }

    pub(crate) fn read_effect(&mut self, effect: ClientEffect) {
        if self.serving.is_some() {
            return self.part_effect(effect);
        }
        if self.rules.task == Task::Verify {
            return self.compare_effect(effect);
        }
        match effect {
            ClientEffect::Send(request) => {
                self.sending.push_back(ClientMessage::Read(request));
            }
            ClientEffect::Opened { file: id, mut info, had } => {
                if self.options.preserve {
                    // Nobody else's business until it has all of its metadata.
                    info.mode &= 0o700;
                }
                let file = self.downloads.files.get_mut(&id).expect("opened files are known");
                self.progress.bytes_known = self.progress.bytes_known.saturating_sub(file.size);
                self.progress.expect(info.size);
                file.size = info.size;
                if let Err(fault) = file.goal.opened(info) {
                    // What an earlier run left is as good as it was.
                    file.goal.leave();
                    self.read.fail(id, fault);
                } else if had > 0 {
                    let (item, label) = (file.mark.item, file.label.clone());
                    self.found(item, &label, had);
                }
            }
            ClientEffect::Fetch(fetch) => self.fetch(fetch),
            ClientEffect::Zero(zero) => self.zero(zero),
            ClientEffect::DropLink { link } => self.tell(link, Command::Drop(link)),
            ClientEffect::Restart { file } => self.downloads.files[&file].goal.forget(),
            ClientEffect::Finished { file: id, root, meta } => {
                let root = root.expect("whole files have one");
                let meta = self.owners.translated(meta);
                let File { goal, size, .. } = &self.downloads.files[&id];
                match (goal.clone(), *size) {
                    (Goal::File(sink), _) => {
                        self.downloads.whole.push(Whole { id, root, sink, meta });
                    }
                    (Goal::Pipe(tap), size) => self.pipe_whole(id, root, &tap, size),
                    // Parts are not downloads.
                    (Goal::Part(_), _) => {}
                }
            }
            ClientEffect::Failed { file, fault } => self.download_failed(file, fault),
            ClientEffect::Broken(fault) => self.broke(fault),
        }
    }

    fn fetch(&mut self, fetch: Fetch) {
        let landing = |piece: &verbatim_proto::message::Piece| {
            let file = &self.downloads.files[&piece.file];
            Landing { goal: file.goal.clone(), size: file.size }
        };
        let landings = fetch.chunk.pieces.iter().map(landing).collect();
        let (link, bytes) = (fetch.link, u64::from(fetch.chunk.bytes));
        self.tell_paced(link, bytes, Command::Fetch(fetch, landings));
    }

    fn zero(&mut self, zero: Zero) {
        let file = &self.downloads.files[&zero.file];
        let (goal, size, stats) = (file.goal.clone(), file.size, self.stats.clone());
        self.job(move || {
            let begin = Instant::now();
            // The target must not outlive the answer: a restart removes it.
            let answer = goal.zero(zero.extent, size);
            if answer.is_ok() {
                stats.zeroed(zero.extent.len, begin.elapsed());
            }
            Event::Zeroed(zero, answer)
        });
    }

    pub(crate) fn download_failed(&mut self, id: FileId, fault: Fault) {
        if let Some(file) = self.downloads.files.remove(&id) {
            // What is verified of it stays so, unless it is not worth going on with.
            let lasts = !matches!(file.goal, Goal::Pipe(_)) && fault.code != Code::Changed;
            match fault.class() {
                Class::Retry if lasts => file.goal.leave(),
                _ => file.goal.forget(),
            }
            self.failed(file.mark.item, file.label, file.goal.explain(fault));
        }
    }

    /// Makes whole files durable under their names, in batches.
    pub(crate) fn commit_landed(&mut self) {
        while !self.downloads.whole.is_empty() && self.downloads.commits < COMMITS_MAX {
            let count = self.downloads.whole.len().min(BATCH_FILES_MAX);
            let batch: Vec<_> = self.downloads.whole.drain(..count).collect();
            self.downloads.commits += 1;
            let over = self.rules.over();
            self.job(move || Event::Landed(commit(over, batch)));
        }
    }

    pub(crate) fn landed(&mut self, (answers, dropped): Landed) {
        self.downloads.commits -= 1;
        self.ledger.summary.dropped += dropped;
        for (id, root, answer) in answers {
            match answer {
                Err(fault) if fault.code == Code::Exists => {
                    if let Some(file) = self.downloads.files.remove(&id) {
                        file.goal.forget();
                        self.not_placed(file.mark.item, file.label, fault);
                    }
                }
                Err(fault) => self.download_failed(id, fault),
                Ok(()) => self.download_done(id, root),
            }
        }
    }

    /// A file is where it goes.
    pub(crate) fn download_done(&mut self, id: FileId, digest: Digest) {
        let Some(file) = self.downloads.files.remove(&id) else { return };
        let File { mark, label: path, goal, size: bytes, .. } = file;
        self.done(mark.item, bytes, || FileDone { path, local: goal.shown(), bytes, digest });
    }

    /// Lets go of all files; what lasts of them is there for the next session.
    pub(crate) fn leave_downloads(&mut self) {
        let downloads = std::mem::take(&mut self.downloads);
        let resuming = downloads.resuming.into_values().map(|(_, file)| file);
        for file in downloads.files.into_values().chain(resuming) {
            file.goal.leave();
            self.ledger.leave(file.mark.item, file.label, true);
        }
        for (mark, download) in downloads.queue.into_items() {
            self.ledger.leave(mark.item, download.label, false);
        }
    }

    /// Tells and counts what was in place when a file was begun; as of an earlier run only if no
    /// earlier session of this one had begun it.
    pub(crate) fn found(&mut self, item: Item, path: &str, bytes: u64) {
        tracing::info!(path, bytes, "copy resumed");
        self.stats.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.found_bytes += bytes;
        if !self.ledger.was_begun(item) {
            self.ledger.summary.resumed_bytes += bytes;
        }
    }
}

fn commit(over: Over, batch: Vec<Whole>) -> Landed {
    let rules = Rules::of_user();
    let mut dropped = Dropped::default();
    let mut place = |whole: &Whole| {
        // An empty file has no first byte that would have made its target.
        let target = whole.sink.target()?;
        if let Some(meta) = &whole.meta {
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
    let told = batch.iter().zip(results).map(|(whole, result)| {
        if result.is_ok() {
            // Closed here, with the others, and not by whoever answers all messages.
            drop(whole.sink.leave());
        }
        (whole.id, whole.root, result)
    });
    (told.collect(), dropped)
}
