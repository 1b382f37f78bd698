//! The clock of one session: the time as of the last wake, how long the session has gone on, and
//! for how long the server has been silent. The time that this process was not let run counts
//! against no deadline.

use crate::connection::silence::{SilenceStep, SilenceTimer};
use std::time::{Duration, Instant};

/// A turn that ends this much too late was not let run.
const LATE_MIN: Duration = Duration::from_secs(1);

/// The clock of one session, read once at each wake.
pub struct Clock {
    /// The time as of the last wake.
    woken_at: Instant,
    /// When the copy began, perhaps in an earlier session.
    begin: Instant,
    /// How long this process was not let run.
    stalled: Duration,
    /// When the server was last heard, or asked.
    last_reply: Instant,
    silence: SilenceTimer,
}

impl Clock {
    pub(crate) fn new(now: Instant) -> Self {
        let silence = SilenceTimer::new(now);
        Self { woken_at: now, begin: now, stalled: Duration::ZERO, last_reply: now, silence }
    }

    /// Reads the system clock: when a session starts work, and when it wakes. Not more often:
    /// reading the clock is a system call on some machines.
    pub fn update(&mut self) {
        self.woken_at = Instant::now();
    }

    /// The time as of the last look.
    pub(crate) fn woken_at(&self) -> Instant {
        self.woken_at
    }

    /// Counts from the start of the copy, perhaps in an earlier session.
    pub fn count_from(&mut self, begin: Instant) {
        self.begin = begin;
    }

    /// How long the copy has gone on, by the clock of the deadlines.
    pub(crate) fn now(&self) -> Duration {
        self.woken_at.saturating_duration_since(self.begin).saturating_sub(self.stalled)
    }

    /// Discounts the time since `until`, when the session was to wake, if it is 1 s or more: this
    /// process was stopped, or waited for the reader of its output. The server may have answered
    /// long ago.
    pub fn discount_stall(&mut self, until: Instant) {
        let late = self.woken_at.saturating_duration_since(until);
        if late >= LATE_MIN {
            self.stalled += late;
            self.last_reply += late;
            self.silence.discount_stall(late);
        }
    }

    /// The server was asked something just now.
    pub(crate) fn request_sent(&mut self) {
        self.update();
        self.last_reply = self.woken_at;
    }

    /// Notes that the server was asked at `now`, by a caller that does not read this clock.
    pub fn request_sent_at(&mut self, now: Instant) {
        self.last_reply = now;
    }

    /// A message of the server came.
    pub(crate) fn reply_received(&mut self) {
        self.last_reply = self.woken_at;
    }

    /// Anything came from the server.
    pub(crate) fn received(&mut self) {
        self.silence.received(self.woken_at);
    }

    /// How long ago the server last answered, or was last asked.
    pub fn since_last_reply(&self) -> Duration {
        self.woken_at.saturating_duration_since(self.last_reply)
    }

    /// How long the server has sent nothing at all.
    pub fn silent_for(&self) -> Duration {
        self.silence.elapsed(self.woken_at)
    }

    /// The next step about a silence, where `owed` says that the server owes an answer.
    pub(crate) fn silence_step(&mut self, owed: bool, timeout: Duration) -> SilenceStep {
        self.silence.step(owed, self.woken_at, timeout)
    }

    /// The server was asked, with this request, whether it is there.
    pub(crate) fn probe_sent(&mut self, request: u32) {
        self.silence.probe_sent(request, self.woken_at);
    }

    /// Whether a request asked that; then the silence is over.
    pub(crate) fn take_probe_reply(&mut self, request: u32) -> bool {
        self.silence.take_probe(request)
    }
}
