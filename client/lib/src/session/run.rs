//! Runs one session: copies its share of the work, from the ledger of earlier sessions to the
//! ledger for the next one; or serves a mount. `retry` calls this; a turn is in `mod.rs`.

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

/// How often a session that serves a mount pings its server, before the server finds it idle.
const PING: Duration = Duration::from_secs(3);

/// How often the observer gets the progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

impl Session {
    /// The fingerprint of the server's key.
    pub fn server(&self) -> Fingerprint {
        self.dispatcher.engine.server()
    }

    /// How long the server has been silent, while it owed an answer.
    pub(crate) fn silent_for(&mut self) -> Duration {
        let timeout = self.dispatcher.engine.options().timeout;
        let clock = self.dispatcher.engine.clock();
        let so_far = match self.dispatcher.queries.is_waiting() {
            true => clock.since_last_reply(),
            false => clock.silent_for(),
        };
        so_far.min(timeout)
    }

    /// Copies the unfinished work and reports to the observer. Stops early only when the session
    /// breaks or `stop` completes, which must not be polled again. Unfinished work is then
    /// suspended, not failed.
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
                // The reader of a pipe is slow, not the server.
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
        // Measured before local commits, which are no silence of the server.
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

    /// Requests links, and tells the server the policy and the reports it should send.
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

    /// Finishes what needs no server, after the session broke or the user interrupted it.
    async fn finish_locally(
        &mut self,
        moved: &mut ByteProgress,
        stop: &mut (impl Future<Output = ()> + Unpin),
    ) {
        // The last messages may have completed a file.
        self.dispatcher.engine.clock().update();
        self.dispatcher.advance();
        let interrupted = |fault: &Fault| fault.code == Code::Interrupted;
        let Some(transfer) = self.dispatcher.activity.transfer() else { return };
        if self.dispatcher.engine.session_fault().is_some_and(interrupted) {
            // Do not wait for the reader of a pipe, or for the hashing of a partial file.
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

    /// Commits files whose bytes are all here and sets due metadata, although the session broke. If
    /// that finishes all work, the session did not break.
    async fn commit_received(&mut self, moved: &mut ByteProgress) {
        loop {
            if self.dispatcher.take_last_answers() {
                // The next session finds the partial file at once, which counts as progress.
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

    /// Serves the requests of a mount until the channel closes or the session breaks. Unanswered
    /// requests are dropped then, which their callers notice. `report_transport` gets each change
    /// of the transport.
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
        // Drops the unanswered requests.
        self.dispatcher.activity = Activity::Copy(Transfer::new(self.dispatcher.engine.waker()));
        served
    }
}

/// The result of one session of a copy.
pub(crate) struct SessionResult {
    pub ledger: Ledger,
    pub progress_made: SessionProgress,
    /// Why the session ended before its work did.
    pub broken: Option<Fault>,
}

/// When a count of bytes last grew.
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
