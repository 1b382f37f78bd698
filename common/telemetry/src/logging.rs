//! Logging set-up shared by every command: one line per event on standard
//! error, plain or JSON, at a level that `RUST_LOG` overrides. Called once, by
//! `main`, before anything is logged.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging. `level` is a level or a filter; a second call changes nothing.
pub fn start(level: &str, json: bool) {
    let filter = EnvFilter::try_from_default_env()
        .or_else(|_| EnvFilter::try_new(level))
        .unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    // Failing to start means that somebody, a test most likely, logs already.
    let _ = if json { lines.json().try_init() } else { lines.try_init() };
}
