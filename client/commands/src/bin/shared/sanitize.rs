//! Text of the other side, made harmless before it is printed: a server names files
//! and causes, and a terminal obeys escape sequences.

/// Makes text of the other side harmless to a terminal.
pub fn clean(text: &str) -> String {
    verbatim_proto::text::clean(text).into_owned()
}
