//! What a session is used for: a copy within one session, which takes up the ledger of those before
//! it, turns until the work is done or the session breaks, and hands the ledger on; or answers to
//! questions. `retry` calls this; a turn is in `mod.rs`.

use crate::remote_fs::service::{FsRequest, Service, TransportInfo};
use crate::session::Session;
use crate::session::backoff::SessionProgress;
use crate::session::dispatch::Activity;
use crate::session::work::Work;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use verbatim_control::Fingerprint;
use verbatim_engine::connection::error::{ClientError, fault_of};
use verbatim_engine::connection::ledger::Ledger;
use verbatim_engine::model::copy_policy::Task;
use verbatim_engine::model::report::Observer;
use verbatim_engine::transfer::Transfer;
use verbatim_files::Over;
use verbatim_proto::message::{
    ClientMessage, REHASHED_VERSION, REPLACE_NOTHING_VERSION, TIES_VERSION,
};
use verbatim_proto::{Code, Fault, Look};

/// How often a server that answers questions is asked whether it is there: more often than it may
/// find the session idle.
const PING: Duration = Duration::from_secs(3);

/// How often an observer hears of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

impl Session {
    /// Who the server is.
    pub fn server(&self) -> Fingerprint {
        self.dispatcher.engine.server()
    }

    /// For how long the server has not said what it owes.
    pub(crate) fn silent_for(&mut self) -> Duration {
        let timeout = self.dispatcher.engine.options().timeout;
        let clock = self.dispatcher.engine.clock();
        let so_far = match self.dispatcher.queries.is_waiting() {
            true => clock.since_last_reply(),
            false => clock.silent_for(),
        };
        so_far.min(timeout)
    }

    /// Copies what of this is not over, and tells the observer. Stops early only when `stop`
    /// completes, which is then not to be asked again, or when the session breaks. What is
    /// unfinished then is let go of, not failed.
    pub(crate) async fn copy(
        &mut self,
        work: &[Work],
        ledger: Ledger,
        observer: &mut dyn Observer,
        stop: &mut (impl Future<Output = ()> + Unpin),
    ) -> SessionResult {
        self.dispatcher.continue_ledger(ledger);
        self.dispatcher.engine.outcomes().report_files(observer.wants_per_file_events());
        self.dispatcher.start(work);
        self.begin_links();
        let begin = self.dispatcher.engine.woken_at();
        let mut last = begin;
        let mut moved = ByteProgress::default();
        while !self.dispatcher.is_done() {
            tokio::select! {
                biased;
                () = &mut *stop => {
                    self.dispatcher.engine.fail_session(Fault::new(Code::Interrupted, "interrupted"));
                }
                turned = self.turn() => {
                    if let Err(error) = turned {
                        self.dispatcher.engine.fail_session(fault_of(&error));
                    }
                }
            }
            let now = self.dispatcher.engine.woken_at();
            self.dispatcher.engine.outcomes().report(observer);
            moved.look(self.dispatcher.engine.moved_bytes(), now);
            if self.dispatcher.engine.read().awaits_taker() {
                // It is somebody at this end who takes his time, and not the server.
                moved.at = Some(now);
            }
            if now.saturating_duration_since(last) >= PROGRESS_EVERY {
                last = now;
                observer.progress(&self.dispatcher.progress());
            }
            if self.dispatcher.engine.session_fault().is_some() {
                break;
            }
        }
        // Before what this side finishes alone, which is no silence of the server's.
        let silent = self.silent_for();
        if self.dispatcher.engine.session_fault().is_some() {
            self.finish_locally(&mut moved, stop).await;
        }
        self.dispatcher.suspend();
        self.dispatcher.engine.clock().update();
        self.dispatcher.engine.outcomes().report(observer);
        observer.progress(&self.dispatcher.progress());
        let ledger = self.dispatcher.take_ledger();
        let (finished, already_present_bytes) =
            (ledger.finished_count(), self.dispatcher.engine.outcomes().already_present_bytes());
        let uptime = self.dispatcher.engine.woken_at().saturating_duration_since(begin);
        let progress_made =
            SessionProgress { finished, already_present_bytes, moved: moved.at, uptime, silent };
        SessionResult {
            ledger,
            progress_made,
            broken: self.dispatcher.engine.session_fault().cloned(),
        }
    }

