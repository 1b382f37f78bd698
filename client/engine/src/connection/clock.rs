//! The clock of one session: the time of the last wake, the running time of the copy, and the
//! silence of the server. Time in which this process was stopped counts against no deadline.

use crate::connection::silence::{SilenceStep, SilenceTimer};
use std::time::{Duration, Instant};

/// A wake this late means that the process was stopped.
const LATE_MIN: Duration = Duration::from_secs(1);

/// The clock of one session, read once at each wake.
pub struct Clock {
    /// When the task last woke.
    woken_at: Instant,
    /// When the copy began, perhaps in an earlier session.
    begin: Instant,
    /// How long this process was stopped in all.
    stalled: Duration,
    /// When the last reply arrived, or the last request left.
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

    /// When the task last woke. Reads no clock.
    pub(crate) fn woken_at(&self) -> Instant {
        self.woken_at
    }

    /// Counts from the start of the copy, perhaps in an earlier session.
    pub fn count_from(&mut self, begin: Instant) {
        self.begin = begin;
    }

    /// How long the copy has run, without the time in which this process was stopped.
    pub(crate) fn now(&self) -> Duration {
        self.woken_at.saturating_duration_since(self.begin).saturating_sub(self.stalled)
    }

    /// Discounts the time since `until`, when the session should have woken, if it is 1 s or more.
    /// The process was stopped, or it waited for the reader of its output. The server may have
    /// replied long ago.
    pub fn discount_stall(&mut self, until: Instant) {
        let late = self.woken_at.saturating_duration_since(until);
        if late >= LATE_MIN {
            self.stalled += late;
            self.last_reply += late;
            self.silence.discount_stall(late);
        }
    }

    /// Restarts the silence of the server: a request leaves now.
    pub(crate) fn request_sent(&mut self) {
        self.update();
        self.last_reply = self.woken_at;
    }

    /// Restarts the silence of the server: a request left at `now`. For callers that do not update
    /// this clock.
    pub fn request_sent_at(&mut self, now: Instant) {
        self.last_reply = now;
    }

    /// Notes a reply of the server.
    pub(crate) fn reply_received(&mut self) {
        self.last_reply = self.woken_at;
    }

    /// Notes any message or chunk of the server.
    pub(crate) fn received(&mut self) {
        self.silence.received(self.woken_at);
    }

    /// How long ago the last reply arrived, or the last request left.
    pub fn since_last_reply(&self) -> Duration {
        self.woken_at.saturating_duration_since(self.last_reply)
    }

    /// How long the server has sent neither a message nor a chunk.
    pub fn silent_for(&self) -> Duration {
        self.silence.elapsed(self.woken_at)
    }

    /// Advances the silence timer; `owed` says whether the server owes an answer.
    pub(crate) fn silence_step(&mut self, owed: bool, timeout: Duration) -> SilenceStep {
        self.silence.step(owed, self.woken_at, timeout)
    }

    /// Notes that this request probes whether the server is alive.
    pub(crate) fn probe_sent(&mut self, request: u32) {
        self.silence.probe_sent(request, self.woken_at);
    }

    /// Whether this request was the probe; the server is alive then.
    pub(crate) fn take_probe_reply(&mut self, request: u32) -> bool {
        self.silence.take_probe(request)
    }
}
