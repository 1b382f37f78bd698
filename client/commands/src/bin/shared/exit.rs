//! Exit codes of a command, the errors that end it before or after its work, and the
//! signals that interrupt it.

use super::sanitize::clean;
use std::fmt::Display;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use verbatim_client::session::command_error::CopyError;
use verbatim_client::{ClientError, Summary};
use verbatim_proto::Code;
use verbatim_usage::{note, out};

/// The name of this command.
pub const NAME: &str = env!("CARGO_BIN_NAME");

/// The exit code. The worst wins: mismatch, then connect, then failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    Connect = 3,
    Mismatch = 4,
    Interrupted = 130,
}

impl Exit {
    /// The exit code of a run with this summary.
    pub fn of_summary(summary: &Summary) -> Self {
        match summary {
            Summary { broken: Some(fault), .. } if fault.code == Code::Interrupted => {
                Self::Interrupted
            }
            Summary { mismatch: true, .. } => Self::Mismatch,
            Summary { broken: Some(fault), .. } if is_local(fault.code) => Self::Failed,
            Summary { broken: Some(_), .. } => Self::Connect,
            Summary { failed: 1.., .. } => Self::Failed,
            _ => Self::Done,
        }
    }

    /// The exit code of a run that did not start.
    pub fn of_error(error: &CopyError) -> Self {
        match error {
            CopyError::Usage { .. } => Self::Usage,
            CopyError::Client(ClientError::Fault(fault)) if fault.code == Code::Interrupted => {
                Self::Interrupted
            }
            CopyError::Status(_) | CopyError::Client(ClientError::Fault(_)) => Self::Failed,
            CopyError::Client(_) => Self::Connect,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        // The lost output may have been the purpose of the command.
        let exit = match exit {
            Exit::Done if !verbatim_usage::is_all_taken() => Exit::Failed,
            exit => exit,
        };
        Self::from(exit as u8)
    }
}

/// Whether this machine failed, not the connection: a retry would not help.
fn is_local(code: Code) -> bool {
    use Code::{Bug, Io, NoSpace, NotFound, ReadOnly};
    matches!(code, Bug | Io | NoSpace | NotFound | ReadOnly)
}

/// An error in the flags.
pub struct FlagError {
    pub cause: String,
    pub hint: Option<String>,
    pub exit: Exit,
}

impl FlagError {
    pub fn usage(cause: impl Into<String>, hint: Option<String>) -> Self {
        Self { cause: cause.into(), hint, exit: Exit::Usage }
    }

    /// Prints the error.
    pub fn print(self, json: bool) -> ExitCode {
        print_error(&self.cause, self.hint, self.exit, json)
    }
}

/// Prints why the command could not run.
pub fn print_copy_error(error: &CopyError, json: bool) -> ExitCode {
    print_error(error, error.hint(), Exit::of_error(error), json)
}

/// Prints an error and its hint; returns the exit code.
pub fn print_error(error: &dyn Display, hint: Option<String>, exit: Exit, json: bool) -> ExitCode {
    if json {
        let cause = error.to_string();
        let line = serde_json::json!({
            "event": "error", "cause": cause, "hint": hint, "exit": exit as u8,
        });
        out!("{line}");
        return exit.into();
    }
    note!("{NAME}: {}", clean(&error.to_string()));
    if let Some(hint) = hint {
        note!("  hint: {}", clean(&hint));
    }
    exit.into()
}

/// Completes on SIGINT, or on SIGTERM as a batch system sends it. Signals are caught from this call
/// on, even before the future is polled.
pub fn interrupt_signal() -> impl Future<Output = ()> {
    let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    async move {
        match signals {
            (Ok(mut interrupt), Ok(mut terminate)) => {
                tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            }
            _ => std::future::pending().await,
        }
    }
}
