//! Tickets for data connections: a secret sent to the client over TLS, and the session that
//! expects a connection with it. Each ticket works once and expires after `TICKET_LIFETIME`.
//! Sessions issue tickets; the accept path redeems them.

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

/// How long a ticket is valid.
const TICKET_LIFETIME: Duration = Duration::from_secs(30);

/// The stream of a data connection whose ticket was redeemed.
pub(crate) enum DataStream {
    /// Plain TCP.
    Plain(TcpStream),
    /// Inside TLS.
    Sealed(Box<Sealed>),
}

/// A data connection, for the session that expects it.
pub(crate) struct DataConnection {
    pub link: LinkId,
    pub stream: DataStream,
}

/// The unredeemed tickets of all sessions.
#[derive(Default)]
pub(crate) struct Tickets {
    tickets: Mutex<HashMap<[u8; 32], Ticket>>,
}

struct Ticket {
    link: LinkId,
    session: EventPort<DataConnection>,
    sealed: bool,
    expires_at: Instant,
}

impl Tickets {
    /// Issues a ticket for a connection with this secret, inside TLS or not. Revokes tickets for
    /// earlier epochs of the link.
    pub fn issue(
        &self,
        secret: [u8; 32],
        link: LinkId,
        session: EventPort<DataConnection>,
        sealed: bool,
    ) {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        tickets.retain(|_, other| {
            let older = other.link.index == link.index && other.session.same_queue(&session);
            other.expires_at > now && !other.session.is_closed() && !older
        });
        tickets.insert(secret, Ticket { link, session, sealed, expires_at: now + TICKET_LIFETIME });
    }

    /// Redeems a ticket. One that arrives inside TLS but was issued for plain TCP, or the other
    /// way round, is void.
    pub fn redeem(
        &self,
        secret: &[u8; 32],
        sealed: bool,
    ) -> Option<(LinkId, EventPort<DataConnection>)> {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let found = tickets.remove(secret)?;
        (found.expires_at > Instant::now() && found.sealed == sealed)
            .then_some((found.link, found.session))
    }
    /// Redeems the ticket of a connection that has sent it already, and consumes these bytes. Never
    /// blocks; leaves any other bytes unread.
    pub fn peek_ticket(&self, stream: impl AsFd) -> Option<(LinkId, EventPort<DataConnection>)> {
        let mut said = [0; JOIN_MAGIC.len() + SECRET_BYTES];
        let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let (heard, _) = recv(&stream, &mut said, peek).ok()?;
        let secret = said[..heard].strip_prefix(&JOIN_MAGIC)?.try_into().ok()?;
        let found = self.redeem(&secret, false)?;
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

    fn tickets_with(link: LinkId, sealed: bool) -> (Tickets, mpsc::Receiver<DataConnection>) {
        let (queue, events) = mpsc::channel(1);
        let session = EventPort::of(&queue);
        let tickets = Tickets::default();
        tickets.issue(SECRET, link, session, sealed);
        (tickets, events)
    }

    #[test]
    fn a_connection_that_has_said_its_secret_is_known_at_a_glance() {
        let link = LinkId { index: 3, epoch: 1 };
        let (tickets, _events) = tickets_with(link, false);
        let (mut client, mut server) = UnixStream::pair().unwrap();
        assert!(tickets.peek_ticket(&server).is_none(), "it said nothing");
        client.write_all(&JOIN_MAGIC).unwrap();
        client.write_all(&SECRET[1..]).unwrap();
        assert!(tickets.peek_ticket(&server).is_none(), "a byte is missing");
        client.write_all(&SECRET[..1]).unwrap();
        client.write_all(b"data").unwrap();
        assert_eq!(tickets.peek_ticket(&server).map(|(found, _)| found), Some(link));
        let mut rest = [0; 4];
        server.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"data", "what follows the secret is for the link");
        client.write_all(&[&JOIN_MAGIC[..], &SECRET].concat()).unwrap();
        assert!(tickets.peek_ticket(&server).is_none(), "a secret works once");
    }

    #[test]
    fn who_is_not_expected_loses_nothing_by_a_glance() {
        let (tickets, _events) = tickets_with(LinkId { index: 0, epoch: 0 }, true);
        let words: [Vec<u8>; 3] = [
            [&JOIN_MAGIC[..], &[8; SECRET_BYTES]].concat(),
            [&JOIN_MAGIC[..], &SECRET].concat(),
            vec![0x16; JOIN_MAGIC.len() + SECRET_BYTES],
        ];
        for said in words {
            let (mut client, mut server) = UnixStream::pair().unwrap();
            client.write_all(&said).unwrap();
            assert!(tickets.peek_ticket(&server).is_none(), "{said:?}");
            let mut heard = vec![0; said.len()];
            server.read_exact(&mut heard).unwrap();
            assert_eq!(heard, said);
        }
    }
}
