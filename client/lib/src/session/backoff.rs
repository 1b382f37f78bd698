//! Whether what failed is tried again, and after which pause: one `Backoff` for each loop that
//! makes sessions anew, of copies, mounts and watched sources, and for the passes of a mirror that
//! follows its source, which make the session that holds its lock. Pure: it is told what failed,
//! what sessions achieved and what time it is.
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

/// The first pause of a copy and of a watched source; it doubles with each try.
const PAUSE_MIN: Duration = Duration::from_millis(250);

/// The longest pause, but for passes.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The first pause of a mount, whose readers wait.
const MOUNT_PAUSE_MIN: Duration = Duration::from_millis(100);

/// The first pause before a pass that failed is made again, and the longest.
const PASS_PAUSE_MIN: Duration = Duration::from_millis(500);
const PASS_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Pauses double this many times at most.
const TRIES_MAX: u32 = 16;

/// Sessions in a row that may move bytes, or stand, and leave nothing behind.
const FRUITLESS_SESSIONS_MAX: u32 = 4;

/// A session that ends before is one that did not stand.
const UPTIME_MIN: Duration = PAUSE_MAX;

/// What one session achieved.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SessionProgress {
    /// Files over, of all sessions.
    pub finished: u64,
    /// Bytes that this one found in place when it began its files.
    pub already_present_bytes: u64,
    /// When its last byte moved, if any did.
    pub moved: Option<Instant>,
    /// For how long it was there.
    pub uptime: Duration,
    /// For how long of that, at its end, the server had not said what it owed. That was waiting
    /// for the server, and counts as such.
    pub silent: Duration,
}

/// The answer of a [`Backoff`] to a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// Try again after this pause.
    After(Duration),
    /// Give up: there was no progress for the whole of the timeout.
    Exhausted,
    /// Give up: the failure would happen again.
    Final,
}

/// The failures after which a loop tries again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RetryPolicy {
    /// Failures after which the server may come back.
    ServerGone,
    /// All failures. A server that refuses this client is asked at the longest pauses: it may accept
    /// it when its keys are fixed.
    All,
    /// Transient failures, once a try has succeeded.
    Transient,
}

/// Decides after each failure whether to try again, and when.
#[derive(Debug)]
pub struct Backoff {
    pause_min: Duration,
    pause_max: Duration,
    /// Whether pauses are spread, so that clients that broke together do not return together.
    spread: bool,
    policy: RetryPolicy,
    /// Whether it ever worked.
    worked: bool,
    timeout: Duration,
    /// When progress was made.
    progressed: Instant,
    tries: u32,
    fruitless: u32,
    best: SessionProgress,
}

impl Backoff {
    /// For the sessions of a copy: pauses of 250 ms to 5 s, halved at random. Gives up after `timeout`
    /// without progress, and at a failure after which the server does not come back.
    pub(crate) fn copy(timeout: Duration, now: Instant) -> Self {
        Self {
            pause_min: PAUSE_MIN,
            pause_max: PAUSE_MAX,
            spread: true,
            policy: RetryPolicy::ServerGone,
            worked: false,
            timeout,
            progressed: now,
            tries: 0,
            fruitless: 0,
            best: SessionProgress::default(),
        }
    }

    /// For the sessions of a mount: pauses of 100 ms to 5 s. Never gives up.
    pub fn mount(now: Instant) -> Self {
        let (pause_min, policy) = (MOUNT_PAUSE_MIN, RetryPolicy::All);
        Self { pause_min, spread: false, policy, ..Self::copy(Duration::MAX, now) }
    }

    /// For a watched source: pauses of 250 ms to 5 s, halved at random. Gives up at any failure
    /// before [`Backoff::succeeded`], and later at one that is not transient.
    pub(crate) fn watch(now: Instant) -> Self {
        Self { policy: RetryPolicy::Transient, ..Self::copy(Duration::MAX, now) }
    }

    /// For the passes of a mirror: pauses of 500 ms to 60 s. Never gives up.
    pub(crate) fn passes(now: Instant) -> Self {
        let (pause_min, pause_max) = (PASS_PAUSE_MIN, PASS_PAUSE_MAX);
        Self { pause_min, pause_max, ..Self::mount(now) }
    }

    /// Notes that a try succeeded: the next failure is followed by the first pause.
    pub(crate) fn succeeded(&mut self) {
        (self.worked, self.tries) = (true, 0);
    }

    /// Decides after a failure that the caller has judged already, such as the end of a session that
    /// stood: only the timeout ends the loop.
    pub fn lost(&mut self, now: Instant) -> RetryDecision {
        self.pause(now, random()).map_or(RetryDecision::Exhausted, RetryDecision::After)
    }

    /// Decides after a try that failed with `error`.
    pub fn failed(&mut self, error: &ClientError, now: Instant) -> RetryDecision {
        let reconnect = match self.policy {
            RetryPolicy::ServerGone => may_come_back(error),
            RetryPolicy::All if may_come_back(error) => true,
            RetryPolicy::All => {
                self.tries = TRIES_MAX;
                true
            }
            RetryPolicy::Transient => self.worked && is_transient(error),
        };
        if reconnect { self.lost(now) } else { RetryDecision::Final }
    }

