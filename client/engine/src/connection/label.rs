//! Labels of entries in messages: the name of the tree as the user wrote it, and the path below it.
//! Labels are for people; the ledger keys items by path.

use std::fmt::Write;
use verbatim_proto::WirePath;

/// The label of the entry at `path` below the tree that `base` names.
pub fn label_of(base: &str, path: &WirePath) -> String {
    if path.is_root() {
        return base.to_owned();
    }
    let base = base.trim_end_matches('/');
    let mut label = String::with_capacity(base.len() + 1 + path.as_bytes().len());
    // Writing to a string does not fail.
    let _ = write!(label, "{base}/{path}");
    label
}