    /// Asks for links, and tells the server what it is to do and to tell.
    fn begin_links(&mut self) {
        let engine = &mut self.dispatcher.engine;
        match engine.policy().task {
            Task::Copy => engine.attach_links(),
            Task::DryRun => {}
            Task::Verify => engine.add_virtual_links(),
        }
        let version = engine.version();
        if engine.policy().overwrite() == Over::Nothing && version >= REPLACE_NOTHING_VERSION {
            engine.send(ClientMessage::ReplaceNothing);
        }
        if version >= REHASHED_VERSION {
            engine.send(ClientMessage::TellRehashed);
        }
    }

    /// Finishes what this side can without the server, when a session broke or somebody wants it
    /// to end.
    async fn finish_locally(
        &mut self,
        moved: &mut ByteProgress,
        stop: &mut (impl Future<Output = ()> + Unpin),
    ) {
        // What came with the end of the session may have made a file whole.
        self.dispatcher.engine.clock().update();
        self.dispatcher.advance();
        let interrupted = |fault: &Fault| fault.code == Code::Interrupted;
        let Some(transfer) = self.dispatcher.activity.transfer() else { return };
        if self.dispatcher.engine.session_fault().is_some_and(interrupted) {
            // The reader of a pipe may never take the rest, and what an earlier run left may take
            // long to hash: do not wait for either.
            transfer.abandon_slow_finishers();
        }
        if !transfer.may_finish_slowly() {
            return self.commit_received(moved).await;
        }
        tokio::select! {
            () = self.commit_received(moved) => {}
            () = &mut *stop => {
                let fault = Fault::new(Code::Interrupted, "interrupted");
                self.dispatcher.engine.set_session_fault(Some(fault));
            }
        }
    }

    /// Makes files durable that are all here, and finishes folders that are done: a session
    /// that broke behind their last byte is nothing to them. One that broke when all was done
    /// did not break at all.
    async fn commit_received(&mut self, moved: &mut ByteProgress) {
        loop {
            if self.dispatcher.take_last_answers() {
                // The next session finds it at once, which is as good as bytes that moved.
                moved.at = Some(Instant::now());
            }
            if !self.dispatcher.is_committing() {
                break;
            }
            self.dispatcher.engine.waker().woken().await;
        }
        if self.dispatcher.is_done() {
            self.dispatcher.engine.set_session_fault(None);
        }
    }

    /// Answers questions until there are no more, or the session breaks. Unanswered ones are
    /// dropped then, which the reader notices. `report_transport` hears what carries the data.
    pub async fn serve(
        &mut self,
        asks: &mut mpsc::Receiver<FsRequest>,
        report_transport: impl Fn(TransportInfo),
    ) -> Result<(), ClientError> {
        self.dispatcher.activity = Activity::Serve(Service::new(self.dispatcher.engine.waker()));
        self.dispatcher.engine.attach_links();
        if self.dispatcher.engine.version() >= TIES_VERSION {
            self.dispatcher.engine.send(ClientMessage::TellTies);
        }
        let (mut ping, mut reported) = (Instant::now(), TransportInfo::default());
        let served = loop {
            tokio::select! {
                ask = asks.recv() => match ask {
                    Some(ask) => self.dispatcher.ask(ask),
                    None => break Ok(()),
                },
                turned = self.turn_or_end() => if let Err(error) = turned {
                    break Err(error);
                },
            }
            if self.dispatcher.transport_changed(&reported) {
                reported = self.dispatcher.transport_info();
                report_transport(reported.clone());
            }
            if ping.elapsed() > PING {
                ping = Instant::now();
                let (request, paths) = (self.dispatcher.engine.request(), Vec::new());
                let look = Look { follow: false, paths };
                self.dispatcher.engine.send(ClientMessage::Stat { request, look });
                self.dispatcher.drop_abandoned_reads();
            }
        };
        // What is not answered never will be.
        self.dispatcher.activity = Activity::Copy(Transfer::new(self.dispatcher.engine.waker()));
        served
    }
}

/// What became of a copy in one session.
pub(crate) struct SessionResult {
    pub ledger: Ledger,
    pub progress_made: SessionProgress,
    /// Why the session ended before its work did.
    pub broken: Option<Fault>,
}

/// When a number last grew.
#[derive(Default)]
struct ByteProgress {
    bytes: u64,
    at: Option<Instant>,
}

impl ByteProgress {
    fn look(&mut self, bytes: u64, now: Instant) {
        if bytes > self.bytes {
            *self = Self { bytes, at: Some(now) };
        }
    }
}
