//! Statistics of a running server: sessions, metrics, ten minutes of throughput, the last
//! errors, all bounded. Each session reports through a `SessionStats`, the accept path directly;
//! `http` serves the result. It never changes the server's behaviour and never blocks a caller.

use crate::config::export::Export;
use crate::exports::open::Exports;
use crate::exports::window_digests::WindowDigests;
use crate::limits::fair_pool::FairPool;
use crate::observe::counters::{Counters, lock, seconds};
use crate::observe::health_poll::HealthReport;
use crate::observe::history::{History, STEP_SECONDS};
use crate::observe::session_stats::{SessionInfo, SessionStats, SessionTable};
use crate::rdma::rails::{Rdma, RdmaUnavailable};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant, SystemTime};
use verbatim_doctor::Finding;
use verbatim_proto::{Code, Fault};
use verbatim_telemetry::labels::{Direction, Fallback, Transport};
pub use verbatim_telemetry::port::PortError as MetricsError;
use verbatim_telemetry::serve::Levels;

/// How often throughput, disks and ports are polled.
const POLL_INTERVAL: Duration = Duration::from_secs(STEP_SECONDS);

/// Statistics of a server, for metrics and the status page.
pub(crate) struct ServerStats {
    pub counters: Arc<Counters>,
    /// Address and identity, set once the server listens.
    pub(super) about: Mutex<ServerInfo>,
    pub(super) started: SystemTime,
    pub(super) draining: AtomicBool,
    pub(super) views: Arc<SessionTable>,
    pub(super) history: Mutex<History>,
    pub(super) health: Mutex<HealthReport>,
    /// Findings of the doctor at the start of the server.
    pub(super) findings: Mutex<Vec<Finding>>,
    pub(super) root: PathBuf,
}

/// The other parts of the server that the status shows: handed in, so that this module knows no
/// session.
pub(crate) struct StatusSources {
    pub rails: Rdma,
    pub exports: Exports,
    pub digests: Arc<WindowDigests>,
    /// The memory budget of clients.
    pub memory: Arc<FairPool>,
}

/// Facts that do not change while a server runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerInfo {
    pub address: Option<SocketAddr>,
    pub fingerprint: String,
    /// When the certificate ends, in seconds since 1970.
    pub certificate_end: Option<f64>,
    /// Why clients are served over TCP.
    pub no_rdma: Option<RdmaUnavailable>,
}

impl ServerStats {
    /// For a server that starts now; reads the kernel's devices below `root`.
    pub fn new(root: PathBuf) -> Arc<Self> {
        Arc::new(Self {
            counters: Arc::new(Counters::new()),
            about: Mutex::default(),
            started: SystemTime::now(),
            draining: AtomicBool::new(false),
            views: Arc::default(),
            history: Mutex::default(),
            health: Mutex::default(),
            findings: Mutex::default(),
            root,
        })
    }

    /// Sets the facts that do not change from now on.
    pub fn set_info(&self, about: ServerInfo) {
        *lock(&self.about) = about;
    }

    /// Adds a session; it leaves the table when it is dropped.
    pub fn add_session(&self, guest: SessionInfo) -> Arc<SessionStats> {
        let view = Arc::new(SessionStats::new(self.counters.clone(), self.views.clone(), guest));
        lock(&self.views).insert(view.id, Arc::downgrade(&view));
        view
    }

    /// The live sessions.
    pub(super) fn views(&self) -> Vec<Arc<SessionStats>> {
        lock(&self.views).values().filter_map(Weak::upgrade).collect()
    }

    /// Why a client uses TCP, as far as the server knows.
    pub fn why_tcp(&self) -> Fallback {
        match &lock(&self.about).no_rdma {
            None => Fallback::Client,
            Some(missing) if missing.disabled => Fallback::Disabled,
            Some(_) => Fallback::NoDevice,
        }
    }

    /// Reports the server as draining: not ready for new clients.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Reports an error outside any session.
    pub fn report_error(&self, peer: SocketAddr, code: Code, text: impl Into<String>) {
        self.counters.record(Some(peer), None, &Fault::new(code, text));
    }

