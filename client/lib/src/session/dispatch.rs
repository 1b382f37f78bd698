//! Dispatches messages of the server, events of workers, answers of jobs and effects of the
//! machines to the activity they are for. The only module that knows all activities. Never waits
//! and never touches a socket; `Session` does.

use crate::remote_fs::service::{FsRequest, Service, TransportInfo};
use crate::session::queries::Queries;
use crate::session::work::Work;
use crate::tree_sync::TreeSync;
use std::sync::atomic::Ordering;
use std::time::SystemTime;
use verbatim_engine::connection::Engine;
use verbatim_engine::connection::dir_guard::WorkItem;
use verbatim_engine::connection::ledger::{ItemKey, Ledger};
use verbatim_engine::model::copy_policy::Task;
use verbatim_engine::model::report::{Progress, ServerSilence};
use verbatim_engine::transfer::Transfer;
use verbatim_engine::transfer::remote_scan::Page;
use verbatim_fabric::memory::huge_page_bytes_peak;
use verbatim_proto::message::{Entry, ServerMessage};
use verbatim_proto::mirror::MirrorReply;
use verbatim_proto::read::ClientEffect;
use verbatim_proto::{Code, Fault, WirePath};

/// The activity of a session.
pub(crate) enum Activity {
    /// Copies files and folders.
    Copy(Transfer),
    /// Compares files and folders with their copies.
    Verify(Transfer),
    /// Mirrors a tree.
    Sync(Transfer, Box<TreeSync>),
    /// Serves the requests of a mount.
    Serve(Service),
}

/// The engine of a session, its activity, and its queries.
pub(crate) struct Dispatcher {
    pub engine: Engine,
    pub activity: Activity,
    pub queries: Queries,
}

impl Activity {
    /// The transfers of the activity, if it has any.
    pub fn transfer(&mut self) -> Option<&mut Transfer> {
        match self {
            Self::Copy(transfer) | Self::Verify(transfer) | Self::Sync(transfer, _) => {
                Some(transfer)
            }
            Self::Serve(_) => None,
        }
    }

    fn tree_sync(&self) -> Option<&TreeSync> {
        match self {
            Self::Sync(_, sync) => Some(sync),
            _ => None,
        }
    }

    /// Whether the server owes an answer that no machine waits for.
    fn awaits(&self) -> bool {
        match self {
            Self::Copy(transfer) | Self::Verify(transfer) => transfer.awaits(),
            Self::Sync(transfer, sync) => transfer.awaits() || sync.awaits(),
            Self::Serve(service) => service.awaits(),
        }
    }

    /// Starts queued work within the bounds.
    fn pump(&mut self, engine: &mut Engine) {
        match self {
            Self::Copy(transfer) | Self::Verify(transfer) => transfer.pump(engine),
            Self::Sync(transfer, sync) => {
                sync.pump(engine, transfer);
                transfer.pump(engine);
            }
            Self::Serve(service) => service.pump(engine),
        }
    }

    fn read_effect(&mut self, engine: &mut Engine, effect: ClientEffect) {
        match self {
            Self::Copy(transfer) | Self::Sync(transfer, _) => transfer.read_effect(engine, effect),
            Self::Verify(transfer) => transfer.verify_effect(engine, effect),
            Self::Serve(service) => service.effect(engine, effect),
        }
    }

    fn take_answers(&mut self, engine: &mut Engine) {
        match self {
            Self::Copy(transfer) | Self::Verify(transfer) => transfer.take_answers(engine),
            Self::Sync(transfer, sync) => {
                transfer.take_answers(engine);
                sync.take_answers(engine, transfer);
            }
            Self::Serve(service) => service.take_answers(engine),
        }
    }
}

