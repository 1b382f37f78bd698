//! An event as a line: `TIME LEVEL message name=value …` for people, or an object of
//! JSON, `{"timestamp":…,"level":…,"fields":{…}}`, written straight into the line. A
//! server writes one for every file, and the general ways, which paint every name or
//! build a map, were most of what such a line cost. There are no spans in it, because we
//! have none. Nothing an event says can move a cursor, and only the message of one for
//! people may be more than a line. Used by `logging` alone.

use crate::stamp::write_now;
use std::cell::RefCell;
use std::fmt::{self, Write};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// How an event is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// For people, without colours.
    Plain,
    Json,
}

/// The field that has no name in a line for people.
const MESSAGE: &str = "message";

impl<S, N> FormatEvent<S, N> for Form
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
        LINE.with(|line| match line.try_borrow_mut() {
            Ok(mut line) => {
                line.clear();
                self.write(&mut line, event)?;
                to.write_str(&line)?;
                line.shrink_to(LINE_BYTES_MAX);
                Ok(())
            }
            // Something that is logged logs while it is written.
            Err(_) => {
                let mut line = String::new();
                self.write(&mut line, event)?;
                to.write_str(&line)
            }
        })
    }
}

/// How much of the memory of a line is kept for the next.
const LINE_BYTES_MAX: usize = 4096;

thread_local! {
    /// Where a line is put together: its many small pieces cost less than through what a
    /// formatter is handed, which takes each by way of a table of functions.
    static LINE: RefCell<String> = const { RefCell::new(String::new()) };
}

impl Form {
    /// Writes the line of an event.
    fn write(self, to: &mut String, event: &Event<'_>) -> fmt::Result {
        let level = event.metadata().level().as_str();
        let end = match self {
            Self::Plain => {
                write_now(to)?;
                let indent = if level.len() < "ERROR".len() { "  " } else { " " };
                pieces(to, [indent, level, " "]);
                "\n"
            }
            Self::Json => {
                to.push_str("{\"timestamp\":\"");
                write_now(to)?;
                pieces(to, ["\",\"level\":\"", level, "\",\"fields\":{"]);
                "}}\n"
            }
        };
        let mut fields = Fields { to, form: self, first: true, ended: Ok(()) };
        event.record(&mut fields);
        fields.ended?;
        to.push_str(end);
        Ok(())
    }
}

/// Writes pieces one behind the other: the machinery of formats costs more than what it writes
/// here.
fn pieces<const N: usize>(to: &mut String, pieces: [&str; N]) {
    pieces.into_iter().for_each(|piece| to.push_str(piece));
}

/// The fields of an event, one behind the other.
struct Fields<'w> {
    to: &'w mut String,
    form: Form,
    /// Whether none was written yet.
    first: bool,
    /// How it went so far: a visit cannot fail.
    ended: fmt::Result,
}

impl Fields<'_> {
    /// Writes a field: its name, and its value by `write`.
    fn field(&mut self, field: &Field, write: impl FnOnce(&mut String) -> fmt::Result) {
        let name = field.name();
        let bare = if let [b'r', b'#', ..] = name.as_bytes() { &name[2..] } else { name };
        let first = std::mem::replace(&mut self.first, false);
        match (self.form, name) {
            (Form::Json, _) => pieces(self.to, [if first { "\"" } else { ",\"" }, bare, "\":"]),
            (Form::Plain, MESSAGE) => self.to.push_str(if first { "" } else { " " }),
            (Form::Plain, _) => pieces(self.to, [if first { "" } else { " " }, bare, "="]),
        }
        self.ended = self.ended.and_then(|()| write(self.to));
    }

    /// Writes a field whose value people and machines read alike.
    fn plain(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        self.field(field, |to| to.write_fmt(value));
    }

    /// Writes a field whose value is text between quotes.
    fn quoted(&mut self, field: &Field, write: impl FnOnce(&mut String) -> fmt::Result) {
        self.field(field, |to| {
            to.push('"');
            write(to)?;
            to.push('"');
            Ok(())
        });
    }
}

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match self.form {
            Form::Json => self.quoted(field, |to| write!(Escaped(to), "{value:?}")),
            Form::Plain => {
                let lines = field.name() == MESSAGE;
                self.field(field, |to| write!(Shown { to, lines }, "{value:?}"));
            }
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match (self.form, field.name()) {
            (Form::Json, _) => self.quoted(field, |to| Escaped(to).write_str(value)),
            (Form::Plain, MESSAGE) => self.record_debug(field, &format_args!("{value}")),
            (Form::Plain, _) if is_ordinary(value) => self.quoted(field, |to| to.write_str(value)),
            (Form::Plain, _) => self.record_debug(field, &value),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.field(field, |to| {
            to.push_str(itoa::Buffer::new().format(value));
            Ok(())
        });
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.plain(field, format_args!("{value}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.plain(field, format_args!("{value}"));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no word for the others.
        match value.is_finite() || self.form == Form::Plain {
            true => self.plain(field, format_args!("{value:?}")),
            false => self.plain(field, format_args!("null")),
        }
    }
}

/// Whether all bytes of a text are such. Looks at all of them: that is done many at a time.
fn all(text: &str, is_such: impl Fn(u8) -> bool) -> bool {
    text.bytes().fold(true, |all, byte| all & is_such(byte))
}

/// Whether a text is the same when it is quoted.
fn is_ordinary(text: &str) -> bool {
    all(text, |byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\')
}

/// Writes text so that it cannot move a cursor, nor begin a line unless `lines` may be.
struct Shown<'a, W> {
    to: &'a mut W,
    lines: bool,
}

impl<W: Write> Write for Shown<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if all(text, |byte| matches!(byte, b' '..=b'~')) {
            return self.to.write_str(text);
        }
        text.chars().try_for_each(|letter| match letter {
            '\n' | '\t' if self.lines => self.to.write_char(letter),
            _ if letter.is_control() || is_turn(letter) => {
                write!(self.to, "{}", letter.escape_default())
            }
            _ => self.to.write_char(letter),
        })
    }
}

