//! The silence timer of a session, its only deadline for the server. Each message and each chunk of
//! the server ends a silence; work on this side does not. Before the deadline the session probes
//! the server, so that a live server with a lost link or a slow chunk is not given up. Links have
//! deadlines of their own, which end links and not the session.

use std::time::{Duration, Instant};

/// The part of the timeout after which a silent server is probed. The rest is its time to answer.
const PROBE_AFTER: u32 = 4;

/// A silence, and the probe sent in it. Pure: the caller passes the time.
pub(crate) struct SilenceTimer {
    /// When the server was last heard, or when it began to owe an answer.
    since: Instant,
    /// The request id of the probe, and when it was sent.
    probe: Option<(u32, Instant)>,
}

/// What the session does about a silence.
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

    /// Notes a message or chunk of the server.
    pub fn received(&mut self, now: Instant) {
        self.since = now;
    }

    /// Discounts a time in which this process was stopped and could receive nothing.
    pub fn discount_stall(&mut self, late: Duration) {
        self.since += late;
        self.probe.iter_mut().for_each(|(_, at)| *at += late);
    }

    /// How long the silence has lasted.
    pub fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Notes that this request probes the server.
    pub fn probe_sent(&mut self, request: u32, now: Instant) {
        self.probe = Some((request, now));
    }

    /// Whether this request was the probe; it is answered then.
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
            // A late probe has its full time for an answer.
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
    fn a_server_that_answers_no_probe_is_given_up_at_the_timeout() {
        let begin = Instant::now();
        let mut silence = SilenceTimer::new(begin);
        assert_eq!(silence.step(true, begin + SECOND, TIMEOUT), SilenceStep::Wait);
        assert_eq!(silence.step(true, begin + 2 * SECOND, TIMEOUT), SilenceStep::Probe);
        silence.probe = Some((1, begin + 2 * SECOND));
        assert_eq!(silence.step(true, begin + 7 * SECOND, TIMEOUT), SilenceStep::Wait);
        assert_eq!(silence.step(true, begin + 8 * SECOND, TIMEOUT), SilenceStep::GiveUp);
    }

    #[test]
    fn messages_and_the_absence_of_owed_answers_end_a_silence() {
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
    fn a_late_probe_has_its_full_time_for_an_answer() {
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
