//! The processor time that patterns of clients take: all clients of a name have so
//! many steps a second together, and the thread that took more waits until they are
//! paid for. One scan is bounded by itself (`STEPS_MAX` of a path); without this a
//! client that asks again and again would keep all threads busy that it may have.

use crate::limits::rate::Bucket;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use verbatim_proto::Meter;

/// Steps that patterns of all clients of a name may take in a second: a tenth of a processor's.
/// Patterns of usual length take none that count, however many there are.
const STEPS_PER_SECOND: u64 = 24 << 20;

/// Steps of one name.
pub(crate) struct Matching {
    started: Instant,
    bucket: Bucket,
}

impl Matching {
    /// None was taken yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { started: Instant::now(), bucket: Bucket::new(STEPS_PER_SECOND) })
    }

    /// Whether something is not paid for.
    pub fn owes(&self) -> bool {
        self.bucket.wait(self.started.elapsed()).is_some()
    }

    /// Counts steps; how long until they are paid for.
    pub fn take(&self, steps: u64) -> Option<Duration> {
        self.bucket.spend(steps, self.started.elapsed())
    }

    /// What tells it, on threads that may wait: as long as all threads of the name took steps
    /// for that were not paid for, so a second or two at most.
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
        let matching = Matching::new();
        assert!(!matching.owes());
        let wait = matching.take(2 * STEPS_PER_SECOND).expect("it is owed for");
        assert!((1.5..2.0).contains(&wait.as_secs_f64()), "{wait:?}");
        let more = matching.take(STEPS_PER_SECOND).expect("and more");
        assert!(more > wait, "{more:?} after {wait:?}");
        assert!(matching.owes());
    }

    #[test]
    fn a_thread_whose_patterns_owe_waits() {
        let matching = Matching::new();
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
