//! Keys of the cache: names are found by path, content by path or, for a file with
//! several hard links, by file, so that it is stored once. The server is part of each
//! key. Pure; used by `content` and `offline_names`.

use super::cache::Key;
use verbatim_client::remote_fs::attributes::Facts;
use verbatim_proto::{Digest, WirePath};

/// The keys of one server, whose fingerprint this is.
pub(crate) struct CacheKeys(pub String);

impl CacheKeys {
    /// The key of a path for one kind of data; the empty kind is its content.
    pub fn of_path(&self, path: &WirePath, what: &str) -> Key {
        let mut bytes = format!("{what}{} ", self.0).into_bytes();
        bytes.extend_from_slice(path.as_bytes());
        let Digest(value) = Digest::of(&bytes);
        *value.first_chunk().expect("a digest is longer")
    }

    /// The key of a file's content.
    pub fn of_content(&self, path: &WirePath, facts: &Facts) -> Key {
        match facts.shared() {
            Some(file) => self.of_path(&WirePath::root(), &format!("file {file} ")),
            None => self.of_path(path, ""),
        }
    }
}
