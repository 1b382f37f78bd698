//! Watches a remote folder over a control connection of its own, which outlives the sessions of
//! copies. Requests the next batch once this one was received. Sends an empty request from time to
//! time, so that both sides know that the other is alive.

use crate::watch::{EventSender, WatchEvent};
use std::time::{Duration, Instant};
use verbatim_control::{ConnectOptions, ControlError, Outbox, connect};
use verbatim_engine::connection::error::ClientError;
use verbatim_engine::model::location::peer;
use verbatim_proto::{
    Changes, ClientMessage, Code, Fault, Look, ServerMessage, Watch, WatchReply, WatchRequest,
};

/// How often the server is pinged, before it finds the session idle.
const PING: Duration = Duration::from_secs(3);

/// The id of the only request of its session.
const REQUEST: u32 = 1;

/// A watch of a remote folder.
pub(crate) struct RemoteWatch {
    connect: ConnectOptions,
    timeout: Duration,
    watch: Watch,
}

impl RemoteWatch {
    pub fn new(connect: ConnectOptions, timeout: Duration, watch: Watch) -> Self {
        Self { connect, timeout, watch }
    }

    /// Watches until the source is lost or the receiver is dropped; `began` tells whether the watch
    /// ever started.
    pub async fn run(&mut self, out: &EventSender, began: &mut bool) -> Result<(), ClientError> {
        let connection = connect(&self.connect).await?;
        // Another server, even a trusted one, has other files.
        self.connect.fingerprint = Some(connection.server);
        let mut receiver = connection.receiver;
        let outbox = Outbox::new(connection.sender, self.timeout);
        let begin = WatchRequest::Begin { request: REQUEST, watch: self.watch.clone() };
        outbox.push(&ClientMessage::Watch(begin))?;
        let mut ping = tokio::time::interval(PING);
        let mut heard_at = Instant::now();
        let mut waiting = None;
        loop {
            tokio::select! {
                message = receiver.recv() => {
                    heard_at = Instant::now();
                    waiting = match (waiting, self.message(message?)?) {
                        // The server sent a batch that was not requested: rescan everything.
                        (Some(_), Some(_)) => Some(Changes::rescan()),
                        (waiting, told) => told.or(waiting),
                    };
                }
                permit = out.reserve(), if waiting.is_some() => {
                    let Ok(permit) = permit else { break };
                    if let Some(changes) = waiting.take() {
                        *began = true;
                        permit.send(Ok(WatchEvent::Changed(changes)));
                        let more = WatchRequest::More { request: REQUEST };
                        outbox.push(&ClientMessage::Watch(more))?;
                    }
                }
                _ = ping.tick() => {
                    if heard_at.elapsed() > self.timeout {
                        let what = "an answer of the server".into();
                        let seconds = self.timeout.as_secs_f64();
                        return Err(ControlError::TimedOut { what, seconds }.into());
                    }
                    let look = Look { follow: false, paths: Vec::new() };
                    outbox.push(&ClientMessage::Stat { request: REQUEST, look })?;
                }
                () = out.closed() => break,
            }
        }
        // The server notices the end in any case.
        let _ = outbox.push(&ClientMessage::Bye);
        let _ = outbox.close().await;
        Ok(())
    }

    /// The changes in a message, if any; fails if the message ends the watch.
    fn message(&self, message: Option<ServerMessage>) -> Result<Option<Changes>, ClientError> {
        let peer = || peer(&self.connect.host, self.connect.port);
        match message {
            Some(ServerMessage::Watch(WatchReply::Changed { changes, .. })) => Ok(Some(changes)),
            Some(ServerMessage::Watch(WatchReply::Ended { fault, .. })) => {
                let text = format!("cannot watch {} on {}: {fault}", self.watch.path, peer());
                Err(Fault::new(fault.code, text).into())
            }
            // The server missed our pings, but it is alive.
            Some(ServerMessage::Refused(Fault { code: Code::TimedOut, text })) => {
                Err(ClientError::Ended { peer: peer(), fault: Fault::new(Code::LinkLost, text) })
            }
            Some(ServerMessage::Refused(fault)) => Err(ClientError::Ended { peer: peer(), fault }),
            Some(_) => Ok(None),
            None => Err(ControlError::Closed { cause: "the server hung up".into() }.into()),
        }
    }
}
