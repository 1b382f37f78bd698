//! For how long the server has been silent: the one deadline of a session. A message of the
//! server and a chunk that came from it end a silence; what this side does on its own does not.
//! Before the deadline the server is asked a question, so that one that is there, and has only
//! lost a link or is slow with a chunk, is not taken for one that is gone. Links have deadlines of
//! their own, which end links and no session.

use std::time::{Duration, Instant};

/// The part of the timeout after which a silent server is asked. It has the rest to answer.
const PROBE_AFTER: u32 = 4;

/// A silence, and what was asked in it. Pure: the time is given.
pub(crate) struct SilenceTimer {
    /// When something was heard last, or since when something is owed.
    since: Instant,
    /// The question, and when it was asked.
    probe: Option<(u32, Instant)>,
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SilenceStep {
    Wait,
    Probe,
    GiveUp,
}

impl SilenceTimer {
    pub fn new(now: Instant) -> Self {
        Self { since: now, probe: None }
    }

    /// Something came from the server.
    pub fn received(&mut self, now: Instant) {
        self.since = now;
    }

    /// This process did not run for so long, and could hear nothing.
    pub fn discount_stall(&mut self, late: Duration) {
        self.since += late;
        self.probe.iter_mut().for_each(|(_, at)| *at += late);
    }

    /// How long it has lasted.
    pub fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// The server was asked, with this request, whether it is there.
    pub fn probe_sent(&mut self, request: u32, now: Instant) {
        self.probe = Some((request, now));
    }

    /// Whether a request asked that; it is answered then.
    pub fn take_probe(&mut self, request: u32) -> bool {
        self.probe.take_if(|(probe, _)| *probe == request).is_some()
    }

    pub fn step(&mut self, owed: bool, now: Instant, timeout: Duration) -> SilenceStep {
        if !owed {
            self.since = now;
        }
        let silent = self.elapsed(now);
        match self.probe {
            None if owed && silent >= timeout / PROBE_AFTER => SilenceStep::Probe,
            // The time to answer is never short, however late the question was.
            Some((_, at)) if silent >= timeout && now >= at + (timeout - timeout / PROBE_AFTER) => {
                SilenceStep::GiveUp
            }
            _ => SilenceStep::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(8);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_server_that_answers_no_question_is_given_up_at_the_timeout() {
        let begin = Instant::now();
        let mut silence = SilenceTimer::new(begin);
        assert_eq!(silence.step(true, begin + SECOND, TIMEOUT), SilenceStep::Wait);
        assert_eq!(silence.step(true, begin + 2 * SECOND, TIMEOUT), SilenceStep::Probe);
        silence.probe = Some((1, begin + 2 * SECOND));
        assert_eq!(silence.step(true, begin + 7 * SECOND, TIMEOUT), SilenceStep::Wait);
        assert_eq!(silence.step(true, begin + 8 * SECOND, TIMEOUT), SilenceStep::GiveUp);
    }

    #[test]
    fn what_is_heard_and_what_is_not_owed_end_a_silence() {
        let begin = Instant::now();
        let mut silence = SilenceTimer::new(begin);
        silence.probe = Some((1, begin + 2 * SECOND));
        silence.received(begin + 7 * SECOND);
        assert_eq!(silence.step(true, begin + 14 * SECOND, TIMEOUT), SilenceStep::Wait);
        assert_eq!(silence.step(false, begin + 15 * SECOND, TIMEOUT), SilenceStep::Wait);
        assert_eq!(silence.step(true, begin + 22 * SECOND, TIMEOUT), SilenceStep::Wait);
        assert_eq!(silence.step(true, begin + 23 * SECOND, TIMEOUT), SilenceStep::GiveUp);
    }

    #[test]
    fn a_question_that_was_late_has_its_time_all_the_same() {
        let begin = Instant::now();
        let mut silence = SilenceTimer::new(begin);
        assert_eq!(silence.step(true, begin + 8 * SECOND, TIMEOUT), SilenceStep::Probe);
        silence.probe = Some((1, begin + 8 * SECOND));
        assert_eq!(silence.step(true, begin + 13 * SECOND, TIMEOUT), SilenceStep::Wait);
        silence.discount_stall(3 * SECOND);
        assert_eq!(silence.step(true, begin + 16 * SECOND, TIMEOUT), SilenceStep::Wait);
        assert_eq!(silence.step(true, begin + 17 * SECOND, TIMEOUT), SilenceStep::GiveUp);
    }
}
