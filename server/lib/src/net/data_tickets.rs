//! Data connections that are expected: a secret handed out over TLS, and the
//! session that waits for whoever brings it. Each secret works once and not
//! for long. Filled by sessions, emptied by the listener.

use rustix::net::{RecvFlags, recv};
use std::collections::HashMap;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use verbatim_control::Sealed;
use verbatim_fabric::tcp::{JOIN_MAGIC, SECRET_BYTES};
use verbatim_proto::LinkId;
use verbatim_serve::EventPort;

/// How long a secret may be used.
const SECRET_LIFE: Duration = Duration::from_secs(30);

/// A data connection that brought its secret.
pub(crate) enum Arrived {
    /// As it is.
    Plain(TcpStream),
    /// Inside TLS.
    Sealed(Box<Sealed>),
}

/// A data connection that was made, for the session that waits for it.
pub(crate) struct Joined {
    pub link: LinkId,
    pub arrived: Arrived,
}

/// The expected data connections of all sessions.
#[derive(Default)]
pub(crate) struct Joins {
    expected: Mutex<HashMap<[u8; 32], Expected>>,
}

struct Expected {
    link: LinkId,
    session: EventPort<Joined>,
    sealed: bool,
    until: Instant,
}

impl Joins {
    /// Expects a connection with this secret, inside TLS or not, and no more one of an earlier
    /// epoch of the link.
    pub fn expect(&self, secret: [u8; 32], link: LinkId, session: EventPort<Joined>, sealed: bool) {
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        expected.retain(|_, other| {
            let older = other.link.index == link.index && other.session.same_queue(&session);
            other.until > now && !other.session.is_closed() && !older
        });
        expected.insert(secret, Expected { link, session, sealed, until: now + SECRET_LIFE });
    }

    /// Takes the session that waits for this secret, said inside TLS or not. A secret that comes
    /// the other way than it was meant to is spent.
    pub fn take(&self, secret: &[u8; 32], sealed: bool) -> Option<(LinkId, EventPort<Joined>)> {
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        let found = expected.remove(secret)?;
        (found.until > Instant::now() && found.sealed == sealed)
            .then_some((found.link, found.session))
    }
    /// Takes the session that waits for a connection which has said its secret already, and what
    /// it said. Never waits; what else was said is left for who asks.
    pub fn glance(&self, stream: impl AsFd) -> Option<(LinkId, EventPort<Joined>)> {
        let mut said = [0; JOIN_MAGIC.len() + SECRET_BYTES];
        let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let (heard, _) = recv(&stream, &mut said, peek).ok()?;
        let secret = said[..heard].strip_prefix(&JOIN_MAGIC)?.try_into().ok()?;
        let found = self.take(&secret, false)?;
        recv(&stream, &mut said, RecvFlags::DONTWAIT).ok()?;
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use tokio::sync::mpsc;

    const SECRET: [u8; SECRET_BYTES] = [7; SECRET_BYTES];

    fn expecting(link: LinkId, sealed: bool) -> (Joins, mpsc::Receiver<Joined>) {
        let (queue, events) = mpsc::channel(1);
        let session = EventPort::of(&queue);
        let joins = Joins::default();
        joins.expect(SECRET, link, session, sealed);
        (joins, events)
    }

    #[test]
    fn a_connection_that_has_said_its_secret_is_known_at_a_glance() {
        let link = LinkId { index: 3, epoch: 1 };
        let (joins, _events) = expecting(link, false);
        let (mut client, mut server) = UnixStream::pair().unwrap();
        assert!(joins.glance(&server).is_none(), "it said nothing");
        client.write_all(&JOIN_MAGIC).unwrap();
        client.write_all(&SECRET[1..]).unwrap();
        assert!(joins.glance(&server).is_none(), "a byte is missing");
        client.write_all(&SECRET[..1]).unwrap();
        client.write_all(b"data").unwrap();
        assert_eq!(joins.glance(&server).map(|(found, _)| found), Some(link));
        let mut rest = [0; 4];
        server.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"data", "what follows the secret is for the link");
        client.write_all(&[&JOIN_MAGIC[..], &SECRET].concat()).unwrap();
        assert!(joins.glance(&server).is_none(), "a secret works once");
    }

    #[test]
    fn who_is_not_expected_loses_nothing_by_a_glance() {
        let (joins, _events) = expecting(LinkId { index: 0, epoch: 0 }, true);
        let words: [Vec<u8>; 3] = [
            [&JOIN_MAGIC[..], &[8; SECRET_BYTES]].concat(),
            [&JOIN_MAGIC[..], &SECRET].concat(),
            vec![0x16; JOIN_MAGIC.len() + SECRET_BYTES],
        ];
        for said in words {
            let (mut client, mut server) = UnixStream::pair().unwrap();
            client.write_all(&said).unwrap();
            assert!(joins.glance(&server).is_none(), "{said:?}");
            let mut heard = vec![0; said.len()];
            server.read_exact(&mut heard).unwrap();
            assert_eq!(heard, said);
        }
    }
}
