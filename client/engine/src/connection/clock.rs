//! The clock of one session: the time as of the last wake, how long the session has gone on, and
//! for how long the server has been silent. The time that this process was not let run counts
//! against no deadline.

use crate::connection::silence::{Silence, Step};
use std::time::{Duration, Instant};

/// A turn that ends this much too late was not let run.
const LATE_MIN: Duration = Duration::from_secs(1);

/// The clock of one session, read once at each wake.
pub struct Clock {
    /// The time as of the last wake.
    moment: Instant,
    /// When the copy began, perhaps in an earlier session.
    begin: Instant,
    /// How long this process was not let run.
    absent: Duration,
    /// When the server was last heard, or asked.
    quiet_since: Instant,
    silence: Silence,
}

impl Clock {
    pub(crate) fn new(now: Instant) -> Self {
        let silence = Silence::new(now);
        Self { moment: now, begin: now, absent: Duration::ZERO, quiet_since: now, silence }
    }

    /// Reads the system clock: when a session starts work, and when it wakes. Not more often:
    /// reading the clock is a system call on some machines.
    pub fn look(&mut self) {
        self.moment = Instant::now();
    }

    /// The time as of the last look.
    pub(crate) fn moment(&self) -> Instant {
        self.moment
    }

    /// Counts from the start of the copy, perhaps in an earlier session.
    pub fn count_from(&mut self, begin: Instant) {
        self.begin = begin;
    }

    /// How long the copy has gone on, by the clock of the deadlines.
    pub(crate) fn now(&self) -> Duration {
        self.moment.saturating_duration_since(self.begin).saturating_sub(self.absent)
    }

    /// Discounts the time since `until`, when the session was to wake, if it is 1 s or more: this
    /// process was stopped, or waited for the reader of its output. The server may have answered
    /// long ago.
    pub fn excuse(&mut self, until: Instant) {
        let late = self.moment.saturating_duration_since(until);
        if late >= LATE_MIN {
            self.absent += late;
            self.quiet_since += late;
            self.silence.excuse(late);
        }
    }

    /// The server was asked something just now.
    pub(crate) fn asked(&mut self) {
        self.look();
        self.quiet_since = self.moment;
    }

    /// Notes that the server was asked at `now`, by a caller that does not read this clock.
    pub fn asked_at(&mut self, now: Instant) {
        self.quiet_since = now;
    }

    /// A message of the server came.
    pub(crate) fn answered(&mut self) {
        self.quiet_since = self.moment;
    }

    /// Anything came from the server.
    pub(crate) fn heard(&mut self) {
        self.silence.heard(self.moment);
    }

    /// How long ago the server last answered, or was last asked.
    pub fn quiet(&self) -> Duration {
        self.moment.saturating_duration_since(self.quiet_since)
    }

    /// How long the server has sent nothing at all.
    pub fn silent(&self) -> Duration {
        self.silence.so_far(self.moment)
    }

    /// The next step about a silence, where `owed` says that the server owes an answer.
    pub(crate) fn step(&mut self, owed: bool, timeout: Duration) -> Step {
        self.silence.step(owed, self.moment, timeout)
    }

    /// The server was asked, with this request, whether it is there.
    pub(crate) fn asked_whether_there(&mut self, request: u32) {
        self.silence.asked(request, self.moment);
    }

    /// Whether a request asked that; then the silence is over.
    pub(crate) fn is_there(&mut self, request: u32) -> bool {
        self.silence.take_asked(request)
    }
}
