//! `rdma-serve`: reads flags and the configuration, starts the server, says
//! where it listens, and stops on SIGTERM, SIGINT or SIGHUP. Everything else is the
//! library's.

#![forbid(unsafe_code)]
#![allow(rustdoc::broken_intra_doc_links)] // flags are documented for --help

mod keeper;
mod rdma;
mod share;
#[path = "../shared/mod.rs"]
mod shared;

use clap::Parser;
use shared::complain;
use std::ffi::OsString;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use verbatim_server::config::duration;
use verbatim_server::config::export::{ExportSpec, Mode};
use verbatim_server::config::{Config, ConfigError, METRICS_OFF, Metrics, User};
use verbatim_server::sandbox::{RulesetStatus, become_user, confine, give_up_capabilities};
use verbatim_server::{
    Devices, FILE_THREADS_MAX, Server, ServerError, ServerOptions, ShutdownMode, bind_port,
};
use verbatim_telemetry::notify::Notifier;
use verbatim_telemetry::{Format, Gathering};
use verbatim_usage::out;

/// How long jobs that nobody waits for any more may go on when it stops.
const LAST_JOBS_MAX: std::time::Duration = std::time::Duration::from_secs(2);

/// Export folders to rdma-cp and rdma-sync.
///
/// Every chunk a client reads or writes is verified with BLAKE3. Without other
/// configuration it listens on 127.0.0.1:20490, and clients of the same user on
/// this machine are let in by a key only that user can read.
///
/// Exit codes: 0 stopped by SIGTERM or SIGINT, 1 cannot start, 2 bad usage or
/// configuration.
#[derive(Parser)]
#[command(name = "rdma-serve", version, max_term_width = 100)]
struct Flags {
    /// Export a folder: [NAME=]PATH[:ro|:rw].
    ///
    /// NAME is the folder's own name unless given. Clients reach it as
    /// HOST:/NAME/... . Read-only unless :rw, or --rw, says otherwise.
    #[arg(value_name = "EXPORT")]
    exports: Vec<OsString>,

    /// Make exports writable unless they say :ro.
    #[arg(long)]
    rw: bool,

    /// Listen on this address and port [default: 127.0.0.1:20490].
    ///
    /// Port 0 takes a free one. Any address but loopback needs a key or token that
    /// may come in (authorized_keys, rdma-token add) or --insecure-no-auth.
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,

    /// Read the configuration from FILE [default: /etc/verbatim/rdma-serve.toml if it is there].
    ///
    /// configs/rdma-serve.toml shows every key at its default. Flags win over it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Look whether a server could be started with all this, say so, and exit.
    ///
    /// Nothing is made, opened to others or listened on. 0 where it could, 2 with the
    /// reason where not.
    #[arg(long)]
    check_config: bool,

    /// Keep identity, keys and the digest cache in DIR [default: $XDG_STATE_HOME/verbatim].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Show metrics and a page on this address and port, or off [default: 127.0.0.1:9469].
    ///
    /// /metrics is for Prometheus, / for people, /readyz for load balancers. It is
    /// plain HTTP for whoever can reach it. Port 0 takes a free one.
    #[arg(long, value_name = "ADDR:PORT|off", value_parser = metrics_listen)]
    metrics: Option<String>,

    /// Share a folder for an hour: print the one line to paste on the other machine.
    ///
    /// [NAME=]PATH[:ro|:rw]. Listens on all addresses unless told otherwise, and makes a
    /// token for this folder alone that ends with this server, or after --share-for.
    /// Who has the line has the folder: hand it on as you would a password.
    #[arg(long, value_name = "EXPORT")]
    share: Option<OsString>,

    /// Let the line of --share be used for this long [default: 1h].
    ///
    /// A number with s, m, h, d or w behind it.
    #[arg(long, value_name = "TIME", requires = "share", value_parser = duration::parse)]
    share_for: Option<u64>,

    /// Become this user once the port is open.
    ///
    /// For a server that is started as root. Its groups are taken as well, and no
    /// capability is kept, so exports whose owner is "client" are refused, unless the
    /// configuration says keep_chown. State is in the user's home unless --state says
    /// otherwise.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,

    /// Read the configuration anew at SIGHUP.
    ///
    /// A parent stays that gives up no rights and serves nobody, and starts the server as
    /// its child, anew when the configuration is good, so exports can be added anywhere.
    /// Sessions end then; rdma-cp and rdma-sync come back by themselves and go on where
    /// they were. Without it SIGHUP stops the server.
    #[arg(long, conflicts_with = "share")]
    reloadable: bool,

