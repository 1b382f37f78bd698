//! Downloads: opens files as there is room, hands chunks to workers with the
//! places they go to, and commits what is whole in batches.

use crate::connection::Engine;
use crate::connection::dir_guard::Mark;
use crate::connection::fd_budget::Taken;
use crate::connection::jobs::Jobs;
use crate::connection::largest_first::LargestFirst;
use crate::connection::receive::Landing;
use crate::connection::worker::Command;
use crate::local_io::delta_source::Basis;
use crate::local_io::download_file::Sink;
use crate::local_io::endpoint::Goal;
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
    queue: LargestFirst<(Mark, Download)>,
    /// Those whose remains of an earlier run are looked for, and where they come from.
    resuming: HashMap<FileId, (WirePath, File)>,
    files: FileMap<File>,
    whole: Vec<Whole>,
    commits: usize,
    /// Verified, and not yet all through its pipe.
    piped: Option<(FileId, Digest)>,
    jobs: Jobs<Answer>,
}

/// What jobs of downloads answer.
enum Answer {
    /// What an earlier run left of a file.
    Resumed(FileId, Option<Box<Have>>),
    Zeroed(Zero, Result<Vec<Digest>, Fault>),
    Landed(Landed),
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
type Landed = (Vec<(FileId, Digest, Result<(), Fault>)>, Dropped);

impl Downloads {
    pub fn new(waker: &Waker) -> Self {
        Self {
            queue: LargestFirst::default(),
            resuming: HashMap::new(),
            files: FileMap::default(),
            whole: Vec::new(),
            commits: 0,
            piped: None,
            jobs: Jobs::new(waker),
        }
    }

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

    /// Counts a pipe as begun.
    pub fn begin(&mut self, id: FileId, mark: Mark, label: String, goal: Goal, size: u64) {
        self.files.insert(id, File { mark, label, goal, size, _taken: None });
    }

    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    pub fn add(&mut self, engine: &mut Engine, mark: Mark, download: Download) {
        engine.outcomes().expect(download.size);
        self.queue.push(download.size, (mark, download));
    }

    pub fn pump(&mut self, engine: &mut Engine) {
        // Nobody would hear of what a session opens that is over.
        if engine.broken().is_some() {
            return;
        }
        // A file holds descriptors until it is durable; a slow disk slows down what is opened.
        while engine.read().room() > self.resuming.len() && engine.fds().has_room() {
            let Some((mark, download)) = self.queue.pop() else { return };
            let id = engine.file();
            let Download { remote, folder, local, .. } = download;
            let sink = Sink::new(folder, local, engine.server(), remote.clone());
            let has_basis = download.basis.is_some();
            if let Some(basis) = &download.basis {
                sink.compare_with(basis);
            }
            let taken = engine.fds().take(download.size, has_basis);
            let (label, goal, size) = (download.label, Goal::File(sink.clone()), download.size);
            let file = File { mark, label, goal, size, _taken: Some(taken) };
            if Sink::may_resume(size) {
                self.resuming.insert(id, (remote, file));
                // After another boot all that is left is hashed, which takes as long as it takes.
                let stats = engine.stats().clone();
                self.jobs
                    .run(move || Answer::Resumed(id, sink.resume(&stats.rehashed).map(Box::new)));
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
                if let Err(fault) = file.goal.opened(info) {
                    // What an earlier run left is as good as it was.
                    file.goal.leave();
                    engine.read().fail(id, fault);
                } else if had > 0 {
                    let (item, label) = (file.mark.item, file.label.clone());
                    engine.outcomes().found(item, &label, had);
                }
            }
            ClientEffect::Fetch(fetch) => self.fetch(engine, fetch),
            ClientEffect::Zero(zero) => self.zero(engine, zero),
            ClientEffect::Restart { file } => self.files[&file].goal.forget(),
            ClientEffect::Finished { file: id, root, meta } => {
                let root = root.expect("whole files have one");
                let meta = ids.translated(meta);
                let File { goal, size, .. } = &self.files[&id];
                match (goal.clone(), *size) {
                    (Goal::File(sink), _) => {
                        self.whole.push(Whole { id, root, sink, meta });
                    }
                    // The pipe may end when it has taken all.
                    (Goal::Pipe(tap), size) => {
                        self.piped = Some((id, root));
                        tap.end_at(size);
                    }
                    // Parts are not downloads.
                    (Goal::Part(_), _) => {}
                }
            }
            ClientEffect::Failed { file, fault } => self.failed(engine, file, fault),
            // The engine has done these.
            ClientEffect::Send(_) | ClientEffect::DropLink { .. } | ClientEffect::Broken(_) => {}
        }
    }

