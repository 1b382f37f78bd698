//! The flags for reaching the server and moving data, turned into the options of a
//! session in this one place.

use super::exit::{Exit, FlagError};
use super::transport::TransportFlags;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use verbatim_client::SessionOptions;
use verbatim_client::model::location::Remote;
use verbatim_client::model::size::{parse_bytes, show_bytes};
use verbatim_client::rate_limit::fit;
use verbatim_control::{CertificateFiles, ClientSettings, ConnectOptions, Fingerprint};
use verbatim_files::limit::processors;
use verbatim_proto::units::{CHUNK_BYTES_DEFAULT, LINKS_MAX, links_for, qps_for};

/// How to reach the server.
#[derive(Args)]
#[command(next_help_heading = "Connection")]
pub struct ConnectionFlags {
    /// Move data over N connections at a time [default: 4, with 8 processors 8, with 16 16].
    ///
    /// Each goes on with a file of its own where there are enough, because a kernel
    /// lets one writer at a time into a file; chunks of one large file are spread
    /// over all of them. Each has a thread that verifies what it carries. Queue pairs
    /// have no more threads than the machine has processors.
    #[arg(short = 'j', long, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=LINKS_MAX as i64))]
    streams: Option<u16>,

    /// Move at most RATE bytes a second, over all streams.
    ///
    /// With K, M or G for powers of 1,024: 50M is 50 MiB/s. A rate that is low for
    /// --timeout takes fewer streams and smaller chunks. Comparing is not limited.
    #[arg(long, value_name = "RATE", value_parser = parse_bytes)]
    bwlimit: Option<u64>,

    /// Give the server up after S seconds without an answer [default: 60].
    ///
    /// A server that is lost meanwhile is tried again, with growing pauses, until S
    /// seconds have passed without progress. One that cannot be reached at the start
    /// is not.
    #[arg(long, value_name = "S", default_value_t = 60, hide_default_value = true,
          value_parser = clap::value_parser!(u64).range(2..=86_400))]
    timeout: u64,

    /// Accept only the server with this fingerprint (SHA256:...).
    ///
    /// rdma-serve logs it when it starts.
    #[arg(long, value_name = "SHA256:...")]
    fingerprint: Option<Fingerprint>,

    /// Accept an unknown server now, and only the same one later.
    ///
    /// Without it, somebody at a terminal is shown the fingerprint and asked; a script
    /// is refused. Servers that were accepted are in known_servers in
    /// $XDG_CONFIG_HOME/verbatim. One that has changed is refused either way.
    #[arg(long)]
    trust_on_first_use: bool,

    /// Prove the key in FILE to the server.
    ///
    /// The file holds one token and may be readable by you alone. Without it the token
    /// is that of the file RDMA_TOKEN_FILE names, of RDMA_TOKEN, or of this server in
    /// $XDG_CONFIG_HOME/verbatim/client.toml, whichever is found first.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Believe servers whose certificate the authority in FILE signed for their name.
    ///
    /// In PEM. The server is then known by the name or address you call it by, and
    /// known_servers is not asked.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Show the certificate in FILE to the server, instead of a token.
    ///
    /// In PEM, yours first, then those between it and the server's client_ca. Its first
    /// DNS name says who you are. --ca, --cert and --key may also be set for a server in
    /// client.toml, as ca, cert and key.
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,

    /// Prove the certificate with the private key in FILE, which you alone may read.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,

    /// Look for the local server's key in DIR [default: $XDG_STATE_HOME/verbatim].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    #[command(flatten)]
    pub transport: TransportFlags,
}

impl ConnectionFlags {
    /// The options of a session with this server, with chunks of this size if the user gave one.
    pub fn session(
        &self,
        remote: &Remote,
        chunk_size: Option<u32>,
        preserve: bool,
    ) -> Result<SessionOptions, FlagError> {
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let folder = |variable: &str, below: &str| {
            let set = std::env::var_os(variable).filter(|value| !value.is_empty());
            absolute(set.map_or_else(|| home.join(below), PathBuf::from).join("verbatim"))
        };
        let config_dir = folder("XDG_CONFIG_HOME", ".config");
        let found = ClientSettings::load(&config_dir).and_then(|settings| {
            let flag = self.token_file.as_deref();
            let Remote { host, port, .. } = remote;
            let (ca, cert, key) = (self.ca.clone(), self.cert.clone(), self.key.clone());
            let files = CertificateFiles { ca, cert, key };
            let CertificateFiles { ca, cert, key } = settings.certificates(host, *port, files);
            let (ca, cert) = (ca.map(absolute), cert.map(absolute));
            let certificates = CertificateFiles { ca, cert, key: key.map(absolute) };
            let key = settings.key(host, *port, flag, |name| std::env::var_os(name))?;
            Ok((key, certificates))
        });
        let (key, certificates) = found.map_err(|error| FlagError {
            cause: error.to_string(),
            hint: error.hint(),
            exit: Exit::Connect,
        })?;
        let state = || folder("XDG_STATE_HOME", ".local/state");
        let timeout = Duration::from_secs(self.timeout);
        let (streams, chunk_bytes) = self.streams_and_chunk(chunk_size, timeout)?;
        let qps = self.streams.unwrap_or_else(|| qps_for(processors()));
        Ok(SessionOptions {
            connect: ConnectOptions {
                host: remote.host.clone(),
                port: remote.port,
                state_dir: self.state.clone().map_or_else(state, absolute),
                config_dir,
                key,
                fingerprint: self.fingerprint,
                trust_on_first_use: self.trust_on_first_use,
                certificates,
                agent: concat!(env!("CARGO_BIN_NAME"), " ", env!("CARGO_PKG_VERSION")).into(),
                chunk_bytes,
                timeout,
            },
            streams,
            timeout,
            carrier: self.transport.options(qps, self.bwlimit.map(|_| streams)),
            chunk_by_carrier: chunk_size.is_none() && self.bwlimit.is_none(),
            bytes_per_second: self.bwlimit,
            preserve,
            sim: None,
            trace: None,
        })
    }

    /// The number of streams and the chunk size that the rate limit allows.
    fn streams_and_chunk(
        &self,
        chunk_size: Option<u32>,
        timeout: Duration,
    ) -> Result<(u16, u32), FlagError> {
        let chunk = chunk_size.unwrap_or(CHUNK_BYTES_DEFAULT);
        let streams = self.streams.unwrap_or_else(|| links_for(processors()));
        let Some(rate) = self.bwlimit else { return Ok((streams, chunk)) };
        fit(rate, timeout, streams, chunk, chunk_size.is_some()).map_err(|least| {
            let (rate, least) = (show_bytes(rate), least.div_ceil(1024));
            FlagError::usage(
                format!("--bwlimit {rate} is too low for a timeout of {} s", self.timeout),
                Some(format!("give at least {least}K, or a longer --timeout")),
            )
        })
    }
}

/// Makes a path absolute, because a reconnect reads it again after the working directory may have
/// changed. An impossible path fails where it is read.
fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}
