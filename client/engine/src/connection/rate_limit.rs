//! The rate limit (`--bwlimit`): a token bucket shared by all links. Commands that come too early
//! wait in the session, which never blocks; no worker waits. Pure: the caller passes the time.
//!
//! Waiting commands count as in flight for the machines, and their deadlines run. So `fit` bounds
//! the bytes in flight by the rate.

use std::collections::VecDeque;
use std::time::Duration;
use verbatim_proto::units::{CHUNK_BYTES_MIN, SLOTS_PER_LINK};

/// The time whose tokens an idle bucket may save up.
const BURST: Duration = Duration::from_millis(100);

/// At the given rate, the bytes in flight take at most this part of the timeout.
const TIMEOUT_SHARE: u64 = 4;

/// Commands that wait for the rate limit, in order; urgent ones may overtake.
pub(crate) struct RateLimiter<T> {
    bytes_per_second: u64,
    /// When the next command may go.
    free_at: Duration,
    waiting: VecDeque<(u64, T)>,
}

impl<T> RateLimiter<T> {
    pub fn new(bytes_per_second: u64) -> Self {
        let bytes_per_second = bytes_per_second.max(1);
        Self { bytes_per_second, free_at: Duration::ZERO, waiting: VecDeque::new() }
    }

    /// Queues a command that moves this many bytes.
    pub fn push(&mut self, bytes: u64, what: T) {
        self.waiting.push_back((bytes, what));
    }

    /// Takes the next command, if one may go now: the first urgent one, else the first.
    pub fn pop(&mut self, now: Duration, is_urgent: impl Fn(&T) -> bool) -> Option<T> {
        if now < self.free_at {
            return None;
        }
        let first = self.waiting.iter().position(|(_, what)| is_urgent(what)).unwrap_or(0);
        let (bytes, what) = self.waiting.remove(first)?;
        self.free_at = self.free_at.max(now.saturating_sub(BURST)) + self.time(bytes);
        Some(what)
    }

    /// Refunds the tokens of a command that moved no data.
    pub fn refund(&mut self, bytes: u64) {
        self.free_at = self.free_at.saturating_sub(self.time(bytes));
    }

    fn time(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64)
    }

    /// How long until the next command may go, if one waits.
    pub fn wait(&self, now: Duration) -> Option<Duration> {
        (!self.waiting.is_empty()).then(|| self.free_at.saturating_sub(now))
    }
}