    /// Notes what a session achieved that is over.
    pub(crate) fn session_ended(&mut self, progress_made: SessionProgress, now: Instant) {
        let finished = progress_made.finished > self.best.finished;
        let uptime = progress_made.uptime >= UPTIME_MIN.min(self.timeout);
        let uptime = uptime.then(|| now.checked_sub(progress_made.silent).unwrap_or(now));
        let alive = progress_made.moved.max(uptime);
        if finished || progress_made.already_present_bytes > self.best.already_present_bytes {
            self.best = progress_made;
            self.fruitless = 0;
        } else if alive.is_some() {
            self.fruitless += 1;
        }
        if let Some(alive) = alive.filter(|_| self.fruitless <= FRUITLESS_SESSIONS_MAX) {
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
    fn pause(&mut self, now: Instant, random: u64) -> Option<Duration> {
        let left = self.left(now);
        if left.is_zero() {
            return None;
        }
        let doubled = self.pause_min.saturating_mul(1 << self.tries.min(TRIES_MAX));
        let longest = doubled.min(self.pause_max);
        self.tries += 1;
        let shortest = if self.spread { longest / 2 } else { longest };
        let spread_ns = (longest - shortest).as_nanos() as u64;
        Some((shortest + Duration::from_nanos(random % (spread_ns + 1))).min(left))
    }

    /// How long it will still be tried.
    pub(crate) fn left(&self, now: Instant) -> Duration {
        self.timeout.saturating_sub(now.saturating_duration_since(self.progressed))
    }

    /// Which try in a row the next one is.
    pub(crate) fn tries(&self) -> u32 {
        self.tries
    }
}

/// Whether a session that broke like this may be followed by another. One that timed out was
/// waited for long enough; whatever else it is would happen again.
pub(crate) fn may_resume(code: Code) -> bool {
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
        ClientError::Fault(fault) | ClientError::Ended { fault, .. } => may_resume(fault.code),
        ClientError::Fabric(_) => false,
    }
}

/// Whether what once worked may work again by itself: the server may come back, as may a folder,
/// a disk or a file system of the network, and whoever holds something may let go of it.
pub(crate) fn is_transient(error: &ClientError) -> bool {
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
    use verbatim_proto::Fault;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_double_up_to_a_bound_and_are_spread() {
        let begin = Instant::now();
        let mut backoff = Backoff::copy(60 * SECOND, begin);
        let mut longest = Duration::ZERO;
        for expected_ms in [250, 500, 1000, 2000, 4000, 5000, 5000] {
            let pause = backoff.pause(begin, u64::MAX).expect("there is time");
            let expected = Duration::from_millis(expected_ms);
            assert!(pause >= expected / 2 && pause <= expected, "{pause:?} for {expected:?}");
            longest = longest.max(pause);
        }
        assert_eq!(backoff.tries(), 7);
        let spread: Vec<_> = (0..3)
            .map(|random| Backoff::copy(60 * SECOND, begin).pause(begin, random * 99_999_999))
            .collect();
        assert!(spread[0] < spread[1] && spread[1] != spread[2], "{spread:?}");
    }

    #[test]
    fn it_ends_after_the_timeout_without_progress() {
        let begin = Instant::now();
        let mut backoff = Backoff::copy(10 * SECOND, begin);
        assert!(backoff.pause(begin + 9 * SECOND, 0).is_some_and(|pause| pause <= SECOND));
        assert_eq!(backoff.pause(begin + 10 * SECOND, 0), None);
        let finished = SessionProgress { finished: 1, ..SessionProgress::default() };
        backoff.session_ended(finished, begin + 10 * SECOND);
        assert!(backoff.pause(begin + 19 * SECOND, 0).is_some(), "a file was finished");
        backoff.session_ended(finished, begin + 19 * SECOND);
        assert_eq!(backoff.pause(begin + 20 * SECOND, 0), None, "no other one was");
    }

    #[test]
    fn bytes_that_move_and_never_stay_are_no_progress_for_long() {
        let begin = Instant::now();
        let mut backoff = Backoff::copy(10 * SECOND, begin);
        let mut now = begin;
        let mut sessions = 0;
        while backoff.pause(now, 0).is_some() {
            now += SECOND;
            sessions += 1;
            backoff.session_ended(
                SessionProgress { moved: Some(now), ..SessionProgress::default() },
                now,
            );
            assert!(sessions < 100, "it never ends");
        }
        assert!(sessions > FRUITLESS_SESSIONS_MAX, "{sessions}");
    }

    #[test]
    fn a_server_that_was_there_all_the_time_is_tried_for_as_long_as_any_other() {
        let begin = Instant::now();
        for timeout in [10 * SECOND, SECOND] {
            let mut backoff = Backoff::copy(timeout, begin);
            let lost = begin + 3600 * SECOND;
            backoff.session_ended(
                SessionProgress { uptime: 3600 * SECOND, ..SessionProgress::default() },
                lost,
            );
            assert_eq!(backoff.left(lost), timeout, "it compared, and finished no file");
            assert_eq!(backoff.pause(lost + timeout, 0), None);
        }
    }

    #[test]
    fn a_server_that_was_silent_before_it_was_lost_is_not_waited_for_twice() {
        let begin = Instant::now();
        let mut backoff = Backoff::copy(10 * SECOND, begin);
        let lost = begin + 3600 * SECOND;
        let (uptime, silent) = (3600 * SECOND, 7 * SECOND);
        backoff
            .session_ended(SessionProgress { uptime, silent, ..SessionProgress::default() }, lost);
        assert_eq!(backoff.left(lost), 3 * SECOND);
    }

    #[test]
    fn sessions_that_stand_and_leave_nothing_end_and_those_that_do_not_stand_end_in_time() {
        let begin = Instant::now();
        for (uptime, most) in
            [(60 * SECOND, (FRUITLESS_SESSIONS_MAX + 1) * 60 * SECOND), (SECOND, 10 * SECOND)]
        {
            let mut backoff = Backoff::copy(10 * SECOND, begin);
            let mut now = begin;
            while let Some(pause) = backoff.pause(now, 0) {
                now += pause + uptime;
                backoff
                    .session_ended(SessionProgress { uptime, ..SessionProgress::default() }, now);
                assert!(now - begin <= most + 10 * SECOND, "{uptime:?}: it never ends");
            }
            assert!(now - begin >= 10 * SECOND, "{uptime:?}: {:?}", now - begin);
        }
    }

    #[test]
    fn a_large_file_that_grows_a_little_each_time_is_gone_on_with() {
        let begin = Instant::now();
        let mut backoff = Backoff::copy(10 * SECOND, begin);
        for session in 1..1000 {
            let now = begin + session * 5 * SECOND;
            let already_present_bytes = u64::from(session) << 20;
            let moved = Some(now);
            backoff.session_ended(
                SessionProgress { already_present_bytes, moved, ..SessionProgress::default() },
                now,
            );
            assert!(backoff.pause(now, 0).is_some(), "session {session}");
        }
    }

    fn refused() -> ClientError {
        Fault::new(Code::Protocol, "no").into()
    }

    fn away() -> ClientError {
        Fault::new(Code::LinkLost, "away").into()
    }

    fn pauses_ms(backoff: &mut Backoff, count: usize) -> Vec<u128> {
        let begin = Instant::now();
        let pause = |_| match backoff.lost(begin) {
            RetryDecision::After(pause) => pause.as_millis(),
            end => panic!("{end:?}"),
        };
        (0..count).map(pause).collect()
    }

    #[test]
    fn a_mount_and_passes_have_pauses_of_their_own_that_are_not_spread_and_never_end() {
        let begin = Instant::now();
        let mut mount = Backoff::mount(begin);
        let expected = [100, 200, 400, 800, 1600, 3200, 5000, 5000];
        assert_eq!(pauses_ms(&mut mount, expected.len()), expected);
        assert!(matches!(mount.lost(begin + 1_000_000 * SECOND), RetryDecision::After(_)));
        let mut passes = Backoff::passes(begin);
        let expected = [500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000];
        assert_eq!(pauses_ms(&mut passes, expected.len()), expected);
        passes.succeeded();
        assert_eq!(pauses_ms(&mut passes, 1), [500]);
    }

    #[test]
    fn a_failure_that_lasts_ends_a_copy_and_slows_a_mount_down() {
        let begin = Instant::now();
        let mut copy = Backoff::copy(10 * SECOND, begin);
        assert!(matches!(copy.failed(&away(), begin), RetryDecision::After(_)));
        assert_eq!(copy.failed(&refused(), begin), RetryDecision::Final);
        assert_eq!(copy.failed(&away(), begin + 10 * SECOND), RetryDecision::Exhausted);
        let mut mount = Backoff::mount(begin);
        assert_eq!(mount.failed(&away(), begin), RetryDecision::After(MOUNT_PAUSE_MIN));
        assert_eq!(mount.failed(&refused(), begin), RetryDecision::After(PAUSE_MAX));
        assert_eq!(mount.failed(&away(), begin), RetryDecision::After(PAUSE_MAX), "it stays slow");
    }

    #[test]
    fn a_source_is_waited_for_only_if_it_was_heard_once() {
        let begin = Instant::now();
        let gone: ClientError = Fault::new(Code::NotFound, "gone").into();
        let mut watch = Backoff::watch(begin);
        assert_eq!(watch.failed(&gone, begin), RetryDecision::Final);
        watch.succeeded();
        assert!(matches!(watch.failed(&gone, begin), RetryDecision::After(_)));
        assert_eq!(watch.failed(&refused(), begin), RetryDecision::Final);
    }
}
