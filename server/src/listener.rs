//! The server's door: listens, tells TLS from data connections by their first
//! byte, lets clients in, and runs a session for each. Owns the number of
//! sessions and the order of stopping: first no new ones, then the running
//! ones finish, then what is left is ended.

use crate::cache::DigestCache;
use crate::config::{Config, ConfigError};
use crate::doorstep::{Arrival, Doorstep};
use crate::export::{Owner, check_exports};
use crate::hashing::Hashing;
use crate::joins::Joins;
use crate::keyring::{Keyring, Watch};
use crate::observe::{About, Guest, MetricsError, Observatory, Page};
use crate::reach::{ExportFolder, Exports, Reach, Visitor};
use crate::reaper::Reaper;
use crate::session::{Event, SERVER_WATCHES_MAX, Session, Shared};
use crate::worker::ServerWorker;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use verbatim_control::{
    Acceptor, ControlError, Fingerprint, LocalDoor, Outbox, Policy, ServerIdentity, Token,
    check_listen,
};
use verbatim_fabric::sim::SimNet;
use verbatim_fabric::tcp::{JOIN_MAGIC, SECRET_BYTES};
use verbatim_fabric::worker::WorkerHandle;
use verbatim_files::Folder;
use verbatim_proto::message::{ServerMessage, Welcome};
use verbatim_proto::units::is_chunk_size;
use verbatim_proto::{Code, Fault};
use verbatim_telemetry::labels::Entry;

/// What a server is started with, beside its configuration.
#[derive(Default)]
pub struct ServerOptions {
    /// A simulated network to offer links on, for tests.
    pub sim: Option<SimNet>,
    /// The folder whose `sys` shows the devices that people see, if not /.
    pub root: Option<PathBuf>,
    /// Tokens that are let in as long as this server runs, beside those of its file.
    pub tokens: Vec<Token>,
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The configuration is not usable.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// Keys, identity or the address are not usable.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// An export could not be opened.
    #[error("{0}")]
    Export(Fault),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {cause}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        cause: String,
    },
    /// Nobody could watch.
    #[error("{0}")]
    Metrics(#[from] MetricsError),
    /// No worker could be started.
    #[error("{0}")]
    Worker(#[from] verbatim_fabric::FabricError),
}

impl ServerError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Config(error) => error.hint(),
            Self::Control(error) => error.hint(),
            Self::Listen { .. } => {
                Some("another server may run there; give another one with --listen".into())
            }
            Self::Metrics(error) => Some(error.hint()),
            Self::Export(_) | Self::Worker(_) => None,
        }
    }
}

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    acceptor: Arc<Acceptor>,
    keyring: Keyring,
    fingerprint: Fingerprint,
    shared: Arc<Shared>,
    config: Config,
    page: Option<Page>,
    _door: LocalDoor,
}

impl Server {
    /// Opens the exports and the door. Needs a tokio runtime.
    pub async fn bind(config: Config, options: ServerOptions) -> Result<Self, ServerError> {
        verbatim_files::limit::raise_open_files();
        check_exports(&config.exports)?;
        let state = config.state_dir();
        let identity = ServerIdentity::load_or_create(&state)?;
        let keyring = Keyring::new(&config, options.tokens.clone());
        let policy = keyring.policy(&Policy {
            allow_anonymous: config.insecure_no_auth,
            deadline: Duration::from_secs(config.limits.handshake_seconds.into()),
            ..Policy::default()
        })?;
        check_listen(&config.listen, policy.has_keys(), config.insecure_no_auth)?;
        let listen = |error: std::io::Error| ServerError::Listen {
            address: config.listen,
            cause: Fault::from_io("", &error).text.trim_start_matches(": ").to_owned(),
        };
        let page = Page::bind(&config.metrics).await?;
        let shared = Arc::new(share(&config, options)?);
        let socket = bind(config.listen).map_err(listen)?;
        let port = socket.local_addr().map_err(listen)?.port();
        let fingerprint = identity.fingerprint();
        let certificate_end = identity.ends_at().map(|end| end as f64);
        let (door, local) = LocalDoor::publish(&state, port, fingerprint)?;
        let policy = Policy { local: Some(local), ..policy };
        let acceptor = Arc::new(Acceptor::new(&identity, policy)?);
        // Behind the new door: who connects from now on does not come with the key of an old one.
        let listener = socket.listen(BACKLOG).map_err(listen)?;
        let server =
            Self { listener, acceptor, keyring, fingerprint, shared, config, page, _door: door };
        let about = About {
            address: Some(server.address()),
            fingerprint: fingerprint.to_string(),
            certificate_end,
            no_rdma: server.shared.rdma.missing(),
        };
        server.shared.observatory.describe(about);
        Ok(server)
    }

