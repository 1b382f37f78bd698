//! Ten minutes of throughput, by transport and direction, in steps of `STEP_SECONDS`. Pure:
//! callers pass totals; it keeps a bounded number of differences.

use std::collections::VecDeque;

/// The seconds between two samples.
pub const STEP_SECONDS: u64 = 2;

/// The maximum of steps: ten minutes.
const STEPS_MAX: usize = 600 / STEP_SECONDS as usize;

/// Bytes transferred in each step: verbs and TCP, read and written.
#[derive(Default)]
pub struct History {
    last: Option<[[u64; 2]; 2]>,
    steps: VecDeque<[[u64; 2]; 2]>,
}

impl History {
    /// Records the bytes transferred since the server started.
    pub fn record(&mut self, totals: [[u64; 2]; 2]) {
        let last = self.last.replace(totals).unwrap_or(totals);
        if self.steps.len() == STEPS_MAX {
            self.steps.pop_front();
        }
        let mut step = totals;
        for (now, before) in step.iter_mut().flatten().zip(last.iter().flatten()) {
            *now = now.saturating_sub(*before);
        }
        self.steps.push_back(step);
    }

    /// Bytes a second in each step, the oldest first.
    pub fn rates(&self, transport: usize, direction: usize) -> Vec<u64> {
        self.steps.iter().map(|step| step[transport][direction] / STEP_SECONDS).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_become_rates_and_the_oldest_go() {
        let mut history = History::default();
        history.record([[5, 0], [0, 0]]);
        history.record([[5 + 4 * STEP_SECONDS, 0], [0, 6 * STEP_SECONDS]]);
        assert_eq!(history.rates(0, 0), [0, 4]);
        assert_eq!(history.rates(1, 1), [0, 6]);
        for step in 0..2 * STEPS_MAX as u64 {
            history.record([[STEP_SECONDS * step, 0], [0, 0]]);
        }
        assert_eq!(history.rates(0, 0).len(), STEPS_MAX);
        assert!(history.rates(0, 0).iter().skip(1).all(|&rate| rate == 1));
    }
}
