//! What the comparison is to reach, and whether it does: ratios of figures of one
//! run. Pure. A goal whose figures were not measured is left out, never met.
//! Called by `compare-bench`.

use super::contender::Peer;
use super::measured::Measured;
use crate::raw::Hashing;

/// Something to reach.
#[derive(Clone, Debug)]
pub struct Goal {
    /// What it is about.
    pub what: String,
    /// What was measured.
    pub measured: f64,
    /// What was wanted.
    pub wanted: f64,
    /// Whether more is better.
    pub at_least: bool,
}

impl Goal {
    /// At least so much.
    pub fn at_least(what: impl Into<String>, measured: f64, wanted: f64) -> Self {
        Self { what: what.into(), measured, wanted, at_least: true }
    }

    /// At most so much.
    pub fn at_most(what: impl Into<String>, measured: f64, wanted: f64) -> Self {
        Self { what: what.into(), measured, wanted, at_least: false }
    }

    /// Whether it is reached. What is no number is not.
    pub fn is_met(&self) -> bool {
        match self.at_least {
            true => self.measured >= self.wanted,
            false => self.measured <= self.wanted,
        }
    }
}

/// How many times as fast as another way a way must be: workload, way, other, times. An upload is
/// held against what rsync pulls, which was the goal, and against what it pushes, which is like it.
const TIMES_AS_FAST: &[(&str, Peer, Peer, f64)] = &[
    ("one", Peer::Down, Peer::Cp, 1.0),
    ("one", Peer::Down, Peer::Rsync, 1.5),
    ("one", Peer::FirstDown, Peer::Cp, 0.75),
    ("one", Peer::FirstDown, Peer::Rsync, 1.1),
    ("one", Peer::Up, Peer::Cp, 0.75),
    ("one", Peer::Up, Peer::Rsync, 1.1),
    ("one", Peer::Up, Peer::RsyncUp, 1.1),
    ("mixed", Peer::Down, Peer::Rsync, 1.5),
    ("mixed", Peer::Up, Peer::Rsync, 1.5),
    ("mixed", Peer::Up, Peer::RsyncUp, 1.5),
];

/// How many times as long as another way a way may take.
const TIMES_AS_LONG: &[(&str, Peer, Peer, f64)] = &[
    ("small", Peer::Down, Peer::Cp, 1.0),
    ("small", Peer::Up, Peer::Cp, 1.0),
    ("same", Peer::SyncDown, Peer::Rsync, 0.5),
    ("same", Peer::SyncUp, Peer::Rsync, 0.5),
    ("same", Peer::SyncUp, Peer::RsyncUp, 0.5),
];

/// What one small file may take, from start to exit.
const COLD_MS_MAX: f64 = 30.0;

/// Anonymous memory of a side with one client.
const RSS_ANON_MIB_MAX: f64 = 128.0;

/// Processor time against the same path unchecked and the hashing that must be.
const CPU_TIMES_MAX: f64 = 1.1;

/// Everything that can be said of these figures.
pub fn goals(measured: &[Measured], hashing: Option<Hashing>) -> Vec<Goal> {
    let seconds = |name: &str, peer: Peer| find(measured, name, peer).map(|(s, _)| s);
    let mut goals = Vec::new();
    for &(name, way, other, times) in TIMES_AS_FAST {
        if let (Some(ours), Some(theirs)) = (seconds(name, way), seconds(name, other)) {
            let what = format!("{name}: {}, times as fast as {}", way.name(), other.name());
            goals.push(Goal::at_least(what, theirs / ours, times));
        }
    }
    for &(name, way, other, times) in TIMES_AS_LONG {
        if let (Some(ours), Some(theirs)) = (seconds(name, way), seconds(name, other)) {
            let what = format!("{name}: {}, times as long as {}", way.name(), other.name());
            goals.push(Goal::at_most(what, ours / theirs, times));
        }
    }
    for way in [Peer::Down, Peer::Up] {
        if let Some(ours) = seconds("cold", way) {
            let what = format!("cold: {}, ms from start to exit", way.name());
            goals.push(Goal::at_most(what, ours * 1e3, COLD_MS_MAX));
        }
    }
    goals.extend(hashing.into_iter().flat_map(|hashing| cpu_goals(measured, hashing)));
    goals.extend(measured.iter().flat_map(memory_goals));
    goals
}

/// Seconds, and processor seconds, of a way.
fn find(measured: &[Measured], name: &str, peer: Peer) -> Option<(f64, f64)> {
    let (_, figures) = measured.iter().find(|(work, _)| work.name == name)?;
    let figure = figures.iter().find(|figure| figure.peer == peer && figure.runs > 0)?;
    Some((figure.time.as_secs_f64(), figure.cpu().as_secs_f64()))
}

/// Processor time of one file against what it cannot do without: the same path unchecked, and a
/// pass of BLAKE3 on each side that must hash. Who receives hashes what is in cache; who has
/// no digests yet must read the file for it.
fn cpu_goals(measured: &[Measured], hashing: Hashing) -> Vec<Goal> {
    let Some((work, _)) = measured.iter().find(|(work, _)| work.name == "one") else {
        return Vec::new();
    };
    let gb = work.bytes as f64 / 1e9;
    let Hashing { in_cache_s_per_gb: landed, of_file_s_per_gb: read } = hashing;
    let ways = [
        (Peer::Down, Peer::RawDown, landed),
        (Peer::FirstDown, Peer::RawDown, landed + read),
        (Peer::Up, Peer::RawUp, landed + read),
    ];
    let goal = |(way, raw, hashed): (Peer, Peer, f64)| {
        let (_, ours) = find(measured, "one", way)?;
        let (_, raw) = find(measured, "one", raw)?;
        let what = format!("one: {}, processor time by that unchecked and hashing", way.name());
        Some(Goal::at_most(what, ours / (raw + hashed * gb), CPU_TIMES_MAX))
    };
    ways.into_iter().filter_map(goal).collect()
}

