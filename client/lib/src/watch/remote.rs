//! A remote folder that is watched, over a control connection of its own: it
//! stays when copies come and go. The next batch is asked for when this one is
//! taken. Asks for nothing in particular now and then, so that each side knows
//! that the other is there.

use crate::watch::{EventSender, WatchEvent};
use std::time::{Duration, Instant};
use verbatim_control::{ConnectOptions, ControlError, Outbox, connect};
use verbatim_engine::connection::error::ClientError;
use verbatim_engine::model::location::peer;
use verbatim_proto::{
    Changes, ClientMessage, Code, Fault, Look, ServerMessage, Watch, WatchReply, WatchRequest,
};

/// How often the server is asked whether it is there: oftener than it may find us idle.
const PING: Duration = Duration::from_secs(3);

/// The only request of its session.
const REQUEST: u32 = 1;

/// A remote folder to watch.
pub(crate) struct RemoteWatch {
    connect: ConnectOptions,
    timeout: Duration,
    watch: Watch,
}

impl RemoteWatch {
    pub fn new(connect: ConnectOptions, timeout: Duration, watch: Watch) -> Self {
        Self { connect, timeout, watch }
    }

    /// Watches until it is lost, or nobody listens; `began` says whether it ever began.
    pub async fn run(&mut self, out: &EventSender, began: &mut bool) -> Result<(), ClientError> {
        let connection = connect(&self.connect).await?;
        // Another server, however trusted, has other files.
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
                        // More than was asked for: whatever it is, all of it is looked at.
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
        // The server notices either way.
        let _ = outbox.push(&ClientMessage::Bye);
        let _ = outbox.close().await;
        Ok(())
    }

    /// What a message says: changes, nothing, or the end.
    fn message(&self, message: Option<ServerMessage>) -> Result<Option<Changes>, ClientError> {
        let peer = || peer(&self.connect.host, self.connect.port);
        match message {
            Some(ServerMessage::Watch(WatchReply::Changed { changes, .. })) => Ok(Some(changes)),
            Some(ServerMessage::Watch(WatchReply::Ended { fault, .. })) => {
                let text = format!("cannot watch {} on {}: {fault}", self.watch.path, peer());
                Err(Fault::new(fault.code, text).into())
            }
            // It heard nothing of us, but it is there.
            Some(ServerMessage::Refused(Fault { code: Code::TimedOut, text })) => {
                Err(ClientError::Ended { peer: peer(), fault: Fault::new(Code::LinkLost, text) })
            }
            Some(ServerMessage::Refused(fault)) => Err(ClientError::Ended { peer: peer(), fault }),
            Some(_) => Ok(None),
            None => Err(ControlError::Closed { cause: "the server hung up".into() }.into()),
        }
    }
}
