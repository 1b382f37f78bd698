//! A socket becomes an authenticated stream of messages: TLS 1.3 with a pinned
//! self-signed server, and a client that signs the TLS exporter with its key; or
//! certificates of the user's own authority on either side.
//! `client` calls [`connect`], `server` calls [`Acceptor::accept`]; both then own a
//! [`Sender`] and a [`Receiver`]. Nothing here interprets a message past the
//! greeting, moves data, or touches the terminal.
//!
//! The key files are small and read with blocking calls, once per connection.

#![forbid(unsafe_code)]

mod accept;
mod authority;
mod budget;
mod channel;
mod connect;
mod core_dumps;
mod crypto_provider;
mod data;
mod error;
mod expiry;
mod fingerprint;
mod identity;
mod keys;
mod known;
mod local;
mod outbox;
mod parse_error;
mod private;
mod settings;
mod tls;
mod tokens;
mod trust;

#[cfg(test)]
mod tests;

pub use accept::{Accepted, Acceptor, Policy, Who, check_listen};
pub use authority::{Authority, CertificateFiles, Named};
pub use budget::{Budget, Loan};
pub use channel::{Receiver, Sender};
pub use connect::{ConnectOptions, Connection, connect};
pub use core_dumps::forbid_core_dumps;
pub use data::{Sealed, join_sealed};
pub use error::{ControlError, Distrust, Voucher};
pub use fingerprint::Fingerprint;
pub use identity::ServerIdentity;
pub use keys::{AuthorizedKeys, ClientKey, PublicKey};
pub use known::{Known, KnownServers};
pub use local::LocalDoor;
pub use outbox::{Expected, Outbox, Unread};
pub use parse_error::ParseError;
pub use settings::{ClientSettings, TOKEN_VARIABLE};
pub use tls::SENT_AWAY;
pub use tokens::{Grant, Token, TokenStore, Tokens, unix_now};
pub use trust::Trust;
