//! The priority of readers over the fill: a read passes at once, the fill only within
//! its window while files are read. Without readers the fill is unlimited. Knows no
//! files; `content` registers readers, `fill` acquires permits.

use super::fill_window::FillWindow;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::timeout;

/// How long after a read the next one is expected.
const READER_EXPECTED: Duration = Duration::from_millis(250);

/// How often a blocked fill checks whether readers are still there.
const RECHECK_EVERY: Duration = Duration::from_millis(20);

/// The gate that `Content` owns.
pub(crate) struct PriorityGate {
    start: Instant,
    state: Mutex<GateState>,
    /// Notified when a permit is released.
    released: Notify,
}

#[derive(Default)]
struct GateState {
    fill_window: FillWindow,
    /// Bytes of the fill in flight.
    fill_bytes: u64,
    /// Waiting readers, and when the last one finished.
    readers: usize,
    last_reader: Option<Duration>,
}

/// A waiting reader; dropping it unregisters the reader.
pub(crate) struct ReaderGuard<'a>(&'a PriorityGate);

/// Bytes of the fill in flight; dropping it releases them.
pub(crate) struct FillPermit<'a> {
    gate: &'a PriorityGate,
    bytes: u64,
    since: Instant,
}

impl Default for PriorityGate {
    fn default() -> Self {
        Self { start: Instant::now(), state: Mutex::default(), released: Notify::new() }
    }
}

impl PriorityGate {
    fn state(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a reader that waits for data.
    pub fn reader_waits(&self) -> ReaderGuard<'_> {
        self.state().readers += 1;
        ReaderGuard(self)
    }

    /// Waits until the fill may fetch this many bytes.
    pub async fn acquire(&self, bytes: u64) -> FillPermit<'_> {
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            // From here on no release is missed.
            released.as_mut().enable();
            if self.state().try_acquire(bytes, self.start.elapsed()) {
                return FillPermit { gate: self, bytes, since: Instant::now() };
            }
            // Readers may have finished by then.
            let _ = timeout(RECHECK_EVERY, released).await;
        }
    }
}

impl GateState {
    /// Counts bytes of the fill as in flight, if the window allows. One fetch is always allowed, so
    /// that the link is never idle.
    fn try_acquire(&mut self, bytes: u64, now: Duration) -> bool {
        let lately = self.last_reader.is_some_and(|at| now.saturating_sub(at) < READER_EXPECTED);
        let reading = self.readers > 0 || lately;
        let fits = || self.fill_bytes + bytes <= self.fill_window.limit_bytes();
        let may = bytes == 0 || self.fill_bytes == 0 || !reading || fits();
        self.fill_bytes += if may { bytes } else { 0 };
        may
    }
}

impl FillPermit<'_> {
    /// Records that the fetch arrived; `total` counts all bytes received so far.
    pub fn received(&self, total: u64) {
        let (now, latency) = (self.gate.start.elapsed(), self.since.elapsed());
        self.gate.state().fill_window.received(now, total, latency);
    }
}

impl Drop for FillPermit<'_> {
    fn drop(&mut self) {
        self.gate.state().fill_bytes -= self.bytes;
        self.gate.released.notify_waiters();
    }
}

impl Drop for ReaderGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.readers -= 1;
        state.last_reader = Some(self.0.start.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_fill_is_limited_while_a_reader_waits_and_shortly_after() {
        let (mut state, now) = (GateState::default(), Duration::from_secs(9));
        assert!(
            state.try_acquire(3 * MIB, now) && state.try_acquire(50 * MIB, now),
            "nobody reads"
        );
        state.readers = 1;
        assert!(!state.try_acquire(1, now), "somebody waits");
        (state.readers, state.last_reader) = (0, Some(now));
        assert!(!state.try_acquire(1, now + READER_EXPECTED / 2), "somebody will");
        assert!(state.try_acquire(1, now + READER_EXPECTED), "nobody any more");
    }

    #[test]
    fn one_fetch_of_the_fill_always_passes_and_others_fit_the_window() {
        let mut state = GateState { readers: 1, ..GateState::default() };
        assert!(state.try_acquire(9 * MIB, Duration::ZERO), "the link is idle");
        assert!(!state.try_acquire(1, Duration::ZERO));
        state.fill_bytes = 0;
        // The initial window.
        assert!((0..4).all(|_| state.try_acquire(MIB / 4, Duration::ZERO)));
        assert!(!state.try_acquire(MIB / 4, Duration::ZERO));
    }

    #[tokio::test]
    async fn a_finished_fetch_admits_the_next_one() {
        let gate = PriorityGate::default();
        let _reader = gate.reader_waits();
        let first = gate.acquire(MIB).await;
        let second = gate.acquire(MIB);
        tokio::pin!(second);
        let early = timeout(RECHECK_EVERY * 3, second.as_mut()).await;
        assert!(early.is_err(), "a reader waits, and so much is under way");
        first.received(MIB);
        drop(first);
        let passed = timeout(Duration::from_secs(10), second).await.expect("it may go");
        assert_eq!(gate.state().fill_bytes, passed.bytes);
    }
}
