//! An event as a line of JSON: `{"timestamp":…,"level":…,"fields":{…}}`, written
//! straight into the line. A server writes one for every file, and the general way,
//! which builds and serializes a map, was most of what such a line cost. There are
//! no spans in it, because we have none. Used by `logging` alone.

use std::fmt::{self, Write};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Writes events as JSON.
pub(crate) struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        to.write_str("{\"timestamp\":\"")?;
        SystemTime.format_time(&mut to)?;
        to.write_str("\",\"level\":\"")?;
        to.write_str(event.metadata().level().as_str())?;
        to.write_str("\",\"fields\":{")?;
        let mut fields = Fields { to: to.by_ref(), before: "", ended: Ok(()) };
        event.record(&mut fields);
        fields.ended?;
        to.write_str("}}\n")
    }
}

/// The fields of an event, one behind the other.
struct Fields<'w> {
    to: Writer<'w>,
    /// What stands before the next.
    before: &'static str,
    /// How it went so far: a visit cannot fail.
    ended: fmt::Result,
}

impl Fields<'_> {
    /// Writes a field: its name, and its value by `write`. Piece by piece, because the machinery of
    /// formats costs more than what it writes here.
    fn field(&mut self, field: &Field, write: impl FnOnce(&mut Writer<'_>) -> fmt::Result) {
        let name = field.name();
        let pieces = [self.before, "\"", name.strip_prefix("r#").unwrap_or(name), "\":"];
        let mut written = Ok(());
        for piece in pieces {
            written = written.and_then(|()| self.to.write_str(piece));
        }
        self.before = ",";
        self.ended = self.ended.and(written).and_then(|()| write(&mut self.to));
    }

    /// Writes a field whose value is JSON as it is.
    fn plain(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        self.field(field, |to| to.write_fmt(value));
    }

    /// Writes a field whose value is text.
    fn text(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        self.field(field, |to| {
            to.write_char('"')?;
            Escaped(&mut *to).write_fmt(value)?;
            to.write_char('"')
        });
    }
}

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field, format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.field(field, |to| {
            to.write_char('"')?;
            Escaped(&mut *to).write_str(value)?;
            to.write_char('"')
        });
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.plain(field, format_args!("{value}"));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.plain(field, format_args!("{value}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.plain(field, format_args!("{value}"));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no word for the others.
        match value.is_finite() {
            true => self.plain(field, format_args!("{value:?}")),
            false => self.plain(field, format_args!("null")),
        }
    }
}

/// Escapes what is written through it, as the inside of a string of JSON.
struct Escaped<'a, W>(&'a mut W);

impl<W: Write> Write for Escaped<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        let is_special = |letter: char| letter < ' ' || letter == '"' || letter == '\\';
        while let Some(at) = rest.find(is_special) {
            let (plain, behind) = rest.split_at(at);
            self.0.write_str(plain)?;
            // All of these are one byte long.
            let (special, behind) = behind.split_at(1);
            match special {
                "\"" => self.0.write_str("\\\"")?,
                "\\" => self.0.write_str("\\\\")?,
                _ => write!(self.0, "\\u{:04x}", special.as_bytes()[0])?,
            }
            rest = behind;
        }
        self.0.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::io;
    use std::sync::{Arc, Mutex, PoisonError};
    use tracing_subscriber::fmt::MakeWriter;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Kept {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    impl Kept {
        /// The lines as JSON, without their times.
        fn lines(&self) -> Vec<Value> {
            let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let text = String::from_utf8(bytes).expect("text");
            let line = |line: &str| {
                let mut value: Value = serde_json::from_str(line).expect(line);
                let time = value["timestamp"].take();
                assert!(time.as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
                value
            };
            text.lines().map(line).collect()
        }
    }

    fn log_all() {
        let nasty = "a \"b\" \\ \n\t\u{1b}[2J \u{e9}\u{1f600} \u{7f}";
        let error = io::Error::other(nasty);
        tracing::info!(%nasty, text = nasty, debug = ?nasty, number = 7_u64, "a {nasty} message");
        tracing::warn!(less = -7, part = 0.5, whole = 2.0, not = f64::NAN, yes = true, "plain");
        tracing::error!(%error, none = None::<u64>, some = Some("x"), r#type = 1, "it failed");
        tracing::debug!("");
    }

    #[test]
    fn fields_are_in_the_order_they_were_given_and_the_message_first() {
        let kept = Kept::default();
        let subscriber = tracing_subscriber::fmt().with_writer(kept.clone()).event_format(Json);
        tracing::subscriber::with_default(subscriber.finish(), || {
            tracing::info!(peer = "b\u{0}\u{1f}", bytes = 7, a = "\r\n\"}\\", "file sent");
        });
        let bytes = kept.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let text = String::from_utf8(bytes).expect("text");
        let fields = r#","level":"INFO","fields":{"message":"file sent","peer":"b\u0000\u001f","bytes":7,"a":"\u000d\u000a\"}\\"}}"#;
        assert!(
            text.starts_with("{\"timestamp\":\"2") && text.ends_with(&format!("{fields}\n")),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1, "a name cannot begin a line");
    }

    #[test]
    fn a_line_says_what_the_general_way_says() {
        let (ours, general) = (Kept::default(), Kept::default());
        let lines = || {
            let level = tracing::Level::DEBUG;
            tracing_subscriber::fmt().with_max_level(level).with_target(false)
        };
        let subscriber = lines().with_writer(ours.clone()).event_format(Json).finish();
        tracing::subscriber::with_default(subscriber, log_all);
        let subscriber = lines().with_writer(general.clone()).json().finish();
        tracing::subscriber::with_default(subscriber, log_all);
        assert_eq!(ours.lines().len(), 4);
        assert_eq!(ours.lines(), general.lines());
    }
}
