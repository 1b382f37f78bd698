//! The flags that say how to reach the server and how data moves, and the one
//! place where they become the options of a session.

use crate::carrier::CarrierFlags;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use verbatim_client::SessionOptions;
use verbatim_client::location::Remote;
use verbatim_client::pace::fit;
use verbatim_client::size::{parse_bytes, show_bytes};
use verbatim_control::{ClientKey, ConnectOptions, Fingerprint};
use verbatim_proto::units::{CHUNK_BYTES_DEFAULT, LINKS_MAX};

/// How to reach the server.
#[derive(Args)]
pub struct ConnectionFlags {
    /// Move data over N connections at a time [default: 4].
    ///
    /// Each has a thread that verifies what it carries.
    #[arg(short = 'j', long, value_name = "N", default_value_t = 4, hide_default_value = true,
          value_parser = clap::value_parser!(u16).range(1..=LINKS_MAX as i64))]
    streams: u16,

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
    /// is refused.
    #[arg(long)]
    trust_on_first_use: bool,

    /// Prove the key in FILE to the server.
    ///
    /// The file holds one token and may be readable by you alone; rdma-cp --new-token
    /// makes one.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Look for the local server's key in DIR [default: $XDG_STATE_HOME/verbatim].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    #[command(flatten)]
    carrier: CarrierFlags,
}

/// What is wrong with them: cause, hint, and whether it is the key and not the usage.
pub struct ConnectionError {
    pub cause: String,
    pub hint: Option<String>,
    pub is_key: bool,
}

impl ConnectionFlags {
    /// Makes the options of a session with this server.
    pub fn session(&self, remote: &Remote) -> Result<SessionOptions, ConnectionError> {
        let key = match &self.token_file {
            None => None,
            Some(path) => Some(ClientKey::load(path).map_err(|error| ConnectionError {
                cause: error.to_string(),
                hint: error.hint(),
                is_key: true,
            })?),
        };
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let folder = |variable: &str, below: &str| {
            let set = std::env::var_os(variable).filter(|value| !value.is_empty());
            set.map_or_else(|| home.join(below), PathBuf::from).join("verbatim")
        };
        let state = || folder("XDG_STATE_HOME", ".local/state");
        let timeout = Duration::from_secs(self.timeout);
        let (streams, chunk_bytes) = self.sizes(timeout)?;
        Ok(SessionOptions {
            connect: ConnectOptions {
                host: remote.host.clone(),
                port: remote.port,
                state_dir: self.state.clone().unwrap_or_else(state),
                config_dir: folder("XDG_CONFIG_HOME", ".config"),
                key,
                fingerprint: self.fingerprint,
                trust_on_first_use: self.trust_on_first_use,
                agent: concat!("rdma-sync ", env!("CARGO_PKG_VERSION")).into(),
                chunk_bytes,
                timeout,
            },
            streams,
            timeout,
            carrier: self.carrier.options(self.bwlimit.map(|_| streams)),
            bytes_per_second: self.bwlimit,
            preserve: true,
            sim: None,
            trace: None,
        })
    }

    /// Streams and chunk size, as the rate allows.
    fn sizes(&self, timeout: Duration) -> Result<(u16, u32), ConnectionError> {
        let Some(rate) = self.bwlimit else { return Ok((self.streams, CHUNK_BYTES_DEFAULT)) };
        fit(rate, timeout, self.streams, CHUNK_BYTES_DEFAULT, false).map_err(|least| {
            let (rate, least) = (show_bytes(rate), least.div_ceil(1024));
            ConnectionError {
                cause: format!("--bwlimit {rate} is too low for a timeout of {} s", self.timeout),
                hint: Some(format!("give at least {least}K, or a longer --timeout")),
                is_key: false,
            }
        })
    }
}
