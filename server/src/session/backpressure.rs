//! File work of a session: each job runs on the blocking pool and tells its session
//! one event, whatever becomes of it. Owns how many a client may have asked for, and
//! whether it is heard: a client that asks for more than is done, or does not read
//! what it is answered, waits, and no queue grows. How
//! many of its jobs run at a time is its share of the pool; those that wait end with
//! their session. What is done is said by `reading`, `writing`, `catalog` and `mirror`.

use super::catalog::{MAKES_HEARD_MAX, MAKES_MAX};
use super::walks::WALKS_MAX;
use super::{EVENTS_MAX, Event, Session};
use crate::limits::client_limits::CLIENT_THREADS_MAX;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use verbatim_control::Expected;
use verbatim_proto::units::FRAME_BYTES_MAX;

/// Jobs that one client may have at work when it asks for more. Each tells one event, and what
/// the machines begin meanwhile is bounded by them, so that all find room.
pub(super) const JOBS_MAX: usize = 4 << 10;
const _: () = assert!(JOBS_MAX <= EVENTS_MAX / 4, "every job can tell what became of it");

/// With so many jobs that are not done the threads have enough to do next: from then on the bytes
/// count that a client says. What it says of chunks that moved needs no thread, and must not wait
/// behind what does.
pub(super) const JOBS_HEARD_MAX: usize = CLIENT_THREADS_MAX + 8;
const _: () = assert!(WALKS_MAX < 8, "walks that hash may wait for others for hours");

/// Bytes of messages that are heard in front of the threads.
pub(super) const AHEAD_BYTES_MAX: usize = FRAME_BYTES_MAX;

impl Session {
    /// Notes how long a message was that was heard. It counts while there is enough to do, and
    /// where there is no memory for more it counts as all there may be.
    pub(super) fn note_heard(&mut self, bytes: usize) {
        if !self.has_enough_to_do() {
            self.ahead_bytes = 0;
            self.ahead.clear();
            return;
        }
        match self.memory.take(bytes) {
            Some(place) => {
                self.ahead.push(place);
                self.ahead_bytes += bytes;
            }
            None => self.ahead_bytes = AHEAD_BYTES_MAX,
        }
    }

    fn has_enough_to_do(&self) -> bool {
        self.jobs >= JOBS_HEARD_MAX || self.catalog.makes_waiting() >= MAKES_HEARD_MAX
    }

    /// Whether the next message is taken: not before what it depends on is done, nor while there
    /// is enough to do or to read. All jobs end without another one, but they begin none while
    /// there is much to read.
    pub(super) fn hears(&self) -> bool {
        let waits = self.held.is_some() || self.links.making.joins();
        let behind = self.has_enough_to_do() && self.ahead_bytes >= AHEAD_BYTES_MAX;
        let unread = self.outbox.unread().is_much();
        let busy = self.jobs >= JOBS_MAX || self.catalog.makes_waiting() >= MAKES_MAX;
        !(waits || behind || busy || unread)
    }

    /// Starts file work on the blocking pool; its event comes back to this session.
    pub(super) fn job(&mut self, work: impl FnOnce() -> Event + Send + 'static) {
        self.job_within([&self.share.threads, &self.share.name.threads].map(Arc::clone), work);
    }

    /// The same of work whose answer may be as long as this, and counts as unread from its begin
    /// until its event is dropped: where many begin at once, all are done before one is read.
    pub(super) fn job_expecting(
        &mut self,
        bytes: usize,
        work: impl FnOnce(Expected) -> Event + Send + 'static,
    ) {
        let rooms = [&self.share.threads, &self.share.name.threads].map(Arc::clone);
        self.begin(rooms, bytes, work);
    }

    /// The same, once there is room in all of these, which several sessions share. It is waited for
    /// in this order; and not begun while its session has much that is not read.
    pub(super) fn job_within<const ROOMS: usize>(
        &mut self,
        rooms: [Arc<Semaphore>; ROOMS],
        work: impl FnOnce() -> Event + Send + 'static,
    ) {
        self.begin(rooms, 0, |_| work());
    }

    fn begin<const ROOMS: usize>(
        &mut self,
        rooms: [Arc<Semaphore>; ROOMS],
        bytes: usize,
        work: impl FnOnce(Expected) -> Event + Send + 'static,
    ) {
        let errand = self.errand(work);
        let unread = self.outbox.unread().clone();
        let expecting = unread.clone();
        let run = move |places: Vec<OwnedSemaphorePermit>| {
            let expected = expecting.expect(bytes);
            tokio::task::spawn_blocking(move || {
                errand(expected);
                drop(places);
            });
        };
        let places = rooms.iter().map(|room| room.clone().try_acquire_owned().ok());
        if !unread.is_much()
            && let Some(places) = places.collect()
        {
            return run(places);
        }
        let events = self.events.clone();
        tokio::spawn(async move {
            let places = async {
                loop {
                    unread.less().await;
                    let mut places = Vec::with_capacity(ROOMS);
                    for room in &rooms {
                        let place = room.clone().acquire_owned().await;
                        places.push(place.expect("it is never closed"));
                    }
                    // What others were answered meanwhile may be unread too.
                    if !unread.is_much() {
                        return places;
                    }
                }
            };
            tokio::select! {
                places = places => run(places),
                // Nobody is there to be answered.
                () = events.closed() => {}
            }
        });
    }

    fn errand(
        &mut self,
        work: impl FnOnce(Expected) -> Event + Send + 'static,
    ) -> impl FnOnce(Expected) + Send + 'static {
        self.jobs += 1;
        let (events, view, asked) = (self.events.clone(), self.view.clone(), Instant::now());
        let unheard = self.unheard.clone();
        move |expected| {
            let event = event_of(|| work(expected));
            event.count(&view, asked.elapsed());
            // A session that is gone needs no answer; one that is there must not wait for it.
            if let Err(TrySendError::Full(_)) = events.try_send(event) {
                unheard.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// Does a job. One that panics is told all the same: a session that waits for it would say for
/// ever that it is at work.
pub(super) fn event_of(work: impl FnOnce() -> Event) -> Event {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Event::Panicked)
}
