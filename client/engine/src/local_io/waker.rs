//! Wakes the task that runs a session. Jobs and pipes put their answers into a queue, then wake the
//! task. Several wakes before the task runs count as one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Wakes the task of one session. Clones wake the same task.
#[derive(Clone, Default)]
pub struct Waker {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    notify: Notify,
    panicked: AtomicBool,
}

impl Waker {
    /// Wakes the task now, or lets its next wait return at once.
    pub(crate) fn wake(&self) {
        self.shared.notify.notify_one();
    }

    /// Completes when the task is woken, or at once if it was since the last wait.
    pub async fn woken(&self) {
        self.shared.notify.notified().await;
    }

    /// Wakes the task after a job panicked, whose answer never comes.
    pub(crate) fn wake_for_panic(&self) {
        self.shared.panicked.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether a job panicked, so that its answer never comes and the session must end.
    pub fn has_panicked(&self) -> bool {
        self.shared.panicked.load(Ordering::Acquire)
    }
}
