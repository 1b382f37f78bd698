//! `rdma-serve`: reads flags and the configuration, starts the server, says
//! where it listens, and stops on SIGTERM or SIGINT. Everything else is the
//! library's.

#![forbid(unsafe_code)]
#![allow(clippy::print_stderr)]
#![allow(rustdoc::broken_intra_doc_links)] // flags are documented for --help

use clap::Parser;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use verbatim_server::config::{Config, ConfigError, METRICS_OFF, Metrics};
use verbatim_server::export::{ExportSpec, Mode};
use verbatim_server::{Server, ServerError, ServerOptions};

/// Where the configuration of a service is, if there is one.
const CONFIG_DEFAULT: &str = "/etc/verbatim/rdma-serve.toml";

/// Threads for file work: opening, hashing, flushing.
const FILE_THREADS_MAX: usize = 32;

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
    /// Port 0 takes a free one. Any address but loopback needs configured keys
    /// (see authorized_keys in the configuration) or --insecure-no-auth.
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,

    /// Read the configuration from FILE [default: /etc/verbatim/rdma-serve.toml if it is there].
    ///
    /// configs/rdma-serve.toml shows every key at its default. Flags win over it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Keep identity, keys and the digest cache in DIR [default: $XDG_STATE_HOME/verbatim].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Show metrics and a page on this address and port, or off [default: 127.0.0.1:9469].
    ///
    /// /metrics is for Prometheus, / for people, /readyz for load balancers. It is
    /// plain HTTP for whoever can reach it. Port 0 takes a free one.
    #[arg(long, value_name = "ADDR:PORT|off", value_parser = metrics_listen)]
    metrics: Option<String>,

    /// Let in anybody who can connect.
    ///
    /// Only for networks where everybody may read, and write what is exported :rw.
    #[arg(long)]
    insecure_no_auth: bool,
}

impl Flags {
    /// Lays the flags over the configuration.
    fn config(&self) -> Result<Config, ConfigError> {
        let mut config = match &self.config {
            Some(path) => Config::load(path)?,
            None if PathBuf::from(CONFIG_DEFAULT).exists() => {
                Config::load(CONFIG_DEFAULT.as_ref())?
            }
            None => Config::default(),
        };
        let mode = if self.rw { Mode::ReadWrite } else { Mode::ReadOnly };
        for spec in &self.exports {
            config.exports.push(ExportSpec::parse(spec, mode)?);
        }
        config.listen = self.listen.unwrap_or(config.listen);
        config.state = self.state.clone().unwrap_or(config.state);
        if let Some(listen) = self.metrics.clone() {
            config.metrics = Metrics { listen, asked_for: true };
        }
        config.insecure_no_auth |= self.insecure_no_auth;
        config.check("the command line")?;
        Ok(config)
    }
}

fn metrics_listen(text: &str) -> Result<String, String> {
    match text == METRICS_OFF || text.parse::<SocketAddr>().is_ok() {
        true => Ok(text.to_owned()),
        false => Err("it must be an IP address and a port, or off".into()),
    }
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    let config = match flags.config() {
        Ok(config) => config,
        Err(error) => return complain(&error, error.hint(), 2),
    };
    if config.exports.is_empty() {
        let hint = "give a folder: rdma-serve PATH, or an [[export]] in the configuration";
        return complain(&"nothing to export", Some(hint.into()), 2);
    }
    verbatim_telemetry::start(&config.log.level, config.log.json);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(FILE_THREADS_MAX)
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(serve(config)),
        Err(error) => return complain(&format!("cannot start threads: {error}"), None, 1),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ ServerError::Config(_)) => complain(&error, error.hint(), 2),
        Err(error) => complain(&error, error.hint(), 1),
    }
}

async fn serve(config: Config) -> Result<(), ServerError> {
    let exports = config.exports.clone();
    let open = config.insecure_no_auth;
    let server = Server::bind(config, ServerOptions::default()).await?;
    let (address, fingerprint) = (server.address(), server.fingerprint());
    if let Some(address) = server.metrics_address() {
        tracing::info!(%address, "metrics and page");
    }
    for export in exports {
        let path = export.path.display().to_string();
        tracing::info!(name = export.name, path, mode = %export.mode, "export");
    }
    if open {
        tracing::warn!("anybody who can connect is let in (insecure_no_auth)");
    }
    tracing::info!(%address, %fingerprint, "listening");
    let stop = async {
        let (term, int) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
        match (term, int) {
            (Ok(mut term), Ok(mut int)) => {
                tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
            }
            _ => std::future::pending().await,
        }
    };
    server.run(stop).await;
    Ok(())
}

/// Says what is wrong and what to do about it.
fn complain(error: &dyn std::fmt::Display, hint: Option<String>, code: u8) -> ExitCode {
    eprintln!("rdma-serve: {error}");
    if let Some(hint) = hint {
        eprintln!("  hint: {hint}");
    }
    ExitCode::from(code)
}
