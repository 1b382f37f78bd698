//! Runs one test: its program in a process of its own, with its output in a file. A test
//! that takes too long is killed, with all processes that it started.

use crate::options::Options;
use crate::programs::{Test, command};
use crate::record::{Outcome, Verdict};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How many lines of a failed test's output are printed; all of it stays in its file.
const SHOWN_LINES_MAX: usize = 200;

/// Runs a test and prints what became of it; the second try of a test has a log of its own.
pub(crate) fn run(test: &Test, options: &Options, attempt: u32) -> Outcome {
    let begin = Instant::now();
    let log = log_path(&options.logs, test, attempt);
    let mut command = command(&test.program);
    command.args(["--exact", &test.name, "--nocapture"]);
    let ended = run_logged(command, &log, options.limit);
    let took = begin.elapsed();
    let why = match ended {
        Ok(Ended::Exited(status)) if status.success() => ran_one(&log).err(),
        Ok(Ended::Exited(status)) => Some(status.to_string()),
        Ok(Ended::Killed) => Some(format!("killed after {} s", options.limit.as_secs())),
        Err(error) => Some(error),
    };
    let (name, seconds) = (test.full_name(), took.as_secs_f64());
    let verdict = match why {
        None => {
            println!("ok     {seconds:7.2} s  {name}");
            Verdict::Passed
        }
        Some(why) => {
            // One write, because other threads print too.
            println!("FAILED {seconds:7.2} s  {name}: {why}\n{}", shown(&log));
            Verdict::Failed
        }
    };
    Outcome { test: test.clone(), verdict, took }
}

fn log_path(folder: &Path, test: &Test, attempt: u32) -> PathBuf {
    let name = test.full_name().replace(['/', ' '], "-").replace("::", "-");
    let again = if attempt == 1 { String::new() } else { format!("-{attempt}") };
    folder.join(format!("{name}{again}.log"))
}

/// How a test's process ended.
#[derive(Debug)]
enum Ended {
    Exited(ExitStatus),
    /// It was killed, because it took too long.
    Killed,
}

/// Runs a command to its end, or to its limit, with its output in a file.
fn run_logged(mut command: Command, log: &Path, limit: Duration) -> Result<Ended, String> {
    let cannot = |error: std::io::Error| format!("cannot write {}: {error}", log.display());
    let file = File::create(log).map_err(cannot)?;
    let again = file.try_clone().map_err(cannot)?;
    command.stdin(Stdio::null()).stdout(file).stderr(again);
    let mut child = command.spawn().map_err(|error| format!("cannot start: {error}"))?;
    if ends_within(child.id(), limit) {
        return child.wait().map(Ended::Exited).map_err(|error| error.to_string());
    }
    // The children first are still its own: later nobody knows whose they were.
    let started = descendants(child.id());
    child.kill().map_err(|error| format!("cannot be killed: {error}"))?;
    child.wait().map_err(|error| error.to_string())?;
    for id in started.into_iter().filter_map(|id| Pid::from_raw(id as i32)) {
        // Some end by themselves when the test does.
        let _ = kill_process(id, Signal::KILL);
    }
    Ok(Ended::Killed)
}

/// Waits for the end of a process, at most this long; true when it has ended.
fn ends_within(id: u32, limit: Duration) -> bool {
    let Some(id) = Pid::from_raw(id as i32) else { return true };
    // One that is gone, or a child that cannot be watched, which is then waited for without limit.
    let Ok(watched) = pidfd_open(id, PidfdFlags::empty()) else { return true };
    let begin = Instant::now();
    loop {
        let left = limit.saturating_sub(begin.elapsed());
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&watched, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return false,
            Err(rustix::io::Errno::INTR) => {}
            _ => return true,
        }
    }
}

/// The processes that a process started, and those that they started, as far as each is still a
/// child of the one that started it.
fn descendants(of: u32) -> BTreeSet<u32> {
    let parent = |id: u32| -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u32)> = ids.filter_map(|id| Some((id, parent(id)?))).collect();
    let (mut found, mut ahead) = (BTreeSet::new(), vec![of]);
    while let Some(next) = ahead.pop() {
        let children = parents.iter().filter(|(_, parent)| *parent == next).map(|(id, _)| *id);
        ahead.extend(children.filter(|&id| found.insert(id)));
    }
    found
}

/// Fails unless one test passed: a name that no test has passes nothing.
fn ran_one(log: &Path) -> Result<(), String> {
    let text = fs::read(log).map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&text);
    let passed = |line: &str| line.contains("test result: ok. 1 passed");
    text.lines().rev().any(passed).then_some(()).ok_or_else(|| "no test passed".to_owned())
}

fn shown(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let first = lines.len().saturating_sub(SHOWN_LINES_MAX);
    let left_out = match first {
        0 => String::new(),
        _ => format!("  | ({first} lines before these are in {})\n", log.display()),
    };
    lines[first..].iter().fold(left_out, |all, line| all + "  | " + line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, log: &Path, limit: Duration) -> Ended {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run_logged(command, log, limit).expect("it runs")
    }

    #[test]
    fn a_test_that_takes_too_long_is_killed_with_all_that_it_started() {
        let dir = tempfile::tempdir().expect("a folder");
        let log = dir.path().join("log");
        let script = "sleep 600 & echo $!; (sleep 600 & echo $!; wait); wait";
        let ended = shell(script, &log, Duration::from_secs(1));
        assert!(matches!(ended, Ended::Killed), "{ended:?}");
        let text = fs::read_to_string(&log).expect("the log");
        let ids: Vec<u32> = text.lines().map(|line| line.parse().expect("a number")).collect();
        assert_eq!(ids.len(), 2, "{text}");
        for id in ids {
            assert!(ends_within(id, Duration::from_secs(20)), "process {id} lives on");
        }
    }

    #[test]
    fn what_a_test_prints_is_kept_and_shown() {
        let dir = tempfile::tempdir().expect("a folder");
        let log = dir.path().join("log");
        let ended = shell("echo out; echo err >&2; exit 3", &log, Duration::from_secs(20));
        assert!(matches!(ended, Ended::Exited(status) if status.code() == Some(3)), "{ended:?}");
        assert_eq!(shown(&log), "  | out\n  | err\n");
        assert_eq!(ran_one(&log), Err("no test passed".into()));
    }

    #[test]
    fn the_end_of_a_long_output_is_shown() {
        let dir = tempfile::tempdir().expect("a folder");
        let log = dir.path().join("log");
        let _ = shell("seq 1 500", &log, Duration::from_secs(20));
        let text = shown(&log);
        assert!(text.starts_with("  | (300 lines before these are in "), "{text}");
        assert!(text.ends_with("  | 499\n  | 500\n"), "{text}");
    }
}
