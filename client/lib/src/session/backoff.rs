//! Retry decisions: whether to try again after a failure, and after which pause. Copies, mounts and
//! watches have one [`Backoff`] for their sessions, and a mirror that follows its source has one
//! for its passes. Pure: the caller passes the failure, the progress of sessions and the time.
//!
//! A finished file is progress, and so is a session that finds more of an unfinished file than the
//! one before. Moved bytes count too, and so does a long session, because its server was reachable.
//! But these two count only a few times in a row: they may be the same bytes, or the same
//! comparison, every time.

use std::time::{Duration, Instant};
use verbatim_control::ControlError;
use verbatim_engine::connection::error::{ClientError, fault_of};
use verbatim_proto::Code;

/// The first pause of a copy and of a watch; doubled with each try.
const PAUSE_MIN: Duration = Duration::from_millis(250);

/// The longest pause, except for passes.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The first pause of a mount: its readers wait.
const MOUNT_PAUSE_MIN: Duration = Duration::from_millis(100);

/// The first and the longest pause before a failed pass is retried.
const PASS_PAUSE_MIN: Duration = Duration::from_millis(500);
const PASS_PAUSE_MAX: Duration = Duration::from_secs(60);

/// The pause doubles at most this many times.
const TRIES_MAX: u32 = 16;

/// Sessions in a row that may move bytes or last long without a finished file.
const FRUITLESS_SESSIONS_MAX: u32 = 4;

/// A shorter session does not count as progress.
const UPTIME_MIN: Duration = PAUSE_MAX;

/// The progress of one session.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SessionProgress {
    /// Finished files of all sessions.
    pub finished: u64,
    /// Bytes in partial files when the session opened them.
    pub already_present_bytes: u64,
    /// When its last byte moved, if any did.
    pub moved: Option<Instant>,
    /// How long the session lasted.
    pub uptime: Duration,
    /// How long the server was silent at its end, while it owed an answer. This time counts as
    /// waiting for the server.
    pub silent: Duration,
}

/// The answer of a [`Backoff`] to a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// Retry after this pause.
    After(Duration),
    /// Give up: there was no progress for the whole timeout.
    Exhausted,
    /// Give up: the failure would happen again.
    Final,
}

/// The failures after which a loop retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RetryPolicy {
    /// Failures after which the server may return.
    ServerGone,
    /// All failures. After a rejection by the server the pauses are the longest: the administrator
    /// may fix the keys.
    All,
    /// Transient failures, after a first success.
    Transient,
}

/// Decides after each failure whether and when to retry.
#[derive(Debug)]
pub struct Backoff {
    pause_min: Duration,
    pause_max: Duration,
    /// Whether pauses are random, so that clients that lost a server do not return together.
    spread: bool,
    policy: RetryPolicy,
    /// Whether a try has ever succeeded.
    worked: bool,
    timeout: Duration,
    /// When the last progress was made.
    progressed: Instant,
    tries: u32,
    fruitless: u32,
    best: SessionProgress,
}

impl Backoff {
    /// For the sessions of a copy: random pauses from half of 250 ms up to 5 s. Gives up after
    /// `timeout` without progress, and at a failure that a retry would repeat.
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

    /// For a watch: random pauses from half of 250 ms up to 5 s. Gives up at any failure before
    /// [`Backoff::succeeded`], and later at one that is not transient.
    pub(crate) fn watch(now: Instant) -> Self {
        Self { policy: RetryPolicy::Transient, ..Self::copy(Duration::MAX, now) }
    }

    /// For the passes of a mirror: pauses of 500 ms to 60 s. Never gives up.
    pub(crate) fn passes(now: Instant) -> Self {
        let (pause_min, pause_max) = (PASS_PAUSE_MIN, PASS_PAUSE_MAX);
        Self { pause_min, pause_max, ..Self::mount(now) }
    }

    /// Notes that a try succeeded: the next pause is the first one again.
    pub(crate) fn succeeded(&mut self) {
        (self.worked, self.tries) = (true, 0);
    }

    /// Decides after a failure that the caller has judged already, such as the end of a long
    /// session: only the timeout ends the loop.
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

    /// Notes the progress of a session that has ended.
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

    /// The pause before the next try, spread by `random`. `None` after the timeout without
    /// progress.
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

    /// How long the loop will still retry without progress.
    pub(crate) fn left(&self, now: Instant) -> Duration {
        self.timeout.saturating_sub(now.saturating_duration_since(self.progressed))
    }

    /// The number of the next try in a row.
    pub(crate) fn tries(&self) -> u32 {
        self.tries
    }
}

/// Whether another session may resume after this fault. After a timeout the copy has waited long
/// enough; other faults would happen again.
pub(crate) fn may_resume(code: Code) -> bool {
    matches!(code, Code::LinkLost | Code::Stopping)
}

/// Whether the server may be reachable later. A server that rejects this client, or has another
/// key, is not retried.
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

/// Whether a former success may repeat without the user's help. The server, a folder, a disk or a
/// network file system may return, and another process may release a lock.
pub(crate) fn is_transient(error: &ClientError) -> bool {
    let transient_codes = [
        Code::NotFound,
        Code::NotFolder,
        Code::Denied,
        Code::Io,
        Code::Limit,
        Code::NoSpace,
        Code::TimedOut,
    ];
    may_come_back(error) || transient_codes.contains(&fault_of(error).code)
}

/// A random number.
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
    fn a_copy_gives_up_after_the_timeout_without_progress() {
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
    fn moved_bytes_without_a_finished_file_count_a_few_times_only() {
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
    fn a_server_lost_after_a_long_session_is_retried_for_the_whole_timeout() {
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
    fn silence_before_the_loss_of_a_server_counts_against_the_timeout() {
        let begin = Instant::now();
        let mut backoff = Backoff::copy(10 * SECOND, begin);
        let lost = begin + 3600 * SECOND;
        let (uptime, silent) = (3600 * SECOND, 7 * SECOND);
        backoff
            .session_ended(SessionProgress { uptime, silent, ..SessionProgress::default() }, lost);
        assert_eq!(backoff.left(lost), 3 * SECOND);
    }

    #[test]
    fn long_sessions_without_results_give_up_late_and_short_ones_at_the_timeout() {
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
    fn a_large_file_that_grows_with_each_session_is_resumed() {
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
    fn mounts_and_passes_have_fixed_pauses_and_never_give_up() {
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
    fn a_permanent_failure_ends_a_copy_and_slows_a_mount_down() {
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
    fn a_watch_retries_only_after_a_first_success() {
        let begin = Instant::now();
        let gone: ClientError = Fault::new(Code::NotFound, "gone").into();
        let mut watch = Backoff::watch(begin);
        assert_eq!(watch.failed(&gone, begin), RetryDecision::Final);
        watch.succeeded();
        assert!(matches!(watch.failed(&gone, begin), RetryDecision::After(_)));
        assert_eq!(watch.failed(&refused(), begin), RetryDecision::Final);
    }
}
