//! Rate limit on log lines about refused connections, so that a flood fills neither the log
//! nor the list of errors on the status page. Of each kind the first `LINES_MAX` in `PERIOD` are
//! logged singly; one summary line counts the rest. Owns these counts. Never logs the refusal
//! itself: the caller does, where `should_log` allows it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Refusals of one kind that are logged one by one in a period.
pub(crate) const LINES_MAX: u64 = 10;

/// The length of a period: one summary line at most in each.
const PERIOD: Duration = Duration::from_secs(5);

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Too many connections have not authenticated yet.
    NoRoom,
    /// The client did not authenticate.
    NotAuthenticated,
    /// A data connection without a valid ticket.
    NoTicket,
    /// No permit for another session.
    SessionsFull,
}

const KINDS: [(Refusal, &str); 4] = [
    (Refusal::NoRoom, "sent away"),
    (Refusal::NotAuthenticated, "not let in"),
    (Refusal::NoTicket, "without a valid secret"),
    (Refusal::SessionsFull, "without room for a session"),
];

/// Refused connections in this period, by kind.
#[derive(Default)]
pub(crate) struct RefusalLog {
    counts: Mutex<[u64; KINDS.len()]>,
}

impl RefusalLog {
    /// Counts a refusal; returns whether to log it singly. Must be called inside the runtime.
    pub fn should_log(self: &Arc<Self>, kind: Refusal) -> bool {
        let mut counts = self.counts();
        let count = &mut counts[kind as usize];
        *count += 1;
        if *count == 1 {
            let log = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(PERIOD).await;
                log.summarise(kind);
            });
        }
        *count <= LINES_MAX
    }

    /// Ends the period of a kind, and logs how many were not logged.
    fn summarise(&self, kind: Refusal) {
        let count = std::mem::take(&mut self.counts()[kind as usize]);
        if let Some(more) = count.checked_sub(LINES_MAX).filter(|more| *more > 0) {
            let (_, refused) = KINDS[kind as usize];
            let seconds = PERIOD.as_secs();
            tracing::warn!(refused, more, seconds, "more connections refused, not logged singly");
        }
    }

    fn counts(&self) -> MutexGuard<'_, [u64; KINDS.len()]> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_flood_is_logged_a_few_times_in_each_period_and_other_kinds_as_before() {
        let refusals = Arc::new(RefusalLog::default());
        let logged =
            |kind, count: u64| (0..count).filter(|_| refusals.should_log(kind)).count() as u64;
        assert_eq!(logged(Refusal::NoRoom, 50_000), LINES_MAX);
        assert_eq!(logged(Refusal::NotAuthenticated, 3), 3, "another kind has lines of its own");
        refusals.summarise(Refusal::NoRoom);
        assert_eq!(*refusals.counts(), [0, 3, 0, 0], "its period is over");
        assert_eq!(logged(Refusal::NoRoom, 20), LINES_MAX);
    }

    #[test]
    fn every_kind_stands_at_its_number() {
        for (number, (kind, _)) in KINDS.iter().enumerate() {
            assert_eq!(*kind as usize, number);
        }
    }
}
