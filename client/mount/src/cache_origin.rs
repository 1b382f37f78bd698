//! The server that a cache was filled from. Cache keys contain the server's
//! fingerprint, so an offline mount must know it. An online mount stores it, an offline
//! mount loads it.

use super::MountOptions;
use super::cache::{Cache, Key};
use verbatim_control::Fingerprint;
use verbatim_proto::{Code, Digest, Fault};

/// The kind of cache file that stores the fingerprint.
const KIND: &str = "server";

/// Stores the server of a source. If that fails, the source cannot be mounted offline.
pub(super) fn remember(cache: &Cache, options: &MountOptions, server: &str) {
    if let Err(error) = cache.store_source_fact(KIND, &key(options), server.as_bytes()) {
        tracing::warn!(cause = %error, "this cache cannot be shown without the server");
    }
}

/// Loads the server of a source that was mounted before.
pub(super) fn server(cache: &Cache, options: &MountOptions) -> Result<String, Fault> {
    let stored = cache.load_source_fact(KIND, &key(options)).unwrap_or_default();
    let text = String::from_utf8(stored).unwrap_or_default();
    if text.parse::<Fingerprint>().is_err() {
        let (source, cache) = (&options.name, options.cache.display());
        let text = format!("nothing of {source} is in the cache {cache}");
        return Err(Fault::new(Code::LinkLost, text));
    }
    Ok(text)
}

/// The key that the server of a source is stored under.
fn key(options: &MountOptions) -> Key {
    let source = format!("{} {}", options.remote.peer(), options.remote.path);
    let Digest(value) = Digest::of(source.as_bytes());
    *value.first_chunk().expect("a digest is longer")
}
