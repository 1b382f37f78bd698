//! Moves files and folders over an engine: downloads, uploads, comparisons, folders, links and
//! pipes. Never compares two trees. Above `connection`; `verbatim-client` dispatches to it.

pub(crate) mod dir_metadata;
pub mod download;
pub mod id_translation;
pub mod local_walk;
pub mod pipe_transfer;
pub mod remote_mkdir;
pub mod remote_scan;
pub(crate) mod select;
pub(crate) mod select_local;
pub mod upload;
pub(crate) mod verify;

use crate::connection::Engine;
use crate::connection::dir_guard::WorkItem;
use crate::local_io::waker::Waker;
use crate::transfer::dir_metadata::DirMetadata;
use crate::transfer::download::{Download, Downloads};
use crate::transfer::id_translation::IdTranslation;
use crate::transfer::local_walk::{LocalTree, LocalWalks};
use crate::transfer::pipe_transfer::{FromPipe, Pipes, ToPipe};
use crate::transfer::remote_mkdir::{MkdirEntry, RemoteMkdir};
use crate::transfer::remote_scan::{Page, RemoteScans, RemoteTree};
use crate::transfer::select::{Accepted, Candidate, Selector};
use crate::transfer::upload::{Upload, Uploads};
use crate::transfer::verify::Verifier;
use verbatim_proto::message::{Entry, WriteReply};
use verbatim_proto::{Fault, read, write};

/// The files of a session: fetched, sent or compared.
pub(crate) struct Files {
    pub downloads: Downloads,
    pub uploads: Uploads,
    pub verifier: Verifier,
}

/// The transfers of one session: downloads, uploads, comparisons, folders, links and pipes. Methods
/// that start or end a transfer get the engine of the connection.
pub struct Transfer {
    files: Files,
    scans: RemoteScans,
    walks: LocalWalks,
    selector: Selector,
    mkdir: RemoteMkdir,
    dirs: DirMetadata,
    pipes: Pipes,
    /// The user and group ids of the source, translated to those of the target.
    pub ids: IdTranslation,
}

impl Transfer {
    /// Without transfers; answers of their jobs wake the task of `waker`.
    pub fn new(waker: &Waker) -> Self {
        let files = Files {
            downloads: Downloads::new(waker),
            uploads: Uploads::new(waker),
            verifier: Verifier::new(waker),
        };
        Self {
            files,
            scans: RemoteScans::default(),
            walks: LocalWalks::new(waker),
            selector: Selector::default(),
            mkdir: RemoteMkdir::default(),
            dirs: DirMetadata::new(waker),
            pipes: Pipes::new(waker),
            ids: IdTranslation::default(),
        }
    }

    /// Downloads a file, or skips, reports or compares it, by the policy of the copy.
    pub fn add_download(&mut self, engine: &mut Engine, work_item: WorkItem, download: Download) {
        select_local::add_download(engine, &mut self.files, work_item, download);
    }

    /// Downloads files without applying the policy.
    pub fn queue_downloads(&mut self, engine: &mut Engine, files: Vec<(WorkItem, Download)>) {
        for (work_item, download) in files {
            self.files.downloads.add(engine, work_item, download);
        }
    }

    /// Uploads a file, or skips, reports or compares it, by the policy of the copy.
    pub fn add_upload(&mut self, engine: &mut Engine, work_item: WorkItem, upload: Upload) {
        self.select(engine, vec![Candidate::File(work_item, upload)]);
    }

    /// Scans a remote folder and downloads its entries; `number` is its piece of the work.
    pub fn add_remote_tree(&mut self, number: u32, tree: RemoteTree) {
        self.scans.add(number, tree);
    }

    /// Walks a local folder and uploads its entries; `number` is its piece of the work.
    pub fn add_local_tree(&mut self, engine: &mut Engine, number: u32, tree: LocalTree) {
        let root = self.walks.add(engine, number, tree);
        self.select(engine, vec![root]);
    }

    /// Downloads a file to standard output.
    pub fn add_to_pipe(&mut self, engine: &mut Engine, work_item: WorkItem, work: ToPipe) {
        self.pipes.add_to_pipe(engine, &mut self.files.downloads, work_item, work);
    }

