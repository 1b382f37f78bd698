//! The time of a line of the log, `2026-11-16T01:02:03.456789Z`. Owns the text of the
//! second that each thread wrote last, because a date costs more than the rest of a line,
//! and lines come thousands a second. Never shows another second than the clock's, which
//! may be set back. Used by `event` alone.

use std::cell::RefCell;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime as Library};

/// A second since 1970, and its text up to the point before its parts.
struct Second {
    number: u64,
    text: String,
}

thread_local! {
    static LAST: RefCell<Second> = const {
        RefCell::new(Second { number: u64::MAX, text: String::new() })
    };
}

/// Writes the time it is.
pub(crate) fn write_now(to: &mut String) -> fmt::Result {
    let (number, micros) = now();
    LAST.with(|last| match last.try_borrow_mut() {
        Ok(mut last) => {
            if last.number != number {
                return write_new(&mut last, number, to);
            }
            to.push_str(&last.text);
            to.push_str(std::str::from_utf8(&parts(micros)).unwrap_or_default());
            Ok(())
        }
        Err(_) => Library.format_time(&mut Writer::new(to)),
    })
}

/// Writes the time it is as the library does, and keeps its second, if that was `number`
/// before and after: then the text is of that one.
fn write_new(last: &mut Second, number: u64, to: &mut String) -> fmt::Result {
    let mut text = String::new();
    Library.format_time(&mut Writer::new(&mut text))?;
    to.push_str(&text);
    if now().0 == number
        && let Some((second, _)) = text.split_once('.')
    {
        *last = Second { number, text: second.to_owned() };
    }
    Ok(())
}

/// The second it is, and its microseconds. A clock before 1970 has none that is kept.
fn now() -> (u64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or((u64::MAX - 1, 0), |since| (since.as_secs(), since.subsec_micros()))
}

/// The parts of a second as text, six digits of them, and what stands around them.
fn parts(micros: u32) -> [u8; 8] {
    let (mut text, mut rest) = (*b".000000Z", micros);
    for digit in text[1..7].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> String {
        let mut text = String::new();
        write_now(&mut text).expect("a time");
        text
    }

    #[test]
    fn it_is_the_time_the_library_writes() {
        let library = || {
            let mut text = String::new();
            Library.format_time(&mut Writer::new(&mut text)).expect("a time");
            text
        };
        // Twice, because the second time is of the same second, but for once in a long while.
        for _ in 0..2 {
            let (before, ours, after) = (library(), written(), library());
            assert!(before <= ours && ours <= after, "{before} {ours} {after}");
            assert_eq!(ours.len(), "2026-11-16T01:02:03.456789Z".len());
        }
    }

    #[test]
    fn another_second_is_not_written_as_the_last() {
        LAST.with(|last| {
            let mut last = last.borrow_mut();
            *last = Second { number: now().0 - 1, text: "1999-01-01T00:00:00".into() };
        });
        assert!(written().starts_with('2'));
    }

    #[test]
    fn parts_of_a_second_have_six_digits() {
        assert_eq!(parts(0), *b".000000Z");
        assert_eq!(parts(42), *b".000042Z");
        assert_eq!(parts(999_999), *b".999999Z");
    }
}
