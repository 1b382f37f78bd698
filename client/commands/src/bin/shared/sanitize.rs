//! Sanitises text of the other side before it is printed: a server chooses file names
//! and error texts, and a terminal obeys escape sequences.

/// Escapes control characters, so that text is harmless to a terminal.
pub fn clean(text: &str) -> String {
    verbatim_proto::text::clean(text).into_owned()
}
