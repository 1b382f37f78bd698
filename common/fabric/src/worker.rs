//! The worker: one thread that owns several links and does what completions
//! call for. It is generic over the link and over its handler; the server and
//! the client each bring a handler. Commands come in over a bounded queue, and
//! the thread sleeps on the links' descriptors and on one of its own.
//!
//! A worker never waits longer than `WAIT_MAX`, and takes at most
//! `COMMANDS_PER_TURN` commands before it polls its links again. (Tried: one
//! command a turn. A download then took 1.4 x as long.)

use crate::error::FabricError;
use crate::link::{Completion, Link};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Commands waiting for one worker. Few ever do: the queue takes memory as they come.
pub const COMMANDS_MAX: usize = 8192;

/// Commands taken before the links are polled again.
const COMMANDS_PER_TURN: usize = 16;

/// The longest sleep.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Names a link among those of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkKey(pub u64);

/// The links of one worker.
pub type LinkSet<L> = BTreeMap<LinkKey, L>;

/// What a worker does with what happens to it.
pub trait Handler<L: Link>: Send + 'static {
    /// What it can be told to do.
    type Command: Send + 'static;

    /// Does what it was told.
    fn command(&mut self, links: &mut LinkSet<L>, command: Self::Command);

    /// Is told that no more commands come before its links are polled.
    fn commanded(&mut self) {}

    /// Takes a completion of a link.
    fn completed(&mut self, links: &mut LinkSet<L>, link: LinkKey, completion: Completion);

    /// Takes what was in flight on a link that died; the link is gone from the set.
    fn lost(&mut self, link: LinkKey, flushed: Vec<Completion>, error: FabricError);

    /// Is told how long the worker slept.
    fn waited(&mut self, _time: Duration) {}
}

/// The sending side of a worker. Dropping the last one ends the thread and its links.
pub struct WorkerHandle<C> {
    commands: Option<Sender<C>>,
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl<C: Send + 'static> WorkerHandle<C> {
    /// Starts a worker.
    pub fn spawn<L, H>(name: &str, handler: H) -> Result<Self, FabricError>
    where
        L: Link + 'static,
        H: Handler<L, Command = C>,
    {
        let (commands, receiver) = channel();
        let bell = Arc::new(Bell::new()?);
        let worker = Worker { handler, links: LinkSet::<L>::new(), receiver, bell: bell.clone() };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || worker.run())
            .map_err(|e| FabricError::system("cannot start a worker", e))?;
        Ok(Self { commands: Some(commands), bell, thread: Some(thread) })
    }

    /// Queues a command. The machines bound how many can be on the way, so a full queue is an
    /// error, not a wait.
    pub fn send(&self, command: C) -> Result<(), FabricError> {
        if self.bell.waiting.fetch_add(1, Ordering::Relaxed) >= COMMANDS_MAX {
            self.bell.waiting.fetch_sub(1, Ordering::Relaxed);
            let text = format!("{COMMANDS_MAX} commands wait for a worker");
            return Err(FabricError::Limit(text));
        }
        self.push(command)
    }

    /// Queues a command that must not be lost, however many wait: whoever sends such bounds them
    /// by what there is of something else.
    pub fn send_anyway(&self, command: C) -> Result<(), FabricError> {
        self.bell.waiting.fetch_add(1, Ordering::Relaxed);
        self.push(command)
    }

    fn push(&self, command: C) -> Result<(), FabricError> {
        let sender = self.commands.as_ref().expect("only drop takes the sender");
        sender.send(command).map_err(|_| FabricError::Aborted)?;
        self.bell.ring();
        Ok(())
    }
}

impl<C> Drop for WorkerHandle<C> {
    fn drop(&mut self) {
        drop(self.commands.take());
        self.bell.wake();
        if let Some(thread) = self.thread.take() {
            // A handler that panicked has said so already.
            let _ = thread.join();
        }
    }
}

