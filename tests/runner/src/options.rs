//! The command line of the runner: which programs and tests, and how many at once.
//! Only `tests/run` calls it, so an option that is missing or wrong ends it with one line.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// How long a test may take that is not in the list of long ones.
const LIMIT_DEFAULT: Duration = Duration::from_secs(120);

/// What is run, how, and where the results go.
pub(crate) struct Options {
    /// What `cargo build --message-format=json` printed.
    pub artifacts: PathBuf,
    /// One line for each test that ran is added here.
    pub record: PathBuf,
    /// The output of each test, a file each.
    pub logs: PathBuf,
    /// The tests that only a whole run has, a line each: program and name.
    pub long: Option<PathBuf>,
    /// Whether the long tests run too.
    pub with_long: bool,
    /// How many tests run at a time.
    pub jobs: usize,
    /// How long one test may take.
    pub limit: Duration,
    pub programs: Selection,
    /// Only tests with one of these in `program name`; none given: all.
    pub only: Vec<String>,
}

/// Which programs run.
#[derive(Default)]
pub(crate) struct Selection {
    /// Only these; none given: all.
    with: BTreeSet<String>,
    /// None of these.
    without: BTreeSet<String>,
}

impl Selection {
    pub fn selects(&self, name: &str) -> bool {
        (self.with.is_empty() || self.with.contains(name)) && !self.without.contains(name)
    }
}

impl Options {
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            artifacts: PathBuf::new(),
            record: PathBuf::new(),
            logs: PathBuf::new(),
            long: None,
            with_long: false,
            jobs: std::thread::available_parallelism().map_or(2, |count| 3 * count.get()),
            limit: LIMIT_DEFAULT,
            programs: Selection::default(),
            only: Vec::new(),
        };
        while let Some(flag) = words.next() {
            if flag == "--with-long" {
                options.with_long = true;
                continue;
            }
            let value = words.next().ok_or_else(|| format!("{flag} needs a value"))?;
            let number =
                || value.parse::<u64>().map_err(|_| format!("{flag}: {value} is no number"));
            match flag.as_str() {
                "--artifacts" => options.artifacts = value.into(),
                "--record" => options.record = value.into(),
                "--logs" => options.logs = value.into(),
                "--long" => options.long = Some(value.into()),
                "--jobs" => options.jobs = (number()?.max(1)) as usize,
                "--limit" => options.limit = Duration::from_secs(number()?),
                "--program" => drop(options.programs.with.insert(value)),
                "--without" => drop(options.programs.without.insert(value)),
                "--only" => options.only.push(value),
                _ => return Err(format!("no option {flag}")),
            }
        }
        for (flag, path) in [
            ("--artifacts", &options.artifacts),
            ("--record", &options.record),
            ("--logs", &options.logs),
        ] {
            if path.as_os_str().is_empty() {
                return Err(format!("{flag} is missing"));
            }
        }
        Ok(options)
    }
}
