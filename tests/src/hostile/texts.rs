//! What is read as text or as a frame: it is understood or refused, never
//! half of both.

use super::draw::Draw;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use verbatim_client::model::location::Location;
use verbatim_client::model::size::{parse_bytes, show_bytes};
use verbatim_control::{ClientKey, Fingerprint};
use verbatim_proto::chosen::Chosen;
use verbatim_proto::message::{ClientMessage, ServerMessage};
use verbatim_proto::units::{FRAME_BYTES_MAX, PATH_BYTES_MAX};
use verbatim_proto::wire::{PREFIX_BYTES, body_bytes, decode, encode};
use verbatim_proto::{Filter, Pattern, WirePath};
use verbatim_server::config::Config;

/// A frame that is a message is the message that it says, and says nothing else.
pub fn frames(bytes: &[u8]) {
    if let Some(prefix) = bytes.first_chunk::<PREFIX_BYTES>() {
        let _ = body_bytes(*prefix, FRAME_BYTES_MAX);
    }
    again::<ClientMessage>(bytes);
    again::<ServerMessage>(bytes);
}

fn again<M>(bytes: &[u8])
where
    M: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let Ok(message) = decode::<M>(bytes) else { return };
    let frame = encode(&message).expect("what came in a frame fits one");
    assert_eq!(decode::<M>(&frame[PREFIX_BYTES..]), Ok(message));
    let more = [bytes, &[0]].concat();
    assert!(decode::<M>(&more).is_err(), "a byte behind the message was not looked at");
}

/// A path that is taken stays below its root; patterns end.
pub fn paths(bytes: &[u8]) {
    if let Ok(path) = WirePath::parse(bytes) {
        assert!(bytes.len() <= PATH_BYTES_MAX);
        for name in path.names() {
            assert!(!name.is_empty() && name != b"." && name != b"..");
            assert!(!name.contains(&b'/') && !name.contains(&0));
        }
        assert_eq!(WirePath::parse(path.as_bytes()).as_ref(), Ok(&path));
    }
    let _ = Location::parse(OsStr::from_bytes(bytes));
    let _ = Chosen::parse(bytes);
    let mut draw = Draw::new(bytes);
    let (pattern, name) = (draw.bytes(64), draw.bytes(255));
    let _ = Pattern::parse(&pattern).matches(&name);
    if let (Ok(filter), Ok(path)) = (Filter::parse(vec![pattern]), WirePath::parse(&name)) {
        let _ = filter.excludes(&path, true);
    }
}

/// Text of a person or of a file beside us: config, fingerprints, tokens.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(config) = Config::from_toml(text, "fuzz.toml") {
        check_config(&config);
    }
    // Nothing of what was written is left out, and nothing is written in two ways.
    if let Ok(fingerprint) = text.parse::<Fingerprint>() {
        assert_eq!(fingerprint.to_string(), text);
    }
    if let Ok(key) = ClientKey::from_token(text) {
        assert!(*key.to_token() == text, "a token that is another one");
    }
    if let Ok(bytes) = parse_bytes(text) {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        let number: u128 = digits.parse().expect("a size begins with its number");
        let units = [0, 10, 20, 30].map(|shift| number << shift);
        assert!(units.contains(&bytes.into()), "{text} is not {bytes}");
        assert_eq!(parse_bytes(&show_bytes(bytes)), Ok(bytes));
    }
}

/// What was taken can be served as it is.
fn check_config(config: &Config) {
    config.check("fuzz.toml").expect("what was taken is good");
    let mut names = HashSet::new();
    for export in &config.exports {
        let path = WirePath::parse(export.name.as_bytes()).expect("the name of an export is plain");
        assert_eq!(path.names().count(), 1, "it is one name");
        assert!(names.insert(&export.name), "two exports of one name");
        assert!(export.squash_uid != 0 && export.squash_gid != 0, "root is squashed to root");
    }
    assert!((1..=65536).contains(&config.limits.sessions_max), "nobody, or too many");
    assert!((1..=256).contains(&config.worker_count()), "no threads, or too many");
    assert!(config.cache.size_mb > 0, "a cache of nothing");
}
