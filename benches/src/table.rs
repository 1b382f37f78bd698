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

    fn best(&self) -> Duration {
        self.runs.iter().map(|run| run.time).min().unwrap_or_default()
    }

    /// The least processor time of both sides together.
    fn cpu(&self) -> Duration {
        let both =
            self.runs.iter().zip(&self.server).map(|(run, server)| run.used.cpu + server.cpu);
        both.min().unwrap_or_default()
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
