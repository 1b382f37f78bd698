//! Durations as users write and read them: `30d`, `12h`. Pure; flags and token lists use
//! it.

/// Parses a duration into seconds: a number followed by s, m, h, d or w.
pub fn parse(text: &str) -> Result<u64, String> {
    let invalid = || format!("{text:?} is not a duration; write 90m, 12h or 30d");
    let unit = text.chars().next_back().ok_or_else(invalid)?;
    let (_, seconds) = UNITS.iter().find(|(letter, _)| *letter == unit).ok_or_else(invalid)?;
    let digits = &text[..text.len() - unit.len_utf8()];
    let count: u64 = match digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true => digits.parse().map_err(|_| invalid())?,
        false => return Err(invalid()),
    };
    let span = count.checked_mul(*seconds).filter(|span| (1..=SECONDS_MAX).contains(span));
    span.ok_or_else(|| format!("{text:?} is not between a second and a hundred years"))
}

/// Formats seconds in the two largest units: `29d 23h`.
pub fn show(seconds: u64) -> String {
    let mut left = seconds;
    let mut parts = Vec::new();
    for (letter, unit) in UNITS.iter().rev().filter(|(letter, _)| *letter != 'w') {
        if left >= *unit || (*letter == 's' && parts.is_empty()) {
            parts.push(format!("{}{letter}", left / unit));
            left %= unit;
        }
    }
    parts.truncate(2);
    parts.join(" ")
}

/// Units and their seconds, the smallest first.
const UNITS: [(char, u64); 5] =
    [('s', 1), ('m', 60), ('h', 3600), ('d', 24 * 3600), ('w', 7 * 24 * 3600)];

/// The longest duration: a hundred years.
const SECONDS_MAX: u64 = 100 * 366 * 24 * 3600;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_nonsense_is_not() {
        for (text, seconds) in [("90s", 90), ("2m", 120), ("1h", 3600), ("30d", 2_592_000)] {
            assert_eq!(parse(text), Ok(seconds));
        }
        assert_eq!(parse("1w"), parse("7d"));
        for bad in ["", "d", "30", "-1d", "1.5h", "3x", "0s", "99999999999d", "9\u{e9}"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn spans_are_shown_in_two_units() {
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (61, "1m 1s"), (3600, "1h"), (2_588_400, "29d 23h")]
        {
            assert_eq!(show(seconds), text);
        }
    }
}
