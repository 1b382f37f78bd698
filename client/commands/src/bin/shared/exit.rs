//! How a command ends: its exit codes, what is said of an error that ends it, and
//! the signals that do.

use super::sanitize::clean;
use std::fmt::Display;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use verbatim_client::session::command_error::CopyError;
use verbatim_client::{ClientError, Summary};
use verbatim_proto::Code;
use verbatim_usage::{note, out};

/// The command this is part of.
pub const NAME: &str = env!("CARGO_BIN_NAME");

/// How the command ends. The worst wins: mismatch, then connect, then failed.
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
    /// How a run with this summary ends.
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

    /// How a run ends that could not begin.
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
        // What was printed may be what it was called for.
        let exit = match exit {
            Exit::Done if !verbatim_usage::is_all_taken() => Exit::Failed,
            exit => exit,
        };
        Self::from(exit as u8)
    }
}

/// Whether this machine broke a session, and not the way to the server: there is no use in coming
/// again.
fn is_local(code: Code) -> bool {
    use Code::{Bug, Io, NoSpace, NotFound, ReadOnly};
    matches!(code, Bug | Io | NoSpace | NotFound | ReadOnly)
}

/// What is wrong with the flags.
pub struct FlagError {
    pub cause: String,
    pub hint: Option<String>,
    pub exit: Exit,
}

impl FlagError {
    pub fn usage(cause: impl Into<String>, hint: Option<String>) -> Self {
        Self { cause: cause.into(), hint, exit: Exit::Usage }
    }

    /// Says it.
    pub fn print(self, json: bool) -> ExitCode {
        print_error(&self.cause, self.hint, self.exit, json)
    }
}

/// Says why nothing could be done.
pub fn print_copy_error(error: &CopyError, json: bool) -> ExitCode {
    print_error(error, error.hint(), Exit::of_error(error), json)
}

/// Says what is wrong and what to do about it.
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

/// Completes when the user, or a batch system whose time is up, wants this to end. It is heard
/// from this call on, whenever the answer is waited for.
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
