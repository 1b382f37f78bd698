//! Tries the way to a server for real: the name, the route, the door, and each
//! transport with memory that the server lends for it. Every step has a deadline.
//! `wire` makes the links, `measure` drives them, `packets` tells how large those on
//! the way may be, `verdict` says what follows from
//! it; `rdma-doctor` prints it. Copies nothing.

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

/// How long finding the server's address may take.
const RESOLVE_TIME_MAX: Duration = Duration::from_secs(10);

/// How long connecting to it may take, whatever copies allow.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(15);

/// How long writing to a disk may take.
const DISK_TIME_MAX: Duration = Duration::from_secs(20);

/// What was found out about the way to a server.
#[derive(Clone, Debug, Default)]
pub struct Examination {
    /// The server, as the user named it.
    pub peer: String,
    /// How data gets there.
    pub route: Option<Route>,
    /// How it let us in.
    pub handshake: Option<Handshake>,
    /// What is in the way before any transport can be tried.
    pub trouble: Option<ProbeFailure>,
    /// Each transport, the one that copies prefer first.
    pub tried: Vec<TransportProbe>,
    /// How large packets on the way may be; asked when something large was sent.
    pub packets: Option<Packets>,
    /// What this machine does by itself.
    pub own: LocalRates,
    /// Why its disk was not measured, where that was wanted.
    pub no_disk: Option<String>,
}

/// How data gets to the server.
#[derive(Clone, Debug)]
pub struct Route {
    /// The addresses of its name.
    pub addresses: Vec<IpAddr>,
    /// How long that took to find out.
    pub resolved_in: Duration,
    /// Where we would send from.
    pub local: Option<IpAddr>,
    /// The network device of that, as far as it is known.
    pub netdev: Option<String>,
}

/// How the server let us in.
#[derive(Clone, Debug)]
pub struct Handshake {
    /// Which of its addresses.
    pub address: SocketAddr,
    /// TCP, TLS, trust and token together.
    pub opened_in: Duration,
    /// Its program and version.
    pub agent: String,
    /// Who it is.
    pub fingerprint: String,
}

/// What went wrong, and what to do about it.
#[derive(Clone, Debug)]
pub struct ProbeFailure {
    /// What was being done.
    pub step: &'static str,
    /// What went wrong.
    pub cause: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// A transport that was tried.
#[derive(Clone, Debug)]
pub struct TransportProbe {
    /// `verbs` or `tcp`.
    pub transport: &'static str,
    /// What it does, or why it does nothing.
    pub outcome: Result<Measured, ProbeFailure>,
}

/// What a transport does.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// What carried it: `verbs mlx5_0/1`.
    pub carrier: String,
    /// How long small operations take.
    pub latencies: Vec<Latency>,
    /// What large ones carry.
    pub rates: Vec<Rate>,
}

/// Which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// One-sided READ.
    Read,
    /// One-sided WRITE.
    Write,
}

impl Operation {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// How long one operation takes, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// Which operation.
    pub way: Operation,
    /// How many were measured.
    pub count: u64,
    /// Half of them took at most this.
    pub p50: u64,
    /// Nine in ten.
    pub p90: u64,
    /// All but one in a hundred.
    pub p99: u64,
    /// All of them.
    pub max: u64,
}

/// What operations carry.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Which operation.
    pub way: Operation,
    /// How long each is.
    pub bytes: usize,
    /// Over how many links.
    pub links: usize,
    /// Bytes a second.
    pub bytes_per_second: f64,
}

/// What this machine does by itself, in bytes a second; 0 is unknown.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalRates {
    /// Hashing, by one core.
    pub hash: f64,
    /// Copying memory, by one core.
    pub memory: f64,
    /// Writing to the disk that was named.
    pub disk: f64,
    /// How many cores this process may use.
    pub cores: usize,
}

/// Tries everything. Where `path` names an export, transports are tried as copies of that one
/// would use them. `disk` is a folder whose disk is measured too.
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
        // Somebody at the terminal may vouch for it.
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

/// Does something that a file system may hang in, on a thread that is left behind then.
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

/// The same options for one transport, on one port: rails are tried one by one.
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
    async fn a_file_system_that_hangs_is_waited_for_no_longer_than_so_long() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let hanging = bounded(Duration::from_millis(10), move || Ok(ended.recv().is_ok()));
        assert_eq!(hanging.await, Err("no answer in 0 s".into()));
        drop(end);
        assert_eq!(bounded(DISK_TIME_MAX, || Ok(1)).await, Ok(1));
    }
}
