//! A server: opens the exports of its configuration, binds its port, starts its tasks, and
//! serves until it is stopped. Owns the order of stopping: `net::listener` ends the sessions,
//! then the monitoring tasks end, then quotas are saved.

use crate::config::export::{Export, check_exports};
use crate::config::{Config, ConfigError, Metrics, Tls, User};
use crate::exports::digest_cache::DigestCache;
use crate::exports::open::open_exports;
use crate::exports::quota::{QuotaSaver, QuotaUsage};
use crate::exports::stale_uploads::UploadCleaner;
use crate::exports::window_digests::WindowDigests;
use crate::limits::client_limits::{HASHED_WALKS_MAX, ServerLimits};
use crate::limits::rate::RateLimits;
use crate::net::accept::Admission;
use crate::net::credentials_watch::CredentialFiles;
use crate::net::data_tickets::Tickets;
use crate::net::listener::{ShutdownMode, accept_until, bind_port};
use crate::net::refusal_log::RefusalLog;
use crate::observe::http::Page;
use crate::observe::server_stats::{MetricsError, ServerInfo, ServerStats};
use crate::rdma::devices::Devices;
use crate::rdma::rails::Rdma;
use crate::rdma_setup::rails_of;
use crate::sandbox::check_user;
use crate::session::{Services, SessionHost};
use crate::worker::Worker;
use crate::worker::chunk_store::ChunkStore;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use verbatim_control::{
    Acceptor, Authority, ControlError, Fingerprint, LocalDoor, Policy, ServerIdentity, Token,
    check_listen,
};
use verbatim_fabric::sim::SimNet;
use verbatim_fabric::worker::WorkerHandle;
use verbatim_proto::Fault;

/// What a server is started with, beside its configuration.
#[derive(Default)]
pub struct ServerOptions {
    /// A simulated network to offer links on, for tests.
    pub sim: Option<SimNet>,
    /// The folder whose `sys` shows the devices that people see, if not /.
    pub root: Option<PathBuf>,
    /// A socket that is bound to the address already, by `bind_port`.
    pub port: Option<TcpStream>,
    /// Devices that are open already.
    pub devices: Arc<Devices>,
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
    /// The port of metrics could not be bound.
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
            Self::Metrics(error) => Some(format!("{}, or --metrics off", error.hint())),
            Self::Export(_) | Self::Worker(_) => None,
        }
    }
}

/// A server at work; ends when it has stopped.
pub type Serving<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    acceptor: Arc<Acceptor>,
    credential_files: CredentialFiles,
    fingerprint: Fingerprint,
    services: Arc<Services>,
    config: Config,
    page: Option<Page>,
    _door: LocalDoor,
}

