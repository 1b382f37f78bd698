//! Which server a cache is of: what is kept is found by the server's fingerprint, and a
//! mount that asks no server must know it. Written when a mount begins with a server,
//! read when one begins without.

use super::MountOptions;
use super::cache::{Cache, Key};
use verbatim_control::Fingerprint;
use verbatim_proto::{Code, Digest, Fault};

/// The kind of file that a server is kept in.
const KIND: &str = "server";

/// Notes the server of a source. Where that fails there is nothing to show without it.
pub(super) fn remember(cache: &Cache, options: &MountOptions, server: &str) {
    if let Err(error) = cache.store_source_fact(KIND, &key(options), server.as_bytes()) {
        tracing::warn!(cause = %error, "this cache cannot be shown without the server");
    }
}

/// The server of a source that was mounted before.
pub(super) fn server(cache: &Cache, options: &MountOptions) -> Result<String, Fault> {
    let kept = cache.load_source_fact(KIND, &key(options)).unwrap_or_default();
    let text = String::from_utf8(kept).unwrap_or_default();
    if text.parse::<Fingerprint>().is_err() {
        let (source, cache) = (&options.name, options.cache.display());
        let text = format!("nothing of {source} is in the cache {cache}");
        return Err(Fault::new(Code::LinkLost, text));
    }
    Ok(text)
}

/// What the server of a source is kept under.
fn key(options: &MountOptions) -> Key {
    let source = format!("{} {}", options.remote.peer(), options.remote.path);
    let Digest(value) = Digest::of(source.as_bytes());
    *value.first_chunk().expect("a digest is longer")
}
