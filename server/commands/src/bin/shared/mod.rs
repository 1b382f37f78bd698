//! How the commands of the server end when something is wrong. Part of each
//! command, not of the library, which never touches a terminal.

use std::fmt::Display;
use std::process::ExitCode;
use verbatim_usage::note;

/// Says what is wrong and what to do about it.
pub fn complain(error: &dyn Display, hint: Option<String>, code: u8) -> ExitCode {
    note!("{}: {error}", env!("CARGO_BIN_NAME"));
    if let Some(hint) = hint {
        note!("  hint: {hint}");
    }
    ExitCode::from(code)
}