/// Whether a character turns the direction of what is written behind it, or ends a line for some.
fn is_turn(letter: char) -> bool {
    matches!(
        letter,
        '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// Escapes what is written through it, as the inside of a string of JSON.
struct Escaped<'a, W>(&'a mut W);

impl<W: Write> Write for Escaped<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let is_special = |byte: u8| byte < b' ' || byte == b'"' || byte == b'\\';
        if all(text, |byte| !is_special(byte)) {
            return self.0.write_str(text);
        }
        let mut rest = text;
        while let Some(at) = rest.bytes().position(is_special) {
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
        fn text(&self) -> String {
            let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
            String::from_utf8(bytes).expect("text")
        }

        /// The lines as JSON, without their times.
        fn lines(&self) -> Vec<Value> {
            let line = |line: &str| {
                let mut value: Value = serde_json::from_str(line).expect(line);
                let time = value["timestamp"].take();
                assert!(time.as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
                value
            };
            self.text().lines().map(line).collect()
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
        let subscriber =
            tracing_subscriber::fmt().with_writer(kept.clone()).event_format(Form::Json);
        tracing::subscriber::with_default(subscriber.finish(), || {
            tracing::info!(peer = "b\u{0}\u{1f}", bytes = 7, a = "\r\n\"}\\", "file sent");
        });
        let text = kept.text();
        let fields = r#","level":"INFO","fields":{"message":"file sent","peer":"b\u0000\u001f","bytes":7,"a":"\u000d\u000a\"}\\"}}"#;
        assert!(
            text.starts_with("{\"timestamp\":\"2") && text.ends_with(&format!("{fields}\n")),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1, "a name cannot begin a line");
    }

    #[test]
    fn a_line_for_people_says_what_the_general_way_says() {
        let (ours, general) = (Kept::default(), Kept::default());
        let lines = || {
            let level = tracing::Level::TRACE;
            tracing_subscriber::fmt().with_max_level(level).with_target(false).with_ansi(false)
        };
        let log_some = || {
            let text = "a \"b\" c\\d it's \n \u{e9}\u{1f600}";
            tracing::info!(text, debug = ?text, number = 7_u64, shown = %7, "a message: {text}");
            tracing::warn!(less = -7, part = 0.5, not = f64::NAN, yes = true, "plain");
            tracing::error!(none = None::<u64>, some = Some("x"), r#type = 1, "it failed");
            tracing::debug!(only = "a field");
            tracing::trace!("");
        };
        let subscriber = lines().with_writer(ours.clone()).event_format(Form::Plain).finish();
        tracing::subscriber::with_default(subscriber, log_some);
        let subscriber = lines().with_writer(general.clone()).finish();
        tracing::subscriber::with_default(subscriber, log_some);
        let timeless = |kept: &Kept| {
            let line = |line: &str| match line.split_once("Z ") {
                Some((time, rest)) if time.starts_with('2') => format!("{}Z {rest}", time.len()),
                _ => line.to_owned(),
            };
            kept.text().lines().map(line).collect::<Vec<_>>()
        };
        assert_eq!(timeless(&ours).len(), 6, "the first message has two lines");
        assert_eq!(timeless(&ours), timeless(&general));
    }

    #[test]
    fn a_field_cannot_begin_a_line_nor_move_the_cursor_of_people() {
        let kept = Kept::default();
        let subscriber = tracing_subscriber::fmt().with_writer(kept.clone());
        let subscriber = subscriber.event_format(Form::Plain).finish();
        tracing::subscriber::with_default(subscriber, || {
            let nasty = "a\n2026 ERROR b\u{1b}[2J\u{9b}2J\r\u{7f}";
            tracing::info!(path = %nasty, text = nasty, "a \u{1b}[2Jmessage\r");
        });
        let text = kept.text();
        let said =
            r#"INFO a \u{1b}[2Jmessage\r path=a\n2026 ERROR b\u{1b}[2J\u{9b}2J\r\u{7f} text="a\n"#;
        assert!(text.contains(said), "{text}");
        assert_eq!(text.chars().filter(|letter| letter.is_control()).count(), 1, "{text:?}");
    }

    #[test]
    fn a_line_says_what_the_general_way_says() {
        let (ours, general) = (Kept::default(), Kept::default());
        let lines = || {
            let level = tracing::Level::DEBUG;
            tracing_subscriber::fmt().with_max_level(level).with_target(false)
        };
        let subscriber = lines().with_writer(ours.clone()).event_format(Form::Json).finish();
        tracing::subscriber::with_default(subscriber, log_all);
        let subscriber = lines().with_writer(general.clone()).json().finish();
        tracing::subscriber::with_default(subscriber, log_all);
        assert_eq!(ours.lines().len(), 4);
        assert_eq!(ours.lines(), general.lines());
    }
}