impl Dispatcher {
    /// Starts this work, without its finished items.
    pub fn start(&mut self, work: &[Work]) {
        let engine = &mut self.engine;
        if matches!(work.first(), Some(Work::Upload(_) | Work::UploadTree(_))) {
            verbatim_files::memo::tidy(&engine.upload_memos(), SystemTime::now());
        }
        let (mut transfer, mut sync) = (Transfer::new(engine.waker()), None);
        for (number, work) in (0..).zip(work) {
            let work_item = WorkItem::unguarded(ItemKey::new(number, &WirePath::root()));
            match work.clone() {
                Work::Download(download) => transfer.add_download(engine, work_item, download),
                Work::Upload(upload) => transfer.add_upload(engine, work_item, upload),
                Work::DownloadTree(tree) => transfer.add_remote_tree(number, tree),
                Work::UploadTree(tree) => transfer.add_local_tree(engine, number, tree),
                Work::ToPipe(work) => transfer.add_to_pipe(engine, work_item, work),
                Work::FromPipe(work) => transfer.add_from_pipe(engine, work_item, work),
                Work::Mirror(mirror) => sync = Some(TreeSync::new(engine, number, *mirror)),
            }
        }
        self.activity = match (sync, engine.policy().task) {
            (Some(sync), _) => Activity::Sync(transfer, Box::new(sync)),
            (None, Task::Copy | Task::DryRun) => Activity::Copy(transfer),
            (None, Task::Verify) => Activity::Verify(transfer),
        };
    }

    /// Handles a request of a mount, if the session serves one.
    pub fn ask(&mut self, ask: FsRequest) {
        if let Activity::Serve(service) = &mut self.activity {
            service.ask(&mut self.engine, ask);
        }
    }

    /// Drops requests whose callers gave up.
    pub fn drop_abandoned_reads(&mut self) {
        if let Activity::Serve(service) = &mut self.activity {
            service.drop_abandoned_reads(&mut self.engine);
        }
    }

    pub fn is_done(&mut self) -> bool {
        match &mut self.activity {
            Activity::Copy(transfer) | Activity::Verify(transfer) => transfer.is_idle(),
            Activity::Sync(transfer, sync) => sync.is_done() && transfer.is_idle(),
            Activity::Serve(_) => false,
        }
    }

    /// Whether this machine commits files or sets metadata, without the server.
    pub fn is_committing(&self) -> bool {
        let landing = match &self.activity {
            Activity::Copy(transfer) | Activity::Verify(transfer) => transfer.is_committing(),
            Activity::Sync(transfer, sync) => {
                transfer.is_committing() || sync.is_applying_locally()
            }
            Activity::Serve(_) => false,
        };
        // The answer of a job that panicked never comes.
        landing && !self.engine.waker().has_panicked()
    }

    /// Whether an answer is late that neither machine waits for.
    pub fn is_overdue(&mut self) -> bool {
        let waits = self.queries.is_waiting() || self.activity.awaits();
        waits && self.engine.clock().since_last_reply() > self.engine.options().timeout
    }

    /// Whether the activity has more to do without waiting.
    pub fn has_more_work(&self) -> bool {
        self.activity.tree_sync().is_some_and(TreeSync::has_more_work)
    }

    /// Probes a silent server.
    pub fn check_silence(&mut self) {
        let activity = &self.activity;
        self.engine.check_silence(|| activity.awaits(), self.queries.is_waiting());
    }

    /// Starts queued work and carries out the effects of the machines, until there are none: an
    /// effect may free capacity, or finish the last file of a folder.
    pub fn advance(&mut self) {
        let Self { engine, activity, .. } = self;
        loop {
            activity.pump(engine);
            engine.advance();
            let mut asked = false;
            while let Some(effect) = engine.next_read_effect() {
                activity.read_effect(engine, effect);
                asked = true;
            }
            while let Some(effect) = engine.next_write_effect() {
                if let Some(transfer) = activity.transfer() {
                    transfer.write_effect(engine, effect);
                }
                asked = true;
            }
            if !asked {
                break;
            }
        }
        engine.release_paced();
        if let Some(transfer) = activity.transfer() {
            transfer.finish_turn(engine);
        }
    }

