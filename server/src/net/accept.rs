//! Accept path: each connection waits on the doorstep, is told to be a client or a
//! data connection by its first byte, proves who it is, and gets a session; all of
//! it before one deadline. A data connection whose secret came with it goes straight
//! in. Owns the number of sessions and their numbers. Never accepts a connection
//! itself and never stops the server: `server` does.

use crate::config::Limits;
use crate::exports::client_view::{Reach, Visitor};
use crate::net::credentials_watch::Watch;
use crate::net::data_tickets::Arrived;
use crate::net::handshake_limit::{Arrival, Doorstep};
use crate::net::refusal_log::{Refusal, Refusals};
use crate::observe::session_stats::Guest;
use crate::session::{Event, Session, Shared};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};
use verbatim_control::{Accepted, Acceptor, ControlError, Outbox, SENT_AWAY};
use verbatim_fabric::tcp::{JOIN_MAGIC, SEALED_MAGIC, SECRET_BYTES};
use verbatim_proto::message::{ServerMessage, Welcome};
use verbatim_proto::units::is_chunk_size;
use verbatim_proto::{Code, Fault};
use verbatim_telemetry::labels::Entry;

/// What is read of a connection that is sent away: more than a greeting of TLS.
const FIRST_WORDS_BYTES: usize = 4096;

/// How long a connection may be silent where the doorstep is crowded; elsewhere as long as it may
/// take to prove who it is. Also how often it is looked whether it is crowded.
const SILENCE_WHERE_CROWDED: Duration = Duration::from_secs(1);

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
    refusals: Arc<Refusals>,
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
            refusals: Arc::default(),
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
        self.shared.observatory.counters.metrics.entered(Entry::Full);
        if self.refusals.is_logged(Refusal::SentAway) {
            tracing::warn!(%peer, cause, "connection sent away");
            let text = format!("connection sent away: {cause}");
            self.shared.observatory.trouble(peer, Code::Limit, text);
        }
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
                self.shared.trimmer.left();
            }
        }
    }

    /// Finds out what a connection is, and serves it until it is over. From accept to authenticated
    /// there is one deadline, whatever the connection sends meanwhile.
    async fn ask(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        stopping: watch::Receiver<bool>,
        mut arrival: Arrival,
    ) {
        let deadline = Instant::now() + self.handshake;
        let Some(first) = self.first_byte(&stream, peer, &mut arrival, deadline).await else {
            return;
        };
        if first == JOIN_MAGIC[0] {
            let joined = timeout_at(deadline, self.join(stream, &arrival)).await;
            drop(arrival);
            match joined {
                Ok(Some((session, event))) => drop(session.send(event).await),
                _ if self.refusals.is_logged(Refusal::NoSecret) => {
                    tracing::warn!(%peer, "data connection without a valid secret");
                }
                _ => {}
            }
            return;
        }
        if let Err(error) = keep_alive(&stream) {
            tracing::debug!(%peer, %error, "connection cannot be kept alive");
        }
        let local = stream.local_addr().map(|address| address.ip()).ok();
        // The other half is for the handshake itself.
        let Some(wait) = arrival.turn(self.started.elapsed(), self.handshake / 2) else {
            return self.send_away(&stream, peer, "too many handshakes wait before it");
        };
        tokio::time::sleep(wait).await;
        let accepted = timeout_at(deadline, self.acceptor.accept(stream)).await;
        match accepted.unwrap_or_else(|_| Err(self.late())) {
            Ok(accepted) => {
                drop(arrival);
                self.serve(accepted, peer, local, stopping).await;
            }
            Err(error) => {
                let place = &self.shared.observatory;
                place.counters.metrics.entered(Entry::Refused);
                if self.refusals.is_logged(Refusal::NotLetIn) {
                    tracing::warn!(%peer, %error, "client not let in");
                    let text = format!("client not let in: {error}");
                    place.trouble(peer, Code::NotAuthenticated, text);
                }
            }
        }
    }

    /// Waits for the first byte of a connection, and leaves it unread. None if the connection was
    /// silent for too long, was closed, or was evicted for another one.
    async fn first_byte(
        &self,
        stream: &TcpStream,
        peer: SocketAddr,
        arrival: &mut Arrival,
        deadline: Instant,
    ) -> Option<u8> {
        let mut first = [0];
        let began = Instant::now();
        loop {
            let look = deadline.min(Instant::now() + SILENCE_WHERE_CROWDED);
            let heard = tokio::select! {
                heard = timeout_at(look, stream.peek(&mut first)) => heard,
                () = arrival.sent_away() => {
                    self.send_away(stream, peer, "it was silent, and others came");
                    return None;
                }
            };
            match heard {
                Ok(Ok(1)) if arrival.spoke() => return Some(first[0]),
                // Its byte came just after it was evicted.
                Ok(Ok(1)) => self.send_away(stream, peer, "it was silent, and others came"),
                Ok(_) => tracing::debug!(%peer, "connection said nothing"),
                Err(_) if Instant::now() >= deadline => {
                    tracing::debug!(%peer, "connection said nothing in time");
                }
                Err(_) if self.doorstep.is_crowded() => {
                    let seconds = began.elapsed().as_secs();
                    tracing::debug!(%peer, seconds, "connection said nothing, and many wait");
                }
                Err(_) => continue,
            }
            return None;
        }
    }

    /// Why a client that took too long is not let in.
    fn late(&self) -> ControlError {
        let what = "the client's greeting".into();
        ControlError::TimedOut { what, seconds: self.handshake.as_secs_f64() }
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
                let wait = arrival.turn(self.started.elapsed(), self.handshake / 2)?;
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
        accepted: Accepted,
        peer: SocketAddr,
        local: Option<IpAddr>,
        stopping: watch::Receiver<bool>,
    ) {
        let Accepted { sender, receiver, hello, who, request } = accepted;
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
            self.shared.observatory.counters.metrics.entered(Entry::Full);
            if self.refusals.is_logged(Refusal::NoSession) {
                self.shared.observatory.trouble(peer, Code::Limit, text.clone());
                tracing::warn!(session = id, %peer, cause = text, "no room for a session");
            }
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
        observatory.counters.metrics.entered(Entry::Accepted);
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