    /// Uploads standard input as a file.
    pub fn add_from_pipe(&mut self, engine: &mut Engine, work_item: WorkItem, work: FromPipe) {
        self.pipes.add_from_pipe(engine, &mut self.files.uploads, work_item, work);
    }

    /// Has the server create folders and links, then sends `files`, which may be inside them.
    pub fn make(
        &mut self,
        engine: &mut Engine,
        makes: Vec<MkdirEntry>,
        files: Vec<(WorkItem, Upload)>,
    ) {
        let ready = self.mkdir.make(engine, makes, files);
        self.queue_uploads(engine, ready);
    }

    fn queue_uploads(&mut self, engine: &mut Engine, files: Vec<(WorkItem, Upload)>) {
        for (work_item, upload) in files {
            self.files.uploads.add(engine, work_item, upload);
        }
    }

    fn select(&mut self, engine: &mut Engine, candidates: Vec<Candidate>) {
        let accepted = self.selector.select(engine, candidates);
        self.accept(engine, accepted);
    }

    fn accept(&mut self, engine: &mut Engine, accepted: Accepted) {
        for compare in accepted.compares {
            self.files.verifier.add(engine, compare);
        }
        if !accepted.makes.is_empty() || !accepted.files.is_empty() {
            self.make(engine, accepted.makes, accepted.files);
        }
    }

    /// Files and folders that are queued and not started.
    pub fn queued(&self) -> usize {
        self.files.downloads.queued() + self.files.uploads.queued() + self.mkdir.waiting()
    }

    /// Whether files are in flight, beyond scans and folders.
    pub(crate) fn is_moving(&self) -> bool {
        !self.files.downloads.is_idle() || !self.files.uploads.is_idle()
    }

    /// Whether all scans and walks are complete and all folders are created; files may be left.
    pub fn is_scan_complete(&self) -> bool {
        self.scans.is_idle() && self.walks.is_idle() && self.mkdir.is_idle()
    }

    /// Whether standard input is still open, so that the size of the work is unknown.
    pub fn is_streaming(&self) -> bool {
        self.files.uploads.is_streaming()
    }

    /// Whether all work is finished, with the metadata of folders.
    pub fn is_idle(&mut self) -> bool {
        !self.is_moving()
            && self.files.verifier.is_idle()
            && self.is_scan_complete()
            && self.dirs.is_idle()
            && self.selector.is_idle()
    }

    /// Whether the server owes a page, a stat or a created folder.
    pub fn awaits(&self) -> bool {
        self.awaits_trees() || self.selector.awaits()
    }

    /// Whether the server owes a page or a created folder.
    pub fn awaits_trees(&self) -> bool {
        self.scans.awaits() || !self.mkdir.is_idle()
    }

    /// Whether this machine commits files or sets metadata, without the server.
    pub fn is_committing(&self) -> bool {
        self.files.downloads.is_committing() || self.dirs.is_setting()
    }

    /// Whether [`Transfer::is_committing`] may last longer than a user waits for an interrupted copy.
    pub fn may_finish_slowly(&self) -> bool {
        self.files.downloads.may_finish_slowly()
    }

    /// Stops waiting for files that finish slowly.
    pub fn abandon_slow_finishers(&mut self) {
        self.files.downloads.abandon_slow_finishers();
    }

    /// Starts as much of the queued work as the bounds allow.
    pub fn pump(&mut self, engine: &mut Engine) {
        self.pump_dirs(engine);
        let Files { downloads, uploads, verifier } = &self.files;
        let queued = downloads.queued() + verifier.queued() + self.dirs.queued();
        let sent = uploads.queued() + self.selector.queued() + self.mkdir.waiting();
        self.scans.pump(engine, queued);
        if self.mkdir.has_room() {
            let queued = sent + self.files.verifier.queued() + self.dirs.queued();
            self.walks.pump(engine, queued);
        }
        self.selector.pump(engine);
        self.files.downloads.pump(engine);
        self.files.uploads.pump(engine);
        self.files.verifier.pump(engine);
    }

