//! Watching a folder and all below it: what changes is told in batches, each
//! when it was asked for. A thread of its own waits for the kernel, so the
//! caller never does. Used by the server for its clients, and by the client for
//! what it sends.
//!
//! What no event tells, as writes through a name outside of the tree, is found by
//! a slow comparison (`compare`). Not seen: changes that another machine makes to
//! a file system both have mounted, unless they show in its change times.

mod coalesce;
mod compare;
mod comparison;
mod kernel;
mod tree;
mod watcher;

pub use coalesce::Timing;
pub use kernel::watches_max;

use crate::Folder;
use coalesce::Coalescer;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use verbatim_proto::{Changes, Code, Excludes, Fault, WirePath};
use watcher::{Watched, Watcher};

/// The shortest time between two beginnings: a tree in which too much happens must not keep a
/// core busy for ever.
const AGAIN_MIN: Duration = Duration::from_secs(1);

/// Says whether a watch may have so many of something, in place of as many as it was last asked for.
pub type Room = Box<dyn FnMut(usize) -> bool + Send>;

/// What a watch asks for before it takes it.
pub struct Rooms {
    /// Folders that are watched.
    pub folders: Room,
    /// Bytes of memory for changes that wait to be told. Where there is no room, these are told as
    /// one look at everything.
    pub memory: Room,
}

/// What is told of a watched folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// What changed. The first says `rescan`: from then on nothing is missed.
    Changed(Changes),
    /// Differences that no event told and a comparison found: how many, and where the first is.
    /// What they are is told as changes; this is told without being asked for.
    Healed(u64, WirePath),
    /// It cannot be watched, or no longer, and why. Nothing is told behind this.
    Ended(Fault),
}

/// A folder that is watched until this is dropped.
#[derive(Debug)]
pub struct Watching {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Wakes the thread.
    bell: OwnedFd,
    /// Whether a batch was asked for.
    wanted: AtomicBool,
    stopped: AtomicBool,
}

impl Watching {
    /// Watches `base` in a folder; `tell` is called by the watching thread. It may wait for
    /// whoever listens, while the kernel keeps what happens, and must return when nobody does.
    pub fn begin(
        folder: Folder,
        base: WirePath,
        excludes: Excludes,
        timing: Timing,
        tell: impl FnMut(Told) + Send + 'static,
    ) -> Result<Self, Fault> {
        let rooms = Rooms { folders: Box::new(|_| true), memory: Box::new(|_| true) };
        Self::begin_within(rooms, folder, base, excludes, timing, tell)
    }

    /// The same, of no more folders than there is room for, and as many changes.
    pub fn begin_within(
        rooms: Rooms,
        folder: Folder,
        base: WirePath,
        excludes: Excludes,
        timing: Timing,
        tell: impl FnMut(Told) + Send + 'static,
    ) -> Result<Self, Fault> {
        let cannot = |error: &std::io::Error| Fault::from_io("cannot begin to watch", error);
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let bell = bell.map_err(|error| cannot(&error.into()))?;
        let (wanted, stopped) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared = Arc::new(Shared { bell, wanted, stopped });
        let Rooms { folders: room, memory } = rooms;
        let watched = Watched { folder, base, excludes, room };
        let mut turn = Turn { shared: shared.clone(), begin: Instant::now(), tell };
        let run = move || {
            let Err(fault) = turn.run(watched, memory, timing);
            if !turn.shared.stopped.load(Ordering::Acquire) {
                (turn.tell)(Told::Ended(fault));
            }
        };
        let spawned = std::thread::Builder::new().name("watch".into()).spawn(run);
        spawned.map_err(|error| cannot(&error))?;
        Ok(Self { shared })
    }

    /// Asks for one more batch.
    pub fn more(&self) {
        self.shared.wanted.store(true, Ordering::Release);
        self.shared.ring();
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.shared.ring();
    }
}

impl Shared {
    fn ring(&self) {
        // A bell that is full has rung.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

/// The watching thread.
struct Turn<T> {
    shared: Arc<Shared>,
    begin: Instant,
    tell: T,
}

enum Never {}

impl<T: FnMut(Told)> Turn<T> {
    fn run(&mut self, watched: Watched, memory: Room, timing: Timing) -> Result<Never, Fault> {
        let shared = self.shared.clone();
        let going = Box::new(move || !shared.stopped.load(Ordering::Acquire));
        let mut watcher = Watcher::begin(watched, timing, going)?;
        watcher.pending = Coalescer::within(memory, timing);
        watcher.told(&Changes::rescan());
        (self.tell)(Told::Changed(Changes::rescan()));
        let mut place_checked = Duration::ZERO;
        loop {
            self.wait(&watcher, timing.place_check)?;
            let now = self.begin.elapsed();
            let happened = watcher.kernel.read()?;
            if watcher.take(happened, now)? {
                self.pause()?;
                watcher.begin_again()?;
            }
            if now.saturating_sub(place_checked) >= timing.place_check {
                watcher.check_place()?;
                place_checked = now;
            }
            watcher.compare(now)?;
            if let Some((count, path)) = watcher.compared.healed.take() {
                (self.tell)(Told::Healed(count, path));
            }
            if !self.shared.wanted.load(Ordering::Acquire) {
                continue;
            }
            if let Some(changes) = watcher.pending.take(self.begin.elapsed()) {
                watcher.told(&changes);
                // Before it is told: who is told may ask for more at once.
                self.shared.wanted.store(false, Ordering::Release);
                (self.tell)(Told::Changed(changes));
            }
        }
    }

    /// Sleeps until something happens, is due, or is asked for; at most this long.
    fn wait(&self, watcher: &Watcher, at_most: Duration) -> Result<(), Fault> {
        let wanted = self.shared.wanted.load(Ordering::Acquire);
        let due = watcher.pending.due().filter(|_| wanted);
        let due = due.into_iter().chain(watcher.compared.due()).min();
        let left = due.map(|due| due.saturating_sub(self.begin.elapsed()));
        let timeout = left.unwrap_or(at_most).min(at_most);
        self.poll(Some(watcher), timeout)
    }

    /// Lets others work for a while, unless it is over.
    fn pause(&self) -> Result<(), Fault> {
        let end = Instant::now() + AGAIN_MIN;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            self.poll(None, left)?;
        }
        Ok(())
    }

    fn poll(&self, watcher: Option<&Watcher>, timeout: Duration) -> Result<(), Fault> {
        let bell = PollFd::new(&self.shared.bell, PollFlags::IN);
        let kernel =
            watcher.map(|watcher| PollFd::from_borrowed_fd(watcher.kernel.as_fd(), PollFlags::IN));
        let mut fds: Vec<_> = [Some(bell), kernel].into_iter().flatten().collect();
        let timeout = Timespec::try_from(timeout).unwrap_or_default();
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Fault::from_io("cannot wait for changes", &error.into())),
        }
        // Empty, or it wakes us again at once.
        let _ = rustix::io::read(&self.shared.bell, &mut [0; 8]);
        match self.shared.stopped.load(Ordering::Acquire) {
            true => Err(Fault::new(Code::Interrupted, "watching was ended")),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
