//! Moves files and folders over an engine: downloads, uploads, comparisons, folders, links and
//! pipes. Never compares two trees. Below `tree_sync`, above `engine`.

pub(crate) mod dir_metadata;
pub mod download;
pub(crate) mod id_translation;
pub mod local_walk;
pub mod pipe_transfer;
pub(crate) mod remote_mkdir;
pub mod remote_scan;
pub(crate) mod select;
pub(crate) mod select_local;
pub mod upload;
pub(crate) mod verify;

use crate::engine::Engine;
use crate::engine::dir_guard::Mark;
use crate::local_io::waker::Waker;
use crate::transfer::dir_metadata::DirMetadata;
use crate::transfer::download::{Download, Downloads};
use crate::transfer::id_translation::IdTranslation;
use crate::transfer::local_walk::{LocalTree, LocalWalks};
use crate::transfer::pipe_transfer::{FromPipe, Pipes, ToPipe};
use crate::transfer::remote_mkdir::{Make, RemoteMkdir};
use crate::transfer::remote_scan::{Page, RemoteScans, RemoteTree};
use crate::transfer::select::{Accepted, Offer, Select};
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

/// Moves, or compares, the files and folders of a session.
pub(crate) struct Transfer {
    files: Files,
    scans: RemoteScans,
    walks: LocalWalks,
    select: Select,
    mkdir: RemoteMkdir,
    dirs: DirMetadata,
    pipes: Pipes,
    /// The owners of the source at the target.
    pub ids: IdTranslation,
}

