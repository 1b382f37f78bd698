//! Pipes at either end of a copy: an `StdinSource` is a source that is read once, an
//! `StdoutSink` a target that is written in order. Each has a thread of its own, because
//! whoever is at the other end of a pipe may take all the time in the world; both
//! hold a bounded number of bytes.

use crate::local_io::waker::Waker;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;
use verbatim_proto::{Extent, Fault, FileId};

/// What a pipe tells its session.
pub(crate) enum PipeEvent {
    /// This much more was read; with the last of it comes the size of all.
    Read { extent: Extent, size: Option<u64> },
    /// All before this offset is written.
    Written(u64),
    /// All of it is written.
    Ended,
    /// It can be read, or written, no more.
    Failed(Fault),
}

/// Where the pipes of a session send their events.
#[derive(Clone)]
pub(crate) struct PipeSender {
    events: mpsc::Sender<(FileId, PipeEvent)>,
    waker: Waker,
}

impl PipeSender {
    /// A queue of so many events, whose arrival wakes a session.
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
        // A session that is gone needs no events; a full queue waits, for nothing may be lost.
        let _ = self.sender.events.blocking_send((self.file, event));
        self.sender.waker.wake();
    }
}

pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    // Nobody joins it: it may wait for ever for the other end of its pipe.
    thread.map(drop).expect("a thread for each end of a pipe can be had");
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A signal, or a pipe that somebody made not to block, is no error.
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
