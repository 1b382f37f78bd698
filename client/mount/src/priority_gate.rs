//! Who goes first: readers at once, the fill as far as the link is not kept from them.
//! While nobody reads, the fill goes as it likes. Knows no files; used by `content` for
//! readers and by `fill`.

use super::fill_window::FillWindow;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::timeout;

/// For how long after a reader has waited another one is expected.
const READER_EXPECTED: Duration = Duration::from_millis(250);

/// How often the fill looks whether readers are still there.
const RECHECK_EVERY: Duration = Duration::from_millis(20);

/// The gate.
pub(crate) struct PriorityGate {
    began: Instant,
    state: Mutex<GateState>,
    /// Told when something of the fill is over.
    over: Notify,
}

#[derive(Default)]
struct GateState {
    gauge: FillWindow,
    /// Bytes that the fill has under way.
    filling: u64,
    /// Readers that wait, and when the last one did.
    waiting: usize,
    waited: Option<Duration>,
}

/// A reader that waits, until this is dropped.
pub(crate) struct ReaderGuard<'a>(&'a PriorityGate);

/// Something of the fill that is under way, until this is dropped.
pub(crate) struct FillPermit<'a> {
    gate: &'a PriorityGate,
    bytes: u64,
    since: Instant,
}

impl Default for PriorityGate {
    fn default() -> Self {
        Self { began: Instant::now(), state: Mutex::default(), over: Notify::new() }
    }
}

impl PriorityGate {
    fn state(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reader waits for something to come.
    pub fn wait(&self) -> ReaderGuard<'_> {
        self.state().waiting += 1;
        ReaderGuard(self)
    }

    /// Lets so many bytes of the fill go, as soon as they may.
    pub async fn pass(&self, bytes: u64) -> FillPermit<'_> {
        loop {
            let over = self.over.notified();
            tokio::pin!(over);
            // From here on nothing that is over is missed.
            over.as_mut().enable();
            if self.state().takes(bytes, self.began.elapsed()) {
                return FillPermit { gate: self, bytes, since: Instant::now() };
            }
            // Readers may have gone by then.
            let _ = timeout(RECHECK_EVERY, over).await;
        }
    }
}

impl GateState {
    /// Counts bytes of the fill as under way, if they may go. One thing always may: the link is
    /// not to be idle.
    fn takes(&mut self, bytes: u64, now: Duration) -> bool {
        let lately = self.waited.is_some_and(|at| now.saturating_sub(at) < READER_EXPECTED);
        let reading = self.waiting > 0 || lately;
        let fits = || self.filling + bytes <= self.gauge.window();
        let may = bytes == 0 || self.filling == 0 || !reading || fits();
        self.filling += if may { bytes } else { 0 };
        may
    }
}

impl FillPermit<'_> {
    /// It came; so much has come in all, for whomever.
    pub fn came(&self, total: u64) {
        let (now, took) = (self.gate.began.elapsed(), self.since.elapsed());
        self.gate.state().gauge.came(now, total, took);
    }
}

impl Drop for FillPermit<'_> {
    fn drop(&mut self) {
        self.gate.state().filling -= self.bytes;
        self.gate.over.notify_waiters();
    }
}

impl Drop for ReaderGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.waiting -= 1;
        state.waited = Some(self.0.began.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_fill_goes_as_it_likes_until_somebody_reads_and_a_while_after() {
        let (mut state, now) = (GateState::default(), Duration::from_secs(9));
        assert!(state.takes(3 * MIB, now) && state.takes(50 * MIB, now), "nobody reads");
        state.waiting = 1;
        assert!(!state.takes(1, now), "somebody waits");
        (state.waiting, state.waited) = (0, Some(now));
        assert!(!state.takes(1, now + READER_EXPECTED / 2), "somebody will");
        assert!(state.takes(1, now + READER_EXPECTED), "nobody any more");
    }

    #[test]
    fn one_thing_always_goes_and_more_as_far_as_the_window_is() {
        let mut state = GateState { waiting: 1, ..GateState::default() };
        assert!(state.takes(9 * MIB, Duration::ZERO), "the link is idle");
        assert!(!state.takes(1, Duration::ZERO));
        state.filling = 0;
        // What may go before anything is known.
        assert!((0..4).all(|_| state.takes(MIB / 4, Duration::ZERO)));
        assert!(!state.takes(MIB / 4, Duration::ZERO));
    }

    #[tokio::test]
    async fn what_is_over_lets_the_next_one_go() {
        let gate = PriorityGate::default();
        let _reader = gate.wait();
        let first = gate.pass(MIB).await;
        let second = gate.pass(MIB);
        tokio::pin!(second);
        let early = timeout(RECHECK_EVERY * 3, second.as_mut()).await;
        assert!(early.is_err(), "a reader waits, and so much is under way");
        first.came(MIB);
        drop(first);
        let passed = timeout(Duration::from_secs(10), second).await.expect("it may go");
        assert_eq!(gate.state().filling, passed.bytes);
    }
}
