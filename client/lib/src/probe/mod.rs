//! Tests the path to a server step by step: name, route, handshake, and each transport with memory
//! that the server lends. Every step has a deadline. `wire` connects the links, `measure` drives
//! them, `packets` reads the path MTU, `verdict` draws conclusions; `rdma-doctor` prints them.
//! Copies nothing.

mod measure;
mod packets;
pub mod verdict;
mod wire;

use crate::SessionOptions;
pub use crate::probe::packets::Packets;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use verbatim_control::{ControlError, connect};
use verbatim_engine::connection::transport::{CarrierOptions, Transport};
use verbatim_fabric::ports::{Machine, local_address_towards};
use verbatim_fabric::verbs;
use verbatim_proto::WirePath;

/// The deadline of the name lookup.
const RESOLVE_TIME_MAX: Duration = Duration::from_secs(10);

/// The deadline of the connection, even if the options allow more.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(15);

/// The deadline of the disk measurement.
const DISK_TIME_MAX: Duration = Duration::from_secs(20);

/// The results of testing the path to a server.
#[derive(Clone, Debug, Default)]
pub struct Examination {
    /// The server, as the user named it.
    pub peer: String,
    /// The route of the data.
    pub route: Option<Route>,
    /// The handshake with the server.
    pub handshake: Option<Handshake>,
    /// The failure that prevented testing any transport.
    pub trouble: Option<ProbeFailure>,
    /// The results of each transport; the one that copies prefer comes first.
    pub tried: Vec<TransportProbe>,
    /// The path MTU, known after large packets were sent.
    pub packets: Option<Packets>,
    /// The rates of this machine alone.
    pub own: LocalRates,
    /// Why its disk could not be measured, if the user asked for that.
    pub no_disk: Option<String>,
}

/// The route to the server.
#[derive(Clone, Debug)]
pub struct Route {
    /// The addresses that the name resolves to.
    pub addresses: Vec<IpAddr>,
    /// How long the name lookup took.
    pub resolved_in: Duration,
    /// The local address.
    pub local: Option<IpAddr>,
    /// The network device of the local address, if it is known.
    pub netdev: Option<String>,
}

/// The handshake with the server.
#[derive(Clone, Debug)]
pub struct Handshake {
    /// The address of the server.
    pub address: SocketAddr,
    /// The time for TCP, TLS, trust and token together.
    pub opened_in: Duration,
    /// The program and version of the server.
    pub agent: String,
    /// The fingerprint of the server's key.
    pub fingerprint: String,
}

/// A failed step, with a hint.
#[derive(Clone, Debug)]
pub struct ProbeFailure {
    /// The step that failed.
    pub step: &'static str,
    /// The cause.
    pub cause: String,
    /// The next step for the user.
    pub hint: Option<String>,
}

/// The result of testing one transport.
#[derive(Clone, Debug)]
pub struct TransportProbe {
    /// `verbs` or `tcp`.
    pub transport: &'static str,
    /// The measurements, or the failure.
    pub outcome: Result<Measured, ProbeFailure>,
}

/// The measurements of one transport.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The transport and the port, such as `verbs mlx5_0/1`.
    pub carrier: String,
    /// The latencies of small operations.
    pub latencies: Vec<Latency>,
    /// The rates of large operations.
    pub rates: Vec<Rate>,
}

/// The direction of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// One-sided READ.
    Read,
    /// One-sided WRITE.
    Write,
}

impl Operation {
    /// The name of the operation.
    pub fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// The latency of one operation, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// The operation.
    pub way: Operation,
    /// The number of measured operations.
    pub count: u64,
    /// The median.
    pub p50: u64,
    /// The 90th percentile.
    pub p90: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The maximum.
    pub max: u64,
}

/// The rate of one combination of operation, size and links.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// The operation.
    pub way: Operation,
    /// The size of an operation.
    pub bytes: usize,
    /// The number of links.
    pub links: usize,
    /// Bytes per second.
    pub bytes_per_second: f64,
}

/// The rates of this machine alone, in bytes per second; 0 if unknown.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalRates {
    /// Hashing on one core.
    pub hash: f64,
    /// Copying memory on one core.
    pub memory: f64,
    /// Writing to the disk that the user named.
    pub disk: f64,
    /// The number of cores that this process may use.
    pub cores: usize,
}

