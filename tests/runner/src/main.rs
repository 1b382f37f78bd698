//! Test runner: lists the tests of the programs that cargo built, runs each in a process
//! of its own, several at a time, and runs those that failed once more, alone. Called by
//! `tests/run`, which builds the programs, installs what tests need and adds up the stages.
//!
//! A test program of libtest runs its tests as threads of one process, program after
//! program. Here all programs share one queue, so no processor idles while the slowest test
//! of a program waits for a clock, a test that hangs is ended alone, and every test is timed.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod options;
mod pool;
mod programs;
mod record;
mod run;

use options::Options;
use programs::Program;
use record::{Outcome, Record, Verdict};
use std::process::ExitCode;

/// Exit code where tests failed.
const FAILED: u8 = 1;

/// Exit code where the runner could not do its work.
const BROKEN: u8 = 2;

fn main() -> ExitCode {
    match Options::parse(std::env::args().skip(1)).and_then(|options| run_all(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED),
        Err(error) => {
            eprintln!("run-tests: {error}");
            ExitCode::from(BROKEN)
        }
    }
}

/// Runs the selected tests; true when each passed, at once or when it was run again.
fn run_all(options: &Options) -> Result<bool, String> {
    let artifacts = std::fs::read_to_string(&options.artifacts)
        .map_err(|error| format!("cannot read {}: {error}", options.artifacts.display()))?;
    let programs = programs::of_cargo(&artifacts)?;
    let selected: Vec<&Program> =
        programs.iter().filter(|program| options.programs.selects(&program.name)).collect();
    let listing = programs::list(&selected, options)?;
    if listing.tests.is_empty() {
        return Err("no test is selected; see tests/run --help".into());
    }
    let record = Record::open(&options.record)?;
    record.ignored(listing.ignored)?;
    let (tests, programs) = (listing.tests.len(), selected.len());
    println!("{tests} tests of {programs} programs, {} at a time", options.jobs);
    if listing.left_out > 0 {
        println!("({} long tests are left to tests/run --ci)", listing.left_out);
    }
    let outcomes = pool::run(&listing.tests, options.jobs, record.durations(), |test| {
        let outcome = run::run(test, options, 1);
        // One that failed is entered when it was run again.
        match outcome.verdict {
            Verdict::Failed => Ok(outcome),
            _ => record.add(&outcome).map(|()| outcome),
        }
    });
    let mut all_passed = true;
    for outcome in outcomes.into_iter().collect::<Result<Vec<_>, _>>()? {
        if outcome.verdict == Verdict::Failed {
            let outcome = run_again(outcome, options);
            all_passed &= outcome.verdict != Verdict::Failed;
            record.add(&outcome)?;
        }
    }
    Ok(all_passed)
}

/// Runs a test that failed once more, with nothing beside it: a test that passes then depends
/// on time or on its neighbours, and is a defect of another kind.
fn run_again(first: Outcome, options: &Options) -> Outcome {
    println!("again, alone: {}", first.test.full_name());
    let verdict = match run::run(&first.test, options, 2).verdict {
        Verdict::Failed => Verdict::Failed,
        _ => Verdict::Flaky,
    };
    if verdict == Verdict::Flaky {
        println!("FLAKY {}", first.test.full_name());
    }
    Outcome { verdict, ..first }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    /// A test program written in shell: four tests, of which one fails, one fails the first time
    /// and one is ignored.
    const PROGRAM: &str = r#"#!/bin/sh
case "$*" in
    *--ignored*) echo "t::ignored: test" ;;
    *--list*) printf "t::%s: test\n" good bad shaky ignored ;;
    *t::bad*) echo "bad says why"; exit 101 ;;
    *t::shaky*) [ -e tried ] || { touch tried; exit 101; }; echo "test result: ok. 1 passed; 0" ;;
    *) echo "$CARGO_MANIFEST_DIR"; echo "test result: ok. 1 passed; 0 failed" ;;
esac
"#;

    /// Runs that program with more options; what is in the record then, and whether all passed.
    fn run_with(dir: &Path, more: &[&str]) -> (Result<bool, String>, String) {
        let program = dir.join("program");
        fs::write(&program, PROGRAM).expect("writes");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("sets");
        let message = format!(
            r#"{{"package_id":"path+file:///x#verbatim-x@1","manifest_path":"{0}/Cargo.toml",
            "target":{{"kind":["test"],"name":"p"}},"profile":{{"test":true}},"executable":"{0}/program"}}"#,
            dir.display()
        );
        fs::write(dir.join("artifacts"), message.replace('\n', " ")).expect("writes");
        fs::write(dir.join("long"), "# comment\nx/p t::good\n").expect("writes");
        let path = |name: &str| dir.join(name).to_str().expect("plain").to_owned();
        let words = ["artifacts", "record", "logs", "long"]
            .map(|name| [format!("--{name}"), path(if name == "logs" { "" } else { name })]);
        let words = words.into_iter().flatten().chain(more.iter().map(|&word| word.to_owned()));
        let passed = Options::parse(words).and_then(|options| run_all(&options));
        let record = fs::read_to_string(dir.join("record")).unwrap_or_default();
        let lines = record.lines().map(|line| {
            let mut fields = line.split('\t');
            format!(
                "{} {}\n",
                fields.next().unwrap_or_default(),
                fields.next_back().unwrap_or_default()
            )
        });
        let mut lines: Vec<String> = lines.collect();
        lines.sort();
        (passed, lines.concat())
    }

    #[test]
    fn a_test_that_fails_once_is_flaky_and_one_that_fails_twice_has_failed() {
        let dir = tempfile::tempdir().expect("a folder");
        let (passed, record) = run_with(dir.path(), &["--with-long"]);
        assert_eq!(passed, Ok(false));
        assert_eq!(record, "FAILED x/p t::bad\nFLAKY x/p t::shaky\nignored x/p\nok x/p t::good\n");
        let log = fs::read_to_string(dir.path().join("x-p-t-bad.log")).expect("a log");
        assert_eq!(log, "bad says why\n");
        let log = fs::read_to_string(dir.path().join("x-p-t-good.log")).expect("a log");
        assert!(log.starts_with(dir.path().to_str().expect("plain")), "as cargo runs it: {log}");
    }

    #[test]
    fn long_tests_and_those_that_are_not_asked_for_are_left_out() {
        let of = |more: &[&str]| {
            let dir = tempfile::tempdir().expect("a folder");
            run_with(dir.path(), more)
        };
        assert_eq!(of(&[]).1, "FAILED x/p t::bad\nFLAKY x/p t::shaky\nignored x/p\n");
        let (passed, record) = of(&["--only", "p t::go"]);
        assert_eq!((passed, record.as_str()), (Ok(true), "ok x/p t::good\n"), "asked for by name");
        assert_eq!(of(&["--program", "x/p", "--only", "shaky"]).1, "FLAKY x/p t::shaky\n");
        assert!(of(&["--without", "x/p"]).0.is_err(), "nothing is no success");
        assert!(of(&["--only", "no such test"]).0.is_err());
    }

    #[test]
    fn a_list_of_long_tests_names_no_test_that_is_gone() {
        let dir = tempfile::tempdir().expect("a folder");
        drop(run_with(dir.path(), &[]));
        fs::write(dir.path().join("stale"), "x/p t::gone\n").expect("writes");
        let stale = dir.path().join("stale");
        let (passed, _) = run_with(dir.path(), &["--long", stale.to_str().expect("plain")]);
        assert!(passed.is_err_and(|error| error.contains("x/p t::gone")));
    }
}