    /// Dispatches a message of the server.
    pub fn message(&mut self, message: ServerMessage) {
        tracing::trace!(content = ?message, "message received");
        let Some(message) = self.engine.message(message) else { return };
        let Self { engine, activity, queries } = self;
        match message {
            ServerMessage::Stated { request, answers } => self.stated(request, answers),
            ServerMessage::Page { request, entries, faults, done } => {
                let page = Page { entries, faults, done };
                match activity {
                    _ if queries.lists(request) => queries.page(page),
                    Activity::Serve(service) => service.page(engine, request, page),
                    Activity::Copy(transfer)
                    | Activity::Verify(transfer)
                    | Activity::Sync(transfer, _) => transfer.page(engine, request, page),
                }
            }
            ServerMessage::Ties { request, ties } => {
                if let Activity::Serve(service) = activity {
                    service.tied(request, ties);
                }
            }
            ServerMessage::Made { request, answers } => match activity.transfer() {
                Some(transfer) => transfer.made(engine, request, answers),
                None => engine.protocol_violation("a mkdir reply"),
            },
            ServerMessage::Write(reply) => {
                if let Some(transfer) = activity.transfer() {
                    transfer.write_reply(engine, &reply);
                }
                engine.write_reply(reply);
            }
            ServerMessage::Mirror(reply) => self.mirror_reply(reply),
            // The engine has handled all others.
            _ => {}
        }
    }

    /// Dispatches the answers to a stat.
    fn stated(&mut self, request: u32, answers: Vec<Result<Entry, Fault>>) {
        let Self { engine, activity, queries } = self;
        match activity {
            Activity::Serve(service) => service.stated(engine, request, answers),
            Activity::Copy(transfer) | Activity::Verify(transfer) | Activity::Sync(transfer, _)
                if transfer.awaits_stat(request) =>
            {
                transfer.stated(engine, request, answers);
            }
            _ if queries.awaits(request) => queries.stated(answers),
            _ => engine.protocol_violation("a stat reply"),
        }
    }

    fn mirror_reply(&mut self, reply: MirrorReply) {
        let Self { engine, activity, queries } = self;
        match activity {
            Activity::Sync(transfer, sync) => sync.reply(engine, transfer, reply),
            _ if !queries.mirror_reply(reply) => engine.protocol_violation("a mirror reply"),
            _ => {}
        }
    }

    /// Handles the answers of jobs, after one of them woke the session.
    pub fn take_answers(&mut self) {
        self.activity.take_answers(&mut self.engine);
        if self.engine.waker().has_panicked() {
            let text = "a job failed here; the message above says where";
            self.engine.fail_session(Fault::new(Code::Bug, text));
        }
    }

    /// Handles the answers of jobs in a session that has ended: only complete files are committed.
    /// Returns whether the partial file of an earlier run was found.
    pub fn take_last_answers(&mut self) -> bool {
        let Self { engine, activity, .. } = self;
        if let Activity::Sync(transfer, sync) = activity {
            sync.take_last_answers(engine, transfer);
        }
        activity.transfer().is_some_and(|transfer| transfer.take_last_answers(engine))
    }

    /// Stops unfinished work and notes it in the ledger, for the next session.
    pub fn suspend(&mut self) {
        let Self { engine, activity, .. } = self;
        match activity {
            Activity::Copy(transfer) | Activity::Verify(transfer) => transfer.suspend(engine),
            Activity::Sync(transfer, sync) => {
                transfer.suspend(engine);
                sync.suspend(engine);
            }
            Activity::Serve(_) => {}
        }
    }

