//! The window of the fill while files are read: enough bytes in flight to keep the link
//! busy, and little more, because reads queue behind them. Estimated from the recent
//! rate and the lowest latency, as congestion control does. Pure: the caller passes the
//! time. Used by `priority_gate`.

use std::collections::VecDeque;
use std::time::Duration;

/// The interval that the rate is measured over.
const RATE_INTERVAL: Duration = Duration::from_millis(250);

/// The interval after which an old lowest latency is discarded.
const LATENCY_INTERVAL: Duration = Duration::from_secs(5);

/// The least queueing time in front of the link, so that it never runs dry.
const QUEUE_TIME_MIN: Duration = Duration::from_millis(4);

/// The queueing time as a part of the latency, so that the window grows to fill a long link.
const QUEUE_TIME_SHARE: u32 = 4;

/// The window before anything was measured.
const WINDOW_BYTES_INITIAL: u64 = 1 << 20;

/// The largest window, whatever is measured.
const WINDOW_BYTES_MAX: u64 = 64 << 20;

/// The most samples that are stored.
const SAMPLES_MAX: usize = 1024;

/// The measurements of the link.
#[derive(Debug, Default)]
pub(super) struct FillWindow {
    /// When a fetch finished and how many bytes had arrived by then, the latest last.
    samples: VecDeque<(Duration, u64)>,
    /// The lowest latency of this interval and of the one before.
    latency_min: Option<Duration>,
    latency_min_before: Option<Duration>,
    latency_since: Duration,
}

impl FillWindow {
    /// Records a finished fetch of this latency; `total` counts all bytes received so far, for
    /// readers too.
    pub fn received(&mut self, now: Duration, total: u64, latency: Duration) {
        if now.saturating_sub(self.latency_since) > LATENCY_INTERVAL {
            (self.latency_min_before, self.latency_min, self.latency_since) =
                (self.latency_min, None, now);
        }
        self.latency_min =
            Some(self.latency_min.map_or(latency, |latency_min| latency_min.min(latency)));
        self.samples.push_back((now, total));
        while self.samples.len() > SAMPLES_MAX
            || self.samples.len() > 2 && now.saturating_sub(self.samples[1].0) > RATE_INTERVAL
        {
            self.samples.pop_front();
        }
    }

    /// The bytes that the fill may have in flight.
    pub fn limit_bytes(&self) -> u64 {
        let latency_min = [self.latency_min, self.latency_min_before].into_iter().flatten().min();
        let (Some(rate), Some(latency_min)) = (self.rate(), latency_min) else {
            return WINDOW_BYTES_INITIAL;
        };
        let slack = QUEUE_TIME_MIN.max(latency_min / QUEUE_TIME_SHARE);
        let bytes = rate * (latency_min + slack).as_secs_f64();
        (bytes as u64).min(WINDOW_BYTES_MAX)
    }

    /// The recent rate in bytes a second.
    fn rate(&self) -> Option<f64> {
        let ((from, before), (to, after)) = (*self.samples.front()?, *self.samples.back()?);
        let time = to.saturating_sub(from).as_secs_f64();
        (time > 0.0).then(|| after.saturating_sub(before) as f64 / time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: u64 = 100 << 10;
    const STEP: Duration = Duration::from_micros(100);

    /// A link that carries one fetch after another at a rate, and adds a delay.
    struct SimulatedLink {
        rate: u64,
        delay: Duration,
        free_at: Duration,
        carried: u64,
        /// When each fetch arrives, when it was requested, and whether a reader waits for it.
        pending: Vec<(Duration, Duration, bool)>,
    }

    impl SimulatedLink {
        fn request(&mut self, now: Duration, reader: bool) {
            let begin = self.free_at.max(now + self.delay);
            self.free_at = begin + Duration::from_secs_f64(FILE as f64 / self.rate as f64);
            self.pending.push((self.free_at, now, reader));
        }

        fn fill_bytes(&self) -> u64 {
            self.pending.iter().filter(|it| !it.2).count() as u64 * FILE
        }
    }

    /// Fills for some seconds while a reader fetches every 20 ms. Returns the used share of the
    /// link and the reader's mean wait, both in the second half.
    fn simulate_fill(rate: u64, delay: Duration, seconds: u64) -> (f64, Duration) {
        let mut link =
            SimulatedLink { rate, delay, free_at: STEP, carried: 0, pending: Vec::new() };
        let mut fill_window = FillWindow::default();
        let (mut now, end, mut next) = (STEP, Duration::from_secs(seconds), STEP);
        let (mut waits, mut half) = (Vec::new(), 0);
        while now < end {
            if now >= next {
                link.request(now, true);
                next += Duration::from_millis(20);
            }
            while link.fill_bytes() == 0 || link.fill_bytes() + FILE <= fill_window.limit_bytes() {
                link.request(now, false);
            }
            now += STEP;
            if link.pending.iter().all(|it| it.0 > now) {
                continue;
            }
            let (came, pending): (Vec<_>, _) = link.pending.iter().partition(|it| it.0 <= now);
            link.pending = pending;
            for (_, asked, reader) in came {
                link.carried += FILE;
                if reader && now > end / 2 {
                    waits.push(now - asked);
                }
                if !reader {
                    fill_window.received(now, link.carried, now - asked);
                }
            }
            if now < end / 2 {
                half = link.carried;
            }
        }
        let used = (link.carried - half) as f64 / (rate as f64 * (end / 2).as_secs_f64());
        (used, waits.iter().sum::<Duration>() / waits.len().max(1) as u32)
    }

    #[test]
    fn the_fill_keeps_the_link_busy_and_delays_readers_little() {
        for (rate, delay_ms) in [(65 << 20, 1), (20 << 20, 2), (500 << 20, 1), (100 << 20, 40)] {
            let delay = Duration::from_millis(delay_ms);
            let (used, waited) = simulate_fill(rate, delay, 20);
            assert!(used > 0.95, "{rate} {delay_ms}: {used}");
            // Its own time on the link, the delay, and part of the queue in front.
            let own = delay + Duration::from_secs_f64(FILE as f64 / rate as f64);
            let most = own + own / 2 + 3 * QUEUE_TIME_MIN;
            assert!(waited < most, "{rate} {delay_ms}: {waited:?}, not {most:?}");
        }
    }

    #[test]
    fn the_window_starts_small_and_is_bounded() {
        let mut fill_window = FillWindow::default();
        assert_eq!(fill_window.limit_bytes(), WINDOW_BYTES_INITIAL);
        fill_window.received(STEP, FILE, STEP);
        assert_eq!(fill_window.limit_bytes(), WINDOW_BYTES_INITIAL, "one says nothing of a rate");
        for at in 2..5000 {
            fill_window.received(STEP * at, u64::from(at) << 30, Duration::from_secs(9));
            assert!(fill_window.samples.len() <= SAMPLES_MAX);
        }
        assert_eq!(fill_window.limit_bytes(), WINDOW_BYTES_MAX);
    }

    #[test]
    fn the_window_grows_when_the_latency_of_the_link_grows() {
        let mut fill_window = FillWindow::default();
        let mut came = |second: u32, took_ms| {
            for part in 0..10 {
                let now = Duration::from_millis(u64::from(second * 1000 + part * 100));
                let total = u64::from(second * 10 + part) * FILE;
                fill_window.received(now, total, Duration::from_millis(took_ms));
            }
            fill_window.limit_bytes()
        };
        let short = (0..8).map(|second| came(second, 2)).last().expect("some");
        let long = (8..20).map(|second| came(second, 200)).last().expect("some");
        assert!(long > 20 * short, "{long} {short}");
    }
}