struct Worker<L: Link, H: Handler<L>> {
    handler: H,
    links: LinkSet<L>,
    receiver: Receiver<H::Command>,
    bell: Arc<Bell>,
}

impl<L: Link, H: Handler<L>> Worker<L, H> {
    fn run(mut self) {
        let mut completions = Vec::new();
        let mut keys = Vec::new();
        loop {
            let Some(mut busy) = self.take_commands() else { return };
            if busy {
                self.handler.commanded();
            }
            keys.clear();
            keys.extend(self.links.keys().copied());
            for &key in &keys {
                busy |= self.poll(key, &mut completions);
            }
            if !busy && !self.sleep() {
                return;
            }
        }
    }

    /// Takes some commands. `None` when nobody can send any more.
    fn take_commands(&mut self) -> Option<bool> {
        for taken in 0..COMMANDS_PER_TURN {
            match self.next() {
                Ok(command) => self.handler.command(&mut self.links, command),
                Err(TryRecvError::Empty) => return Some(taken > 0),
                Err(TryRecvError::Disconnected) => return None,
            }
        }
        Some(true)
    }

    fn next(&self) -> Result<H::Command, TryRecvError> {
        let command = self.receiver.try_recv()?;
        self.bell.waiting.fetch_sub(1, Ordering::Relaxed);
        Ok(command)
    }

    fn poll(&mut self, key: LinkKey, completions: &mut Vec<Completion>) -> bool {
        // The handler may have removed it meanwhile.
        let Some(link) = self.links.get_mut(&key) else { return false };
        let result = link.poll(completions);
        let busy = !completions.is_empty() || link.wants_turn();
        for completion in completions.drain(..) {
            self.handler.completed(&mut self.links, key, completion);
        }
        if let Err(error) = result
            && let Some(mut link) = self.links.remove(&key)
        {
            let mut flushed = Vec::new();
            link.abort(&mut flushed);
            self.handler.lost(key, flushed, error);
            return true;
        }
        busy
    }

    /// Sleeps until a command, a link or `WAIT_MAX`. False when nobody can send any more.
    fn sleep(&mut self) -> bool {
        self.bell.asleep.store(true, Ordering::SeqCst);
        match self.next() {
            Ok(command) => {
                self.bell.asleep.store(false, Ordering::SeqCst);
                self.handler.command(&mut self.links, command);
                self.handler.commanded();
                return true;
            }
            Err(TryRecvError::Disconnected) => return false,
            Err(TryRecvError::Empty) => {}
        }
        let begin = Instant::now();
        let mut wait = WAIT_MAX;
        let mut fds = vec![PollFd::new(&self.bell.fd, PollFlags::IN)];
        for link in self.links.values() {
            let wake = link.wake();
            wait = wake.at_most.map_or(wait, |at_most| wait.min(at_most));
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, wake.readable);
            flags.set(PollFlags::OUT, wake.writable);
            if let Some(fd) = wake.fd {
                fds.push(PollFd::from_borrowed_fd(fd, flags));
            }
        }
        let timeout = rustix::event::Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        // An interrupted or failed poll only means that we look again.
        let _ = poll(&mut fds, Some(&timeout));
        drop(fds);
        self.bell.silence();
        self.handler.waited(begin.elapsed());
        true
    }
}

/// Wakes a sleeping worker, at the price of a system call only when it sleeps.
struct Bell {
    fd: OwnedFd,
    asleep: AtomicBool,
    /// Commands that were sent and not taken.
    waiting: AtomicUsize,
}

impl Bell {
    fn new() -> Result<Self, FabricError> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| FabricError::system("cannot make an event descriptor", e))?;
        Ok(Self { fd, asleep: AtomicBool::new(false), waiting: AtomicUsize::new(0) })
    }

    fn ring(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    fn wake(&self) {
        // A full counter wakes as well as one more.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    fn silence(&self) {
        self.asleep.store(false, Ordering::SeqCst);
        // Nothing to read means nobody rang.
        let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
    }
}
