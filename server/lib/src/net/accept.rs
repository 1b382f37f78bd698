//! Accept path: limits handshakes per address, tells control from data connections by the
//! first byte, authenticates clients, and passes both on, all before one deadline. A data
//! connection whose ticket has already arrived skips the limit. Knows no session: `Host` serves
//! clients. Never calls accept(2) and never ends sessions: `listener` does.

use crate::config::Limits;
use crate::net::credentials_watch::CredentialsWatch;
use crate::net::data_tickets::{DataConnection, DataStream, Tickets};
use crate::net::handshake_limit::{HandshakeLimit, PendingHandshake};
use crate::net::refusal_log::{Refusal, RefusalLog};
use crate::observe::server_stats::ServerStats;
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

/// Bytes read and discarded from a refused connection: more than a TLS ClientHello.
const DISCARDED_BYTES: usize = 4096;

/// How long a connection may be silent while many are pending; otherwise until the handshake
/// deadline. Also the interval of checks whether many are pending.
const CROWDED_SILENCE_MAX: Duration = Duration::from_secs(1);

/// A connection that was just accepted.
pub(crate) enum Incoming {
    /// A data connection with a valid ticket, and the session that expects it.
    Ticketed(EventPort<DataConnection>, DataConnection),
    /// A connection that has not sent its first byte, or not yet a whole ticket.
    Unidentified(TcpStream, SocketAddr, PendingHandshake),
}

/// A client that has authenticated.
pub(crate) struct Remote {
    pub accepted: Accepted,
    pub peer: SocketAddr,
    /// Our address, as the client reached it.
    pub local: Option<IpAddr>,
}

/// Serves the connections that the accept path admits.
pub(crate) trait Host: Send + Sync {
    /// The tickets of data connections that sessions expect.
    fn tickets(&self) -> &Tickets;

    /// Serves a client until its session ends, which a changed policy may cause.
    fn serve(
        &self,
        remote: Remote,
        stopping: watch::Receiver<bool>,
        policies: &watch::Sender<Arc<Policy>>,
    ) -> impl Future<Output = ()> + Send;

    /// Notes the end of a connection, other than one whose ticket came at once.
    fn connection_closed(&self);
}

/// Admission control and authentication of accepted connections.
pub(crate) struct Admission<H> {
    acceptor: Arc<Acceptor>,
    credentials: CredentialsWatch,
    host: H,
    observatory: Arc<ServerStats>,
    handshakes: Arc<HandshakeLimit>,
    refusals: Arc<RefusalLog>,
    started: Instant,
    handshake: Duration,
}

impl<H: Host> Admission<H> {
    /// Makes an accept path without pending connections.
    pub fn new(
        limits: &Limits,
        acceptor: Arc<Acceptor>,
        credentials: CredentialsWatch,
        observatory: Arc<ServerStats>,
        refusals: Arc<RefusalLog>,
        host: H,
    ) -> Arc<Self> {
        let handshakes = HandshakeLimit::new(
            limits.handshakes_per_second,
            limits.handshakes_per_second_per_address,
        );
        Arc::new(Self {
            credentials,
            acceptor,
            host,
            observatory,
            handshakes,
            refusals,
            started: Instant::now(),
            handshake: Duration::from_secs(limits.handshake_seconds.into()),
        })
    }

    /// Classifies a connection. One without a ticket counts as a pending handshake, and is refused
    /// where the limit is reached.
    pub fn admit(&self, stream: TcpStream, peer: SocketAddr) -> Option<Incoming> {
        if let Some((link, session)) = self.host.tickets().peek_ticket(&stream) {
            let stream = DataStream::Plain(stream.into_std().ok()?);
            return Some(Incoming::Ticketed(session, DataConnection { link, stream }));
        }
        match self.handshakes.admit(peer.ip(), self.started.elapsed()) {
            Ok(pending) => Some(Incoming::Unidentified(stream, peer, pending)),
            Err(cause) => {
                self.refuse(&stream, peer, cause);
                None
            }
        }
    }