impl Transfer {
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
            select: Select::default(),
            mkdir: RemoteMkdir::default(),
            dirs: DirMetadata::new(waker),
            pipes: Pipes::new(waker),
            ids: IdTranslation::default(),
        }
    }

    /// Fetches a file, or does with it what the rules say.
    pub fn add_download(&mut self, engine: &mut Engine, mark: Mark, download: Download) {
        select_local::add_download(engine, &mut self.files, mark, download);
    }

    /// Fetches files, whatever the rules say of them.
    pub fn queue_downloads(&mut self, engine: &mut Engine, files: Vec<(Mark, Download)>) {
        for (mark, download) in files {
            self.files.downloads.add(engine, mark, download);
        }
    }

    /// Sends a file, or does with it what the rules say.
    pub fn add_upload(&mut self, engine: &mut Engine, mark: Mark, upload: Upload) {
        self.offer(engine, vec![Offer::File(mark, upload)]);
    }

    pub fn add_remote_tree(&mut self, number: u32, tree: RemoteTree) {
        self.scans.add(number, tree);
    }

    pub fn add_local_tree(&mut self, engine: &mut Engine, number: u32, tree: LocalTree) {
        let root = self.walks.add(engine, number, tree);
        self.offer(engine, vec![root]);
    }

    pub fn add_to_pipe(&mut self, engine: &mut Engine, mark: Mark, work: ToPipe) {
        self.pipes.add_to_pipe(engine, &mut self.files.downloads, mark, work);
    }

    pub fn add_from_pipe(&mut self, engine: &mut Engine, mark: Mark, work: FromPipe) {
        self.pipes.add_from_pipe(engine, &mut self.files.uploads, mark, work);
    }

    /// Has the server make entries, and then sends the files behind them.
    pub fn make(&mut self, engine: &mut Engine, makes: Vec<Make>, files: Vec<(Mark, Upload)>) {
        let ready = self.mkdir.make(engine, makes, files);
        self.queue_uploads(engine, ready);
    }

    fn queue_uploads(&mut self, engine: &mut Engine, files: Vec<(Mark, Upload)>) {
        for (mark, upload) in files {
            self.files.uploads.add(engine, mark, upload);
        }
    }

    fn offer(&mut self, engine: &mut Engine, offers: Vec<Offer>) {
        let accepted = self.select.offer(engine, offers);
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

    /// Files and folders that are queued, and not begun.
    pub fn queued(&self) -> usize {
        self.files.downloads.queued() + self.files.uploads.queued() + self.mkdir.waiting()
    }

    /// Whether files are moved, as opposed to found or made.
    pub fn is_moving(&self) -> bool {
        !self.files.downloads.is_idle() || !self.files.uploads.is_idle()
    }

    /// Whether nothing is left to find or to make, but perhaps to finish.
    pub fn is_found(&self) -> bool {
        self.scans.is_idle() && self.walks.is_idle() && self.mkdir.is_idle()
    }

    /// Whether a pipe is being read that has not ended, so that the size of the work is not known.
    pub fn is_streaming(&self) -> bool {
        self.files.uploads.is_streaming()
    }

    pub fn is_idle(&mut self) -> bool {
        !self.is_moving()
            && self.files.verifier.is_idle()
            && self.is_found()
            && self.dirs.is_idle()
            && self.select.is_idle()
    }

    /// Whether the server was asked for a page, an entry or a folder, and has not answered.
    pub fn awaits(&self) -> bool {
        self.awaits_trees() || self.select.awaits()
    }

    /// The same, but for what is at the targets of a copy.
    pub fn awaits_trees(&self) -> bool {
        self.scans.awaits() || !self.mkdir.is_idle()
    }

    /// Whether something is being finished on this machine for which the server is not needed.
    pub fn is_landing(&self) -> bool {
        self.files.downloads.is_landing() || self.dirs.is_setting()
    }

    /// Whether that may take longer than a user waits who wants to end it.
    pub fn may_land_long(&self) -> bool {
        self.files.downloads.may_take_long()
    }

    /// Does not wait for that.
    pub fn land_no_longer(&mut self) {
        self.files.downloads.wait_for_nobody();
    }

    /// Starts what there is room for.
    pub fn pump(&mut self, engine: &mut Engine) {
        self.pump_dirs(engine);
        let Files { downloads, uploads, verifier } = &self.files;
        let queued = downloads.queued() + verifier.queued() + self.dirs.queued();
        let sent = uploads.queued() + self.select.queued() + self.mkdir.waiting();
        self.scans.pump(engine, queued);
        if self.mkdir.has_room() {
            let queued = sent + self.files.verifier.queued() + self.dirs.queued();
            self.walks.pump(engine, queued);
        }
        self.select.pump(engine);
        self.files.downloads.pump(engine);
        self.files.uploads.pump(engine);
        self.files.verifier.pump(engine);
    }

    /// Has the metadata of folders set whose contents are done.
    fn pump_dirs(&mut self, engine: &mut Engine) {
        self.dirs.pump_local();
        while self.mkdir.has_room()
            && let Some(makes) = self.dirs.next_remote()
        {
            self.make(engine, makes, Vec::new());
        }
    }

    /// What comes behind all that the machines asked for: names for files that are whole, and
    /// second looks at sources that were read.
    pub fn finish_turn(&mut self, engine: &mut Engine) {
        self.files.downloads.commit_landed(engine);
        self.files.uploads.check_sources(engine);
        self.files.verifier.check_files(engine);
    }

    /// Does what the machine that reads asks of a copy.
    pub fn read_effect(&mut self, engine: &mut Engine, effect: read::ClientEffect) {
        self.files.downloads.effect(engine, &self.ids, effect);
    }

    /// The same of a comparison.
    pub fn verify_effect(&mut self, engine: &mut Engine, effect: read::ClientEffect) {
        self.files.verifier.effect(engine, effect);
    }

    /// Does what the machine that writes asks.
    pub fn write_effect(&mut self, engine: &mut Engine, effect: write::ClientEffect) {
        self.files.uploads.effect(engine, effect);
    }

    /// Looks at a reply of the server before the machine that writes takes it.
    pub fn write_reply(&self, engine: &mut Engine, reply: &WriteReply) {
        self.files.uploads.created(engine, reply);
    }

    /// A page of a remote tree is there.
    pub fn page(&mut self, engine: &mut Engine, request: u32, page: Page) {
        self.scans.page(engine, &mut self.files, &self.dirs, request, page);
    }

    /// Whether this request asked what is at the targets of a copy.
    pub fn has_asked(&self, request: u32) -> bool {
        self.select.has_asked(request)
    }

    /// The server says what is there.
    pub fn stated(
        &mut self,
        engine: &mut Engine,
        request: u32,
        answers: Vec<Result<Entry, Fault>>,
    ) {
        let accepted = self.select.stated(engine, request, answers);
        self.accept(engine, accepted);
    }

    /// The server made entries, or did not.
    pub fn made(&mut self, engine: &mut Engine, request: u32, answers: Vec<Result<(), Fault>>) {
        let ready = self.mkdir.made(engine, request, answers);
        self.queue_uploads(engine, ready);
    }

    /// Takes the answers of jobs, and the events of pipes.
    pub fn take_answers(&mut self, engine: &mut Engine) {
        self.files.downloads.take_answers(engine);
        self.files.uploads.take_answers(engine, &self.ids);
        self.files.verifier.take_answers(engine);
        self.dirs.take_answers(engine);
        self.pipes.take_events(engine, &mut self.files.downloads);
        while let Some(offers) = self.walks.next_offers(engine, &self.dirs) {
            self.offer(engine, offers);
        }
    }

    /// The same in a session that is over: only what is all here is finished. Whether what an
    /// earlier run left of a file was found.
    pub fn take_last_answers(&mut self, engine: &mut Engine) -> bool {
        let resumed = self.files.downloads.take_last_answers(engine);
        self.dirs.take_answers(engine);
        self.pipes.take_events(engine, &mut self.files.downloads);
        self.files.downloads.commit_landed(engine);
        self.pump_dirs(engine);
        resumed
    }

    /// Lets go of what is unfinished, for another session or for none.
    pub fn leave(&mut self, engine: &mut Engine) {
        // First: letting go of a file must not end its folder.
        self.dirs.leave(engine);
        self.files.downloads.leave(engine);
        self.files.uploads.leave(engine);
        self.files.verifier.leave(engine);
        self.select.leave(engine);
        self.scans.leave(engine);
        self.walks.leave(engine);
        self.mkdir.leave(engine);
    }
}
