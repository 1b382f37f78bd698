//! What `benches/verbs` said in a guest, as figures: rates over one Soft-RoCE device,
//! of us and of others. Pure: text in, figures out. A line that is none of its figures
//! is no figure; what it says of why not is kept. Called by `compare-bench`.

use super::goals::Goal;
use crate::plot::Bars;
use serde_json::{Value, json};
use std::fmt::Write;

/// What one way reached.
#[derive(Debug, PartialEq)]
struct Rate {
    name: String,
    gb_per_s: f64,
    /// Processor seconds of the server for a GiB, where it is ours.
    server_s_per_gib: Option<f64>,
}

/// The guest's part of the comparison.
#[derive(Debug, Default)]
pub struct Guest {
    rates: Vec<Rate>,
    /// Kernel, processors, size; and what could not be measured.
    notes: Vec<String>,
}

/// Ratios to reach: ours, the other, times.
const GOALS: &[(&str, &str, f64)] = &[
    ("rdma-cp READ", "perftest read-4", 0.8),
    ("rdma-cp WRITE", "perftest write-4", 0.75),
    ("rdma-cp READ", NFS, 1.4),
    ("rdma-cp WRITE", NFS, 1.4),
    // perftest is as fast bound as not; the threads of NFS are not bound, so it is no match.
    ("rdma-cp READ-bound", "perftest read-4", 0.8),
    ("rdma-cp WRITE-bound", "perftest write-4", 0.75),
];

/// A file that is read over it.
const NFS: &str = "nfs-rdma";

impl Guest {
    /// Takes figures and notes from what was printed.
    pub fn parse(text: &str) -> Self {
        let rates = text.lines().filter_map(parse_rate).collect();
        let notes = text.lines().filter_map(|line| line.strip_prefix("# ")).map(str::to_owned);
        Self { rates, notes: notes.collect() }
    }

    fn rate(&self, name: &str) -> Option<f64> {
        self.rates.iter().find(|rate| rate.name == name).map(|rate| rate.gb_per_s)
    }

    /// What is to be reached, of what was measured: as the commands come, and told apart from
    /// that, with each process bound to a processor.
    pub fn goals(&self) -> Vec<Goal> {
        let goal = |&(ours, other, times): &(&str, &str, f64)| {
            let ratio = self.rate(ours)? / self.rate(other)?;
            let what = if other == NFS { "a read over nfs-rdma" } else { other };
            Some(Goal::at_least(format!("guest: {ours}, times {what}"), ratio, times))
        };
        GOALS.iter().filter_map(goal).collect()
    }

    /// The table.
    pub fn table(&self) -> String {
        let mut table = String::from("\nin a guest, over one Soft-RoCE device\n\n");
        self.notes.iter().for_each(|note| table.push_str(&format!("{note}\n\n")));
        if self.rates.is_empty() {
            table.push_str("nothing was measured\n");
            return table;
        }
        table.push_str("| | GB/s | server, cpu s/GiB |\n| --- | ---: | ---: |\n");
        for Rate { name, gb_per_s, server_s_per_gib } in &self.rates {
            let server = server_s_per_gib.map_or(String::new(), |s| format!("{s:.2}"));
            let _ = writeln!(table, "| {name} | {gb_per_s:.3} | {server} |");
        }
        table
    }

    /// For scripts.
    pub fn to_json(&self) -> Value {
        let row = |rate: &Rate| {
            json!({
                "way": rate.name, "gb_per_s": rate.gb_per_s,
                "server_cpu_s_per_gib": rate.server_s_per_gib,
            })
        };
        let rows: Vec<Value> = self.rates.iter().map(row).collect();
        json!({ "notes": self.notes, "ways": rows })
    }

    /// The rates as bars; none where nothing was measured.
    pub fn to_bars(&self) -> Option<Bars> {
        let bar = |rate: &Rate| (rate.name.clone(), rate.gb_per_s, rate.name.starts_with("rdma-"));
        let bars: Vec<_> = self.rates.iter().map(bar).collect();
        let title = "in a guest, over one Soft-RoCE device: more is better".into();
        (!bars.is_empty()).then(|| Bars { title, unit: "GB/s".into(), bars })
    }
}

/// `NAME: RATE GB/s`, and with ours `, server SECONDS s of processor a GiB`.
fn parse_rate(line: &str) -> Option<Rate> {
    let (name, rest) = line.split_once(": ")?;
    let (rate, behind) = rest.split_once(" GB/s")?;
    let gb_per_s: f64 = rate.parse().ok()?;
    let server = behind.strip_prefix(", server ").and_then(|rest| rest.split_once(" s of"));
    let server_s_per_gib = server.and_then(|(seconds, _)| seconds.parse().ok());
    // What did not run is printed as zero.
    (gb_per_s > 0.0).then(|| Rate { name: name.to_owned(), gb_per_s, server_s_per_gib })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "==> guest: user-mode Linux\n\
        # no NFS over tcp here: mount.nfs4: access denied\n\
        # 7.2.0, 2 processors, 256 MiB\n\
        perftest read-1: 0.287 GB/s\n\
        perftest read-4: 0.400 GB/s\n\
        perftest write-4: 0.000 GB/s\n\
        nfs-rdma: 0.200 GB/s\n\
        rdma-cp READ: 0.300 GB/s, server 2.44 s of processor a GiB\n\
        rdma-cp READ-bound: 0.340 GB/s, server 2.01 s of processor a GiB\n\
        rdma-cp WRITE: 0.134 GB/s, server 5.16 s of processor a GiB\n\
        rdma-cp WRITE-bound: 0.290 GB/s, server 1.28 s of processor a GiB\n\
        test result: ok. 1 passed\n";

    #[test]
    fn figures_are_taken_and_everything_else_is_not() {
        let guest = Guest::parse(SAID);
        let names: Vec<&str> = guest.rates.iter().map(|rate| &*rate.name).collect();
        let expected = [
            "perftest read-1",
            "perftest read-4",
            "nfs-rdma",
            "rdma-cp READ",
            "rdma-cp READ-bound",
            "rdma-cp WRITE",
            "rdma-cp WRITE-bound",
        ];
        assert_eq!(names, expected, "what failed has no rate");
        assert_eq!(guest.rates[3].server_s_per_gib, Some(2.44));
        assert_eq!(guest.notes.len(), 2);
        assert!(guest.table().contains("| rdma-cp READ | 0.300 | 2.44 |"), "{}", guest.table());
        assert_eq!(guest.to_json()["ways"][0]["gb_per_s"], 0.287);
    }

    #[test]
    fn only_what_was_measured_is_held_against_a_goal() {
        let goals = Guest::parse(SAID).goals();
        let told: Vec<_> = goals.iter().map(|goal| (&*goal.what, goal.is_met())).collect();
        let expected = [
            ("guest: rdma-cp READ, times perftest read-4", false),
            ("guest: rdma-cp READ, times a read over nfs-rdma", true),
            ("guest: rdma-cp WRITE, times a read over nfs-rdma", false),
            ("guest: rdma-cp READ-bound, times perftest read-4", true),
        ];
        assert_eq!(told, expected);
        assert!(Guest::parse("# the guest failed\n").goals().is_empty());
        assert!(Guest::parse("").table().contains("nothing was measured"));
    }
}