    /// Starts setting the metadata of folders whose contents are complete.
    fn pump_dirs(&mut self, engine: &mut Engine) {
        self.dirs.pump_local();
        while self.mkdir.has_room()
            && let Some(makes) = self.dirs.next_remote()
        {
            self.make(engine, makes, Vec::new());
        }
    }

    /// Ends a turn, after all effects of the machines: starts commits of complete downloads, and
    /// checks that the sources did not change while they were read.
    pub fn finish_turn(&mut self, engine: &mut Engine) {
        self.files.downloads.commit_complete_files(engine);
        self.files.uploads.check_sources(engine);
        self.files.verifier.check_files(engine);
    }

    /// Carries out an effect of the machine that reads, in a copy.
    pub fn read_effect(&mut self, engine: &mut Engine, effect: read::ClientEffect) {
        self.files.downloads.effect(engine, &self.ids, effect);
    }

    /// Carries out an effect of the machine that reads, in a comparison.
    pub fn verify_effect(&mut self, engine: &mut Engine, effect: read::ClientEffect) {
        self.files.verifier.effect(engine, effect);
    }

    /// Carries out an effect of the machine that writes.
    pub fn write_effect(&mut self, engine: &mut Engine, effect: write::ClientEffect) {
        self.files.uploads.effect(engine, effect);
    }

    /// Counts bytes that the server already has of new uploads. Called before the machine that
    /// writes handles the reply.
    pub fn write_reply(&self, engine: &mut Engine, reply: &WriteReply) {
        self.files.uploads.created(engine, reply);
    }

    /// Handles a page of a remote tree. An unexpected page ends the session.
    pub fn page(&mut self, engine: &mut Engine, request: u32, page: Page) {
        self.scans.page(engine, &mut self.files, &self.dirs, request, page);
    }

    /// Whether this request is a stat of copy targets.
    pub fn awaits_stat(&self, request: u32) -> bool {
        self.selector.awaits_stat(request)
    }

    /// Handles the stats of copy targets, in the order of the request.
    pub fn stated(
        &mut self,
        engine: &mut Engine,
        request: u32,
        answers: Vec<Result<Entry, Fault>>,
    ) {
        let accepted = self.selector.stated(engine, request, answers);
        self.accept(engine, accepted);
    }

    /// Handles the answers to a request for folders and links, and uploads the files that waited
    /// for it.
    pub fn made(&mut self, engine: &mut Engine, request: u32, answers: Vec<Result<(), Fault>>) {
        let ready = self.mkdir.made(engine, request, answers);
        self.queue_uploads(engine, ready);
    }

    /// Handles all answers of jobs and events of pipes that have arrived.
    pub fn take_answers(&mut self, engine: &mut Engine) {
        self.files.downloads.take_answers(engine);
        self.files.uploads.take_answers(engine, &self.ids);
        self.files.verifier.take_answers(engine);
        self.dirs.take_answers(engine);
        self.pipes.take_events(engine, &mut self.files.downloads);
        while let Some(candidates) = self.walks.next_candidates(engine, &self.dirs) {
            self.select(engine, candidates);
        }
    }

    /// Handles the answers of jobs in a session that has ended: only complete files are committed.
    /// Returns whether the partial file of an earlier run was found.
    pub fn take_last_answers(&mut self, engine: &mut Engine) -> bool {
        let resumed = self.files.downloads.take_last_answers(engine);
        self.dirs.take_answers(engine);
        self.pipes.take_events(engine, &mut self.files.downloads);
        self.files.downloads.commit_complete_files(engine);
        self.pump_dirs(engine);
        resumed
    }

    /// Stops all unfinished work and notes it in the ledger, for the next session.
    pub fn suspend(&mut self, engine: &mut Engine) {
        // First, so that no dropped file makes its folder due.
        self.dirs.suspend(engine);
        self.files.downloads.suspend(engine);
        self.files.uploads.suspend(engine);
        self.files.verifier.suspend(engine);
        self.selector.suspend(engine);
        self.scans.suspend(engine);
        self.walks.suspend(engine);
        self.mkdir.suspend(engine);
    }
}