/// Tests the path to a server. If `path` names an export, tests the transports that copies of this
/// export would use. `disk` is a folder whose disk is measured.
pub async fn examine(
    options: &SessionOptions,
    path: &WirePath,
    machine: &Machine,
    disk: Option<PathBuf>,
) -> Result<Examination, ControlError> {
    let peer = verbatim_engine::model::location::peer(&options.connect.host, options.connect.port);
    let mut found = Examination { peer, ..Examination::default() };
    let began = Instant::now();
    let name = (options.connect.host.as_str(), options.connect.port);
    let resolved = tokio::time::timeout(RESOLVE_TIME_MAX, tokio::net::lookup_host(name)).await;
    let addresses: Vec<SocketAddr> = match resolved {
        Ok(Ok(addresses)) => addresses.collect(),
        Ok(Err(error)) => return Ok(found.stopped("name", error.to_string())),
        Err(_) => return Ok(found.stopped("name", "the resolver does not answer".into())),
    };
    let local = addresses.first().copied().and_then(local_address_towards);
    found.route = Some(Route {
        addresses: addresses.iter().map(SocketAddr::ip).collect(),
        resolved_in: began.elapsed(),
        local,
        netdev: local
            .filter(|local| !local.to_canonical().is_loopback())
            .and_then(|local| machine.netdev_of(local))
            .map(str::to_owned),
    });
    let mut options = options.clone();
    options.connect.timeout = options.connect.timeout.min(CONNECT_TIME_MAX);
    let began = Instant::now();
    let connection = match connect(&options.connect).await {
        Ok(connection) => connection,
        // The caller may ask the user whether to trust the key.
        Err(error @ ControlError::NotTrusted { .. }) => return Err(error),
        Err(error) => {
            let hint = error.hint();
            found.trouble = Some(ProbeFailure { step: "door", cause: error.to_string(), hint });
            return Ok(found);
        }
    };
    found.handshake = Some(Handshake {
        address: connection.peer,
        opened_in: began.elapsed(),
        agent: connection.welcome.agent.clone(),
        fingerprint: connection.server.to_string(),
    });
    let peer = connection.peer;
    crate::probe::wire::say_goodbye(connection).await;
    for (transport, name) in [(Transport::Verbs, "verbs"), (Transport::Tcp, "tcp")] {
        if transport == Transport::Verbs && options.carrier.transport == Transport::Tcp {
            continue;
        }
        let outcome =
            crate::probe::wire::try_transport(&with(&options, transport, local), path, transport)
                .await;
        found.tried.push(TransportProbe { transport: name, outcome });
    }
    let netdev = found.route.as_ref().and_then(|route| route.netdev.as_deref());
    found.packets = netdev.and_then(|netdev| crate::probe::packets::towards(peer, netdev));
    found.own = tokio::task::spawn_blocking(crate::probe::measure::own).await.unwrap_or_default();
    if let Some(folder) = disk {
        let shown = folder.display().to_string();
        match bounded(DISK_TIME_MAX, move || crate::probe::measure::disk(&folder)).await {
            Ok(rate) => found.own.disk = rate,
            Err(cause) => found.no_disk = Some(format!("cannot write to {shown}: {cause}")),
        }
    }
    Ok(found)
}

/// Runs work that a hanging file system may block, on a thread that is abandoned after the
/// deadline.
async fn bounded<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, String> {
    match tokio::time::timeout(limit, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(answer)) => answer.map_err(|error| error.to_string()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer in {} s", limit.as_secs())),
    }
}

impl Examination {
    fn stopped(mut self, step: &'static str, cause: String) -> Self {
        self.trouble = Some(ProbeFailure { step, cause, hint: None });
        self
    }
}

/// The options for one transport and one port: rails are tested one by one.
fn with(options: &SessionOptions, transport: Transport, local: Option<IpAddr>) -> SessionOptions {
    let mut wish = options.carrier.wish.clone();
    wish.local = wish.local.or(local);
    if let (Transport::Verbs, Ok(place)) = (transport, verbs::find_place(&wish)) {
        (wish.device, wish.port) = (Some(place.device), Some(place.port));
    }
    let carrier = CarrierOptions { transport, wish, ..options.carrier.clone() };
    SessionOptions { carrier, ..options.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_hanging_file_system_is_abandoned_at_the_deadline() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let hanging = bounded(Duration::from_millis(10), move || Ok(ended.recv().is_ok()));
        assert_eq!(hanging.await, Err("no answer in 0 s".into()));
        drop(end);
        assert_eq!(bounded(DISK_TIME_MAX, || Ok(1)).await, Ok(1));
    }
}
