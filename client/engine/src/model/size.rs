//! Parses sizes as users write them: a number with an optional K, M or G, in powers of 1,024. Pure;
//! used by flags only.

/// Parses `512K`, `4M`, `1G` or a plain number of bytes. A trailing `B` or `iB` changes nothing.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let bare = text.strip_suffix("iB").or_else(|| text.strip_suffix('B')).unwrap_or(text);
    let (digits, shift) = match bare.char_indices().next_back() {
        Some((cut, 'k' | 'K')) => (&bare[..cut], 10),
        Some((cut, 'm' | 'M')) => (&bare[..cut], 20),
        Some((cut, 'g' | 'G')) => (&bare[..cut], 30),
        _ => (bare, 0),
    };
    let no_size = || format!("{text:?} is no size; write 512K, 4M or 1G");
    let number: u64 = match digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true => digits.parse().map_err(|_| no_size())?,
        false => return Err(no_size()),
    };
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is too large"))
}

/// Formats a size for `parse_bytes`, in the largest unit that divides it.
pub fn show_bytes(bytes: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let fits = units.iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    fits.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_in_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("7", 7),
            ("256K", 256 << 10),
            ("256k", 256 << 10),
            ("1M", 1 << 20),
            ("4MiB", 4 << 20),
            ("10GB", 10 << 30),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
            assert_eq!(parse_bytes(&show_bytes(bytes)), Ok(bytes), "{text}");
        }
        for bad in ["", "K", "-1", "+1", "1.5M", "1T", "1 M", "B", "99999999999G", "\u{e9}"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }
}
