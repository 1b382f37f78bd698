//! Which server a cache is of: what is kept is found by the server's fingerprint, and a
//! mount that asks no server must know it. Written when a mount begins with a server,
//! read when one begins without.

use super::MountOptions;
use super::cache::Cache;
use verbatim_control::Fingerprint;
use verbatim_proto::{Code, Digest, Fault};

/// Notes the server of a source. Where that fails there is nothing to show without it.
pub(super) fn note(cache: &Cache, options: &MountOptions, server: &str) {
    if let Err(error) = std::fs::write(cache.folder().join(name(options)), server) {
        tracing::warn!(cause = %error, "this cache cannot be shown without the server");
    }
}

/// The server of a source that was mounted before.
pub(super) fn server(cache: &Cache, options: &MountOptions) -> Result<String, Fault> {
    let text = std::fs::read_to_string(cache.folder().join(name(options))).unwrap_or_default();
    if text.parse::<Fingerprint>().is_err() {
        let (source, cache) = (&options.name, options.cache.display());
        let text = format!("nothing of {source} is in the cache {cache}");
        return Err(Fault::new(Code::LinkLost, text));
    }
    Ok(text)
}

fn name(options: &MountOptions) -> String {
    let source = format!("{} {}", options.remote.peer(), options.remote.path);
    let Digest(value) = Digest::of(source.as_bytes());
    format!("server-{}", value[..8].iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}