    /// Polls throughput, disks and ports every few seconds, for ever.
    pub async fn watch(self: Arc<Self>, watched: Arc<StatusSources>, exports: Vec<Export>) {
        let (stats, at) = (self.clone(), watched.clone());
        // Not awaited: the status shows the findings once they exist.
        drop(tokio::task::spawn_blocking(move || stats.run_doctor(&at, &exports)));
        let mut ticks = tokio::time::interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            lock(&self.history).record(self.totals());
            let (stats, watched) = (self.clone(), watched.clone());
            // A file system that does not answer holds one thread, not one every few seconds.
            let polled = tokio::task::spawn_blocking(move || {
                // Drains asynchronous events of idle devices, which would queue up otherwise.
                watched.rails.devices.names();
                let health = HealthReport::poll(&stats.root, &watched.rails, &watched.exports);
                *lock(&stats.health) = health;
            });
            let mut polled = Box::pin(polled);
            while tokio::time::timeout(POLL_INTERVAL, &mut polled).await.is_err() {
                lock(&self.history).record(self.totals());
            }
        }
    }

    /// Bytes transferred so far, by transport and direction.
    fn totals(&self) -> [[u64; 2]; 2] {
        let of = |transport| {
            [Direction::Read, Direction::Write]
                .map(|way| self.counters.metrics.bytes(way, transport))
        };
        // Simulated links exist in tests alone; they count as TCP here.
        let (verbs, tcp, sim) = (of(Transport::Verbs), of(Transport::Tcp), of(Transport::Sim));
        [verbs, [tcp[0] + sim[0], tcp[1] + sim[1]]]
    }

    /// The metrics, as Prometheus reads them.
    pub fn metrics_text(&self, watched: &StatusSources) -> String {
        self.counters.metrics.text(&self.levels(watched))
    }

    /// The gauges of the server now.
    pub(super) fn levels(&self, watched: &StatusSources) -> Levels {
        let views = self.views();
        let sum =
            |of: &dyn Fn(&SessionStats) -> u64| views.iter().map(|view| of(view)).sum::<u64>();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let cache = watched.digests.cache().stats();
        let health = lock(&self.health).clone();
        let links = Transport::ALL.iter().filter(|&&transport| transport != Transport::Sim);
        Levels {
            start_time: seconds(self.started),
            sessions: views.len() as u64,
            links: links
                .map(|&transport| (transport, sum(&|view| view.links_of(transport))))
                .collect(),
            queue_pairs: (
                sum(&|view| view.links_of(Transport::Verbs)),
                sum(&|view| load(&view.ending)),
            ),
            regions: sum(&|view| view.domain.region_count()),
            pinned_bytes: sum(&|view| view.domain.pinned_bytes()),
            pinned_bytes_max: watched.rails.pinned_bytes_max(),
            slots: sum(&|view| load(&view.slots)),
            client_bytes: watched.memory.in_use() as u64,
            client_bytes_max: watched.memory.capacity() as u64,
            cache_lookups: (cache.hits, cache.misses),
            cache_entries: cache.entries,
            cache_bytes: cache.bytes,
            certificate_end: lock(&self.about).certificate_end,
            exports: health.exports,
            ports: health.ports.into_iter().map(|port| port.levels).collect(),
        }
    }

    /// Why the server is not ready for new clients; `None` if it is.
    pub(super) fn not_ready_reason(&self) -> Option<String> {
        if lock(&self.about).address.is_none() {
            return Some("not listening yet".into());
        }
        if self.draining.load(Ordering::Relaxed) {
            return Some("draining".into());
        }
        lock(&self.health).failure(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::counters::RECENT_ERRORS_MAX;

    fn guest(id: u64) -> SessionInfo {
        let peer = SocketAddr::from(([10, 0, 0, 7], 5000));
        let (who, agent, request) = ("me".into(), "test".into(), "0f".into());
        let (domain, used_hidden) = Default::default();
        SessionInfo { id, request, peer, who, agent, domain, used_hidden }
    }

    #[test]
    fn a_session_is_seen_as_long_as_it_lives() {
        let stats = ServerStats::new("/none".into());
        let first = stats.add_session(guest(1));
        let second = stats.add_session(guest(2));
        assert_eq!(stats.views().len(), 2);
        drop(first);
        assert_eq!(stats.views().iter().map(|view| view.id).collect::<Vec<_>>(), [2]);
        drop(second);
        assert!(stats.views().is_empty() && lock(&stats.views).is_empty());
    }

    #[test]
    fn the_newest_errors_are_kept_and_no_more_than_a_bound() {
        let stats = ServerStats::new("/none".into());
        let view = stats.add_session(guest(1));
        for number in 0..200 {
            view.report_error(&Fault::new(Code::NoSpace, format!("error {number}")));
        }
        let recent_errors = lock(&stats.counters.recent_errors);
        assert_eq!(recent_errors.len(), RECENT_ERRORS_MAX);
        assert_eq!(recent_errors[0].text, "error 199");
        assert!(recent_errors[0].hint.as_deref().is_some_and(|hint| hint.contains("make room")));
        assert_eq!(recent_errors[0].session, Some(1));
    }

    #[test]
    fn of_a_session_that_uses_a_hidden_export_nothing_is_told() {
        let stats = ServerStats::new("/none".into());
        let guest = guest(1);
        let used_hidden = guest.used_hidden.clone();
        let view = stats.add_session(guest);
        let tell = |name: &str| {
            view.report_error(&Fault::new(Code::NoSpace, name));
            let (id, path) = (verbatim_proto::message::FileId(1), name.as_bytes());
            let path = verbatim_proto::WirePath::parse(path).expect("plain");
            view.file_began(Direction::Read, id, &path, 1 << 30, 0);
            let told = lock(&stats.counters.recent_errors).len() + lock(&view.files).len();
            view.file_ended(Direction::Read, id);
            lock(&stats.counters.recent_errors).clear();
            told
        };
        assert_eq!(tell("shown/a"), 2);
        used_hidden.store(true, Ordering::Relaxed);
        assert_eq!(tell("hidden/a"), 0);
    }

    #[test]
    fn a_server_is_ready_when_it_listens_and_does_not_drain() {
        let stats = ServerStats::new("/none".into());
        assert!(stats.not_ready_reason().is_some());
        lock(&stats.about).address = Some(SocketAddr::from(([127, 0, 0, 1], 1)));
        assert_eq!(stats.not_ready_reason(), None);
        stats.drain();
        assert_eq!(stats.not_ready_reason().as_deref(), Some("draining"));
    }
}
