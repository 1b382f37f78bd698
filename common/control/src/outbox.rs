//! A queue in front of a sender, with a task of its own, so that a session
//! never waits for a peer that does not read. Owns the sending half, and how much of
//! it is unread: a session that cares takes no more requests while that is much. A
//! peer that lets `MESSAGES_MAX` or `BYTES_MAX` pile up all the same, or more than
//! somebody lends memory for, or takes longer than the deadline, is given up.

use crate::budget::{Budget, FREE_BYTES, Lender, Loan, borrow};
use crate::{ControlError, Sender};
use serde::Serialize;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::JoinHandle;
use verbatim_proto::wire;

/// Messages that may wait for a peer.
const MESSAGES_MAX: usize = 16 << 10;

/// Bytes of them: far more than answers that an honest peer has asked for at a time.
const BYTES_MAX: usize = 64 << 20;

/// From so many unread bytes on a session takes no more requests: 2 MiB.
const UNREAD_BYTES_MAX: usize = 2 << 20;

/// A message as it goes over the wire, and the memory that was lent for it.
struct Frame(Vec<u8>, Option<Loan>);

/// What was pushed and is not sent yet, because the peer does not read it.
#[derive(Debug, Default)]
pub struct Unread {
    bytes: AtomicUsize,
    /// Nothing is sent any more.
    ended: AtomicBool,
    lessened: Notify,
}

impl Unread {
    /// Whether it is so much that no more should be asked for; never, once the connection is over.
    pub fn is_much(&self) -> bool {
        let bytes = self.bytes.load(Ordering::Acquire);
        bytes >= UNREAD_BYTES_MAX && !self.ended.load(Ordering::Acquire)
    }

    /// Waits until it is not.
    pub async fn less(&self) {
        loop {
            let lessened = self.lessened.notified();
            // From here on, not from its first poll.
            tokio::pin!(lessened);
            lessened.as_mut().enable();
            if !self.is_much() {
                return;
            }
            lessened.await;
        }
    }

    /// Counts an answer that is being made as if it were unread already, until this is dropped.
    pub fn expect(self: &Arc<Self>, bytes: usize) -> Expected {
        self.add(bytes);
        Expected { unread: self.clone(), bytes }
    }

    fn add(&self, bytes: usize) -> usize {
        self.bytes.fetch_add(bytes, Ordering::AcqRel) + bytes
    }

    fn sent(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        if before >= UNREAD_BYTES_MAX && before - bytes < UNREAD_BYTES_MAX {
            self.lessened.notify_waiters();
        }
    }
}

/// An answer that is being made.
#[derive(Debug)]
pub struct Expected {
    unread: Arc<Unread>,
    bytes: usize,
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.unread.sent(self.bytes);
    }
}

/// Says that nothing is sent any more, however that came.
struct Ends(Arc<Unread>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
        self.0.lessened.notify_waiters();
    }
}

/// Sends messages in order, without waiting.
pub struct Outbox<M> {
    queue: mpsc::Sender<Frame>,
    unread: Arc<Unread>,
    lender: Lender,
    task: JoinHandle<Result<(), ControlError>>,
    _of: PhantomData<fn(M)>,
}

impl<M: Serialize + Send + Sync + 'static> Outbox<M> {
    /// Starts the task that sends; one flush may take `deadline`.
    pub fn new(sender: Sender<M>, deadline: Duration) -> Self {
        let (queue, messages) = mpsc::channel(MESSAGES_MAX);
        let unread: Arc<Unread> = Arc::default();
        let task = tokio::spawn(deliver(sender, messages, Ends(unread.clone()), deadline));
        Self { queue, unread, lender: None, task, _of: PhantomData }
    }

    /// Has the memory for what is unread lent from now on.
    #[must_use]
    pub fn lent_by(self, lender: Arc<dyn Budget>) -> Self {
        Self { lender: Some(lender), ..self }
    }

    /// How much is unread.
    pub fn unread(&self) -> &Arc<Unread> {
        &self.unread
    }

    /// Queues a message.
    pub fn push(&self, message: &M) -> Result<(), ControlError> {
        let frame = wire::encode(message)?;
        let waiting = self.unread.add(frame.len());
        if waiting > BYTES_MAX + frame.len() {
            return Err(unread());
        }
        let loan = match waiting > FREE_BYTES {
            true => Some(borrow(&self.lender, frame.len(), "answers that are not read")?),
            false => None,
        };
        self.queue(Frame(frame, loan))
    }

    /// Queues the last message, which says why the connection ends: whatever is unread before it.
    pub fn push_last(&self, message: &M) -> Result<(), ControlError> {
        let frame = wire::encode(message)?;
        self.unread.add(frame.len());
        self.queue(Frame(frame, None))
    }

    fn queue(&self, frame: Frame) -> Result<(), ControlError> {
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

impl<M> std::fmt::Debug for Outbox<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox").field("unread", &self.unread).finish_non_exhaustive()
    }
}