    /// Refuses a connection: logs it, and tells the peer without blocking.
    fn refuse(&self, stream: &TcpStream, peer: SocketAddr, cause: &str) {
        self.observatory.counters.metrics.entered(Entry::Full);
        if self.refusals.should_log(Refusal::NoRoom) {
            tracing::warn!(%peer, cause, "connection rejected");
            let text = format!("connection rejected: {cause}");
            self.observatory.report_error(peer, Code::Limit, text);
        }
        // Closing a socket with unread bytes sends RST, and the peer loses the refusal: so read
        // first. With system calls, because tokio reports no readiness yet for a new socket.
        let _ = recv(stream, &mut [0; DISCARDED_BYTES], RecvFlags::DONTWAIT);
        let _ = send(stream, &SENT_AWAY, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Serves a connection until it ends.
    pub async fn handle(&self, incoming: Incoming, stopping: watch::Receiver<bool>) {
        match incoming {
            // The send fails where the session has ended: it needs no link.
            Incoming::Ticketed(session, event) => session.send(event).await,
            Incoming::Unidentified(stream, peer, pending) => {
                self.identify(stream, peer, stopping, pending).await;
                self.host.connection_closed();
            }
        }
    }

    /// Tells a client from a data connection, and serves it until it ends. One deadline covers
    /// everything from accept to authentication, whatever the peer sends meanwhile.
    async fn identify(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        stopping: watch::Receiver<bool>,
        mut pending: PendingHandshake,
    ) {
        let deadline = Instant::now() + self.handshake;
        let Some(first) = self.first_byte(&stream, peer, &mut pending, deadline).await else {
            return;
        };
        if first == JOIN_MAGIC[0] {
            let joined = timeout_at(deadline, self.accept_data(stream, &pending)).await;
            drop(pending);
            match joined {
                Ok(Some((session, event))) => session.send(event).await,
                _ if self.refusals.should_log(Refusal::NoTicket) => {
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
        // The other half of the deadline is for the handshake itself.
        let Some(wait) = pending.reserve(self.started.elapsed(), self.handshake / 2) else {
            return self.refuse(&stream, peer, "too many handshakes wait before it");
        };
        tokio::time::sleep(wait).await;
        let accepted = timeout_at(deadline, self.acceptor.accept(stream)).await;
        match accepted.unwrap_or_else(|_| Err(self.timed_out())) {
            Ok(accepted) => {
                drop(pending);
                let remote = Remote { accepted, peer, local };
                self.host.serve(remote, stopping, &self.credentials.policies).await;
            }
            Err(error) => {
                let observatory = &self.observatory;
                observatory.counters.metrics.entered(Entry::Refused);
                if self.refusals.should_log(Refusal::NotAuthenticated) {
                    tracing::warn!(%peer, %error, "client rejected");
                    let text = format!("client rejected: {error}");
                    observatory.report_error(peer, Code::NotAuthenticated, text);
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
        pending: &mut PendingHandshake,
        deadline: Instant,
    ) -> Option<u8> {
        let mut first = [0];
        let began = Instant::now();
        loop {
            let next_check = deadline.min(Instant::now() + CROWDED_SILENCE_MAX);
            let peeked = tokio::select! {
                peeked = timeout_at(next_check, stream.peek(&mut first)) => peeked,
                () = pending.evicted() => {
                    self.refuse(stream, peer, "it sent nothing, and newer connections needed its place");
                    return None;
                }
            };
            match peeked {
                Ok(Ok(1)) if pending.mark_first_byte() => return Some(first[0]),
                // Its first byte arrived just after its eviction.
                Ok(Ok(1)) => self.refuse(
                    stream,
                    peer,
                    "it sent nothing, and newer connections needed its place",
                ),
                Ok(_) => tracing::debug!(%peer, "connection said nothing"),
                Err(_) if Instant::now() >= deadline => {
                    tracing::debug!(%peer, "connection said nothing in time");
                }
                Err(_) if self.handshakes.is_crowded() => {
                    let seconds = began.elapsed().as_secs();
                    tracing::debug!(%peer, seconds, "connection said nothing, and many wait");
                }
                Err(_) => continue,
            }
            return None;
        }
    }

    /// The error for a client that missed the handshake deadline.
    fn timed_out(&self) -> ControlError {
        let what = "the client's greeting".into();
        ControlError::TimedOut { what, seconds: self.handshake.as_secs_f64() }
    }

    /// Reads the ticket of a data connection, and finds its session.
    async fn accept_data(
        &self,
        mut stream: TcpStream,
        pending: &PendingHandshake,
    ) -> Option<(EventPort<DataConnection>, DataConnection)> {
        let mut magic = [0; JOIN_MAGIC.len()];
        stream.read_exact(&mut magic).await.ok()?;
        let (secret, stream) = match magic {
            JOIN_MAGIC => {
                let mut secret = [0; SECRET_BYTES];
                stream.read_exact(&mut secret).await.ok()?;
                (secret, DataStream::Plain(stream.into_std().ok()?))
            }
            SEALED_MAGIC => {
                // This costs a TLS handshake too, so it counts towards the same rate.
                let wait = pending.reserve(self.started.elapsed(), self.handshake / 2)?;
                tokio::time::sleep(wait).await;
                let (sealed, secret) = self.acceptor.accept_data(stream).await.ok()?;
                (secret, DataStream::Sealed(Box::new(sealed)))
            }
            _ => return None,
        };
        let sealed = matches!(stream, DataStream::Sealed(_));
        let (link, session) = self.host.tickets().redeem(&secret, sealed)?;
        Some((session, DataConnection { link, stream }))
    }
}

/// Enables TCP keepalive, so that the kernel detects a dead peer.
fn keep_alive(stream: &TcpStream) -> std::io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(30))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepcnt(stream, 6)?;
    Ok(())
}
