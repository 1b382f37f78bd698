//! A copy within one session: takes up the ledger of those before it, turns until
//! the work is done or the session breaks, and hands the ledger on. Called by
//! `reconnect`; what a turn is, is in `mod.rs`.

use crate::engine::ledger::Ledger;
use crate::model::report::Observer;
use crate::session::backoff::Achieved;
use crate::session::{ClientError, Event, Session, Work};
use std::time::{Duration, Instant};
use verbatim_control::{ControlError, Fingerprint};
use verbatim_files::Over;
use verbatim_proto::message::{ClientMessage, REHASHED_VERSION, REPLACE_NOTHING_VERSION};
use verbatim_proto::{Code, Fault};

/// How often an observer hears of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

impl Session {
    /// Who the server is.
    pub fn server(&self) -> Fingerprint {
        self.core.server
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
        self.core.take_up(ledger);
        self.core.reports.of_files = observer.hears_of_files();
        for (number, work) in (0..).zip(work) {
            self.core.add(number, work.clone());
        }
        self.core.attach_all();
        if self.core.rules.over() == Over::Nothing && self.core.version >= REPLACE_NOTHING_VERSION {
            self.core.sending.push_back(ClientMessage::ReplaceNothing);
        }
        if self.core.version >= REHASHED_VERSION {
            self.core.sending.push_back(ClientMessage::TellRehashed);
        }
        let begin = self.core.moment;
        let mut last = begin;
        let mut moved = Moved::default();
        while !self.core.is_done() {
            tokio::select! {
                biased;
                () = &mut *stop => {
                    let fault = Fault::new(Code::Interrupted, "interrupted");
                    self.core.broken.get_or_insert(fault);
                }
                turned = self.turn() => {
                    if let Err(error) = turned {
                        self.core.broken.get_or_insert(fault_of(&error));
                    }
                }
            }
            self.core.report(observer);
            moved.look(self.core.moved_bytes(), self.core.moment);
            if self.core.read.awaits_taker() {
                // It is somebody at this end who takes his time, and not the server.
                moved.at = Some(self.core.moment);
            }
            if self.core.moment.saturating_duration_since(last) >= PROGRESS_EVERY {
                last = self.core.moment;
                observer.progress(&self.core.progress_now());
            }
            if self.core.broken.is_some() {
                break;
            }
        }
        // Before what this side finishes alone, which is no silence of the server's.
        let silent = self.core.silent();
        if self.core.broken.is_some() {
            self.end_alone(&mut moved, stop).await;
        }
        self.core.leave();
        self.core.look_at_clock();
        self.core.report(observer);
        observer.progress(&self.core.progress_now());
        let ledger = self.core.hand_over();
        let (over, found_bytes) = (ledger.over_count(), self.core.found_bytes);
        let stood = self.core.moment.saturating_duration_since(begin);
        let achieved = Achieved { over, found_bytes, moved: moved.at, stood, silent };
        Copied { ledger, achieved, broken: self.core.broken.clone() }
    }

    /// Finishes what this side can without the server, when a session broke or somebody wants it
    /// to end.
    async fn end_alone(
        &mut self,
        moved: &mut Moved,
        stop: &mut (impl Future<Output = ()> + Unpin),
    ) {
        // What came with the end of the session may have made a file whole.
        self.core.look_at_clock();
        self.core.advance();
        if self.core.broken.as_ref().is_some_and(|fault| fault.code == Code::Interrupted) {
            // The reader of a pipe may never take the rest, and what an earlier run left may take
            // long to hash: do not wait for either.
            self.core.downloads.wait_for_nobody();
        }
        if !self.core.downloads.may_take_long() {
            return self.keep_landed(moved).await;
        }
        tokio::select! {
            () = self.keep_landed(moved) => {}
            () = &mut *stop => {
                self.core.broken = Some(Fault::new(Code::Interrupted, "interrupted"));
            }
        }
    }

    /// Makes files durable that are all here, and finishes folders that are done: a session
    /// that broke behind their last byte is nothing to them. One that broke when all was done
    /// did not break at all.
    async fn keep_landed(&mut self, moved: &mut Moved) {
        while self.core.is_landing() {
            match self.events.recv().await {
                Some(Event::Landed(answers)) => self.core.landed(answers),
                Some(Event::Ended(answers)) => self.core.ended(answers),
                Some(Event::DeedsDone(done)) => self.core.deeds_done(done),
                Some(Event::Published(answer)) => self.core.published(answer),
                Some(Event::Pipe(file, event)) => self.core.pipe_event(file, event),
                Some(Event::Resumed(file, _)) => {
                    // The next session finds it at once, which is as good as bytes that moved.
                    moved.at = Some(Instant::now());
                    self.core.downloads.resumed_late(file);
                }
                Some(event @ Event::Panicked) => self.core.event(event),
                Some(_) => {}
                None => break,
            }
            self.core.commit_landed();
            self.core.pump_endings();
        }
        if self.core.is_done() {
            self.core.broken = None;
        }
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

/// What the end of a connection means for the copy.
pub fn fault_of(error: &ClientError) -> Fault {
    let code = match error {
        ClientError::Fault(fault) | ClientError::Ended { fault, .. } => fault.code,
        ClientError::Control(ControlError::Refused(fault)) => fault.code,
        ClientError::Control(ControlError::TimedOut { .. }) => Code::TimedOut,
        ClientError::Control(ControlError::Wire(_)) => Code::Protocol,
        ClientError::Control(_) => Code::LinkLost,
        ClientError::Fabric(_) => Code::Io,
    };
    Fault::new(code, error.to_string())
}
