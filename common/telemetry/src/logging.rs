//! Logging set-up shared by every command: one event a line on standard error,
//! for people or as JSON, or to the journal with every field as a field of its
//! own. The level is what `RUST_LOG` says, or else what is given: a level, or levels
//! of modules such as `info,verbatim_server=debug`. Called once, by `main`, before
//! anything is logged.

use crate::event::Form;
use crate::lines::{FILE_BYTES_MAX, GATHERED_BYTES_MAX, GATHERED_FOR_MAX};
use crate::lines::{Gathering, Lines, Writers};
use std::fs::{File, Metadata};
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// What stands before the names of our fields in the journal.
const JOURNAL_PREFIX: &str = "VERBATIM";

/// How events are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// To the journal where standard error leads there, else for people.
    #[default]
    Auto,
    /// For people, with colours on a terminal.
    Human,
    /// A JSON object a line.
    Json,
    /// To the journal of systemd.
    Journald,
}

impl Format {
    /// Every format there is, by name.
    pub const NAMES: [&str; 4] = ["auto", "human", "json", "journald"];

    /// The format of a name.
    pub fn parse(name: &str) -> Option<Self> {
        let all = [Self::Auto, Self::Human, Self::Json, Self::Journald];
        Self::NAMES.iter().position(|known| *known == name).map(|at| all[at])
    }

    /// The same, decided.
    fn decided(self, journal_stream: Option<&str>, stderr: Option<(u64, u64)>) -> Self {
        if self != Self::Auto {
            return self;
        }
        match leads_to_journal(journal_stream, stderr) {
            true => Self::Journald,
            false => Self::Human,
        }
    }
}

/// A log that was started.
pub struct Logs {
    /// None where each line is for somebody who looks, or goes to the journal, which takes one at a
    /// time.
    lines: Option<Arc<Lines>>,
}

impl Logs {
    /// Writes lines of info together where many come at once, at most a tenth of a second later,
    /// as long as what is returned is there. Not at debug or trace: that is for finding a fault,
    /// and the last line before it counts. Starts a thread, so rights are to be given up before.
    /// Only for a command that prints nothing else where its log goes: that would overtake lines
    /// that wait.
    pub fn gather(&self) -> Gathering {
        let gathered = self.lines.as_ref().filter(|_| LevelFilter::current() <= LevelFilter::INFO);
        gathered.inspect(|lines| lines.write_out_at_panics()).map(Lines::gather).unwrap_or_default()
    }
}

/// Starts logging. `level` is a level or a filter; a second call changes nothing. Each line is
/// written at once.
pub fn start(level: &str, format: Format) -> Logs {
    let filter = filter_of(std::env::var("RUST_LOG").ok().as_deref(), level);
    let stream = std::env::var("JOURNAL_STREAM").ok();
    let stderr = stderr_meta();
    let which = stderr.as_ref().map(|meta| (meta.dev(), meta.ino()));
    let format = format.decided(stream.as_deref(), which);
    if format == Format::Journald
        && let Ok(journal) = tracing_journald::layer()
    {
        let journal = journal.with_field_prefix(Some(JOURNAL_PREFIX.into()));
        // Failing to start means that somebody, a test most likely, logs already.
        let _ = tracing_subscriber::registry().with(filter).with(journal).try_init();
        return Logs { lines: None };
    }
    let looked_at = std::io::stderr().is_terminal();
    let is_file = stderr.is_some_and(|meta| meta.is_file());
    let bytes_max = if is_file { FILE_BYTES_MAX } else { GATHERED_BYTES_MAX };
    let lines = Arc::new(Lines::new(Box::new(std::io::stderr()), GATHERED_FOR_MAX, bytes_max));
    let written = tracing_subscriber::fmt::layer()
        .with_writer(Writers(lines.clone()))
        .with_ansi(looked_at)
        .with_target(false);
    let registry = tracing_subscriber::registry().with(filter);
    let _ = match format {
        Format::Json => registry.with(written.event_format(Form::Json)).try_init(),
        _ if looked_at => registry.with(written).try_init(),
        _ => registry.with(written.event_format(Form::Plain)).try_init(),
    };
    Logs { lines: (!looked_at).then_some(lines) }
}

/// The filter of the environment, else of the configuration, else of level info: the first of them
/// that can be read.
fn filter_of(environment: Option<&str>, level: &str) -> Targets {
    let texts = environment.into_iter().chain([level]).filter(|text| !text.trim().is_empty());
    let first = texts.filter_map(|text| text.parse().ok()).next();
    first.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO))
}

/// Whether a stream is the one systemd says leads to its journal: `DEVICE:INODE`.
fn leads_to_journal(said: Option<&str>, stream: Option<(u64, u64)>) -> bool {
    let numbers = said.and_then(|said| said.split_once(':'));
    let numbers =
        numbers.and_then(|(device, inode)| Some((device.parse().ok()?, inode.parse().ok()?)));
    numbers.is_some() && numbers == stream
}

fn stderr_meta() -> Option<Metadata> {
    let stderr = std::io::stderr().as_fd().try_clone_to_owned().ok()?;
    File::from(stderr).metadata().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_used_where_standard_error_leads_to_it() {
        let decided = |said, stream| Format::Auto.decided(said, stream);
        assert_eq!(decided(Some("8:1234"), Some((8, 1234))), Format::Journald);
        assert_eq!(decided(Some("8:1234"), Some((8, 99))), Format::Human, "it was redirected");
        assert_eq!(decided(Some("nonsense"), Some((8, 99))), Format::Human);
        assert_eq!(decided(None, None), Format::Human);
        assert_eq!(Format::Json.decided(Some("8:1"), Some((8, 1))), Format::Json);
    }

    #[test]
    fn the_environment_says_what_is_logged_where_it_can_be_read() {
        use tracing::Level;
        let logs = |environment, level, target, at| {
            filter_of(environment, level).would_enable(target, &at)
        };
        assert!(logs(None, "info", "verbatim_server", Level::INFO));
        assert!(!logs(None, "info", "verbatim_server", Level::DEBUG));
        assert!(logs(Some("debug"), "info", "verbatim_server", Level::DEBUG));
        let of_one = Some("warn,verbatim_server=debug");
        assert!(logs(of_one, "info", "verbatim_server::session", Level::DEBUG));
        assert!(!logs(of_one, "info", "verbatim_files", Level::INFO));
        for unreadable in ["", " ", "verbatim_server=loud"] {
            assert!(
                !logs(Some(unreadable), "warn", "verbatim_server", Level::INFO),
                "{unreadable}"
            );
            assert!(logs(Some(unreadable), "nonsense=x", "verbatim_server", Level::INFO));
        }
    }

    #[test]
    fn every_format_has_a_name() {
        assert_eq!(Format::parse("json"), Some(Format::Json));
        assert_eq!(Format::parse("journald"), Some(Format::Journald));
        assert_eq!(Format::parse("xml"), None);
    }
}