/// The most anonymous memory of each side of ours.
fn memory_goals((work, figures): &Measured) -> Vec<Goal> {
    let ours = || figures.iter().filter(|figure| figure.peer.is_ours());
    if ours().next().is_none() {
        return Vec::new();
    }
    let mib = |kib: Option<u64>| kib.unwrap_or(0) as f64 / 1024.0;
    let client = mib(ours().map(|figure| figure.client.rss_anon_kib).max());
    let server = mib(ours().map(|figure| figure.server.rss_anon_kib).max());
    let goal = |side: &str, mib: f64| {
        Goal::at_most(format!("{}: RssAnon of our {side}, MiB", work.name), mib, RSS_ANON_MIB_MAX)
    };
    vec![goal("client", client), goal("server", server)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::measured::Figure;
    use crate::compare::work::{Scale, plan};
    use crate::{Run, Used};
    use std::time::Duration;

    /// One GB, and what everybody took: time and processor time in ms, memory of the client.
    fn measured(name: &str, took: &[(Peer, u64, u64, u64)]) -> Vec<Measured> {
        let scale = Scale { large_mib: 1, small: 1, mixed: 1, sparse_gib: 1 };
        let mut works = plan(&scale);
        works.retain(|work| work.name == name);
        let mut work = works.remove(0);
        work.bytes = 1_000_000_000;
        let figures = took.iter().map(|&(peer, ms, cpu_ms, rss_anon_kib)| {
            let used = Used { cpu: Duration::from_millis(cpu_ms), rss_anon_kib, rss_peak_kib: 0 };
            let mut figure = Figure::of(peer);
            let run = Run { time: Duration::from_millis(ms), used };
            figure.add(run, Used::default(), 0);
            figure
        });
        vec![(work, figures.collect())]
    }

    fn named<'a>(goals: &'a [Goal], text: &str) -> &'a Goal {
        goals.iter().find(|goal| goal.what.contains(text)).unwrap_or_else(|| panic!("{goals:?}"))
    }

    #[test]
    fn a_ratio_is_of_the_same_workload() {
        let one = measured("one", &[(Peer::Cp, 500, 0, 0), (Peer::Down, 400, 0, 0)]);
        let goals = goals(&one, None);
        let goal = named(&goals, "cached, times as fast as cp");
        assert!((goal.measured - 1.25).abs() < 1e-9 && goal.is_met(), "{goal:?}");
        assert!(!goals.iter().any(|goal| goal.what.contains("rsync")), "rsync was not measured");
        let small = measured("small", &[(Peer::Cp, 500, 0, 0), (Peer::Down, 600, 0, 0)]);
        let goals = super::goals(&small, None);
        let goal = named(&goals, "cached, times as long as cp");
        assert!((goal.measured - 1.2).abs() < 1e-9 && !goal.is_met(), "{goal:?}");
    }

    #[test]
    fn an_upload_is_held_against_a_push_too() {
        let took = [(Peer::Rsync, 600, 0, 0), (Peer::RsyncUp, 440, 0, 0), (Peer::Up, 500, 0, 0)];
        let goals = goals(&measured("one", &took), None);
        let pulled = named(&goals, "upload, times as fast as rsync daemon, pull");
        assert!((pulled.measured - 1.2).abs() < 1e-9 && pulled.is_met(), "{pulled:?}");
        let pushed = named(&goals, "upload, times as fast as rsync daemon, push");
        assert!((pushed.measured - 0.88).abs() < 1e-9 && !pushed.is_met(), "{pushed:?}");
    }

    #[test]
    fn processor_time_is_held_against_the_same_path_and_hashing() {
        let took = [
            (Peer::RawDown, 1, 600, 0),
            (Peer::RawUp, 1, 700, 0),
            (Peer::Down, 1, 990, 0),
            (Peer::FirstDown, 1, 1400, 0),
            (Peer::Up, 1, 1400, 0),
        ];
        let hashing = Hashing { in_cache_s_per_gb: 0.25, of_file_s_per_gb: 0.35 };
        let goals = goals(&measured("one", &took), Some(hashing));
        let times = |text: &str| named(&goals, text).measured;
        assert!((times("cached, processor") - 0.990 / 0.85).abs() < 1e-9);
        assert!((times("first time, processor") - 1.4 / 1.2).abs() < 1e-9);
        assert!((times("upload, processor") - 1.4 / 1.3).abs() < 1e-9);
        assert!(named(&goals, "upload, processor").is_met());
        assert!(!named(&goals, "cached, processor").is_met());
    }

    #[test]
    fn the_hungriest_of_ours_counts_and_nobody_elses() {
        let took = [
            (Peer::Rsync, 1, 1, 999 << 10),
            (Peer::Down, 1, 1, 64 << 10),
            (Peer::Up, 1, 1, 129 << 10),
        ];
        let goals = goals(&measured("mixed", &took), None);
        let goal = named(&goals, "RssAnon of our client");
        assert!((goal.measured - 129.0).abs() < 1e-9 && !goal.is_met(), "{goal:?}");
    }

    #[test]
    fn what_is_no_number_is_not_met() {
        assert!(!Goal::at_most("x", f64::NAN, 1.0).is_met());
        assert!(!Goal::at_least("x", f64::NAN, 1.0).is_met());
    }
}
