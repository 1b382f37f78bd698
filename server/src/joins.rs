//! Data connections that are expected: a secret handed out over TLS, and the
//! session that waits for whoever brings it. Each secret works once and not
//! for long. Filled by sessions, emptied by the listener.

use crate::session::Event;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use verbatim_proto::LinkId;

/// How long a secret may be used.
const SECRET_LIFE: Duration = Duration::from_secs(30);

/// The expected data connections of all sessions.
#[derive(Default)]
pub(crate) struct Joins {
    expected: Mutex<HashMap<[u8; 32], Expected>>,
}

struct Expected {
    link: LinkId,
    session: mpsc::Sender<Event>,
    until: Instant,
}

impl Joins {
    /// Expects a connection with this secret.
    pub fn expect(&self, secret: [u8; 32], link: LinkId, session: mpsc::Sender<Event>) {
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        expected.retain(|_, other| other.until > now && !other.session.is_closed());
        expected.insert(secret, Expected { link, session, until: now + SECRET_LIFE });
    }

    /// Takes the session that waits for this secret.
    pub fn take(&self, secret: &[u8; 32]) -> Option<(LinkId, mpsc::Sender<Event>)> {
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        let found = expected.remove(secret)?;
        (found.until > Instant::now()).then_some((found.link, found.session))
    }
}
