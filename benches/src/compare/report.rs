//! What the comparison tells: Markdown tables, JSON, bars. Pure: figures in, text
//! out. Called by `compare-bench`.

use super::contender::Peer;
use super::goals::Goal;
use super::measured::{Figure, Measured};
use crate::Used;
use crate::plot::Bars;
use serde_json::{Value, json};
use std::fmt::Write;

/// Processor time of fewer bytes than this says nothing: it is counted in hundredths.
const CPU_BYTES_MIN: u64 = 64_000_000;

/// The table of a workload that was measured in so many rounds.
pub fn table((work, figures): &Measured, rounds: usize) -> String {
    let mut table = format!("\n{}\n\n", work.title);
    table.push_str(
        "| | s | GB/s | files/s | cpu s/GB, client + server | RssAnon MiB, client / server \
         | peak RSS MiB, client / server | on the wire, MB |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    let gb = work.bytes as f64 / 1e9;
    for figure in figures {
        if figure.runs == 0 {
            let _ = writeln!(table, "| {} | failed | | | | | | |", figure.peer.name());
            continue;
        }
        let seconds = figure.time.as_secs_f64();
        let (client, server) = (figure.client, figure.server);
        let cpu = match work.bytes > CPU_BYTES_MIN {
            true => {
                let per_gb = |used: Used| used.cpu.as_secs_f64() / gb;
                format!("{:.2} + {:.2}", per_gb(client), per_gb(server))
            }
            false => "-".to_owned(),
        };
        let mib = |kib: u64| format!("{:.1}", kib as f64 / 1024.0);
        let _ = writeln!(
            table,
            "| {} | {seconds:.3}{} | {:.2} | {:.0} | {cpu} | {} / {} | {} / {} | {:.1} |",
            figure.peer.name(),
            of_fewer(figure, rounds),
            gb / seconds,
            work.files as f64 / seconds,
            mib(client.rss_anon_kib),
            mib(server.rss_anon_kib),
            mib(client.rss_peak_kib),
            mib(server.rss_peak_kib),
            figure.wire_bytes as f64 / 1e6,
        );
    }
    table
}

/// The columns of the short table: what is above each, and whose seconds are in it.
const COLUMNS: [(&str, &[Peer]); 9] = [
    ("cp -a", &[Peer::Cp]),
    ("tar, pipe", &[Peer::Tar]),
    ("rsync, pull", &[Peer::Rsync]),
    ("rsync, push", &[Peer::RsyncUp]),
    ("rclone", &[Peer::Rclone]),
    ("scp", &[Peer::Scp]),
    ("ours, down", &[Peer::Down, Peer::SyncDown]),
    ("ours, first time", &[Peer::FirstDown]),
    ("ours, up", &[Peer::Up, Peer::SyncUp]),
];

/// What is said of who was measured less often than others, because it is slow.
fn of_fewer(figure: &Figure, rounds: usize) -> String {
    if figure.runs < rounds { format!(", best of {}", figure.runs) } else { String::new() }
}

/// The table for those who want one: seconds, a row for each workload.
pub fn short_table(measured: &[Measured], rounds: usize) -> String {
    let mut table = String::from("| seconds |");
    COLUMNS.iter().for_each(|(name, _)| table.push_str(&format!(" {name} |")));
    table.push_str("\n| --- |");
    table.push_str(&" ---: |".repeat(COLUMNS.len()));
    for (work, figures) in measured {
        let _ = write!(table, "\n| {} |", work.title);
        for (_, peers) in COLUMNS {
            let own = |figure: &&Figure| figure.runs > 0 && peers.contains(&figure.peer);
            if let Some(figure) = figures.iter().find(own) {
                let seconds = figure.time.as_secs_f64();
                let digits = if seconds < 1.0 { 3 } else { 2 };
                let _ = write!(table, " {seconds:.digits$}{}", of_fewer(figure, rounds));
            }
            table.push_str(" |");
        }
    }
    table.push('\n');
    table
}

/// The table of what was to be reached.
pub fn goal_table(goals: &[Goal]) -> String {
    let mut table = String::from("| goal | measured | wanted | |\n| --- | ---: | ---: | --- |\n");
    for goal in goals {
        let sign = if goal.at_least { "at least" } else { "at most" };
        let verdict = if goal.is_met() { "met" } else { "**missed**" };
        let _ = writeln!(
            table,
            "| {} | {:.2} | {sign} {:.2} | {verdict} |",
            goal.what, goal.measured, goal.wanted
        );
    }
    table
}

/// What was to be reached, for scripts.
pub fn goals_json(goals: &[Goal]) -> Value {
    let row = |goal: &Goal| {
        let bound = if goal.at_least { "at_least" } else { "at_most" };
        json!({
            "goal": goal.what, "measured": goal.measured, bound: goal.wanted, "met": goal.is_met(),
        })
    };
    goals.iter().map(row).collect()
}

/// A workload, for scripts.
pub fn to_json((work, figures): &Measured) -> Value {
    let gb = work.bytes as f64 / 1e9;
    let row = |figure: &Figure| {
        if figure.runs == 0 {
            return json!({ "way": figure.peer.name(), "runs": 0 });
        }
        let (seconds, cpu) = (figure.time.as_secs_f64(), figure.cpu().as_secs_f64());
        json!({
            "way": figure.peer.name(), "best_s": seconds, "runs": figure.runs,
            "gb_per_s": gb / seconds, "files_per_s": work.files as f64 / seconds,
            "cpu_s": cpu, "cpu_s_per_gb": (work.bytes > CPU_BYTES_MIN).then_some(cpu / gb),
            "client_cpu_s": figure.client.cpu.as_secs_f64(),
            "server_cpu_s": figure.server.cpu.as_secs_f64(),
            "client_rss_anon_kib": figure.client.rss_anon_kib,
            "server_rss_anon_kib": figure.server.rss_anon_kib,
            "client_rss_peak_kib": figure.client.rss_peak_kib,
            "server_rss_peak_kib": figure.server.rss_peak_kib,
            "wire_bytes": figure.wire_bytes,
        })
    };
    let rows: Vec<_> = figures.iter().map(row).collect();
    json!({
        "name": work.name, "title": work.title, "bytes": work.bytes, "files": work.files,
        "ways": rows,
    })
}

/// A workload as bars.
pub fn to_bars((work, figures): &Measured) -> Bars {
    let bar = |figure: &Figure| {
        (figure.peer.name().to_owned(), figure.time.as_secs_f64(), figure.peer.is_ours())
    };
    let ran = figures.iter().filter(|figure| figure.runs > 0);
    Bars { title: work.title.clone(), unit: "s".into(), bars: ran.map(bar).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Run;
    use crate::compare::work::{Scale, plan};
    use std::time::Duration;

    fn measured() -> Measured {
        let scale = Scale { large_mib: 1000, small: 1, mixed: 1, sparse_gib: 1 };
        let work = plan(&scale).remove(0);
        let used = |ms, rss_anon_kib| Used {
            rss_anon_kib,
            rss_peak_kib: rss_anon_kib * 2,
            cpu: Duration::from_millis(ms),
        };
        let mut figure = Figure::of(Peer::Down);
        let run = Run { time: Duration::from_millis(500), used: used(700, 16 << 10) };
        figure.add(run, used(350, 9 << 10), 1_050_000_000);
        (work, vec![figure])
    }

    #[test]
    fn a_table_has_all_that_was_measured() {
        let table = table(&measured(), 1);
        let row = "| rdma-cp, digests cached | 0.500 | 2.10 | 2 | 0.67 + 0.33 | 16.0 / 9.0 \
                   | 32.0 / 18.0 | 1050.0 |";
        assert!(table.contains(row), "{table}");
    }

    #[test]
    fn the_short_table_has_a_row_for_each_workload() {
        let table = short_table(&[measured()], 1);
        assert!(table.contains("| one file of 1000 MiB | | | | | | | 0.500 | | |\n"), "{table}");
    }

    #[test]
    fn who_ran_less_often_is_told_of() {
        let measured = measured();
        assert!(table(&measured, 3).contains("| 0.500, best of 1 | 2.10 |"));
        assert!(short_table(&[measured], 3).contains("| 0.500, best of 1 | | |\n"));
    }

    #[test]
    fn who_failed_has_no_figures() {
        let (work, mut figures) = measured();
        figures.push(Figure::of(Peer::Rclone));
        let measured = (work, figures);
        assert!(table(&measured, 1).contains("| rclone | failed |"));
        assert_eq!(to_json(&measured)["ways"][1], json!({ "way": "rclone", "runs": 0 }));
        assert_eq!(to_bars(&measured).bars.len(), 1);
    }

    #[test]
    fn json_has_what_the_table_has() {
        let json = to_json(&measured());
        let way = &json["ways"][0];
        assert_eq!(way["best_s"], 0.5);
        assert_eq!((&way["client_cpu_s"], &way["server_cpu_s"]), (&json!(0.7), &json!(0.35)));
        assert_eq!(way["server_rss_peak_kib"], 18 << 10);
        let per_gb = way["cpu_s_per_gb"].as_f64().expect("a number");
        assert!((per_gb - 1.05 / 1.048_576).abs() < 1e-9, "{per_gb}");
    }

    #[test]
    fn a_goal_that_is_missed_says_so() {
        let goal = |measured| Goal { what: "x cp".into(), measured, wanted: 1.0, at_least: true };
        let table = goal_table(&[goal(1.0), goal(0.99)]);
        assert!(table.contains("| x cp | 1.00 | at least 1.00 | met |"), "{table}");
        assert!(table.contains("| x cp | 0.99 | at least 1.00 | **missed** |"), "{table}");
        let json = goals_json(&[goal(0.99)]);
        assert_eq!((&json[0]["met"], &json[0]["at_least"]), (&json!(false), &json!(1.0)));
    }
}
