//! What is read as text or as a frame: it is understood or refused, never
//! half of both.

use super::draw::Draw;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use verbatim_client::location::Location;
use verbatim_control::{ClientKey, Fingerprint};
use verbatim_proto::chosen::Chosen;
use verbatim_proto::message::{ClientMessage, ServerMessage};
use verbatim_proto::units::PATH_BYTES_MAX;
use verbatim_proto::wire::{PREFIX_BYTES, body_bytes, decode, encode};
use verbatim_proto::{Filter, Pattern, WirePath};
use verbatim_server::config::Config;

/// A frame that is a message is the message that it says, and says nothing else.
pub fn frames(bytes: &[u8]) {
    if let Some(prefix) = bytes.first_chunk::<PREFIX_BYTES>() {
        let _ = body_bytes(*prefix);
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
        let _ = config.check("fuzz.toml");
    }
    if let Ok(fingerprint) = text.parse::<Fingerprint>() {
        assert_eq!(fingerprint.to_string().parse(), Ok(fingerprint));
    }
    if let Ok(key) = ClientKey::from_token(text) {
        assert_eq!(
            ClientKey::from_token(&key.to_token()).map(|key| key.public()),
            Ok(key.public())
        );
    }
    let _ = verbatim_client::size::parse_bytes(text);
}
