//! Those who come to the door: each connection waits on the doorstep, is told to
//! be a client or a data connection by its first byte, proves who it is, and gets
//! a session. A data connection whose secret came with it goes straight in. Owns
//! the number of sessions and their numbers. Never accepts a connection itself and
//! never stops the server: `listener` does.

use crate::config::Limits;
use crate::doorstep::{Arrival, Doorstep};
use crate::joins::Arrived;
use crate::keyring::Watch;
use crate::observe::Guest;
use crate::reach::{Reach, Visitor};
use crate::session::{Event, Session, Shared};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use verbatim_control::{Acceptor, Outbox, SENT_AWAY};
use verbatim_fabric::tcp::{JOIN_MAGIC, SEALED_MAGIC, SECRET_BYTES};
use verbatim_proto::message::{ServerMessage, Welcome};
use verbatim_proto::units::is_chunk_size;
use verbatim_proto::{Code, Fault};
use verbatim_telemetry::labels::Entry;

/// What is read of a connection that is sent away: more than a greeting of TLS.
const FIRST_WORDS_BYTES: usize = 4096;

/// Who came to the door.
pub(crate) enum Caller {
    /// A data connection, and the session that waits for it.
    Expected(mpsc::Sender<Event>, Event),
    /// Nobody knows yet.
    Stranger(TcpStream, SocketAddr, Arrival),
}

/// What it takes to receive a connection.
pub(crate) struct Guests {
    acceptor: Arc<Acceptor>,
    keys: Watch,
    shared: Arc<Shared>,
    doorstep: Arc<Doorstep>,
    started: Instant,
    sessions_max: u32,
    next_session: AtomicU64,
    handshake: Duration,
}

impl Guests {
    /// Nobody is here yet.
    pub fn new(
        limits: &Limits,
        acceptor: Arc<Acceptor>,
        keys: Watch,
        shared: Arc<Shared>,
    ) -> Arc<Self> {
        let doorstep =
            Doorstep::new(limits.handshakes_per_second, limits.handshakes_per_second_per_address);
        Arc::new(Self {
            keys,
            acceptor,
            shared,
            sessions_max: limits.sessions_max,
            doorstep,
            started: Instant::now(),
            next_session: AtomicU64::new(1),
            handshake: Duration::from_secs(limits.handshake_seconds.into()),
        })
    }

    /// Looks who came. Who has not said whose it is takes room on the doorstep; if there is
    /// none, nobody came.
    pub fn arrive(&self, stream: TcpStream, peer: SocketAddr) -> Option<Caller> {
        if let Some((link, session)) = self.shared.joins.glance(&stream) {
            let arrived = Arrived::Plain(stream.into_std().ok()?);
            return Some(Caller::Expected(session, Event::Joined { link, arrived }));
        }
        match self.doorstep.arrive(peer.ip(), self.started.elapsed()) {
            Ok(arrival) => Some(Caller::Stranger(stream, peer, arrival)),
            Err(cause) => {
                self.send_away(&stream, peer, cause);
                None
            }
        }
    }

