//! What became of each test, for the report of `tests/run` and for the next run's order: one
//! line a test, with tabs: verdict, seconds, program and name.

use crate::programs::Test;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// What became of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    /// It failed, and passed when it was run once more, alone.
    Flaky,
}

/// A test that was run.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub test: Test,
    pub verdict: Verdict,
    /// How long it took the first time.
    pub took: Duration,
}

/// The file of verdicts.
pub(crate) struct Record {
    file: File,
    durations: HashMap<String, Duration>,
}

impl Record {
    /// Opens the file to add to it; how long tests took in the run before is in `FILE.last`.
    pub fn open(path: &Path) -> Result<Self, String> {
        let cannot = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
        let last = path.with_extension("last");
        let durations = fs::read_to_string(last).map(|text| read(&text)).unwrap_or_default();
        let file = File::options().create(true).append(true).open(path).map_err(cannot)?;
        Ok(Self { file, durations })
    }

    /// How long tests took in the run before.
    pub fn durations(&self) -> &HashMap<String, Duration> {
        &self.durations
    }

    /// Adds a test.
    pub fn add(&self, outcome: &Outcome) -> Result<(), String> {
        let verdict = match outcome.verdict {
            Verdict::Passed => "ok",
            Verdict::Failed => "FAILED",
            Verdict::Flaky => "FLAKY",
        };
        let (seconds, name) = (outcome.took.as_secs_f64(), outcome.test.full_name());
        self.line(&format!("{verdict}\t{seconds:.2}\t{name}"))
    }

    /// Adds the tests that cargo ignores, a line a program.
    pub fn ignored(&self, counts: BTreeMap<String, usize>) -> Result<(), String> {
        let mut counts = counts.into_iter().filter(|(_, count)| *count > 0);
        counts.try_for_each(|(program, count)| self.line(&format!("ignored\t{count}\t{program}")))
    }

    fn line(&self, line: &str) -> Result<(), String> {
        // At the end of the file, and in one write: tests end on several threads.
        let written = (&self.file).write_all(format!("{line}\n").as_bytes());
        written.map_err(|error| format!("cannot write the record: {error}"))
    }
}

fn read(text: &str) -> HashMap<String, Duration> {
    let line = |line: &str| {
        let mut fields = line.splitn(3, '\t').skip(1);
        let seconds: f64 = fields.next()?.parse().ok()?;
        Some((fields.next()?.to_owned(), Duration::try_from_secs_f64(seconds).ok()?))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::Program;
    use std::sync::Arc;

    #[test]
    fn the_next_run_knows_how_long_each_test_took() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("record.tsv");
        let program = Program { name: "p".into(), executable: "p".into(), folder: "/".into() };
        let test = Test { program: Arc::new(program), name: "m::t".into() };
        let took = Duration::from_millis(1250);
        let record = Record::open(&path).expect("opens");
        assert!(record.durations().is_empty());
        for verdict in [Verdict::Passed, Verdict::Failed, Verdict::Flaky] {
            record.add(&Outcome { test: test.clone(), verdict, took }).expect("adds");
        }
        record.ignored([("q".to_owned(), 2), ("r".to_owned(), 0)].into()).expect("adds");
        let text = fs::read_to_string(&path).expect("reads");
        assert_eq!(
            text,
            "ok\t1.25\tp m::t\nFAILED\t1.25\tp m::t\nFLAKY\t1.25\tp m::t\nignored\t2\tq\n"
        );
        fs::rename(&path, path.with_extension("last")).expect("renames");
        let next = Record::open(&path).expect("opens");
        assert_eq!(next.durations().get("p m::t"), Some(&took));
    }
}