fn closed(cause: &str) -> ControlError {
    ControlError::Closed { cause: cause.into() }
}

fn unread() -> ControlError {
    closed("the peer does not read what it is sent")
}

async fn deliver<M: Serialize>(
    mut sender: Sender<M>,
    mut messages: mpsc::Receiver<Frame>,
    unread: Ends,
    deadline: Duration,
) -> Result<(), ControlError> {
    let late = |_| ControlError::TimedOut {
        what: "sending to the peer".into(),
        seconds: deadline.as_secs_f64(),
    };
    while let Some(first) = messages.recv().await {
        let burst = async {
            let mut next = Ok(first);
            while let Ok(Frame(frame, loan)) = next {
                sender.send_frame(&frame).await?;
                unread.0.sent(frame.len());
                drop(loan);
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
    use crate::budget::tests::Purse;
    use tokio::io::{AsyncReadExt, duplex};

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

    #[tokio::test]
    async fn much_that_is_unread_is_known_until_the_peer_reads_or_is_gone() {
        for reads in [true, false] {
            let (near, mut far) = duplex(1 << 12);
            let outbox = Outbox::new(Sender::new(near), Duration::from_secs(60));
            let page = vec![7_u8; 512 << 10];
            let unread = outbox.unread();
            let pushed = (0..).take_while(|_| !unread.is_much() && outbox.push(&page).is_ok());
            let pushed = pushed.count();
            assert!((4..=5).contains(&pushed), "{pushed} pages of {} bytes", page.len());
            let less = unread.less();
            let read = async {
                let mut step = vec![0; 64 << 10];
                while reads && unread.is_much() {
                    let read = far.read(&mut step).await.expect("readable");
                    assert!(read > 0, "there is more");
                }
                drop(far);
            };
            let both = async { tokio::join!(less, read) };
            tokio::time::timeout(Duration::from_secs(30), both).await.expect("it is told");
        }
    }

    #[tokio::test]
    async fn memory_for_what_is_unread_is_lent_and_given_back() {
        let (near, mut far) = duplex(1 << 12);
        let purse = Purse::of(1 << 20);
        let outbox = Outbox::new(Sender::new(near), Duration::from_secs(60));
        let outbox = outbox.lent_by(Arc::new(purse.clone()));
        outbox.push(&vec![7_u8; 32 << 10]).expect("a little costs nothing");
        assert_eq!(purse.left(), 1 << 20);
        let page = vec![7_u8; 256 << 10];
        let taken = (0..100).take_while(|_| outbox.push(&page).is_ok()).count();
        assert_eq!(taken, 3, "as many as the purse has room for: {} left", purse.left());
        let refused = outbox.push(&page).expect_err("nobody lends more");
        assert!(refused.to_string().contains("limits.memory_mb"), "{refused}");
        outbox.push_last(&vec![1_u8; 8]).expect("why it ends is told all the same");
        let all = async {
            let mut read = Vec::new();
            far.read_to_end(&mut read).await.expect("readable");
            read.len()
        };
        let (closed, bytes) = tokio::join!(outbox.close(), all);
        assert!(closed.is_ok() && bytes > 3 * page.len(), "{closed:?}, {bytes}");
        assert_eq!(purse.left(), 1 << 20);
    }
}