/// Reduces streams and chunks until the bytes in flight take a part of the timeout. Reduces streams
/// first, because a slow link needs few, and keeps a chunk size that the user chose. If that is not
/// possible, returns the lowest possible rate as the error.
pub fn fit(
    bytes_per_second: u64,
    timeout: Duration,
    streams: u16,
    chunk_bytes: u32,
    chunk_is_fixed: bool,
) -> Result<(u16, u32), u64> {
    let in_flight = |streams: u16, chunk: u32| {
        u64::from(streams) * u64::from(SLOTS_PER_LINK) * u64::from(chunk)
    };
    let seconds = timeout.as_secs().max(1);
    let room = bytes_per_second.saturating_mul(seconds) / TIMEOUT_SHARE;
    let (mut streams, mut chunk) = (streams, chunk_bytes);
    while in_flight(streams, chunk) > room && streams > 1 {
        streams -= 1;
    }
    while in_flight(streams, chunk) > room && chunk > CHUNK_BYTES_MIN && !chunk_is_fixed {
        chunk /= 2;
    }
    match in_flight(streams, chunk) <= room {
        true => Ok((streams, chunk)),
        false => Err((in_flight(streams, chunk) * TIMEOUT_SHARE).div_ceil(seconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Takes all commands, each time after the wait that the limiter returned. Returns when each
    /// went.
    fn run(rate_limiter: &mut RateLimiter<u32>, mut now: Duration) -> Vec<Duration> {
        let mut times = Vec::new();
        while let Some(wait) = rate_limiter.wait(now) {
            now += wait;
            while rate_limiter.pop(now, |_| false).is_some() {
                times.push(now);
            }
        }
        times
    }

    #[test]
    fn a_stream_of_chunks_keeps_to_the_rate() {
        let mut rate_limiter = RateLimiter::new(10 * MIB);
        (0..100).for_each(|number| rate_limiter.push(MIB, number));
        let times = run(&mut rate_limiter, Duration::from_secs(5));
        assert_eq!(times.len(), 100);
        let took = (times[99] - times[0]).as_secs_f64();
        // The last command goes once all before it have used their tokens, minus the saved ones.
        assert!((9.7..=9.9).contains(&took), "{took}");
        let mut gaps = times.windows(2).skip(2).map(|pair| pair[1] - pair[0]);
        assert!(gaps.all(|gap| gap <= Duration::from_millis(101)), "no gap and no burst");
    }

    #[test]
    fn an_idle_bucket_saves_a_bounded_burst() {
        let mut rate_limiter = RateLimiter::new(MIB);
        rate_limiter.push(MIB, 0);
        assert!(rate_limiter.pop(Duration::ZERO, |_| false).is_some());
        (0..3).for_each(|number| rate_limiter.push(MIB, number));
        let late = Duration::from_secs(3600);
        let mut goes = || rate_limiter.pop(late, |_| false).is_some();
        assert!(goes() && !goes(), "one, not an hour's worth");
        assert_eq!(rate_limiter.wait(late), Some(Duration::from_millis(900)));
    }

    #[test]
    fn urgent_commands_go_first_and_the_rest_in_order() {
        let mut rate_limiter = RateLimiter::new(MIB);
        (0..5).for_each(|number| rate_limiter.push(MIB, number));
        let (mut now, mut went) = (Duration::from_secs(1), Vec::new());
        while let Some(wait) = rate_limiter.wait(now) {
            now += wait;
            // Of the five, readers wait for two.
            let urgent = |number: &u32| *number == 2 || *number == 4;
            went.extend(rate_limiter.pop(now, urgent));
        }
        assert_eq!(went, [2, 4, 0, 1, 3]);
        assert!(now >= Duration::from_millis(4900), "nobody goes faster for it: {now:?}");
    }

    #[test]
    fn an_empty_limiter_has_no_wait() {
        let mut rate_limiter = RateLimiter::<u32>::new(1);
        let popped = rate_limiter.pop(Duration::ZERO, |_| true);
        assert_eq!((rate_limiter.wait(Duration::ZERO), popped), (None, None));
    }

    #[test]
    fn bytes_in_flight_take_a_part_of_the_timeout() {
        let minute = Duration::from_secs(60);
        assert_eq!(fit(100 * MIB, minute, 4, 1 << 20, false), Ok((4, 1 << 20)), "all fits");
        assert_eq!(fit(MIB / 2, minute, 4, 1 << 20, false), Ok((1, 1 << 20)), "one stream");
        assert_eq!(fit(MIB / 8, minute, 4, 1 << 20, false), Ok((1, 1 << 18)), "small chunks");
        let least = fit(1024, minute, 4, 1 << 20, false).expect_err("too slow");
        assert_eq!(fit(least, minute, 4, 1 << 20, false), Ok((1, 1 << 18)));
        assert!(fit(least - 1, minute, 4, 1 << 20, false).is_err());
        assert!(fit(least, minute, 4, 1 << 20, true).is_err(), "a fixed chunk is not cut");
        for rate in [MIB / 8, MIB, 7 * MIB, 99 * MIB] {
            for seconds in [10, 60, 600] {
                let timeout = Duration::from_secs(seconds);
                if let Ok((streams, chunk)) = fit(rate, timeout, 64, 1 << 20, false) {
                    let bytes = u64::from(streams) * u64::from(SLOTS_PER_LINK) * u64::from(chunk);
                    assert!(bytes / rate <= seconds / TIMEOUT_SHARE, "{rate} {seconds}");
                }
            }
        }
    }
}