    /// Says that there is no room, here and to who came: as far as that costs nothing.
    fn send_away(&self, stream: &TcpStream, peer: SocketAddr, cause: &str) {
        tracing::warn!(%peer, cause, "connection sent away");
        let place = &self.shared.observatory;
        place.metrics.entered(Entry::Full);
        place.trouble(peer, Code::Limit, format!("connection sent away: {cause}"));
        // What it said is read: a connection that ends with something unread is cut at once, and
        // what it was told is lost with it. By the system itself, because the runtime knows nothing
        // yet of a connection that just came, and would do neither.
        let _ = recv(stream, &mut [0; FIRST_WORDS_BYTES], RecvFlags::DONTWAIT);
        let _ = send(stream, &SENT_AWAY, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Serves who came until it is over.
    pub async fn receive(&self, caller: Caller, stopping: watch::Receiver<bool>) {
        match caller {
            // A session that is over needs no link.
            Caller::Expected(session, event) => drop(session.send(event).await),
            Caller::Stranger(stream, peer, arrival) => {
                self.ask(stream, peer, stopping, arrival).await;
            }
        }
    }

    /// Finds out what a connection is, and serves it until it is over.
    async fn ask(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        stopping: watch::Receiver<bool>,
        arrival: Arrival,
    ) {
        let mut first = [0];
        let peeked = tokio::time::timeout(self.handshake, stream.peek(&mut first)).await;
        if !matches!(peeked, Ok(Ok(1))) {
            tracing::debug!(%peer, "connection said nothing");
            return;
        }
        if first[0] == JOIN_MAGIC[0] {
            let joined = tokio::time::timeout(self.handshake, self.join(stream, &arrival)).await;
            drop(arrival);
            match joined {
                Ok(Some((session, event))) => drop(session.send(event).await),
                _ => tracing::warn!(%peer, "data connection without a valid secret"),
            }
            return;
        }
        if let Err(error) = keep_alive(&stream) {
            tracing::debug!(%peer, %error, "connection cannot be kept alive");
        }
        let local = stream.local_addr().map(|address| address.ip()).ok();
        let Some(wait) = arrival.turn(self.started.elapsed(), self.handshake) else {
            return self.send_away(&stream, peer, "too many handshakes wait before it");
        };
        tokio::time::sleep(wait).await;
        match self.acceptor.accept(stream).await {
            Ok(accepted) => {
                drop(arrival);
                self.serve(accepted, peer, local, stopping).await;
            }
            Err(error) => {
                tracing::warn!(%peer, %error, "client not let in");
                let place = &self.shared.observatory;
                place.metrics.entered(Entry::Refused);
                place.trouble(peer, Code::NotAuthenticated, format!("client not let in: {error}"));
            }
        }
    }

    /// Reads what a data connection begins with, and finds its session.
    async fn join(
        &self,
        mut stream: TcpStream,
        arrival: &Arrival,
    ) -> Option<(mpsc::Sender<Event>, Event)> {
        let mut magic = [0; JOIN_MAGIC.len()];
        stream.read_exact(&mut magic).await.ok()?;
        let (secret, arrived) = match magic {
            JOIN_MAGIC => {
                let mut secret = [0; SECRET_BYTES];
                stream.read_exact(&mut secret).await.ok()?;
                (secret, Arrived::Plain(stream.into_std().ok()?))
            }
            SEALED_MAGIC => {
                // A handshake, and so it waits for its turn as those of clients do.
                let wait = arrival.turn(self.started.elapsed(), self.handshake)?;
                tokio::time::sleep(wait).await;
                let (sealed, secret) = self.acceptor.accept_data(stream).await.ok()?;
                (secret, Arrived::Sealed(Box::new(sealed)))
            }
            _ => return None,
        };
        let sealed = matches!(arrived, Arrived::Sealed(_));
        let (link, session) = self.shared.joins.take(&secret, sealed)?;
        Some((session, Event::Joined { link, arrived }))
    }

    async fn serve(
        &self,
        accepted: verbatim_control::Accepted,
        peer: SocketAddr,
        local: Option<IpAddr>,
        stopping: watch::Receiver<bool>,
    ) {
        let verbatim_control::Accepted { sender, receiver, hello, who, request } = accepted;
        let id = self.next_session.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        tracing::info!(session = id, request, %peer, %who, agent = hello.agent, "session began");
        let outbox = Outbox::new(sender, self.shared.idle);
        let shares = &self.shared.shares;
        let sessions = shares.of(&who.to_string(), peer.ip()).sessions.clone();
        let place = sessions.take(1);
        let welcome = if place.is_none() {
            let (all, own) = (self.sessions_max, sessions.has());
            let text = match shares.sessions.left() {
                0 => format!("the server is full: it has {all} sessions; try again"),
                _ => format!("this client has {own} of the server's {all} sessions; try again"),
            };
            self.shared.observatory.metrics.entered(Entry::Full);
            self.shared.observatory.trouble(peer, Code::Limit, text.clone());
            tracing::warn!(session = id, %peer, cause = text, "no room for a session");
            ServerMessage::Refused(Fault::new(Code::Limit, text))
        } else if is_chunk_size(hello.chunk_bytes) {
            let agent = concat!("rdma-serve ", env!("CARGO_PKG_VERSION")).to_owned();
            let links_max = self.shared.links_max;
            ServerMessage::Welcome(Welcome { agent, session: id, links_max })
        } else {
            let text = format!("{} is no chunk size", hello.chunk_bytes);
            ServerMessage::Refused(Fault::new(Code::Protocol, text))
        };
        let refused = matches!(welcome, ServerMessage::Refused(_));
        if outbox.push(&welcome).is_err() || refused {
            // Whoever asked is gone, or learns why as the connection closes.
            let _ = outbox.close().await;
            return;
        }
        let observatory = &self.shared.observatory;
        observatory.metrics.entered(Entry::Accepted);
        let reach = Reach::of(&self.shared.exports, &Visitor { who: &who, address: peer.ip() });
        let (name, agent, domain) = (who.to_string(), hello.agent, Arc::default());
        let discreet = reach.discreet();
        let guest = Guest { id, request, peer, who: name, agent, domain, discreet };
        let view = observatory.enter(guest);
        let (shared, chunk_bytes) = (self.shared.clone(), hello.chunk_bytes);
        let (session, events) =
            Session::new(shared, outbox, chunk_bytes, local, view, (who, reach));
        session.run(receiver, events, stopping, self.keys.policies.subscribe()).await;
        drop(place);
    }
}

/// Has the kernel notice a peer that is gone without a word.
fn keep_alive(stream: &TcpStream) -> std::io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(30))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepcnt(stream, 6)?;
    Ok(())
}
