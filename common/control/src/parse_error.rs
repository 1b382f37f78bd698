//! Why a text that a user gave is no key, token or fingerprint. Every kind of text that
//! this crate parses fails with it.

/// Why a text is not what it should be; never quotes the text, which may be a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a {what}: {cause}")]
pub struct ParseError {
    /// What was expected.
    pub what: &'static str,
    /// What is wrong with it.
    pub cause: &'static str,
}
