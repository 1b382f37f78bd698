//! Log lines about refused connections: a flood of these must not fill the log, nor the
//! list of troubles that the page shows. Of each kind the first `LINES_MAX` in `PERIOD`
//! are logged one by one; of the rest one line says how many there were. Owns these
//! counts. Never logs the refusal itself: the caller does, where it may.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Refusals of one kind that are logged one by one in a period.
pub(crate) const LINES_MAX: u64 = 10;

/// How long one period is: a summary comes as often at most.
const PERIOD: Duration = Duration::from_secs(5);

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is no room for connections that have not said who they are.
    SentAway,
    /// It did not prove who it is.
    NotLetIn,
    /// It is a data connection without a valid secret.
    NoSecret,
    /// There is no room for its session.
    NoSession,
}

const KINDS: [(Refusal, &str); 4] = [
    (Refusal::SentAway, "sent away"),
    (Refusal::NotLetIn, "not let in"),
    (Refusal::NoSecret, "without a valid secret"),
    (Refusal::NoSession, "without room for a session"),
];

/// How many were refused in this period, by kind.
#[derive(Default)]
pub(crate) struct Refusals {
    counts: Mutex<[u64; KINDS.len()]>,
}

impl Refusals {
    /// Counts a refusal; whether it is to be logged by itself. Must be called inside the runtime.
    pub fn is_logged(self: &Arc<Self>, kind: Refusal) -> bool {
        let mut counts = self.counts();
        let count = &mut counts[kind as usize];
        *count += 1;
        if *count == 1 {
            let all = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(PERIOD).await;
                all.summarise(kind);
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
        let refusals = Arc::new(Refusals::default());
        let logged =
            |kind, count: u64| (0..count).filter(|_| refusals.is_logged(kind)).count() as u64;
        assert_eq!(logged(Refusal::SentAway, 50_000), LINES_MAX);
        assert_eq!(logged(Refusal::NotLetIn, 3), 3, "another kind has lines of its own");
        refusals.summarise(Refusal::SentAway);
        assert_eq!(*refusals.counts(), [0, 3, 0, 0], "its period is over");
        assert_eq!(logged(Refusal::SentAway, 20), LINES_MAX);
    }

    #[test]
    fn every_kind_stands_at_its_number() {
        for (number, (kind, _)) in KINDS.iter().enumerate() {
            assert_eq!(*kind as usize, number);
        }
    }
}