    /// Where metrics and the page are.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.page.as_ref().map(Page::address)
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap_or(self.config.listen)
    }

    /// Who it is.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Serves until `stop` completes, then lets running transfers finish for a while.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let (stopping, _) = watch::channel(false);
        let limits = &self.config.limits;
        let doorstep =
            Doorstep::new(limits.handshakes_per_second, limits.handshakes_per_second_per_address);
        let guests = Arc::new(Guests {
            keys: self.keyring.watch(self.acceptor.clone()),
            acceptor: self.acceptor,
            shared: self.shared,
            places: Arc::new(Semaphore::new(limits.sessions_max as usize)),
            sessions_max: limits.sessions_max,
            doorstep,
            started: Instant::now(),
            next_session: AtomicU64::new(1),
            handshake: Duration::from_secs(self.config.limits.handshake_seconds.into()),
        });
        let keep = Duration::from_secs(u64::from(self.config.uploads.keep_hours) * 3600);
        let place = guests.shared.observatory.clone();
        let mut watching = JoinSet::new();
        watching.spawn(place.clone().watch(guests.shared.clone()));
        if let Some(page) = self.page {
            watching.spawn(page.serve(place.clone(), guests.shared.clone()));
        }
        let _reaper = (!keep.is_zero()).then(|| Reaper::start(guests.shared.clone(), keep));
        let mut sessions = JoinSet::new();
        let drain = Duration::from_secs(self.config.drain_seconds.into());
        let mut ends = None;
        tokio::pin!(stop);
        // While it drains it still takes connections: a session may need another link, and a
        // client that comes now is told why it is sent away.
        while ends.is_none() || !sessions.is_empty() {
            let end = ends.unwrap_or_else(tokio::time::Instant::now);
            let accepted = tokio::select! {
                () = &mut stop, if ends.is_none() => {
                    stopping.send_replace(true);
                    place.drain();
                    ends = Some(tokio::time::Instant::now() + drain);
                    tracing::info!(sessions = sessions.len(), seconds = drain.as_secs(), "draining");
                    continue;
                }
                () = tokio::time::sleep_until(end), if ends.is_some() => {
                    tracing::warn!(sessions = sessions.len(), "sessions ended before they were done");
                    break;
                }
                Some(_) = sessions.join_next() => continue,
                accepted = self.listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "connection not accepted");
                    // Out of descriptors, most likely: let some go first.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let arrival = match guests.doorstep.arrive(peer.ip(), guests.started.elapsed()) {
                Ok(arrival) => arrival,
                Err(cause) => {
                    tracing::warn!(%peer, cause, "connection sent away");
                    place.metrics.entered(Entry::Full);
                    place.trouble(peer, Code::Limit, format!("connection sent away: {cause}"));
                    continue;
                }
            };
            let (guests, stopping) = (guests.clone(), stopping.subscribe());
            sessions.spawn(async move {
                guests.receive(stream, peer, stopping, arrival).await;
            });
        }
        drop(self.listener);
        sessions.shutdown().await;
        tracing::info!("stopped");
    }
}

/// What it takes to receive a connection.
struct Guests {
    acceptor: Arc<Acceptor>,
    keys: Watch,
    shared: Arc<Shared>,
    doorstep: Arc<Doorstep>,
    started: Instant,
    /// For those who have proven who they are.
    places: Arc<Semaphore>,
    sessions_max: u32,
    next_session: AtomicU64,
    handshake: Duration,
}

