//! The accept path: limits handshakes, authenticates clients, matches data connections to their
//! sessions, and reloads changed credentials. Never moves a client's data. Stands above limits
//! and observe, below the server.

pub(crate) mod accept;
pub(crate) mod credentials_watch;
pub(crate) mod data_tickets;
pub(crate) mod handshake_limit;
pub(crate) mod listener;
pub(crate) mod refusal_log;
