//! Going into the background: the command starts itself once more, without a terminal to
//! belong to, and waits for the word that the mount stands. What goes wrong before that
//! is said by the other one, on the same terminal; its exit code is passed on.

use rustix::process::setsid;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use verbatim_usage::out;

/// What the process in the background says when the mount stands.
const READY_LINE: &str = "mounted";

/// Starts the process in the background; returns when its mount stands, or it ended.
pub fn start() -> io::Result<ExitCode> {
    let mut child = Command::new(std::env::current_exe()?)
        // First: behind a `--` it would be a place.
        .arg("--background")
        .args(std::env::args_os().skip(1))
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().expect("it was asked for");
    // Everything it waits for has a deadline, so this ends.
    for line in BufReader::new(output).lines() {
        match line? {
            line if line == READY_LINE => return Ok(ExitCode::SUCCESS),
            // What it says with --json.
            line => out!("{line}"),
        }
    }
    let status = child.wait()?;
    Ok(ExitCode::from(status.code().map_or(1, |code| code as u8)))
}

/// Opens what is logged to once the mount stands.
pub fn open_log(path: Option<&Path>) -> io::Result<File> {
    match path {
        Some(path) => OpenOptions::new().create(true).append(true).open(path),
        None => OpenOptions::new().write(true).open("/dev/null"),
    }
}

/// Says that the mount stands, and lets go of the terminal.
pub fn report_mounted(log: &File) -> io::Result<()> {
    // Fails for the leader of a session, who has one already.
    let _ = setsid();
    // Where the one that was called is gone, nobody knows of this mount.
    let mut output = io::stdout();
    writeln!(output, "{READY_LINE}").and_then(|()| output.flush())?;
    let null = File::open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(log)?;
    dup2_stderr(log)?;
    // A folder that it was started in may be unmounted too.
    std::env::set_current_dir("/")
}
