//! Peers that lie, and neighbours that race: a server that wants a client to write where it
//! was not asked to, a client that wants what is not its own, and somebody who swaps names
//! while either of them works. Nothing outside what was meant may be read or written, both
//! must end in time, and whoever is honest is served on.

#![forbid(unsafe_code)]

mod clients;
mod mirrors;
mod races;
mod servers;
mod texts;

use std::path::{Path, PathBuf};

/// Everything below a folder, with what the files hold: to be compared before and after.
fn snapshot(folder: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut seen = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            let kind = entry.file_type().expect("an entry");
            let content = kind.is_file().then(|| std::fs::read(entry.path()).expect("a file"));
            seen.push((entry.path(), content));
            if kind.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    seen.sort();
    seen
}
