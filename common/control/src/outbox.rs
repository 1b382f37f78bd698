//! A queue in front of a sender, with a task of its own, so that a session
//! never waits for a peer that does not read. Owns the sending half. A peer that
//! lets `MESSAGES_MAX` pile up, or takes longer than the deadline, is given up.

use crate::{ControlError, Sender};
use serde::Serialize;
use std::time::Duration;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::JoinHandle;

/// Messages that may wait for a peer.
const MESSAGES_MAX: usize = 16 << 10;

/// Sends messages in order, without waiting.
#[derive(Debug)]
pub struct Outbox<M> {
    queue: mpsc::Sender<M>,
    task: JoinHandle<Result<(), ControlError>>,
}

impl<M: Serialize + Send + Sync + 'static> Outbox<M> {
    /// Starts the task that sends; one flush may take `deadline`.
    pub fn new(sender: Sender<M>, deadline: Duration) -> Self {
        let (queue, messages) = mpsc::channel(MESSAGES_MAX);
        Self { queue, task: tokio::spawn(deliver(sender, messages, deadline)) }
    }

    /// Queues a message.
    pub fn push(&self, message: M) -> Result<(), ControlError> {
        self.queue.try_send(message).map_err(|error| {
            let cause = match error {
                TrySendError::Full(_) => "the peer does not read what it is sent",
                TrySendError::Closed(_) => "the peer hung up",
            };
            ControlError::Closed { cause: cause.into() }
        })
    }

    /// Sends what is queued, says goodbye, and waits for both within the deadline.
    pub async fn close(self) -> Result<(), ControlError> {
        drop(self.queue);
        self.task.await.unwrap_or_else(|_| {
            Err(ControlError::Closed { cause: "the sending task was ended".into() })
        })
    }
}

async fn deliver<M: Serialize>(
    mut sender: Sender<M>,
    mut messages: mpsc::Receiver<M>,
    deadline: Duration,
) -> Result<(), ControlError> {
    let late = |_| ControlError::TimedOut {
        what: "sending to the peer".into(),
        seconds: deadline.as_secs_f64(),
    };
    while let Some(first) = messages.recv().await {
        let burst = async {
            sender.send(&first).await?;
            while let Ok(next) = messages.try_recv() {
                sender.send(&next).await?;
            }
            sender.flush().await
        };
        tokio::time::timeout(deadline, burst).await.map_err(late)??;
    }
    tokio::time::timeout(deadline, sender.close()).await.map_err(late)?
}
