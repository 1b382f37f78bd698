//! When a certificate ends, read from its DER: the second time in its validity
//! (RFC 5280, section 4.1). Pure, bounded by what it is given, and careful: what it
//! does not understand has no end that anybody is told. Asked by `identity`.

/// The time a certificate ends, in seconds since 1970.
pub(crate) fn ends_at(certificate: &[u8]) -> Option<i64> {
    let (_, certificate, _) = element(certificate)?;
    let (_, mut body, _) = element(certificate)?;
    // The version is there if it is not the first, under a tag of its own.
    if let (VERSION, _, behind) = element(body)? {
        body = behind;
    }
    // Serial number, algorithm, issuer.
    for _ in 0..3 {
        (_, _, body) = element(body)?;
    }
    let (_, validity, _) = element(body)?;
    let (_, _, end) = element(validity)?;
    let (tag, time, _) = element(end)?;
    parse_time(tag, time)
}

/// The tag of the version, and of both kinds of time.
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Takes an element apart: its tag, what is in it, and what stands behind it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |len, &digit| len << 8 | usize::from(digit)), rest)
        }
        _ => return None,
    };
    let (inside, behind) = rest.split_at_checked(len)?;
    Some((tag, inside, behind))
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`.
fn parse_time(tag: u8, text: &[u8]) -> Option<i64> {
    let digits = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = digits.split_at_checked(2)?;
            let year: i64 = year.parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = digits.split_at_checked(4)?;
            (year.parse().ok()?, rest)
        }
        _ => return None,
    };
    let part = |at: usize| rest.get(at..at + 2)?.parse::<i64>().ok();
    let (month, day) = (part(0)?, part(2)?);
    let seconds = part(4)? * 3600 + part(6)? * 60 + part(8)?;
    Some(days_since_1970(year, month, day) * 86400 + seconds)
}

/// Days from 1970-01-01; years begin in March here, so that a leap day is their last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let months_since_march = (month + 9) % 12;
    let day_of_year = (153 * months_since_march + 2) / 5 + day - 1;
    let leap_days = year / 4 - year / 100 + year / 400;
    year * 365 + leap_days + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    fn certificate(year: i32, month: u8, day: u8) -> Vec<u8> {
        let key = KeyPair::generate().expect("a key");
        let mut parameters = CertificateParams::new(["a".to_owned()]).expect("a name");
        parameters.not_after = date_time_ymd(year, month, day);
        parameters.self_signed(&key).expect("a certificate").der().to_vec()
    }

    #[test]
    fn the_end_of_a_certificate_is_read_in_both_forms_of_time() {
        for (year, month, day) in [(2027, 3, 1), (2028, 2, 29), (2049, 12, 31), (4096, 1, 1)] {
            let end = date_time_ymd(year, month, day).unix_timestamp();
            assert_eq!(ends_at(&certificate(year, month, day)), Some(end), "{year}");
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        let good = certificate(2027, 3, 1);
        for len in 0..good.len().min(120) {
            assert_eq!(ends_at(&good[..len]), None, "{len} bytes");
        }
        assert_eq!(ends_at(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
