//! What people see of a running server: who is in, what moves, what went wrong.
//! Sessions and the listener tell it through a `View` each; it keeps metrics,
//! ten minutes of throughput and the last errors, all bounded. `http` shows
//! them. Nothing here changes what the server does, and nothing here waits.

use crate::config::export::Export;
use crate::exports::open::Exports;
use crate::exports::window_digests::Hashing;
use crate::limits::fair_pool::Places;
use crate::observe::counters::{Counters, lock, seconds};
use crate::observe::health_poll::Survey;
use crate::observe::history::{History, STEP_SECONDS};
use crate::observe::session_stats::{Guest, View, Views};
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

/// How often throughput, disks and ports are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(STEP_SECONDS);

/// What a server knows of itself.
pub(crate) struct Observatory {
    pub counters: Arc<Counters>,
    /// What the server says of itself, once it listens.
    pub(super) about: Mutex<About>,
    pub(super) started: SystemTime,
    pub(super) draining: AtomicBool,
    pub(super) views: Arc<Views>,
    pub(super) history: Mutex<History>,
    pub(super) survey: Mutex<Survey>,
    /// What the doctor found when the server began.
    pub(super) findings: Mutex<Vec<Finding>>,
    pub(super) root: PathBuf,
}

/// What of the server is shown beside its sessions: handed in, so that nothing here knows
/// sessions.
pub(crate) struct Watched {
    pub rails: Rdma,
    pub exports: Exports,
    pub digests: Arc<Hashing>,
    /// The memory that is kept for clients.
    pub memory: Arc<Places>,
}

/// What does not change while a server runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct About {
    pub address: Option<SocketAddr>,
    pub fingerprint: String,
    /// When the certificate ends, in seconds since 1970.
    pub certificate_end: Option<f64>,
    /// Why clients are served over TCP.
    pub no_rdma: Option<RdmaUnavailable>,
}

impl Observatory {
    /// For a server that begins now; the kernel's devices are looked for below `root`.
    pub fn new(root: PathBuf) -> Arc<Self> {
        Arc::new(Self {
            counters: Arc::new(Counters::new()),
            about: Mutex::default(),
            started: SystemTime::now(),
            draining: AtomicBool::new(false),
            views: Arc::default(),
            history: Mutex::default(),
            survey: Mutex::default(),
            findings: Mutex::default(),
            root,
        })
    }

    /// Says what does not change from now on.
    pub fn describe(&self, about: About) {
        *lock(&self.about) = about;
    }

    /// Makes the view of a session.
    pub fn enter(&self, guest: Guest) -> Arc<View> {
        let view = Arc::new(View::new(self.counters.clone(), self.views.clone(), guest));
        lock(&self.views).insert(view.id, Arc::downgrade(&view));
        view
    }

    /// The sessions that are in.
    pub(super) fn views(&self) -> Vec<Arc<View>> {
        lock(&self.views).values().filter_map(Weak::upgrade).collect()
    }

    /// Why a client whose link is TCP did not get another, as far as this side knows.
    pub fn why_tcp(&self) -> Fallback {
        match &lock(&self.about).no_rdma {
            None => Fallback::Client,
            Some(missing) if missing.disabled => Fallback::Disabled,
            Some(_) => Fallback::NoDevice,
        }
    }

    /// Says that no new clients are taken.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Keeps an error of no session.
    pub fn trouble(&self, peer: SocketAddr, code: Code, text: impl Into<String>) {
        self.counters.keep(Some(peer), None, &Fault::new(code, text));
    }

