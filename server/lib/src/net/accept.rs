//! Accept path: limits handshakes per address, tells clients from data connections by the
//! first byte, authenticates clients, and hands both on, all of it before one deadline. A
//! data connection whose secret came with it goes straight in. Knows no session: `Host`
//! serves clients. Never accepts a connection itself and never stops the server: `server`
//! does.

use crate::config::Limits;
use crate::net::credentials_watch::Watch;
use crate::net::data_tickets::{Arrived, Joined, Joins};
use crate::net::handshake_limit::{Arrival, Doorstep};
use crate::net::refusal_log::{Refusal, Refusals};
use crate::observe::observatory::Observatory;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use verbatim_control::{Accepted, Acceptor, ControlError, Policy, SENT_AWAY};
use verbatim_fabric::tcp::{JOIN_MAGIC, SEALED_MAGIC, SECRET_BYTES};
use verbatim_proto::Code;
use verbatim_serve::EventPort;
use verbatim_telemetry::labels::Entry;

/// What is read of a connection that is sent away: more than a greeting of TLS.
const FIRST_WORDS_BYTES: usize = 4096;

/// How long a connection may be silent where the doorstep is crowded; elsewhere as long as it may
/// take to prove who it is. Also how often it is looked whether it is crowded.
const SILENCE_WHERE_CROWDED: Duration = Duration::from_secs(1);

/// Who came to the door.
pub(crate) enum Caller {
    /// A data connection, and the session that waits for it.
    Expected(EventPort<Joined>, Joined),
    /// Nobody knows yet.
    Stranger(TcpStream, SocketAddr, Arrival),
}

/// A client that has authenticated.
pub(crate) struct Remote {
    pub accepted: Accepted,
    pub peer: SocketAddr,
    /// Our address, as the client reached it.
    pub local: Option<IpAddr>,
}

/// Serves what the accept path lets in.
pub(crate) trait Host: Send + Sync {
    /// The data connections that sessions expect.
    fn tickets(&self) -> &Joins;

    /// Serves a client until its session is over. The policy says whether it may stay.
    fn serve(
        &self,
        remote: Remote,
        stopping: watch::Receiver<bool>,
        policies: &watch::Sender<Arc<Policy>>,
    ) -> impl Future<Output = ()> + Send;

    /// Hears that a connection is over, other than one that brought its ticket at once.
    fn left(&self);
}

/// What it takes to receive a connection.
pub(crate) struct Guests<H> {
    acceptor: Arc<Acceptor>,
    keys: Watch,
    host: H,
    observatory: Arc<Observatory>,
    doorstep: Arc<Doorstep>,
    refusals: Arc<Refusals>,
    started: Instant,
    handshake: Duration,
}

impl<H: Host> Guests<H> {
    /// Nobody is here yet.
    pub fn new(
        limits: &Limits,
        acceptor: Arc<Acceptor>,
        keys: Watch,
        observatory: Arc<Observatory>,
        refusals: Arc<Refusals>,
        host: H,
    ) -> Arc<Self> {
        let doorstep =
            Doorstep::new(limits.handshakes_per_second, limits.handshakes_per_second_per_address);
        Arc::new(Self {
            keys,
            acceptor,
            host,
            observatory,
            doorstep,
            refusals,
            started: Instant::now(),
            handshake: Duration::from_secs(limits.handshake_seconds.into()),
        })
    }

    /// Looks who came. Who has not said whose it is takes room on the doorstep; if there is
    /// none, nobody came.
    pub fn arrive(&self, stream: TcpStream, peer: SocketAddr) -> Option<Caller> {
        if let Some((link, session)) = self.host.tickets().glance(&stream) {
            let arrived = Arrived::Plain(stream.into_std().ok()?);
            return Some(Caller::Expected(session, Joined { link, arrived }));
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
        self.observatory.counters.metrics.entered(Entry::Full);
        if self.refusals.is_logged(Refusal::SentAway) {
            tracing::warn!(%peer, cause, "connection sent away");
            let text = format!("connection sent away: {cause}");
            self.observatory.trouble(peer, Code::Limit, text);
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
            Caller::Expected(session, event) => session.send(event).await,
            Caller::Stranger(stream, peer, arrival) => {
                self.ask(stream, peer, stopping, arrival).await;
                self.host.left();
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
                Ok(Some((session, event))) => session.send(event).await,
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
                let remote = Remote { accepted, peer, local };
                self.host.serve(remote, stopping, &self.keys.policies).await;
            }
            Err(error) => {
                let place = &self.observatory;
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
    ) -> Option<(EventPort<Joined>, Joined)> {
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
        let (link, session) = self.host.tickets().take(&secret, sealed)?;
        Some((session, Joined { link, arrived }))
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
