//! Wakes the task that runs a session: jobs and pipes put what they have where the task looks for
//! it, and then wake it. Many wakes before it looks are one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Wakes the task of one session. A clone wakes the same task.
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
    /// Wakes the task, now or when it waits next.
    pub(crate) fn wake(&self) {
        self.shared.notify.notify_one();
    }

    /// Completes once the task is woken, at once if that was since this was last awaited.
    pub async fn woken(&self) {
        self.shared.notify.notified().await;
    }

    /// Wakes the task because a job panicked, whose answer never comes.
    pub(crate) fn wake_for_panic(&self) {
        self.shared.panicked.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether a job panicked, so that its answer never comes and the session must end.
    pub fn has_panicked(&self) -> bool {
        self.shared.panicked.load(Ordering::Acquire)
    }
}
