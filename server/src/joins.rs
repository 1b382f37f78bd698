//! Data connections that are expected: a secret handed out over TLS, and the
//! session that waits for whoever brings it. Each secret works once and not
//! for long. Filled by sessions, emptied by the listener.

use crate::session::Event;
use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use verbatim_control::Sealed;
use verbatim_proto::LinkId;

/// How long a secret may be used.
const SECRET_LIFE: Duration = Duration::from_secs(30);

/// A data connection that brought its secret.
pub(crate) enum Arrived {
    /// As it is.
    Plain(TcpStream),
    /// Inside TLS.
    Sealed(Box<Sealed>),
}

/// The expected data connections of all sessions.
#[derive(Default)]
pub(crate) struct Joins {
    expected: Mutex<HashMap<[u8; 32], Expected>>,
}

struct Expected {
    link: LinkId,
    session: mpsc::Sender<Event>,
    sealed: bool,
    until: Instant,
}

impl Joins {
    /// Expects a connection with this secret, inside TLS or not, and no more one of an earlier
    /// epoch of the link.
    pub fn expect(
        &self,
        secret: [u8; 32],
        link: LinkId,
        session: mpsc::Sender<Event>,
        sealed: bool,
    ) {
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        expected.retain(|_, other| {
            let older = other.link.index == link.index && other.session.same_channel(&session);
            other.until > now && !other.session.is_closed() && !older
        });
        expected.insert(secret, Expected { link, session, sealed, until: now + SECRET_LIFE });
    }

    /// Takes the session that waits for this secret, said inside TLS or not. A secret that comes
    /// the other way than it was meant to is spent.
    pub fn take(&self, secret: &[u8; 32], sealed: bool) -> Option<(LinkId, mpsc::Sender<Event>)> {
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        let found = expected.remove(secret)?;
        (found.until > Instant::now() && found.sealed == sealed)
            .then_some((found.link, found.session))
    }
}
