//! What a session is used for: a copy within one session, which takes up the ledger of those before
//! it, turns until the work is done or the session breaks, and hands the ledger on; or answers to
//! questions. `retry` calls this; a turn is in `mod.rs`.

use crate::remote_fs::service::{Ask, Carried, Service};
use crate::session::Session;
use crate::session::backoff::Achieved;
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
        self.of.engine.server()
    }

    /// For how long the server has not said what it owes.
    pub(crate) fn silent(&mut self) -> Duration {
        let timeout = self.of.engine.options().timeout;
        let clock = self.of.engine.clock();
        let so_far = match self.of.queries.is_waiting() {
            true => clock.quiet(),
            false => clock.silent(),
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
    ) -> Copied {
        self.of.take_up(ledger);
        self.of.engine.outcomes().report_files(observer.hears_of_files());
        self.of.begin(work);
        self.begin_links();
        let begin = self.of.engine.moment();
        let mut last = begin;
        let mut moved = Moved::default();
        while !self.of.is_done() {
            tokio::select! {
                biased;
                () = &mut *stop => {
                    self.of.engine.broke(Fault::new(Code::Interrupted, "interrupted"));
                }
                turned = self.turn() => {
                    if let Err(error) = turned {
                        self.of.engine.broke(fault_of(&error));
                    }
                }
            }
            let now = self.of.engine.moment();
            self.of.engine.outcomes().report(observer);
            moved.look(self.of.engine.moved_bytes(), now);
            if self.of.engine.read().awaits_taker() {
                // It is somebody at this end who takes his time, and not the server.
                moved.at = Some(now);
            }
            if now.saturating_duration_since(last) >= PROGRESS_EVERY {
                last = now;
                observer.progress(&self.of.progress());
            }
            if self.of.engine.broken().is_some() {
                break;
            }
        }
        // Before what this side finishes alone, which is no silence of the server's.
        let silent = self.silent();
        if self.of.engine.broken().is_some() {
            self.end_alone(&mut moved, stop).await;
        }
        self.of.leave();
        self.of.engine.clock().look();
        self.of.engine.outcomes().report(observer);
        observer.progress(&self.of.progress());
        let ledger = self.of.hand_over();
        let (over, found_bytes) = (ledger.over_count(), self.of.engine.outcomes().found_bytes());
        let stood = self.of.engine.moment().saturating_duration_since(begin);
        let achieved = Achieved { over, found_bytes, moved: moved.at, stood, silent };
        Copied { ledger, achieved, broken: self.of.engine.broken().cloned() }
    }

    /// Asks for links, and tells the server what it is to do and to tell.
    fn begin_links(&mut self) {
        let engine = &mut self.of.engine;
        match engine.rules().task {
            Task::Copy => engine.attach_links(),
            Task::DryRun => {}
            Task::Verify => engine.pretend_links(),
        }
        let version = engine.version();
        if engine.rules().over() == Over::Nothing && version >= REPLACE_NOTHING_VERSION {
            engine.send(ClientMessage::ReplaceNothing);
        }
        if version >= REHASHED_VERSION {
            engine.send(ClientMessage::TellRehashed);
        }
    }

    /// Finishes what this side can without the server, when a session broke or somebody wants it
    /// to end.
    async fn end_alone(
        &mut self,
        moved: &mut Moved,
        stop: &mut (impl Future<Output = ()> + Unpin),
    ) {
        // What came with the end of the session may have made a file whole.
        self.of.engine.clock().look();
        self.of.advance();
        let interrupted = |fault: &Fault| fault.code == Code::Interrupted;
        let Some(transfer) = self.of.activity.transfer() else { return };
        if self.of.engine.broken().is_some_and(interrupted) {
            // The reader of a pipe may never take the rest, and what an earlier run left may take
            // long to hash: do not wait for either.
            transfer.land_no_longer();
        }
        if !transfer.may_land_long() {
            return self.keep_landed(moved).await;
        }
        tokio::select! {
            () = self.keep_landed(moved) => {}
            () = &mut *stop => {
                let fault = Fault::new(Code::Interrupted, "interrupted");
                self.of.engine.set_broken(Some(fault));
            }
        }
    }

    /// Makes files durable that are all here, and finishes folders that are done: a session
    /// that broke behind their last byte is nothing to them. One that broke when all was done
    /// did not break at all.
    async fn keep_landed(&mut self, moved: &mut Moved) {
        loop {
            if self.of.take_last_answers() {
                // The next session finds it at once, which is as good as bytes that moved.
                moved.at = Some(Instant::now());
            }
            if !self.of.is_landing() {
                break;
            }
            self.of.engine.waker().woken().await;
        }
        if self.of.is_done() {
            self.of.engine.set_broken(None);
        }
    }

    /// Answers questions until there are no more, or the session breaks. Unanswered ones are
    /// dropped then, which the reader notices. `tell` hears what carries the data.
    pub async fn serve(
        &mut self,
        asks: &mut mpsc::Receiver<Ask>,
        tell: impl Fn(Carried),
    ) -> Result<(), ClientError> {
        self.of.activity = Activity::Serve(Service::new(self.of.engine.waker()));
        self.of.engine.attach_links();
        if self.of.engine.version() >= TIES_VERSION {
            self.of.engine.send(ClientMessage::TellTies);
        }
        let (mut ping, mut told) = (Instant::now(), Carried::default());
        let served = loop {
            tokio::select! {
                ask = asks.recv() => match ask {
                    Some(ask) => self.of.ask(ask),
                    None => break Ok(()),
                },
                turned = self.turn_or_end() => if let Err(error) = turned {
                    break Err(error);
                },
            }
            if self.of.is_carried_otherwise(&told) {
                told = self.of.carried();
                tell(told.clone());
            }
            if ping.elapsed() > PING {
                ping = Instant::now();
                let (request, paths) = (self.of.engine.request(), Vec::new());
                let look = Look { follow: false, paths };
                self.of.engine.send(ClientMessage::Stat { request, look });
                self.of.leave_parts();
            }
        };
        // What is not answered never will be.
        self.of.activity = Activity::Copy(Transfer::new(self.of.engine.waker()));
        served
    }
}

/// What became of a copy in one session.
pub(crate) struct Copied {
    pub ledger: Ledger,
    pub achieved: Achieved,
    /// Why the session ended before its work did.
    pub broken: Option<Fault>,
}

/// When a number last grew.
#[derive(Default)]
struct Moved {
    bytes: u64,
    at: Option<Instant>,
}

impl Moved {
    fn look(&mut self, bytes: u64, now: Instant) {
        if bytes > self.bytes {
            *self = Self { bytes, at: Some(now) };
        }
    }
}
