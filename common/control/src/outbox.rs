//! A queue in front of a sender, with a task of its own, so that a session
//! never waits for a peer that does not read. Owns the sending half. A peer that
//! lets `MESSAGES_MAX` or `BYTES_MAX` pile up, or takes longer than the deadline,
//! is given up.

use crate::{ControlError, Sender};
use serde::Serialize;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::JoinHandle;
use verbatim_proto::wire;

/// Messages that may wait for a peer.
const MESSAGES_MAX: usize = 16 << 10;

/// Bytes of them: far more than answers that an honest peer has asked for at a time.
const BYTES_MAX: usize = 64 << 20;

/// Sends messages in order, without waiting.
#[derive(Debug)]
pub struct Outbox<M> {
    /// Messages as they go over the wire.
    queue: mpsc::Sender<Vec<u8>>,
    /// How many bytes are in the queue.
    waiting: Arc<AtomicUsize>,
    task: JoinHandle<Result<(), ControlError>>,
    _of: PhantomData<fn(M)>,
}

impl<M: Serialize + Send + Sync + 'static> Outbox<M> {
    /// Starts the task that sends; one flush may take `deadline`.
    pub fn new(sender: Sender<M>, deadline: Duration) -> Self {
        let (queue, messages) = mpsc::channel(MESSAGES_MAX);
        let waiting: Arc<AtomicUsize> = Arc::default();
        let task = tokio::spawn(deliver(sender, messages, waiting.clone(), deadline));
        Self { queue, waiting, task, _of: PhantomData }
    }

    /// Queues a message.
    pub fn push(&self, message: &M) -> Result<(), ControlError> {
        let closed = |cause: &str| ControlError::Closed { cause: cause.into() };
        let unread = || closed("the peer does not read what it is sent");
        let frame = wire::encode(message)?;
        if self.waiting.fetch_add(frame.len(), Ordering::Relaxed) > BYTES_MAX {
            return Err(unread());
        }
        self.queue.try_send(frame).map_err(|error| match error {
            TrySendError::Full(_) => unread(),
            TrySendError::Closed(_) => closed("the peer hung up"),
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
    mut messages: mpsc::Receiver<Vec<u8>>,
    waiting: Arc<AtomicUsize>,
    deadline: Duration,
) -> Result<(), ControlError> {
    let late = |_| ControlError::TimedOut {
        what: "sending to the peer".into(),
        seconds: deadline.as_secs_f64(),
    };
    while let Some(first) = messages.recv().await {
        let burst = async {
            let mut next = Ok(first);
            while let Ok(frame) = next {
                waiting.fetch_sub(frame.len(), Ordering::Relaxed);
                sender.send_frame(&frame).await?;
                next = messages.try_recv();
            }
            sender.flush().await
        };
        tokio::time::timeout(deadline, burst).await.map_err(late)??;
    }
    tokio::time::timeout(deadline, sender.close()).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    #[tokio::test]
    async fn what_a_peer_does_not_read_is_bounded_in_bytes_too() {
        let (near, _far) = duplex(7);
        let outbox = Outbox::new(Sender::new(near), Duration::from_secs(60));
        let page = vec![7_u8; 512 << 10];
        let taken = (0..MESSAGES_MAX).take_while(|_| outbox.push(&page).is_ok()).count();
        // A few are with the task that sends.
        let most = BYTES_MAX / page.len();
        assert!((most..most + 10).contains(&taken), "{taken} of {} bytes", page.len());
        let refused = outbox.push(&page).expect_err("there is no room");
        assert!(refused.to_string().contains("does not read"), "{refused}");
    }
}
