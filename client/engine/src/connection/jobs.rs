//! Jobs of one activity: blocking file work on tokio's blocking pool. Answers go to the activity
//! that started the job. All activities of a session share one waker. Each job answers once, so the
//! callers' bounds on jobs also bound the queued answers.

use crate::local_io::waker::Waker;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The jobs of one activity on the blocking pool, and their answers of type `E`.
pub struct Jobs<E> {
    answers: UnboundedReceiver<E>,
    sender: UnboundedSender<E>,
    waker: Waker,
}

impl<E: Send + 'static> Jobs<E> {
    /// An empty set of jobs, whose answers wake the task of `waker`.
    pub fn new(waker: &Waker) -> Self {
        let (sender, answers) = unbounded_channel();
        Self { answers, sender, waker: waker.clone() }
    }

    /// Runs `work` on the blocking pool and wakes the task of the session for its answer, or for its
    /// panic, which [`Waker::has_panicked`] reports. Needs a tokio runtime.
    pub fn run(&self, work: impl FnOnce() -> E + Send + 'static) {
        let sender = self.sender.clone();
        // A session that has ended needs no answer.
        run(&self.waker, work, move |answer| drop(sender.send(answer)));
    }

    /// Takes the oldest answer that has arrived. Never waits.
    pub fn next_answer(&mut self) -> Option<E> {
        self.answers.try_recv().ok()
    }
}

/// Runs `work` on the blocking pool, hands its answer to `tell`, and wakes the session's task.
/// Wakes it after a panic too: the task would wait for ever for the answer.
pub(crate) fn run<E>(
    waker: &Waker,
    work: impl FnOnce() -> E + Send + 'static,
    tell: impl FnOnce(E) + Send + 'static,
) {
    let waker = waker.clone();
    tokio::task::spawn_blocking(move || match catch_unwind(AssertUnwindSafe(work)) {
        Ok(answer) => {
            tell(answer);
            waker.wake();
        }
        Err(_) => waker.wake_for_panic(),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    async fn woken(waker: &Waker) {
        timeout(Duration::from_secs(10), waker.woken()).await.expect("a job wakes its session");
    }

    #[tokio::test]
    async fn a_job_wakes_its_session_with_an_answer_or_a_panic() {
        let waker = Waker::default();
        let mut jobs = Jobs::new(&waker);
        jobs.run(|| 7);
        woken(&waker).await;
        assert_eq!(
            (jobs.next_answer(), jobs.next_answer(), waker.has_panicked()),
            (Some(7), None, false)
        );
        jobs.run(|| panic!("this test has it panic"));
        woken(&waker).await;
        assert_eq!((jobs.next_answer(), waker.has_panicked()), (None, true));
    }
}
