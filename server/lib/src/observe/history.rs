//! Ten minutes of throughput, by transport and direction, in steps of a few
//! seconds. Pure: it is told totals and keeps differences, as many as fit.

use std::collections::VecDeque;

/// The seconds between two looks.
pub const STEP_SECONDS: u64 = 2;

/// Steps that are kept: ten minutes.
const STEPS_MAX: usize = 600 / STEP_SECONDS as usize;

/// What moved in each step: verbs and TCP, read and written.
#[derive(Default)]
pub struct History {
    last: Option<[[u64; 2]; 2]>,
    steps: VecDeque<[[u64; 2]; 2]>,
}

impl History {
    /// Takes the bytes moved since the server began.
    pub fn look(&mut self, totals: [[u64; 2]; 2]) {
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
        history.look([[5, 0], [0, 0]]);
        history.look([[5 + 4 * STEP_SECONDS, 0], [0, 6 * STEP_SECONDS]]);
        assert_eq!(history.rates(0, 0), [0, 4]);
        assert_eq!(history.rates(1, 1), [0, 6]);
        for step in 0..2 * STEPS_MAX as u64 {
            history.look([[STEP_SECONDS * step, 0], [0, 0]]);
        }
        assert_eq!(history.rates(0, 0).len(), STEPS_MAX);
        assert!(history.rates(0, 0).iter().skip(1).all(|&rate| rate == 1));
    }
}