impl Server {
    /// Opens the exports and the door. Needs a tokio runtime.
    pub async fn bind(config: Config, mut options: ServerOptions) -> Result<Self, ServerError> {
        check_exports(&config.exports)?;
        let state = config.state_dir();
        let (identity, authority) = certificates(&config)?;
        let credential_files = CredentialFiles::new(&config, options.tokens.clone());
        let policy = credential_files.policy(&Policy {
            allow_anonymous: config.insecure_no_auth,
            deadline: Duration::from_secs(config.limits.handshake_seconds.into()),
            ..Policy::default()
        })?;
        let has_keys = policy.has_keys() || authority.is_some();
        check_listen(&config.listen, has_keys, config.insecure_no_auth)?;
        let listen = |error: std::io::Error| ServerError::Listen {
            address: config.listen,
            cause: Fault::from_io("", &error).text.trim_start_matches(": ").to_owned(),
        };
        let page = Page::bind(&config.metrics).await?;
        let port = options.port.take();
        let port = port.map_or_else(|| bind_port(config.listen), Ok).map_err(listen)?;
        let services = Arc::new(share(&config, options)?);
        let socket = TcpSocket::from_std_stream(port);
        let port = socket.local_addr().map_err(listen)?.port();
        let fingerprint = identity.fingerprint();
        let certificate_end = identity.ends_at().map(|end| end as f64);
        let (door, local) = LocalDoor::publish(&state, port, fingerprint)?;
        let policy = Policy { local: Some(local), ..policy };
        let acceptor = Acceptor::with_authority(&identity, authority.as_ref(), policy)?;
        let acceptor = Arc::new(acceptor);
        // Behind the new door: who connects from now on does not come with the key of an old one.
        let listener = socket.listen(BACKLOG).map_err(listen)?;
        let server = Self {
            listener,
            acceptor,
            credential_files,
            fingerprint,
            services,
            config,
            page,
            _door: door,
        };
        let about = ServerInfo {
            address: Some(server.address()),
            fingerprint: fingerprint.to_string(),
            certificate_end,
            no_rdma: server.services.rdma.unavailable(),
        };
        server.services.observatory.set_info(about);
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

    /// The fingerprint of its certificate.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Serves until `stop` completes, then lets running transfers finish for a while.
    pub fn run<'a>(self, stop: impl Future<Output = ()> + Send + 'a) -> Serving<'a> {
        self.run_until(async {
            stop.await;
            ShutdownMode::Drain
        })
    }

    /// Serves until `stop` says how to end.
    pub fn run_until<'a>(
        self,
        stop: impl Future<Output = ShutdownMode> + Send + 'a,
    ) -> Serving<'a> {
        self.serve(Box::pin(stop))
    }

    /// The same, boxed: so this crate compiles the sessions, and not each program that serves.
    fn serve<'a>(
        self,
        stop: Pin<Box<dyn Future<Output = ShutdownMode> + Send + 'a>>,
    ) -> Serving<'a> {
        Box::pin(self.serve_until(stop))
    }

    async fn serve_until(self, stop: Pin<Box<dyn Future<Output = ShutdownMode> + Send + '_>>) {
        let keys = self.credential_files.watch(self.acceptor.clone());
        let keep = Duration::from_secs(u64::from(self.config.uploads.keep_hours) * 3600);
        let place = self.services.observatory.clone();
        let refusals = Arc::<RefusalLog>::default();
        let limits = &self.config.limits;
        let host = SessionHost::new(self.services.clone(), refusals.clone(), limits.sessions_max);
        let admission = Admission::new(limits, self.acceptor, keys, place.clone(), refusals, host);
        let mut watching = JoinSet::new();
        let quotas = self.services.exports.values().filter_map(|export| export.quota.clone());
        let written = self.services.written.clone();
        let quota_saver = QuotaSaver::start(quotas.collect(), self.config.state_dir(), written);
        let watched = Arc::new(self.services.watched());
        watching.spawn(place.clone().watch(watched.clone(), self.config.exports.clone()));
        let services = self.services.clone();
        let let_go = move || {
            services.exports.values().for_each(|export| export.folder.forget_old_parents());
        };
        watching.spawn(self.services.trimmer.clone().run(let_go));
        if let Some(page) = self.page {
            watching.spawn(page.serve(place.clone(), watched));
        }
        let _upload_cleaner =
            (!keep.is_zero()).then(|| UploadCleaner::start(self.services.exports.clone(), keep));
        let drain = Duration::from_secs(self.config.drain_seconds.into());
        accept_until(self.listener, admission, stop, drain, || place.drain()).await;
        watching.shutdown().await;
        quota_saver.stop().await;
        tracing::info!("stopped");
    }
}

