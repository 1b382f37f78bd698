//! The tables of the configuration, each with its keys and their defaults.
//! `configs/rdma-serve.toml` explains each key to operators.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// What one server, and one client, may take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Sessions at a time.
    pub sessions_max: u32,
    /// Links of one session.
    pub links_per_session_max: u32,
    /// How long a new connection may take to authenticate.
    pub handshake_seconds: u32,
    /// Handshakes that may begin in a second; more wait.
    pub handshakes_per_second: u32,
    /// The same, from one address.
    pub handshakes_per_second_per_address: u32,
    /// How long a session may be silent.
    pub idle_seconds: u32,
    /// What one client may move in a second, in MiB; 0 stands for all it can.
    pub client_mb_per_second: u32,
    /// What all clients of one name may move in a second, in MiB; 0 stands for all they can.
    pub name_mb_per_second: u32,
    /// What all clients together may have the server keep in memory, in MiB; 0 stands for a
    /// quarter of the machine's.
    pub memory_mb: u32,
}

/// Certificates of the user's own authority.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// The server's certificate; empty stands for a self-signed one.
    pub cert: PathBuf,
    /// The private key of that.
    pub key: PathBuf,
    /// The authority that signs client certificates; empty is none.
    pub client_ca: PathBuf,
}

/// The digest cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cache {
    /// Whether digests are kept.
    pub enabled: bool,
    /// How much they may take, in MiB.
    pub size_mb: u32,
}

/// How long unfinished uploads are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Uploads {
    /// How long their partial files are kept; 0 stands for ever.
    pub keep_hours: u32,
}

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// The least important level that is logged.
    pub level: String,
    /// How it is written.
    pub format: String,
}

/// The port of metrics and the status page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// Its address and port, or `METRICS_OFF`.
    pub listen: String,
    /// Whether a flag asked for it.
    #[serde(skip)]
    pub asked_for: bool,
}

/// The value that disables the port.
pub const METRICS_OFF: &str = "off";

/// The default address.
const METRICS_LISTEN: &str = "127.0.0.1:9469";

impl Metrics {
    /// Disables the port.
    pub fn off() -> Self {
        Self { listen: METRICS_OFF.into(), asked_for: false }
    }

    /// Where to listen; none if it is off.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listen.parse().ok()
    }

    /// Whether it must be had: by a flag, or because it is not the default.
    pub fn is_asked_for(&self) -> bool {
        self.asked_for || self.listen != METRICS_LISTEN
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self { listen: METRICS_LISTEN.into(), asked_for: false }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions_max: 2048,
            links_per_session_max: 16,
            handshake_seconds: 10,
            handshakes_per_second: 500,
            handshakes_per_second_per_address: 100,
            idle_seconds: 300,
            client_mb_per_second: 0,
            name_mb_per_second: 0,
            memory_mb: 0,
        }
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self { enabled: true, size_mb: 256 }
    }
}

impl Default for Uploads {
    fn default() -> Self {
        Self { keep_hours: 168 }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".into(), format: "auto".into() }
    }
}
