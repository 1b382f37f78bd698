//! Pipes at either end of a copy: a `StdinSource` is read once, a `StdoutSink` is written in order.
//! Each has a thread of its own, because the other end of a pipe may block it for any time. Both
//! buffer a bounded number of bytes.

use crate::local_io::waker::Waker;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;
use verbatim_proto::{Extent, Fault, FileId};

/// What the thread of a pipe reports to its session.
pub(crate) enum PipeEvent {
    /// More input was read; `size` is that of the whole input, once it has ended.
    Read { extent: Extent, size: Option<u64> },
    /// All bytes before this offset are written.
    Written(u64),
    /// The whole file is written.
    Ended,
    /// The pipe cannot be read, or written, any more.
    Failed(Fault),
}

/// The queue from the pipes of a session to its task.
#[derive(Clone)]
pub(crate) struct PipeSender {
    events: mpsc::Sender<(FileId, PipeEvent)>,
    waker: Waker,
}

impl PipeSender {
    /// A queue of `events_max` events, which wakes a session.
    pub fn new(events_max: usize, waker: &Waker) -> (Self, mpsc::Receiver<(FileId, PipeEvent)>) {
        let (events, receiver) = mpsc::channel(events_max);
        (Self { events, waker: waker.clone() }, receiver)
    }

    /// The sender of one pipe.
    pub fn for_file(self, file: FileId) -> PipeEventSender {
        PipeEventSender { sender: self, file }
    }
}

/// Sends the events of one pipe.
#[derive(Clone)]
pub(crate) struct PipeEventSender {
    sender: PipeSender,
    file: FileId,
}

impl PipeEventSender {
    pub fn send(&self, event: PipeEvent) {
        // A session that has ended needs no events. A full queue blocks the pipe: no event may be
        // lost.
        let _ = self.sender.events.blocking_send((self.file, event));
        self.sender.waker.wake();
    }
}

pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    // The thread is not joined: the other end of its pipe may block it for ever.
    thread.map(drop).expect("a thread for each end of a pipe can be had");
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits after a signal, or until a non-blocking pipe is ready; neither is an error.
pub(crate) fn wait_if_transient(
    error: std::io::Error,
    fd: BorrowedFd<'_>,
    what: PollFlags,
) -> std::io::Result<()> {
    match error.kind() {
        ErrorKind::Interrupted => Ok(()),
        ErrorKind::WouldBlock => {
            poll(&mut [PollFd::from_borrowed_fd(fd, what)], None)?;
            Ok(())
        }
        _ => Err(error),
    }
}
