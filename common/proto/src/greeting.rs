//! The greeting: who a client is, with its proof, and what the server grants it. The
//! first message of each side; part of `message`.

use serde::{Deserialize, Serialize};

/// Who a client is, and what it would like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Program and version, for the log.
    pub agent: String,
    /// The public key and its signature over the TLS exporter; none asks to come in without.
    pub proof: Option<Proof>,
    /// The chunk size of this session.
    pub chunk_bytes: u32,
}

/// Proof of a key: only its holder, on this very TLS session, can make it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// The Ed25519 public key.
    pub key: [u8; 32],
    /// Ed25519 over the exporter of the TLS session.
    #[serde(with = "serde_bytes")]
    pub signature: Vec<u8>,
}

/// What a server grants a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Program and version, for the log.
    #[serde(deserialize_with = "crate::text::cleaned")]
    pub agent: String,
    /// Names this session in the server's log.
    pub session: u64,
    /// How many links the client may make.
    pub links_max: u16,
}