    fn fetch(&self, engine: &mut Engine, fetch: Fetch) {
        let landing = |piece: &Piece| {
            let file = &self.files[&piece.file];
            Landing { goal: file.goal.clone(), size: file.size }
        };
        let landings = fetch.chunk.pieces.iter().map(landing).collect();
        let (link, bytes) = (fetch.link, u64::from(fetch.chunk.bytes));
        engine.tell_paced(link, bytes, Command::Fetch(fetch, landings));
    }

    fn zero(&self, engine: &mut Engine, zero: Zero) {
        let file = &self.files[&zero.file];
        let (goal, size, stats) = (file.goal.clone(), file.size, engine.stats().clone());
        self.jobs.run(move || {
            let begin = Instant::now();
            // The target must not outlive the answer: a restart removes it.
            let answer = goal.zero(zero.extent, size);
            if answer.is_ok() {
                stats.zeroed(zero.extent.len, begin.elapsed());
            }
            Answer::Zeroed(zero, answer)
        });
    }

    fn failed(&mut self, engine: &mut Engine, id: FileId, fault: Fault) {
        if let Some(file) = self.files.remove(&id) {
            // What is verified of it stays so, unless it is not worth going on with.
            let lasts = !matches!(file.goal, Goal::Pipe(_)) && fault.code != Code::Changed;
            match fault.class() {
                Class::Retry if lasts => file.goal.leave(),
                _ => file.goal.forget(),
            }
            engine.outcomes().failed(file.mark.item, file.label, file.goal.explain(fault));
        }
    }

    /// Makes whole files durable under their names, in batches.
    pub fn commit_landed(&mut self, engine: &mut Engine) {
        while !self.whole.is_empty() && self.commits < COMMITS_MAX {
            let count = self.whole.len().min(BATCH_FILES_MAX);
            let batch: Vec<_> = self.whole.drain(..count).collect();
            self.commits += 1;
            let over = engine.rules().over();
            self.jobs.run(move || Answer::Landed(commit(over, batch)));
        }
    }

    fn landed(&mut self, engine: &mut Engine, (answers, dropped): Landed) {
        self.commits -= 1;
        engine.outcomes().ledger().summary.dropped += dropped;
        for (id, root, answer) in answers {
            match answer {
                Err(fault) if fault.code == Code::Exists => {
                    if let Some(file) = self.files.remove(&id) {
                        file.goal.forget();
                        engine.outcomes().not_placed(file.mark.item, file.label, fault);
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
        let File { mark, label: path, goal, size: bytes, .. } = file;
        engine.outcomes().done(mark.item, bytes, || FileDone {
            path,
            local: goal.shown(),
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
                Answer::Landed(landed) => self.landed(engine, landed),
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
                Answer::Landed(landed) => self.landed(engine, landed),
                Answer::Zeroed(..) => {}
            }
        }
        resumed
    }

    /// A pipe has taken all of its file.
    pub fn pipe_ended(&mut self, engine: &mut Engine, id: FileId) {
        if let Some((_, digest)) = self.piped.take_if(|(piped, _)| *piped == id) {
            self.done(engine, id, digest);
        }
    }

    /// A pipe can be written no more. True where all of its file had come.
    pub fn pipe_failed(&mut self, engine: &mut Engine, id: FileId, fault: &Fault) -> bool {
        let came = self.piped.take_if(|(piped, _)| *piped == id).is_some();
        if came {
            self.failed(engine, id, fault.clone());
        }
        came
    }

    /// Lets go of all files; what lasts of them is there for the next session.
    pub fn leave(&mut self, engine: &mut Engine) {
        let ledger = engine.outcomes().ledger();
        let resuming = self.resuming.drain().map(|(_, (_, file))| file);
        for file in std::mem::take(&mut self.files).into_values().chain(resuming) {
            file.goal.leave();
            ledger.leave(file.mark.item, file.label, true);
        }
        for (mark, download) in std::mem::take(&mut self.queue).into_items() {
            ledger.leave(mark.item, download.label, false);
        }
        (self.whole, self.piped) = (Vec::new(), None);
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