    /// Log for people (human), as JSON lines, or to the journal [default: auto].
    ///
    /// auto is journald under systemd, human elsewhere. RUST_LOG sets the level.
    #[arg(long, value_name = "FORMAT", value_parser = clap::builder::PossibleValuesParser::new(Format::NAMES))]
    log_format: Option<String>,

    /// Let in anybody who can connect.
    ///
    /// Only for networks where everybody may read, and write what is exported :rw.
    #[arg(long)]
    insecure_no_auth: bool,

    #[command(flatten)]
    rdma: rdma::RdmaFlags,
}

impl Flags {
    /// Lays the flags over the configuration. With the text of that, as it was read.
    fn config(&self) -> Result<(Config, String), ConfigError> {
        let kept = keeper::kept_config();
        let (text, origin) = Config::text(kept.as_deref().or(self.config.as_deref()))?;
        let mut config = Config::from_toml(&text, &origin)?;
        let mode = if self.rw { Mode::ReadWrite } else { Mode::ReadOnly };
        for spec in &self.exports {
            config.exports.push(ExportSpec::parse(spec, mode)?);
        }
        config.listen = self.listen.unwrap_or(config.listen);
        if let Some(share) = &self.share {
            config.exports.push(share::export(share)?);
            config.listen = share::listen(self.listen, config.listen);
        }
        config.state = self.state.clone().unwrap_or(config.state);
        if let Some(listen) = self.metrics.clone() {
            config.metrics = Metrics { listen, asked_for: true };
        }
        config.log.format = self.log_format.clone().unwrap_or(config.log.format);
        config.insecure_no_auth |= self.insecure_no_auth;
        config.user = self.user.clone().unwrap_or(config.user);
        self.rdma.lay_over(&mut config.rdma);
        config.check("the command line")?;
        Ok((config, text))
    }
}

fn metrics_listen(text: &str) -> Result<String, String> {
    match text == METRICS_OFF || text.parse::<SocketAddr>().is_ok() {
        true => Ok(text.to_owned()),
        false => Err("it must be an IP address and a port, or off".into()),
    }
}

fn main() -> ExitCode {
    verbatim_control::forbid_core_dumps();
    let flags = verbatim_usage::parse::<Flags>();
    let (config, text) = match flags.config() {
        Ok(configured) => configured,
        Err(error) => return complain(&error, error.hint(), 2),
    };
    if config.exports.is_empty() {
        let error = ConfigError::NoExports;
        return complain(&error, error.hint(), 2);
    }
    if flags.check_config {
        return match verbatim_server::check(&config) {
            Ok(()) => {
                let (count, address) = (config.exports.len(), config.listen);
                out!("good: {count} exports, to be served at {address}");
                ExitCode::SUCCESS
            }
            Err(error) => complain(&error, error.hint(), 2),
        };
    }
    let format = Format::parse(&config.log.format).unwrap_or_default();
    let logs = verbatim_telemetry::start(&config.log.level, format);
    // Before there is another thread, so that all of them have it. Old kernels do not.
    if let Err(error) = rustix::thread::set_no_new_privs(true) {
        tracing::warn!(%error, "new privileges are not given up");
    }
    let port = match keeper::kept_port() {
        None if flags.reloadable => return keeper::keep(&flags, config, text),
        None => None,
        Some(Ok(port)) => Some(port),
        Some(Err(error)) => return complain(&format!("cannot take the port: {error}"), None, 1),
    };
    let kept = match give_up(config, port) {
        Ok(kept) => kept,
        Err(error) => {
            let code = if matches!(*error, ServerError::Config(_)) { 2 } else { 1 };
            return complain(&error, error.hint(), code);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(FILE_THREADS_MAX)
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => {
            let gathering = logs.gather();
            let result = runtime.block_on(serve(kept, &flags, &gathering));
            // A job that waits for a file system that does not answer is left behind.
            runtime.shutdown_timeout(LAST_JOBS_MAX);
            drop(gathering);
            result
        }
        Err(error) => return complain(&format!("cannot start threads: {error}"), None, 1),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ ServerError::Config(_)) => complain(&error, error.hint(), 2),
        Err(error) => complain(&error, error.hint(), 1),
    }
}

/// What was taken before rights were given up.
struct Kept {
    config: Config,
    port: Option<TcpStream>,
    devices: Arc<Devices>,
}

