//! Runs the mount in the background: the command starts itself again without a terminal
//! and waits until the file system is mounted. The child prints earlier errors on the
//! same terminal, and the parent passes on its exit code.

use rustix::process::setsid;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use verbatim_usage::out;

/// The line that the child prints when the file system is mounted.
const READY_LINE: &str = "mounted";

/// Starts the child; returns when it has mounted, or when it ended.
pub fn start() -> io::Result<ExitCode> {
    let mut child = Command::new(std::env::current_exe()?)
        // In front of all arguments: behind `--` it would be a path.
        .arg("--background")
        .args(std::env::args_os().skip(1))
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().expect("stdout is piped");
    // Every wait of the child has a deadline, so this ends.
    for line in BufReader::new(output).lines() {
        match line? {
            line if line == READY_LINE => return Ok(ExitCode::SUCCESS),
            // Output of the child with --json.
            line => out!("{line}"),
        }
    }
    let status = child.wait()?;
    Ok(ExitCode::from(status.code().map_or(1, |code| code as u8)))
}

/// Opens the log for the time after mounting.
pub fn open_log(path: Option<&Path>) -> io::Result<File> {
    match path {
        Some(path) => OpenOptions::new().create(true).append(true).open(path),
        None => OpenOptions::new().write(true).open("/dev/null"),
    }
}

/// Reports that the file system is mounted and detaches from the terminal.
pub fn report_mounted(log: &File) -> io::Result<()> {
    // Fails if this process leads a session already, which is fine.
    let _ = setsid();
    // If the parent is gone, nobody would know of this mount.
    let mut output = io::stdout();
    writeln!(output, "{READY_LINE}").and_then(|()| output.flush())?;
    let null = File::open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(log)?;
    dup2_stderr(log)?;
    // Otherwise the starting folder could not be unmounted.
    std::env::set_current_dir("/")
}
