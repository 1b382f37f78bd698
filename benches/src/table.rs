//! The table every bench prints: the best time of each way to copy, as a ratio
//! to the first way, with processor time and memory of both sides; and as JSON.

use crate::{Run, Used};
use std::path::Path;
use std::time::Duration;

/// One way to copy, and its runs so far.
pub struct Way {
    name: &'static str,
    goal: f64,
    runs: Vec<Run>,
    server: Vec<Used>,
}

impl Way {
    /// A way with the ratio it should reach: the first way's time divided by its own.
    pub fn new(name: &'static str, goal: f64) -> Self {
        Self { name, goal, runs: Vec::new(), server: Vec::new() }
    }

    /// Adds one run, with what the server used during it.
    pub fn add(&mut self, round: usize, run: Run, server: Used) {
        println!("round {round} {:26} {:7.3} s", self.name, run.time.as_secs_f64());
        self.server.push(server);
        self.runs.push(run);
    }

    /// How much more time and how much more processor time it takes than `first`, in per cent,
    /// by pairs of one round: what disturbs a machine for a while disturbs both.
    fn beside(&self, first: &Self) -> [Middle; 2] {
        let times = |way: &Self| way.runs.iter().map(|run| run.time).collect::<Vec<_>>();
        let more = |(own, first): (&Duration, &Duration)| {
            (own.as_secs_f64() / first.as_secs_f64() - 1.0) * 100.0
        };
        [times, Self::both].map(|of| {
            let (own, first) = (of(self), of(first));
            Middle::of(own.iter().zip(&first).map(more).collect())
        })
    }

    fn best(&self) -> Duration {
        self.runs.iter().map(|run| run.time).min().unwrap_or_default()
    }

    /// Processor time of both sides together, run by run.
    fn both(&self) -> Vec<Duration> {
        let runs = self.runs.iter().zip(&self.server);
        runs.map(|(run, server)| run.used.cpu + server.cpu).collect()
    }

    /// The least processor time of both sides together.
    fn cpu(&self) -> Duration {
        self.both().into_iter().min().unwrap_or_default()
    }
}

/// The middle of several figures, and where it may as well be: an interval that has the true
/// median in it 19 times of 20, by the order of the figures alone.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Middle {
    median: f64,
    from: f64,
    to: f64,
}

impl Middle {
    fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        let count = figures.len();
        if count == 0 {
            return Self { median: f64::NAN, from: f64::NAN, to: f64::NAN };
        }
        // How many of so many fall on one side of the median is binomial: 1.96 of its deviations.
        let aside = (count as f64 / 2.0 - 0.98 * (count as f64).sqrt()).floor().max(0.0) as usize;
        let median = (figures[(count - 1) / 2] + figures[count / 2]) / 2.0;
        Self { median, from: figures[aside], to: figures[count - 1 - aside] }
    }
}

impl std::fmt::Display for Middle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:+.1} % ({:+.1} to {:+.1})", self.median, self.from, self.to)
    }
}

/// The figures of a bench.
pub struct Table {
    figures: serde_json::Map<String, serde_json::Value>,
}

impl Table {
    /// No figures yet.
    pub fn empty() -> Self {
        Self { figures: serde_json::Map::new() }
    }

    /// Prints the ways against the first of them.
    pub fn of(ways: &[Way]) -> Self {
        let first = ways.first().map_or(0.0, |way| way.best().as_secs_f64());
        println!(
            "\n{:26} {:>8} {:>8} {:>6} {:>8} {:>10} {:>10}",
            "", "best s", "ratio", "goal", "cpu s", "client", "server"
        );
        let mut rows = Vec::new();
        for way in ways {
            let seconds = way.best().as_secs_f64();
            let ratio = first / seconds;
            let cpu = way.cpu().as_secs_f64();
            let mib = |used: &mut dyn Iterator<Item = Used>| {
                used.map(|used| used.rss_anon_kib).max().unwrap_or(0) / 1024
            };
            let client = mib(&mut way.runs.iter().map(|run| run.used));
            let server = mib(&mut way.server.iter().copied());
            println!(
                "{:26} {seconds:8.3} {ratio:8.2} {:6.2} {cpu:8.2} {client:6} MiB {server:6} MiB",
                way.name, way.goal,
            );
            rows.push(serde_json::json!({
                "way": way.name, "best_s": seconds, "ratio": ratio, "goal": way.goal, "cpu_s": cpu,
                "client_rss_anon_mib": client, "server_rss_anon_mib": server,
            }));
        }
        let mut table = Self::empty();
        table.note("ways", rows.into());
        table
    }

    /// Prints how much more each way takes than the first, by pairs of one round.
    pub fn pairs(&mut self, ways: &[Way]) {
        let Some((first, others)) = ways.split_first() else { return };
        println!("more than \"{}\", by rounds: time; processor time of both sides", first.name);
        let mut rows = Vec::new();
        for way in others {
            let [time, cpu] = way.beside(first);
            println!("{:26} {time}; {cpu}", way.name);
            let numbers = |of: Middle| serde_json::json!([of.median, of.from, of.to]);
            rows.push(serde_json::json!({
                "way": way.name, "time_percent": numbers(time), "cpu_percent": numbers(cpu),
            }));
        }
        self.note("pairs", rows.into());
    }

    /// Adds a figure.
    pub fn note(&mut self, name: &str, value: serde_json::Value) {
        self.figures.insert(name.to_owned(), value);
    }

    /// All of it.
    pub fn into_json(self) -> serde_json::Value {
        serde_json::Value::Object(self.figures)
    }

    /// Writes all of it to a file, where one was asked for.
    pub fn write(self, path: Option<&Path>) {
        let json = self.into_json();
        if let Some(path) = path {
            std::fs::write(path, format!("{json:#}\n")).expect("the figures can be written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_told_with_where_it_may_be() {
        let figures = (0..25).map(f64::from).rev().collect();
        assert_eq!(Middle::of(figures), Middle { median: 12.0, from: 7.0, to: 17.0 });
        assert_eq!(Middle::of(vec![4.0, 1.0]), Middle { median: 2.5, from: 1.0, to: 4.0 });
        assert!(Middle::of(Vec::new()).median.is_nan());
    }
}
