//! A session with one server: the control connection, an engine, and an activity. One task receives
//! messages of the server, events of workers and answers of jobs, and hands them to the dispatcher.
//!
//! A session ends when its work is done, or when it breaks. Then it notes unfinished work in the
//! ledger and passes the ledger on. `retry` decides whether another session follows.

pub mod backoff;
pub mod command_error;
mod dispatch;
pub(crate) mod overlap;
mod queries;
pub mod retry;
mod run;
pub mod work;

use crate::session::dispatch::{Activity, Dispatcher};
use crate::session::queries::Queries;
use std::time::Duration;
use tokio::sync::mpsc;
use verbatim_control::{ControlError, Outbox, Receiver, connect};
use verbatim_engine::connection::Engine;
use verbatim_engine::connection::error::ClientError;
use verbatim_engine::connection::event::WorkerEvent;
use verbatim_engine::connection::options::SessionOptions;
use verbatim_engine::connection::setup;
use verbatim_engine::model::copy_policy::CopyPolicy;
use verbatim_engine::model::location::peer;
use verbatim_engine::transfer::Transfer;
use verbatim_proto::ClientMessage;
use verbatim_proto::message::ServerMessage;

/// The deadline of the goodbye.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// The part of the timeout that the goodbye may take at most.
const CLOSE_PART: u32 = 10;

/// The wait of a session whose activity has more work.
const EAGER_WAIT: Duration = Duration::from_millis(1);

/// A session with one server.
pub struct Session {
    outbox: Outbox<ClientMessage>,
    receiver: Receiver<ServerMessage>,
    events: mpsc::Receiver<WorkerEvent>,
    dispatcher: Dispatcher,
}

/// Why a turn stops waiting.
enum Woken {
    Message(Option<ServerMessage>),
    Event(WorkerEvent),
    Jobs,
    Time,
}

impl Session {
    /// Connects, authenticates and starts the workers. Links connect when there is work.
    pub async fn connect(mut options: SessionOptions) -> Result<Self, ClientError> {
        let short = options.connect.chunk_bytes;
        options.connect.chunk_bytes = setup::longest_chunk(&options);
        let connection = connect(&options.connect).await?;
        let peer = peer(&options.connect.host, options.connect.port);
        let (request, session) = (&connection.request, connection.welcome.session);
        tracing::debug!(peer, session, request, "session began");
        let timeout = options.timeout;
        let (engine, events) = Engine::new(options, short, &connection, &peer)?;
        let activity = Activity::Copy(Transfer::new(engine.waker()));
        let dispatcher = Dispatcher { engine, activity, queries: Queries::default() };
        let outbox = Outbox::new(connection.sender, timeout);
        Ok(Self { outbox, receiver: connection.receiver, events, dispatcher })
    }

    /// Sets the policy of the copies that follow.
    pub fn set_policy(&mut self, policy: CopyPolicy) {
        self.dispatcher.engine.set_policy(policy);
    }

    /// Says goodbye to the server.
    pub async fn close(self) {
        // The server notices the end in any case.
        let _ = self.outbox.push(&ClientMessage::Bye);
        let at_most = CLOSE_MAX.min(self.dispatcher.engine.options().timeout / CLOSE_PART);
        let _ = tokio::time::timeout(at_most, self.outbox.close()).await;
    }

    /// Runs a turn for a caller that waits for an answer; fails if the session has ended.
    async fn turn_or_end(&mut self) -> Result<(), ClientError> {
        self.turn().await?;
        let engine = &self.dispatcher.engine;
        let ended = |fault| ClientError::Ended { peer: engine.peer().to_owned(), fault };
        engine.session_fault().cloned().map_or(Ok(()), |fault| Err(ended(fault)))
    }

    /// Waits for one message, event, answer or deadline, and handles it.
    async fn turn(&mut self) -> Result<(), ClientError> {
        self.dispatcher.advance();
        self.dispatcher.engine.move_links_to_preferred_port();
        self.dispatcher.check_silence();
        while let Some(message) = self.dispatcher.engine.next_message() {
            tracing::trace!(content = ?message, "message sent");
            self.outbox.push(&message)?;
        }
        if self.dispatcher.is_overdue() {
            let timeout = self.dispatcher.engine.options().timeout;
            let (what, seconds) = ("an answer of the server".into(), timeout.as_secs_f64());
            return Err(ControlError::TimedOut { what, seconds }.into());
        }
        // The last effect may have finished the work: then no event would come.
        let waits = self.dispatcher.queries.is_waiting();
        if !waits && self.dispatcher.is_done() {
            return Ok(());
        }
        let wait = if self.dispatcher.has_more_work() {
            EAGER_WAIT
        } else {
            self.dispatcher.engine.wait()
        };
        let until = self.dispatcher.engine.woken_at() + wait;
        let woken = tokio::select! {
            message = self.receiver.recv() => Woken::Message(message?),
            Some(event) = self.events.recv() => Woken::Event(event),
            () = self.dispatcher.engine.waker().woken() => Woken::Jobs,
            () = tokio::time::sleep_until(until.into()) => Woken::Time,
        };
        self.dispatcher.engine.clock().update();
        self.dispatcher.engine.clock().discount_stall(until);
        match woken {
            Woken::Message(Some(message)) => {
                self.dispatcher.message(message);
                // A caller of a query waits for one answer; a copy handles all messages that have
                // arrived.
                while !waits
                    && self.dispatcher.engine.session_fault().is_none()
                    && let Some(message) = self.receiver.arrived()?
                {
                    self.dispatcher.message(message);
                }
            }
            Woken::Message(None) => {
                let cause = "the server hung up".into();
                return Err(ControlError::Closed { cause }.into());
            }
            Woken::Event(event) => {
                self.dispatcher.engine.event(event);
                // Handling all arrived events at once saves wakes.
                while let Ok(event) = self.events.try_recv() {
                    self.dispatcher.engine.event(event);
                }
            }
            Woken::Jobs => self.dispatcher.take_answers(),
            Woken::Time => {}
        }
        Ok(())
    }
}
