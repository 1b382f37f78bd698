//! How long a broken copy is tried again, and how long each pause is. Pure: it
//! is told what sessions achieved and what time it is, and answers with a pause
//! or with none. Called by `retry`.
//!
//! Progress that counts is a file that is over, or a session that found more of
//! an unfinished file than the one before. Bytes that moved count too, and so does
//! a session that stood for a while, since a server that was there is not one that
//! was tried in vain; but only a few times in a row: they may be the same bytes,
//! or the same comparison, every time.

use std::time::{Duration, Instant};
use verbatim_control::ControlError;
use verbatim_engine::connection::error::{ClientError, fault_of};
use verbatim_proto::Code;

/// The first pause; it doubles with each try.
const PAUSE_MIN: Duration = Duration::from_millis(250);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Sessions in a row that may move bytes, or stand, and leave nothing behind.
const BARREN_MAX: u32 = 4;

/// A session that ends before is one that did not stand.
const STOOD_MIN: Duration = PAUSE_MAX;

/// What one session achieved.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Achieved {
    /// Files over, of all sessions.
    pub over: u64,
    /// Bytes that this one found in place when it began its files.
    pub found_bytes: u64,
    /// When its last byte moved, if any did.
    pub moved: Option<Instant>,
    /// For how long it was there.
    pub stood: Duration,
    /// For how long of that, at its end, the server had not said what it owed. That was waiting
    /// for the server, and counts as such.
    pub silent: Duration,
}

/// Decides whether to try again.
#[derive(Debug)]
pub(crate) struct Patience {
    timeout: Duration,
    /// When progress was made.
    progressed: Instant,
    tries: u32,
    barren: u32,
    best: Achieved,
}

impl Patience {
    pub fn new(timeout: Duration, now: Instant) -> Self {
        Self { timeout, progressed: now, tries: 0, barren: 0, best: Achieved::default() }
    }

    /// A session is over.
    pub fn learn(&mut self, achieved: Achieved, now: Instant) {
        let finished = achieved.over > self.best.over;
        let stood = achieved.stood >= STOOD_MIN.min(self.timeout);
        let stood = stood.then(|| now.checked_sub(achieved.silent).unwrap_or(now));
        let alive = achieved.moved.max(stood);
        if finished || achieved.found_bytes > self.best.found_bytes {
            self.best = achieved;
            self.barren = 0;
        } else if alive.is_some() {
            self.barren += 1;
        }
        if let Some(alive) = alive.filter(|_| self.barren <= BARREN_MAX) {
            self.progressed = self.progressed.max(alive.min(now));
            self.tries = 0;
        }
        if finished {
            self.progressed = now;
            self.tries = 0;
        }
    }

    /// How long to wait before the next try; `random` spreads clients that broke together.
    /// None when nothing was achieved for too long.
    pub fn pause(&mut self, now: Instant, random: u64) -> Option<Duration> {
        let left = self.left(now);
        if left.is_zero() {
            return None;
        }
        let longest = PAUSE_MIN.saturating_mul(1 << self.tries.min(16)).min(PAUSE_MAX);
        self.tries += 1;
        let shortest = longest / 2;
        let spread_ns = (longest - shortest).as_nanos() as u64;
        Some((shortest + Duration::from_nanos(random % (spread_ns + 1))).min(left))
    }

    /// How long it will still be tried.
    pub fn left(&self, now: Instant) -> Duration {
        self.timeout.saturating_sub(now.saturating_duration_since(self.progressed))
    }

    /// Which try in a row the next one is.
    pub fn tries(&self) -> u32 {
        self.tries
    }
}

/// Whether a session that broke like this may be followed by another. One that timed out was
/// waited for long enough; whatever else it is would happen again.
pub(crate) fn may_go_on(code: Code) -> bool {
    matches!(code, Code::LinkLost | Code::Stopping)
}

/// Whether a server that cannot be had just now may be there later. One that does not let us
/// in, or is not who it was, is not asked twice.
pub fn may_come_back(error: &ClientError) -> bool {
    match error {
        ClientError::Control(error) => match error {
            ControlError::CannotConnect { .. }
            | ControlError::Closed { .. }
            | ControlError::SentAway { .. }
            | ControlError::TimedOut { .. } => true,
            ControlError::Refused(fault) => matches!(fault.code, Code::Stopping | Code::Limit),
            _ => false,
        },
        ClientError::Fault(fault) | ClientError::Ended { fault, .. } => may_go_on(fault.code),
        ClientError::Fabric(_) => false,
    }
}