/// Checks a configuration without starting a server: folders, users, keys and certificates exist
/// and are readable, and no client is admitted without authentication by mistake.
pub fn check(config: &Config) -> Result<(), ServerError> {
    if config.exports.is_empty() {
        return Err(ConfigError::NoExports.into());
    }
    check_exports(&config.exports)?;
    if !config.user.is_empty() {
        check_user(&User::find(&config.user)?, config)?;
    }
    let own = config.tls.cert.as_os_str().is_empty() && config.tls.key.as_os_str().is_empty();
    let authority = if own {
        authority(config)?
    } else {
        // A certificate and the key of another are each good.
        let (identity, authority) = certificates(config)?;
        Acceptor::with_authority(&identity, authority.as_ref(), Policy::default())?;
        authority
    };
    let policy = CredentialFiles::new(config, Vec::new()).policy(&Policy::default())?;
    let has_keys = policy.has_keys() || authority.is_some();
    Ok(check_listen(&config.listen, has_keys, config.insecure_no_auth)?)
}

/// Checks that the address of metrics can be bound, where it was set.
pub async fn check_metrics(metrics: &Metrics) -> Result<(), ServerError> {
    if metrics.is_asked_for() {
        Page::bind(metrics).await?;
    }
    Ok(())
}

/// The server's certificate, and the authority that signs client certificates.
fn certificates(config: &Config) -> Result<(ServerIdentity, Option<Authority>), ControlError> {
    let given = |path: &PathBuf| (!path.as_os_str().is_empty()).then(|| path.clone());
    let Tls { cert, key, .. } = &config.tls;
    let identity = match (given(cert), given(key)) {
        (Some(cert), Some(key)) => ServerIdentity::load(&cert, &key)?,
        (None, None) => ServerIdentity::load_or_create(&config.state_dir())?,
        _ => {
            return Err(ControlError::Local {
                what: "cannot show a certificate".into(),
                cause: "of tls.cert and tls.key only one is set".into(),
                hint: Some("set both, or neither".into()),
            });
        }
    };
    Ok((identity, authority(config)?))
}

/// The authority that signs client certificates, if one is configured.
fn authority(config: &Config) -> Result<Option<Authority>, ControlError> {
    let path = &config.tls.client_ca;
    (!path.as_os_str().is_empty()).then(|| Authority::load(path)).transpose()
}

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// What all sessions of a server with this configuration share.
pub(crate) fn share(config: &Config, options: ServerOptions) -> Result<Services, ServerError> {
    let written = match config.exports.iter().any(Export::has_quota) {
        true => QuotaUsage::load(&config.state_dir())?,
        false => QuotaUsage::default(),
    };
    let exports = open_exports(&config.exports, &written).map_err(ServerError::Export)?;
    let cache = if config.cache.enabled {
        DigestCache::open(&config.state_dir(), u64::from(config.cache.size_mb) << 20)
    } else {
        DigestCache::disabled()
    };
    let workers = (0..config.worker_count())
        .map(|number| {
            WorkerHandle::spawn(&format!("worker-{number}"), Worker::new(ChunkStore::default()))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let rdma = Rdma { devices: options.devices, ..rails_of(&config.rdma) };
    rdma.announce(config.exports.iter().map(|export| export.path.as_path()));
    Ok(Services {
        exports,
        written,
        hashing: Arc::new(WindowDigests::new(cache)),
        shares: ServerLimits::new(&config.limits, verbatim_files::limit::raise_open_files()),
        surveys: Default::default(),
        bare: Default::default(),
        workers,
        device_workers: config.device_worker_count(),
        joins: Tickets::default(),
        locks: Default::default(),
        // Without them owners keep their numbers.
        accounts: verbatim_files::accounts::Accounts::read().unwrap_or_default(),
        next_link: AtomicU64::new(0),
        sim: options.sim,
        rdma,
        observatory: ServerStats::new(options.root.unwrap_or_else(|| "/".into())),
        paces: RateLimits::new(
            config.limits.client_mb_per_second,
            config.limits.name_mb_per_second,
        ),
        links_max: config.limits.links_per_session_max as u16,
        idle: Duration::from_secs(config.limits.idle_seconds.into()),
        hashed_walks: Arc::new(Semaphore::new(HASHED_WALKS_MAX)),
        trimmer: Arc::default(),
    })
}