    /// The progress of the session.
    pub fn progress(&mut self) -> Progress {
        let is_searching = match &self.activity {
            Activity::Copy(transfer) | Activity::Verify(transfer) => {
                !transfer.is_scan_complete() || transfer.is_streaming()
            }
            Activity::Sync(transfer, sync) => !transfer.is_scan_complete() || sync.is_searching(),
            Activity::Serve(_) => false,
        };
        let quiet = self.server_silence();
        let engine = &mut self.engine;
        let bytes = engine.stats().bytes.load(Ordering::Relaxed);
        Progress {
            bytes: engine.outcomes().progress().bytes + bytes,
            searching: is_searching,
            links: engine.links().up_count(),
            elapsed: engine.now(),
            hashing_holes: engine.is_hashing_holes() || engine.write().awaits_holes(),
            quiet,
            ..engine.outcomes().progress().clone()
        }
    }

    /// The silence of the server, while it owes an answer.
    fn server_silence(&mut self) -> Option<ServerSilence> {
        let Self { engine, activity, .. } = self;
        let awaits = match activity {
            Activity::Copy(transfer) | Activity::Verify(transfer) => transfer.awaits_trees(),
            Activity::Sync(transfer, sync) => transfer.awaits_trees() || sync.awaits(),
            Activity::Serve(_) => false,
        };
        let awaits = awaits || !engine.read().is_idle() || !engine.write().is_idle();
        let quiet = ServerSilence {
            so_far: engine.clock().since_last_reply(),
            at_most: engine.options().timeout,
        };
        // While this side hashes, the server owes no answer.
        (awaits && !engine.is_hashing() && !engine.is_hashing_holes()).then_some(quiet)
    }

    /// The transport of the session.
    pub fn transport_info(&self) -> TransportInfo {
        TransportInfo {
            transport: self.engine.links().transport.clone(),
            reason: self.engine.carrier().reason().map(str::to_owned),
            rdma_reads: self.engine.carrier().posted().reads,
        }
    }

    /// Whether the transport has changed. Called at every turn, so it copies nothing.
    pub fn transport_changed(&self, reported: &TransportInfo) -> bool {
        let (links, carrier) = (self.engine.links(), self.engine.carrier());
        let now = (links.transport.as_deref(), carrier.reason());
        now != (reported.transport.as_deref(), reported.reason.as_deref())
            || carrier.posted().reads != reported.rdma_reads
    }

    /// Continues the ledger of earlier sessions.
    pub fn continue_ledger(&mut self, ledger: Ledger) {
        self.engine.clock().count_from(ledger.begin);
        self.engine.outcomes().continue_ledger(ledger);
        self.engine.clock().update();
    }

    /// Returns the ledger with the totals of this session.
    pub fn take_ledger(&mut self) -> Ledger {
        let engine = &mut self.engine;
        let peer = engine.peer().to_owned();
        let mut ledger = engine.outcomes().take_ledger(&peer);
        let summary = &mut ledger.summary;
        let (carrier, links) = (engine.carrier(), engine.links());
        if let Some(transport) = links.transport.clone() {
            summary.reason = carrier.reason().map(str::to_owned);
            summary.transport = transport;
        }
        summary.ports = carrier.ports();
        summary.links_lost += links.lost;
        let posted = carrier.posted();
        summary.rdma.reads += posted.reads;
        summary.rdma.writes += posted.writes;
        summary.rdma.reads_done += posted.reads_done;
        summary.rdma.writes_done += posted.writes_done;
        engine.request_id().clone_into(&mut summary.request);
        summary.huge_page_bytes = huge_page_bytes_peak();
        let stats = engine.stats();
        summary.moved_bytes += stats.moved.load(Ordering::Relaxed);
        summary.rehashed_bytes += stats.rehashed.load(Ordering::Relaxed);
        summary.hole_bytes += stats.holes.load(Ordering::Relaxed);
        summary.limited_by = stats.bottleneck();
        summary.in_place_bytes += engine.write().in_place_bytes();
        summary.mismatches += engine.read().mismatches() + engine.write().mismatches();
        ledger
    }
}
