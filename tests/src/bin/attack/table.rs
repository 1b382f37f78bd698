//! The figures of an attack: rows of words, a number and its unit, as a small table or as
//! JSON. Owns how they are printed, and medians; measures nothing.

use serde_json::json;
use std::fmt::Write;

/// What an attack measured.
pub struct Table {
    attack: &'static str,
    version: String,
    rows: Vec<(String, f64, &'static str)>,
}

impl Table {
    /// An empty table of an attack on a build.
    pub fn new(attack: &'static str, version: &str) -> Self {
        Self { attack, version: version.to_owned(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, what: impl Into<String>, value: f64, unit: &'static str) {
        self.rows.push((what.into(), value, unit));
    }

    /// Adds the least and the median of some values.
    pub fn spread(&mut self, what: &str, values: &[f64], unit: &'static str) {
        let best = values.iter().copied().fold(f64::INFINITY, f64::min);
        self.row(format!("{what}, least of {}", values.len()), best, unit);
        self.row(format!("{what}, median"), median(values), unit);
    }

    /// The table for people.
    pub fn text(&self) -> String {
        let mut text = format!("{} against {}\n", self.attack, self.version);
        let width = self.rows.iter().map(|(what, ..)| what.len()).max().unwrap_or(0);
        for (what, value, unit) in &self.rows {
            let number =
                if value.fract() == 0.0 { format!("{value}") } else { format!("{value:.3}") };
            writeln!(text, "  {what:width$}  {number:>10} {unit}").expect("a string takes it");
        }
        text
    }

    /// The table for scripts.
    pub fn json(&self) -> String {
        let row = |(what, value, unit): &(String, f64, &str)| json!({"what": what, "value": value, "unit": unit});
        let rows: Vec<_> = self.rows.iter().map(row).collect();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let all =
            json!({"attack": self.attack, "version": self.version, "cores": cores, "rows": rows});
        format!("{all}\n")
    }
}

/// The value in the middle.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
    }
}