/// Takes what only root may have, then gives up being root and what is not served. Before
/// there is another thread, so that all of them have it.
fn give_up(mut config: Config, mut port: Option<TcpStream>) -> Result<Kept, Box<ServerError>> {
    let devices = Devices::open(config.rdma.enable, &config.rdma.device);
    if !config.user.is_empty() {
        let boxed = |error| Box::new(ServerError::Config(error));
        let user = User::find(&config.user).map_err(boxed)?;
        // By its name while that can be asked for.
        config.state = config.state_dir();
        let address = config.listen;
        let cannot =
            |error: std::io::Error| ServerError::Listen { address, cause: error.to_string() };
        let taken = port.take().map_or_else(|| bind_port(address), Ok);
        port = Some(taken.map_err(cannot).map_err(Box::new)?);
        become_user(&user, &config).map_err(boxed)?;
        keeper::end_with_parent().map_err(cannot).map_err(Box::new)?;
        tracing::info!(user = config.user, "root is given up");
    }
    if config.landlock {
        match confine(&config) {
            Ok(RulesetStatus::NotEnforced) => {
                tracing::warn!("not confined: this kernel has no Landlock");
            }
            Ok(status) => tracing::info!(?status, "confined by Landlock"),
            Err(error) => tracing::warn!(%error, "not confined"),
        }
    }
    // Behind Landlock, which old kernels let only those set who have them.
    if let Err(error) = give_up_capabilities(&config) {
        tracing::warn!(%error, "capabilities are not given up");
    }
    Ok(Kept { config, port, devices })
}

async fn serve(kept: Kept, flags: &Flags, gathering: &Gathering) -> Result<(), ServerError> {
    let Kept { config, port, devices } = kept;
    let exports = config.exports.clone();
    let count = exports.len();
    let open = config.insecure_no_auth;
    let shared = match (&flags.share, exports.last()) {
        (Some(_), Some(export)) => Some(share::Share::new(export, flags.share_for)?),
        _ => None,
    };
    let tokens = shared.iter().map(|share| share.token.clone()).collect();
    let options = ServerOptions { tokens, port, devices, ..ServerOptions::default() };
    let server = Server::bind(config, options).await?;
    let (address, fingerprint) = (server.address(), server.fingerprint());
    if let Some(address) = server.metrics_address() {
        tracing::info!(%address, "metrics and page");
    }
    for export in exports {
        let path = export.path.display().to_string();
        tracing::info!(name = export.name, path, mode = %export.mode, "export");
        if open && export.tokens.is_empty() && export.certificates.is_empty() {
            let hint = "name who may use it in its tokens or certificates, or turn \
                        insecure_no_auth off";
            tracing::warn!(name = export.name, mode = %export.mode, hint, "open to anybody");
        }
    }
    if open {
        tracing::warn!("anybody who can connect is let in (insecure_no_auth)");
    }
    // Before anybody is told: who hears that it listens may want it to stop.
    let signals = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let signals = signals.map(signal);
    let kept = flags.reloadable;
    // Who waits for the last of these lines has all of them.
    if let Some(share) = shared {
        gathering.write_out();
        share.print(address, fingerprint);
    }
    tracing::info!(%address, %fingerprint, "listening");
    gathering.write_out();
    let notifier = Notifier::from_environment();
    let stop = async {
        let [Ok(mut term), Ok(mut int), Ok(mut hangup)] = signals else {
            return std::future::pending().await;
        };
        let anew = tokio::select! {
            _ = term.recv() => false,
            _ = int.recv() => false,
            _ = hangup.recv() => kept,
        };
        match anew {
            true => notifier.tell(&[], "starting anew"),
            false => notifier.tell(&["STOPPING=1"], "ending sessions"),
        }
        if anew { ShutdownMode::Immediate } else { ShutdownMode::Drain }
    };
    notifier.tell(&["READY=1"], &format!("serving {count} exports at {address}"));
    tokio::select! {
        () = server.run_until(stop) => {}
        // Never ends; from the threads that serve, so that silence says that they hang.
        () = beat(&notifier) => {}
    }
    Ok(())
}

/// Shows systemd that the server is there, as often as it wants to know.
async fn beat(notifier: &Notifier) {
    let Some(pause) = Notifier::beat() else { return std::future::pending().await };
    loop {
        // First: the server before this one may have told it as long ago as a pause takes.
        notifier.tell_alive();
        tokio::time::sleep(pause).await;
    }
}