impl Guests {
    async fn receive(
        &self,
        mut stream: TcpStream,
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
            let joined = tokio::time::timeout(self.handshake, self.join(&mut stream)).await;
            match joined {
                Ok(Some((link, session))) => match stream.into_std() {
                    Ok(stream) => drop(session.send(Event::Joined { link, stream }).await),
                    Err(error) => tracing::warn!(%peer, %error, "data connection lost"),
                },
                _ => tracing::warn!(%peer, "data connection without a valid secret"),
            }
            return;
        }
        if let Err(error) = keep_alive(&stream) {
            tracing::debug!(%peer, %error, "connection cannot be kept alive");
        }
        let local = stream.local_addr().map(|address| address.ip()).ok();
        let Some(wait) = arrival.turn(self.started.elapsed(), self.handshake) else {
            tracing::warn!(%peer, "connection sent away: too many handshakes wait before it");
            self.shared.observatory.metrics.entered(Entry::Full);
            return;
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
        stream: &mut TcpStream,
    ) -> Option<(verbatim_proto::LinkId, tokio::sync::mpsc::Sender<Event>)> {
        let mut magic = [0; JOIN_MAGIC.len()];
        let mut secret = [0; SECRET_BYTES];
        stream.read_exact(&mut magic).await.ok()?;
        stream.read_exact(&mut secret).await.ok()?;
        if magic == JOIN_MAGIC { self.shared.joins.take(&secret) } else { None }
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
        let place = self.places.clone().try_acquire_owned();
        let welcome = if place.is_err() {
            let text =
                format!("the server is full: it has {} sessions; try again", self.sessions_max);
            self.shared.observatory.metrics.entered(Entry::Full);
            self.shared.observatory.trouble(peer, Code::Limit, text.clone());
            tracing::warn!(session = id, %peer, sessions = self.sessions_max, "server is full");
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
        if outbox.push(welcome).is_err() || refused {
            // Whoever asked is gone, or learns why as the connection closes.
            let _ = outbox.close().await;
            return;
        }
        let observatory = &self.shared.observatory;
        observatory.metrics.entered(Entry::Accepted);
        let (name, agent, domain) = (who.to_string(), hello.agent, Arc::default());
        let view = observatory.enter(Guest { id, request, peer, who: name, agent, domain });
        let reach = Reach::of(&self.shared.exports, &Visitor { who: &who, address: peer.ip() });
        let (shared, chunk_bytes) = (self.shared.clone(), hello.chunk_bytes);
        let (session, events) =
            Session::new(shared, outbox, chunk_bytes, local, view, (who, reach));
        session.run(receiver, events, stopping, self.keys.policies.subscribe()).await;
        drop(place);
    }
}

/// Takes an address without listening on it yet; one that a server had a moment ago is free.
fn bind(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

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

fn share(config: &Config, options: ServerOptions) -> Result<Shared, ServerError> {
    let mut exports = Exports::new();
    for export in &config.exports {
        let folder = Arc::new(Folder::open(&export.path).map_err(ServerError::Export)?);
        let rules = export.rules();
        if export.owner == Owner::Client && !rules.give_away {
            let name = &export.name;
            tracing::warn!(name, "owner is client, but only root can give files away");
        }
        let (mode, gate, quota) = (export.mode, export.gate(), export.quota());
        let open = Arc::new(ExportFolder { folder, mode, rules, gate, quota });
        exports.insert(export.name.clone().into_bytes(), open);
    }
    let cache = if config.cache.enabled {
        DigestCache::open(&config.state_dir(), u64::from(config.cache.size_mb) << 20)
    } else {
        DigestCache::disabled()
    };
    let workers = (0..config.worker_count())
        .map(|number| WorkerHandle::spawn(&format!("worker-{number}"), ServerWorker::default()))
        .collect::<Result<Vec<_>, _>>()?;
    let rdma = config.rdma.options();
    rdma.announce(config.exports.iter().map(|export| export.path.as_path()));
    Ok(Shared {
        exports,
        hashing: Hashing::new(cache),
        workers,
        joins: Joins::default(),
        holders: Default::default(),
        next_link: AtomicU64::new(0),
        sim: options.sim,
        rdma,
        observatory: Observatory::new(options.root.unwrap_or_else(|| "/".into())),
        links_max: config.limits.links_per_session_max as u16,
        idle: Duration::from_secs(config.limits.idle_seconds.into()),
        watches: Arc::new(Semaphore::new(SERVER_WATCHES_MAX)),
    })
}