/// Whether what once worked may work again by itself: the server may come back, as may a folder,
/// a disk or a file system of the network, and whoever holds something may let go of it.
pub(crate) fn may_be_mended(error: &ClientError) -> bool {
    let mended = [
        Code::NotFound,
        Code::NotFolder,
        Code::Denied,
        Code::Io,
        Code::Limit,
        Code::NoSpace,
        Code::TimedOut,
    ];
    may_come_back(error) || mended.contains(&fault_of(error).code)
}

/// A number that clients that broke together do not share.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_double_up_to_a_bound_and_are_spread() {
        let begin = Instant::now();
        let mut patience = Patience::new(60 * SECOND, begin);
        let mut longest = Duration::ZERO;
        for expected_ms in [250, 500, 1000, 2000, 4000, 5000, 5000] {
            let pause = patience.pause(begin, u64::MAX).expect("there is time");
            let expected = Duration::from_millis(expected_ms);
            assert!(pause >= expected / 2 && pause <= expected, "{pause:?} for {expected:?}");
            longest = longest.max(pause);
        }
        assert_eq!(patience.tries(), 7);
        let spread: Vec<_> = (0..3)
            .map(|random| Patience::new(60 * SECOND, begin).pause(begin, random * 99_999_999))
            .collect();
        assert!(spread[0] < spread[1] && spread[1] != spread[2], "{spread:?}");
    }

    #[test]
    fn it_ends_after_the_timeout_without_progress() {
        let begin = Instant::now();
        let mut patience = Patience::new(10 * SECOND, begin);
        assert!(patience.pause(begin + 9 * SECOND, 0).is_some_and(|pause| pause <= SECOND));
        assert_eq!(patience.pause(begin + 10 * SECOND, 0), None);
        let over = Achieved { over: 1, ..Achieved::default() };
        patience.learn(over, begin + 10 * SECOND);
        assert!(patience.pause(begin + 19 * SECOND, 0).is_some(), "a file was finished");
        patience.learn(over, begin + 19 * SECOND);
        assert_eq!(patience.pause(begin + 20 * SECOND, 0), None, "no other one was");
    }

    #[test]
    fn bytes_that_move_and_never_stay_are_no_progress_for_long() {
        let begin = Instant::now();
        let mut patience = Patience::new(10 * SECOND, begin);
        let mut now = begin;
        let mut sessions = 0;
        while patience.pause(now, 0).is_some() {
            now += SECOND;
            sessions += 1;
            patience.learn(Achieved { moved: Some(now), ..Achieved::default() }, now);
            assert!(sessions < 100, "it never ends");
        }
        assert!(sessions > BARREN_MAX, "{sessions}");
    }

    #[test]
    fn a_server_that_was_there_all_the_time_is_tried_for_as_long_as_any_other() {
        let begin = Instant::now();
        for timeout in [10 * SECOND, SECOND] {
            let mut patience = Patience::new(timeout, begin);
            let lost = begin + 3600 * SECOND;
            patience.learn(Achieved { stood: 3600 * SECOND, ..Achieved::default() }, lost);
            assert_eq!(patience.left(lost), timeout, "it compared, and finished no file");
            assert_eq!(patience.pause(lost + timeout, 0), None);
        }
    }

    #[test]
    fn a_server_that_was_silent_before_it_was_lost_is_not_waited_for_twice() {
        let begin = Instant::now();
        let mut patience = Patience::new(10 * SECOND, begin);
        let lost = begin + 3600 * SECOND;
        let (stood, silent) = (3600 * SECOND, 7 * SECOND);
        patience.learn(Achieved { stood, silent, ..Achieved::default() }, lost);
        assert_eq!(patience.left(lost), 3 * SECOND);
    }

    #[test]
    fn sessions_that_stand_and_leave_nothing_end_and_those_that_do_not_stand_end_in_time() {
        let begin = Instant::now();
        for (stood, most) in [(60 * SECOND, (BARREN_MAX + 1) * 60 * SECOND), (SECOND, 10 * SECOND)]
        {
            let mut patience = Patience::new(10 * SECOND, begin);
            let mut now = begin;
            while let Some(pause) = patience.pause(now, 0) {
                now += pause + stood;
                patience.learn(Achieved { stood, ..Achieved::default() }, now);
                assert!(now - begin <= most + 10 * SECOND, "{stood:?}: it never ends");
            }
            assert!(now - begin >= 10 * SECOND, "{stood:?}: {:?}", now - begin);
        }
    }

    #[test]
    fn a_large_file_that_grows_a_little_each_time_is_gone_on_with() {
        let begin = Instant::now();
        let mut patience = Patience::new(10 * SECOND, begin);
        for session in 1..1000 {
            let now = begin + session * 5 * SECOND;
            let found_bytes = u64::from(session) << 20;
            let moved = Some(now);
            patience.learn(Achieved { found_bytes, moved, ..Achieved::default() }, now);
            assert!(patience.pause(now, 0).is_some(), "session {session}");
        }
    }
}