    /// Looks at throughput, disks and ports every few seconds, for ever.
    pub async fn watch(self: Arc<Self>, watched: Arc<Watched>, exports: Vec<Export>) {
        let (place, at) = (self.clone(), watched.clone());
        // Nobody waits for it: what it found is shown when it is found.
        drop(tokio::task::spawn_blocking(move || place.examine(&at, &exports)));
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            lock(&self.history).look(self.totals());
            let (place, watched) = (self.clone(), watched.clone());
            // A file system that does not answer holds one thread, not one every few seconds.
            let surveyed = tokio::task::spawn_blocking(move || {
                // Else what the kernel has to say of an idle device would pile up.
                watched.rails.devices.names();
                let survey = Survey::look(&place.root, &watched.rails, &watched.exports);
                *lock(&place.survey) = survey;
            });
            let mut surveyed = Box::pin(surveyed);
            while tokio::time::timeout(LOOK_EVERY, &mut surveyed).await.is_err() {
                lock(&self.history).look(self.totals());
            }
        }
    }

    /// Bytes moved so far, by transport and direction.
    fn totals(&self) -> [[u64; 2]; 2] {
        let of = |transport| {
            [Direction::Read, Direction::Write]
                .map(|way| self.counters.metrics.bytes(way, transport))
        };
        // What is simulated counts as TCP here: it is there in tests alone.
        let (verbs, tcp, sim) = (of(Transport::Verbs), of(Transport::Tcp), of(Transport::Sim));
        [verbs, [tcp[0] + sim[0], tcp[1] + sim[1]]]
    }

    /// The metrics, as Prometheus reads them.
    pub fn metrics_text(&self, watched: &Watched) -> String {
        self.counters.metrics.text(&self.levels(watched))
    }

    /// What the server has now.
    pub(super) fn levels(&self, watched: &Watched) -> Levels {
        let views = self.views();
        let sum = |of: &dyn Fn(&View) -> u64| views.iter().map(|view| of(view)).sum::<u64>();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let cache = watched.digests.cache().stats();
        let survey = lock(&self.survey).clone();
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
            client_bytes: watched.memory.taken() as u64,
            client_bytes_max: watched.memory.all() as u64,
            cache_lookups: (cache.hits, cache.misses),
            cache_entries: cache.entries,
            cache_bytes: cache.bytes,
            certificate_end: lock(&self.about).certificate_end,
            exports: survey.exports,
            ports: survey.ports.into_iter().map(|port| port.levels).collect(),
        }
    }

    /// Why the server should get no new clients, if it should not.
    pub(super) fn unready(&self) -> Option<String> {
        if lock(&self.about).address.is_none() {
            return Some("not listening yet".into());
        }
        if self.draining.load(Ordering::Relaxed) {
            return Some("draining".into());
        }
        lock(&self.survey).trouble(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::counters::TROUBLES_MAX;

    fn guest(id: u64) -> Guest {
        let peer = SocketAddr::from(([10, 0, 0, 7], 5000));
        let (who, agent, request) = ("me".into(), "test".into(), "0f".into());
        let (domain, discreet) = Default::default();
        Guest { id, request, peer, who, agent, domain, discreet }
    }

    #[test]
    fn a_session_is_seen_as_long_as_it_lives() {
        let place = Observatory::new("/none".into());
        let first = place.enter(guest(1));
        let second = place.enter(guest(2));
        assert_eq!(place.views().len(), 2);
        drop(first);
        assert_eq!(place.views().iter().map(|view| view.id).collect::<Vec<_>>(), [2]);
        drop(second);
        assert!(place.views().is_empty() && lock(&place.views).is_empty());
    }

    #[test]
    fn the_newest_errors_are_kept_and_no_more_than_a_bound() {
        let place = Observatory::new("/none".into());
        let view = place.enter(guest(1));
        for number in 0..200 {
            view.trouble(&Fault::new(Code::NoSpace, format!("error {number}")));
        }
        let troubles = lock(&place.counters.troubles);
        assert_eq!(troubles.len(), TROUBLES_MAX);
        assert_eq!(troubles[0].text, "error 199");
        assert!(troubles[0].hint.as_deref().is_some_and(|hint| hint.contains("make room")));
        assert_eq!(troubles[0].session, Some(1));
    }

    #[test]
    fn of_a_session_that_uses_a_hidden_export_nothing_is_told() {
        let place = Observatory::new("/none".into());
        let guest = guest(1);
        let discreet = guest.discreet.clone();
        let view = place.enter(guest);
        let tell = |name: &str| {
            view.trouble(&Fault::new(Code::NoSpace, name));
            let (id, path) = (verbatim_proto::message::FileId(1), name.as_bytes());
            let path = verbatim_proto::WirePath::parse(path).expect("plain");
            view.began(Direction::Read, id, &path, 1 << 30, 0);
            let told = lock(&place.counters.troubles).len() + lock(&view.files).len();
            view.over(Direction::Read, id);
            lock(&place.counters.troubles).clear();
            told
        };
        assert_eq!(tell("shown/a"), 2);
        discreet.store(true, Ordering::Relaxed);
        assert_eq!(tell("hidden/a"), 0);
    }

    #[test]
    fn a_server_is_ready_when_it_listens_and_does_not_drain() {
        let place = Observatory::new("/none".into());
        assert!(place.unready().is_some());
        lock(&place.about).address = Some(SocketAddr::from(([127, 0, 0, 1], 1)));
        assert_eq!(place.unready(), None);
        place.drain();
        assert_eq!(place.unready().as_deref(), Some("draining"));
    }
}
