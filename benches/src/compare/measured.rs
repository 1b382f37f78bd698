//! What was measured: for each workload the figures of every contender, of which the best
//! run counts. Measures nothing itself; `report` and `goals` read it.

use super::contender::Peer;
use super::work::Work;
use crate::{Run, Used};
use std::time::Duration;

/// A workload, and what everybody took for it.
pub type Measured = (Work, Vec<Figure>);

/// What one way to copy took for one workload: the best of its runs.
pub struct Figure {
    /// Whose.
    pub peer: Peer,
    /// From start to exit.
    pub time: Duration,
    /// What the command used: the processor time of the run that took least of it, the most
    /// memory of all runs.
    pub client: Used,
    /// The same of what serves it.
    pub server: Used,
    /// Bytes that crossed the loopback device; none where nothing does.
    pub wire_bytes: u64,
    /// How many runs there were.
    pub runs: usize,
}

impl Figure {
    /// One without runs.
    pub fn of(peer: Peer) -> Self {
        let (time, none) = (Duration::MAX, Used::default());
        Self { peer, time, client: none, server: none, wire_bytes: u64::MAX, runs: 0 }
    }

    /// Adds a run.
    pub fn add(&mut self, run: Run, server: Used, wire_bytes: u64) {
        let least = self.runs == 0 || run.used.cpu + server.cpu < self.cpu();
        self.time = self.time.min(run.time);
        keep(&mut self.client, run.used, least);
        keep(&mut self.server, server, least);
        self.wire_bytes = self.wire_bytes.min(wire_bytes);
        self.runs += 1;
    }

    /// Processor time of both sides.
    pub fn cpu(&self) -> Duration {
        self.client.cpu + self.server.cpu
    }
}

fn keep(kept: &mut Used, used: Used, cpu: bool) {
    kept.rss_anon_kib = kept.rss_anon_kib.max(used.rss_anon_kib);
    kept.rss_peak_kib = kept.rss_peak_kib.max(used.rss_peak_kib);
    if cpu {
        kept.cpu = used.cpu;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_each_is_kept_and_the_most_memory() {
        let used = |cpu_ms, rss_anon_kib, rss_peak_kib| Used {
            rss_anon_kib,
            rss_peak_kib,
            cpu: Duration::from_millis(cpu_ms),
        };
        let run = |ms, used| Run { time: Duration::from_millis(ms), used };
        let mut figure = Figure::of(Peer::Down);
        figure.add(run(20, used(70, 5, 9)), used(10, 50, 90), 1000);
        figure.add(run(30, used(30, 4, 8)), used(20, 60, 80), 900);
        figure.add(run(40, used(10, 3, 7)), used(50, 40, 70), 1100);
        assert_eq!((figure.time, figure.runs), (Duration::from_millis(20), 3));
        // Of one run, not the least of each side: a side can wait for the other.
        assert_eq!(figure.client.cpu, Duration::from_millis(30));
        assert_eq!(figure.server.cpu, Duration::from_millis(20));
        assert_eq!((figure.client.rss_anon_kib, figure.client.rss_peak_kib), (5, 9));
        assert_eq!((figure.server.rss_anon_kib, figure.server.rss_peak_kib), (60, 90));
        assert_eq!(figure.wire_bytes, 900);
    }
}
