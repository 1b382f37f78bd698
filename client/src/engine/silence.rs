//! For how long the server has been silent: the one deadline of a session. A message of the
//! server and a chunk that came from it end a silence; what this side does on its own does not.
//! Before the deadline the server is asked a question, so that one that is there, and has only
//! lost a link or is slow with a chunk, is not taken for one that is gone. Links have deadlines of
//! their own, which end links and no session.

use crate::session::Session;
use crate::session::dispatch::Core;
use std::time::{Duration, Instant};
use verbatim_proto::message::ServerMessage;
use verbatim_proto::{ClientMessage, Code, Fault, Look, WirePath};

/// The part of the timeout after which a silent server is asked. It has the rest to answer.
const ASKED_AFTER: u32 = 4;

/// A silence that nobody looks at: what is owed is not worked out at every turn.
const SHORT_MAX: Duration = Duration::from_millis(100);

/// A silence, and what was asked in it. Pure: the time is given.
pub(crate) struct Silence {
    /// When something was heard last, or since when something is owed.
    since: Instant,
    /// The question, and when it was asked.
    asked: Option<(u32, Instant)>,
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Wait,
    Ask,
    GiveUp,
}

impl Silence {
    pub fn new(now: Instant) -> Self {
        Self { since: now, asked: None }
    }

    /// Something came from the server.
    pub fn heard(&mut self, now: Instant) {
        self.since = now;
    }

    /// This process did not run for so long, and could hear nothing.
    pub fn excuse(&mut self, late: Duration) {
        self.since += late;
        self.asked.iter_mut().for_each(|(_, at)| *at += late);
    }

    /// How long it has lasted.
    pub fn so_far(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    fn step(&mut self, owed: bool, now: Instant, timeout: Duration) -> Step {
        if !owed {
            self.since = now;
        }
        let silent = self.so_far(now);
        match self.asked {
            None if owed && silent >= timeout / ASKED_AFTER => Step::Ask,
            // The time to answer is never short, however late the question was.
            Some((_, at)) if silent >= timeout && now >= at + (timeout - timeout / ASKED_AFTER) => {
                Step::GiveUp
            }
            _ => Step::Wait,
        }
    }
}

impl Session {
    /// For how long the server has not said what it owes.
    pub(crate) fn silent(&self) -> Duration {
        self.core.silent()
    }
}

impl Core {
    /// Whether the server owes an answer, or data. Who asks for one thing, and waits for that,
    /// has a deadline of his own.
    fn is_owed(&self) -> bool {
        let machines = self.read.awaits_server() || self.write.awaits_server();
        let asked = self.trees.awaits() || self.choices.awaits();
        let mirror = self.mirror.as_ref().is_some_and(|mirror| mirror.awaits());
        let serving = self.serving.as_ref().is_some_and(|serving| serving.awaits());
        !self.asking && self.hashing == 0 && (machines || asked || mirror || serving)
    }

    /// Asks a server that is silent whether it is there, and gives up one that does not say so.
    pub(crate) fn listen(&mut self) {
        if self.broken.is_some() || self.silence.so_far(self.moment) < SHORT_MAX {
            return;
        }
        let (owed, now, timeout) = (self.is_owed(), self.moment, self.options.timeout);
        match self.silence.step(owed, now, timeout) {
            Step::Wait => {}
            Step::Ask => {
                self.next_request += 1;
                let request = self.next_request;
                self.silence.asked = Some((request, now));
                let look = Look { follow: true, paths: vec![WirePath::root()] };
                self.sending.push_back(ClientMessage::Stat { request, look });
            }
            Step::GiveUp => {
                let text = format!("server said nothing for {} s", timeout.as_secs());
                self.broke(Fault::new(Code::TimedOut, text));
            }
        }
    }

    /// The server said something. True where it is nothing but that it is there.
    pub(crate) fn hears(&mut self, message: &ServerMessage) -> bool {
        self.silence.heard(self.moment);
        let ServerMessage::Stated { request, .. } = message else { return false };
        self.silence.asked.take_if(|(asked, _)| *asked == *request).is_some()
    }

    /// For how long nothing was heard of what the server owes.
    pub(crate) fn silent(&self) -> Duration {
        let so_far = match self.asking {
            true => self.moment.saturating_duration_since(self.quiet_since),
            false => self.silence.so_far(self.moment),
        };
        so_far.min(self.options.timeout)
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
        let mut silence = Silence::new(begin);
        assert_eq!(silence.step(true, begin + SECOND, TIMEOUT), Step::Wait);
        assert_eq!(silence.step(true, begin + 2 * SECOND, TIMEOUT), Step::Ask);
        silence.asked = Some((1, begin + 2 * SECOND));
        assert_eq!(silence.step(true, begin + 7 * SECOND, TIMEOUT), Step::Wait);
        assert_eq!(silence.step(true, begin + 8 * SECOND, TIMEOUT), Step::GiveUp);
    }

    #[test]
    fn what_is_heard_and_what_is_not_owed_end_a_silence() {
        let begin = Instant::now();
        let mut silence = Silence::new(begin);
        silence.asked = Some((1, begin + 2 * SECOND));
        silence.heard(begin + 7 * SECOND);
        assert_eq!(silence.step(true, begin + 14 * SECOND, TIMEOUT), Step::Wait);
        assert_eq!(silence.step(false, begin + 15 * SECOND, TIMEOUT), Step::Wait);
        assert_eq!(silence.step(true, begin + 22 * SECOND, TIMEOUT), Step::Wait);
        assert_eq!(silence.step(true, begin + 23 * SECOND, TIMEOUT), Step::GiveUp);
    }

    #[test]
    fn a_question_that_was_late_has_its_time_all_the_same() {
        let begin = Instant::now();
        let mut silence = Silence::new(begin);
        assert_eq!(silence.step(true, begin + 8 * SECOND, TIMEOUT), Step::Ask);
        silence.asked = Some((1, begin + 8 * SECOND));
        assert_eq!(silence.step(true, begin + 13 * SECOND, TIMEOUT), Step::Wait);
        silence.excuse(3 * SECOND);
        assert_eq!(silence.step(true, begin + 16 * SECOND, TIMEOUT), Step::Wait);
        assert_eq!(silence.step(true, begin + 17 * SECOND, TIMEOUT), Step::GiveUp);
    }
}
