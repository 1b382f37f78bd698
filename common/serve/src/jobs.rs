//! File jobs of a session: each runs on the blocking pool and sends its session exactly one event,
//! even if it panics. Owns the count of jobs under way. Semaphores, which sessions may share, limit
//! the jobs that run at a time. A job that waits for one ends with its session, and does not start
//! while the client has much to read.

use crate::event_port::{EventPort, SendError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use verbatim_control::{Expected, Unread};

/// A job panicked: the event it would have sent will never come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panicked;

/// The state that all jobs of a session share.
pub struct JobLimits {
    under_way: AtomicUsize,
    /// Whether the event of a job found no room in the queue.
    lost: AtomicBool,
    panicked: EventPort<Panicked>,
    unread: Arc<Unread>,
}

impl JobLimits {
    /// No job is under way. Jobs wait while `unread` is over its limit.
    pub fn new(panicked: EventPort<Panicked>, unread: Arc<Unread>) -> Arc<Self> {
        let (under_way, lost) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { under_way, lost, panicked, unread })
    }

    /// Jobs that were started and whose events the session has not received.
    pub fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Counts a job as done; the session calls it for each event of a job.
    pub fn done(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the event of a job was lost: then the session must end.
    pub fn has_lost_event(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}

/// Semaphores that a job acquires, in this order, before it runs.
pub type Semaphores<const COUNT: usize> = [Arc<Semaphore>; COUNT];

/// Runs the jobs of one activity of a session.
pub struct Jobs<E> {
    limits: Arc<JobLimits>,
    semaphores: Semaphores<2>,
    port: EventPort<E>,
    done: Arc<Done<E>>,
}

/// Called with the event of each job, on its thread, and the time since the job was started.
type Done<E> = dyn Fn(&E, Duration) + Send + Sync;

impl<E: Send + 'static> Jobs<E> {
    /// Jobs that acquire these semaphores and send their events to this port. `done` counts each.
    pub fn new(
        limits: Arc<JobLimits>,
        semaphores: Semaphores<2>,
        port: EventPort<E>,
        done: impl Fn(&E, Duration) + Send + Sync + 'static,
    ) -> Self {
        Self { limits, semaphores, port, done: Arc::new(done) }
    }

    /// The same jobs with other semaphores.
    #[must_use]
    pub fn within(&self, semaphores: Semaphores<2>) -> Self {
        let Self { limits, port, done, .. } = self;
        Self { limits: limits.clone(), semaphores, port: port.clone(), done: done.clone() }
    }

    /// Starts a job.
    pub fn run(&self, work: impl FnOnce() -> E + Send + 'static) {
        self.start(self.semaphores.clone(), 0, |_| work());
    }

    /// Starts a job whose answer may have this many bytes. They count as unread from the start of
    /// the job until its event is dropped: many jobs may end before the client reads the first
    /// answer.
    pub fn run_expecting(&self, bytes: usize, work: impl FnOnce(Expected) -> E + Send + 'static) {
        self.start(self.semaphores.clone(), bytes, work);
    }

    /// Starts a job that acquires these semaphores.
    pub fn run_within<const COUNT: usize>(
        &self,
        semaphores: Semaphores<COUNT>,
        work: impl FnOnce() -> E + Send + 'static,
    ) {
        self.start(semaphores, 0, |_| work());
    }

    fn start<const COUNT: usize>(
        &self,
        semaphores: Semaphores<COUNT>,
        bytes: usize,
        work: impl FnOnce(Expected) -> E + Send + 'static,
    ) {
        let job = self.job(work);
        let unread = self.limits.unread.clone();
        let expecting = unread.clone();
        let run = move |permits: Vec<OwnedSemaphorePermit>| {
            let expected = expecting.expect(bytes);
            tokio::task::spawn_blocking(move || {
                job(expected);
                drop(permits);
            });
        };
        let permits = semaphores.iter().map(|semaphore| semaphore.clone().try_acquire_owned().ok());
        if !unread.is_much()
            && let Some(permits) = permits.collect()
        {
            return run(permits);
        }
        let port = self.port.clone();
        tokio::spawn(async move {
            let permits = async {
                loop {
                    unread.less().await;
                    let mut permits = Vec::with_capacity(COUNT);
                    for semaphore in &semaphores {
                        let permit = semaphore.clone().acquire_owned().await;
                        permits.push(permit.expect("it is never closed"));
                    }
                    // Answers of other jobs may have become unread meanwhile.
                    if !unread.is_much() {
                        return permits;
                    }
                }
            };
            tokio::select! {
                permits = permits => run(permits),
                // The session has ended.
                () = port.closed() => {}
            }
        });
    }

    fn job(
        &self,
        work: impl FnOnce(Expected) -> E + Send + 'static,
    ) -> impl FnOnce(Expected) + Send + 'static {
        self.limits.under_way.fetch_add(1, Ordering::Relaxed);
        let Self { limits, port, done, .. } = self;
        let (limits, port, done) = (limits.clone(), port.clone(), done.clone());
        let asked = Instant::now();
        move |expected| {
            // Otherwise a session would wait for the event of a panicked job for ever, and report
            // that it is working.
            let sent = match catch_unwind(AssertUnwindSafe(|| work(expected))) {
                Ok(event) => {
                    done(&event, asked.elapsed());
                    port.try_send(event)
                }
                Err(_) => limits.panicked.try_send(Panicked),
            };
            // A session that has ended needs no event; one that goes on must not wait for it.
            if sent == Err(SendError::Full) {
                limits.lost.store(true, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    #[derive(Debug, PartialEq)]
    enum Event {
        Done(u32),
        Panicked,
    }

    impl From<u32> for Event {
        fn from(answer: u32) -> Self {
            Self::Done(answer)
        }
    }

    impl From<Panicked> for Event {
        fn from(_: Panicked) -> Self {
            Self::Panicked
        }
    }

    fn jobs(room: usize) -> (Jobs<u32>, mpsc::Receiver<Event>, Arc<JobLimits>) {
        let (queue, events) = mpsc::channel::<Event>(room);
        let limits = JobLimits::new(EventPort::of(&queue), Arc::default());
        let semaphores = [Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1))];
        (Jobs::new(limits.clone(), semaphores, EventPort::of(&queue), |_, _| ()), events, limits)
    }

    #[tokio::test]
    async fn a_job_that_panics_is_reported_to_its_session() {
        let (jobs, mut events, limits) = jobs(2);
        jobs.run(|| panic!("a test's own"));
        assert_eq!(events.recv().await, Some(Event::Panicked));
        jobs.run(|| 7);
        assert_eq!(events.recv().await, Some(Event::Done(7)));
        assert_eq!(limits.under_way(), 2, "until the session says so");
        limits.done();
        assert_eq!((limits.under_way(), limits.has_lost_event()), (1, false));
    }

    #[tokio::test]
    async fn a_lost_event_of_a_job_is_noticed() {
        let (jobs, _events, limits) = jobs(1);
        jobs.run(|| 1);
        jobs.run(|| 2);
        let lost = async {
            while !limits.has_lost_event() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), lost).await.expect("it is noticed");
    }
}
