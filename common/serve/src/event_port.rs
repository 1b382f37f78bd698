//! The sending end of a session's event queue, for one activity of the session. A session has a
//! single queue, so that events arrive in the order in which they were sent. Each activity sends
//! its own type of events, which the queue converts.

use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Events that may wait for one session; half of them are reserved for answers of jobs and workers.
pub const EVENTS_MAX: usize = 16 << 10;

/// A future, boxed because a trait object returns it.
type Boxed<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Sends events of one type into the queue of a session.
pub struct EventPort<E> {
    queue: Arc<dyn Queue<E>>,
}

/// Why an event was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The queue has no room.
    Full,
    /// The session is over.
    Closed,
}

/// A queue that converts events from `E`.
trait Queue<E>: Send + Sync {
    fn try_send(&self, event: E) -> Result<(), SendError>;
    fn send(&self, event: E) -> Boxed<'_>;
    fn blocking_send(&self, event: E);
    fn closed(&self) -> Boxed<'_>;
    fn is_closed(&self) -> bool;
    fn room(&self) -> usize;
}

impl<E: Send + 'static, S: From<E> + Send> Queue<E> for mpsc::Sender<S> {
    fn try_send(&self, event: E) -> Result<(), SendError> {
        Self::try_send(self, event.into()).map_err(|error| match error {
            TrySendError::Full(_) => SendError::Full,
            TrySendError::Closed(_) => SendError::Closed,
        })
    }

    fn send(&self, event: E) -> Boxed<'_> {
        // A session that has ended needs no event.
        Box::pin(async move { drop(Self::send(self, event.into()).await) })
    }

    fn blocking_send(&self, event: E) {
        // The same.
        drop(Self::blocking_send(self, event.into()));
    }

    fn closed(&self) -> Boxed<'_> {
        Box::pin(Self::closed(self))
    }

    fn is_closed(&self) -> bool {
        Self::is_closed(self)
    }

    fn room(&self) -> usize {
        self.capacity()
    }
}

impl<E> Clone for EventPort<E> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone() }
    }
}

impl<E: Send + 'static> EventPort<E> {
    /// A port of this queue.
    pub fn of<S: From<E> + Send + 'static>(queue: &mpsc::Sender<S>) -> Self {
        Self { queue: Arc::new(queue.clone()) }
    }

    /// Queues an event, if there is room.
    pub fn try_send(&self, event: E) -> Result<(), SendError> {
        self.queue.try_send(event)
    }

    /// Queues an event as soon as there is room. The event is dropped if the session ends first.
    pub async fn send(&self, event: E) {
        self.queue.send(event).await;
    }

    /// The same, for threads that may block.
    pub fn blocking_send(&self, event: E) {
        self.queue.blocking_send(event);
    }

    /// Waits until the session is over.
    pub async fn closed(&self) {
        self.queue.closed().await;
    }

    /// Whether the session is over.
    pub fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// How many more events fit.
    pub fn room(&self) -> usize {
        self.queue.room()
    }

    /// Whether both are clones of one port, and so send to one queue.
    pub fn same_queue(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.queue, &other.queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    enum Event {
        Read(u8),
        Written(u16),
    }

    impl From<u8> for Event {
        fn from(bytes: u8) -> Self {
            Self::Read(bytes)
        }
    }

    impl From<u16> for Event {
        fn from(bytes: u16) -> Self {
            Self::Written(bytes)
        }
    }

    #[tokio::test]
    async fn ports_of_one_queue_keep_the_order_and_share_its_room() {
        let (queue, mut events) = mpsc::channel::<Event>(3);
        let (reads, writes) = (EventPort::<u8>::of(&queue), EventPort::<u16>::of(&queue));
        assert_eq!(reads.try_send(1), Ok(()));
        writes.send(2).await;
        assert_eq!((reads.try_send(3), reads.room(), writes.room()), (Ok(()), 0, 0));
        assert_eq!(writes.try_send(4), Err(SendError::Full));
        let first = [events.recv().await, events.recv().await, events.recv().await];
        assert_eq!(first, [Event::Read(1), Event::Written(2), Event::Read(3)].map(Some));
        assert!(!reads.is_closed() && reads.same_queue(&reads.clone()));
        drop(events);
        reads.closed().await;
        assert_eq!((reads.is_closed(), reads.try_send(5)), (true, Err(SendError::Closed)));
    }
}
