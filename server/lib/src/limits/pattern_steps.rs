//! Rate limit on the processor time of clients' patterns: all clients of a name share a
//! number of steps per second, and a thread that exceeds it sleeps until the debt is paid.
//! `STEPS_MAX` bounds the steps for one path; without this limit, repeated scans by one client
//! would still occupy all threads of its share.

use crate::limits::rate::Bucket;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use verbatim_proto::Meter;

/// Pattern steps per second of all clients of a name: a tenth of a processor. Patterns of usual
/// length cost no counted steps, however many there are.
const STEPS_PER_SECOND: u64 = 24 << 20;

/// The token bucket of pattern steps of one name.
pub(crate) struct PatternSteps {
    started: Instant,
    bucket: Bucket,
}

impl PatternSteps {
    /// A full bucket.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { started: Instant::now(), bucket: Bucket::new(STEPS_PER_SECOND) })
    }

    /// Whether steps are still to be paid for.
    pub fn is_in_debt(&self) -> bool {
        self.bucket.wait(self.started.elapsed()).is_some()
    }

    /// Charges steps; returns the wait until they are paid for.
    pub fn take(&self, steps: u64) -> Option<Duration> {
        self.bucket.spend(steps, self.started.elapsed())
    }

    /// A meter that charges steps, for threads that may sleep: until the debt of all threads of the
    /// name is paid, so a second or two at most.
    pub fn meter(self: &Arc<Self>) -> Meter {
        let matching = self.clone();
        Meter::new(move |steps| {
            if let Some(wait) = matching.take(steps) {
                sleep(wait);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_proto::{Excludes, WirePath};

    #[test]
    fn steps_are_waited_for_once_a_burst_is_used_up() {
        let matching = PatternSteps::new();
        assert!(!matching.is_in_debt());
        let wait = matching.take(2 * STEPS_PER_SECOND).expect("it is owed for");
        assert!((1.5..2.0).contains(&wait.as_secs_f64()), "{wait:?}");
        let more = matching.take(STEPS_PER_SECOND).expect("and more");
        assert!(more > wait, "{more:?} after {wait:?}");
        assert!(matching.is_in_debt());
    }

    #[test]
    fn a_thread_whose_patterns_owe_waits() {
        let matching = PatternSteps::new();
        let slow = format!("**/*[qrstuvwxyza]{}", "/x".repeat(70)).into_bytes();
        let excludes = Excludes::parse(vec![slow; 10]).expect("patterns");
        let excludes = excludes.metered(matching.meter());
        let path = format!("{}/b", vec!["x"; 126].join("/"));
        let path = WirePath::parse(path.as_bytes()).expect("a path");
        matching.take(STEPS_PER_SECOND);
        let began = Instant::now();
        assert_eq!(excludes.excludes(&path, false), Ok(false));
        assert!(began.elapsed() >= Duration::from_millis(600), "{:?}", began.elapsed());
    }
}
