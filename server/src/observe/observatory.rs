//! What people see of a running server: who is in, what moves, what went wrong.
//! Sessions and the listener tell it through a `View` each; it keeps metrics,
//! ten minutes of throughput and the last errors, all bounded. `http` shows
//! them. Nothing here changes what the server does, and nothing here waits.

use crate::config::export::Export;
use crate::observe::health_poll::Survey;
use crate::observe::history::{History, STEP_SECONDS};
use crate::observe::session_stats::{Guest, View};
use crate::rdma::rails::Missing;
use crate::session::Shared;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};
use verbatim_doctor::Finding;
use verbatim_proto::{Class as FaultClass, Code, Fault};
use verbatim_telemetry::labels::{Class, Direction, Fallback, Transport};
pub use verbatim_telemetry::port::PortError as MetricsError;
use verbatim_telemetry::serve::{Levels, ServeMetrics};

/// Errors that are kept for people to read.
const TROUBLES_MAX: usize = 50;

/// How often throughput, disks and ports are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(STEP_SECONDS);

/// What a server knows of itself.
pub(crate) struct Observatory {
    pub metrics: ServeMetrics,
    /// What the server says of itself, once it listens.
    pub(super) about: Mutex<About>,
    pub(super) started: SystemTime,
    pub(super) draining: AtomicBool,
    pub(super) views: Mutex<BTreeMap<u64, Weak<View>>>,
    pub(super) history: Mutex<History>,
    pub(super) troubles: Mutex<VecDeque<Trouble>>,
    pub(super) survey: Mutex<Survey>,
    /// What the doctor found when the server began.
    pub(super) findings: Mutex<Vec<Finding>>,
    pub(super) root: PathBuf,
}

/// What does not change while a server runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct About {
    pub address: Option<SocketAddr>,
    pub fingerprint: String,
    /// When the certificate ends, in seconds since 1970.
    pub certificate_end: Option<f64>,
    /// Why clients are served over TCP.
    pub no_rdma: Option<Missing>,
}

/// Something that went wrong.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub at: SystemTime,
    pub text: String,
    pub hint: Option<String>,
    pub peer: Option<SocketAddr>,
    pub session: Option<u64>,
}

impl Observatory {
    /// For a server that begins now; the kernel's devices are looked for below `root`.
    pub fn new(root: PathBuf) -> Arc<Self> {
        Arc::new(Self {
            metrics: ServeMetrics::new(env!("CARGO_PKG_VERSION")),
            about: Mutex::default(),
            started: SystemTime::now(),
            draining: AtomicBool::new(false),
            views: Mutex::default(),
            history: Mutex::default(),
            troubles: Mutex::default(),
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
    pub fn enter(self: &Arc<Self>, guest: Guest) -> Arc<View> {
        let view = Arc::new(View::new(self.clone(), guest));
        lock(&self.views).insert(view.id, Arc::downgrade(&view));
        view
    }

    pub(super) fn leave(&self, id: u64) {
        lock(&self.views).remove(&id);
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
        self.keep(Some(peer), None, &Fault::new(code, text));
    }

    /// Keeps an error, and counts it.
    pub(super) fn keep(&self, peer: Option<SocketAddr>, session: Option<u64>, fault: &Fault) {
        self.count(fault);
        let hint = hint_of(fault.code).map(str::to_owned);
        let at = SystemTime::now();
        let mut troubles = lock(&self.troubles);
        troubles.truncate(TROUBLES_MAX - 1);
        troubles.push_front(Trouble { at, text: fault.text.clone(), hint, peer, session });
    }

    pub(super) fn count(&self, fault: &Fault) {
        self.metrics.failed(class_of(fault.class()));
    }

    /// Looks at throughput, disks and ports every few seconds, for ever.
    pub async fn watch(self: Arc<Self>, shared: Arc<Shared>, exports: Vec<Export>) {
        let (place, at) = (self.clone(), shared.clone());
        // Nobody waits for it: what it found is shown when it is found.
        drop(tokio::task::spawn_blocking(move || place.examine(&at, &exports)));
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            lock(&self.history).look(self.totals());
            let (place, shared) = (self.clone(), shared.clone());
            // A file system that does not answer holds one thread, not one every few seconds.
            let surveyed = tokio::task::spawn_blocking(move || {
                // Else what the kernel has to say of an idle device would pile up.
                shared.rdma.devices.names();
                let survey = Survey::look(&place.root, &shared.rdma, &shared.exports);
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
            [Direction::Read, Direction::Write].map(|way| self.metrics.bytes(way, transport))
        };
        // What is simulated counts as TCP here: it is there in tests alone.
        let (verbs, tcp, sim) = (of(Transport::Verbs), of(Transport::Tcp), of(Transport::Sim));
        [verbs, [tcp[0] + sim[0], tcp[1] + sim[1]]]
    }

    /// The metrics, as Prometheus reads them.
    pub fn metrics_text(&self, shared: &Shared) -> String {
        self.metrics.text(&self.levels(shared))
    }

    /// What the server has now.
    pub(super) fn levels(&self, shared: &Shared) -> Levels {
        let views = self.views();
        let sum = |of: &dyn Fn(&View) -> u64| views.iter().map(|view| of(view)).sum::<u64>();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let cache = shared.hashing.cache().stats();
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
            pinned_bytes_max: shared.rdma.pinned_bytes_max(),
            slots: sum(&|view| load(&view.slots)),
            client_bytes: shared.shares.memory.taken() as u64,
            client_bytes_max: shared.shares.memory.all() as u64,
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

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Seconds since 1970.
pub(super) fn seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn class_of(class: FaultClass) -> Class {
    match class {
        FaultClass::Retry => Class::Retry,
        FaultClass::Peer => Class::Peer,
        FaultClass::Local => Class::Local,
        FaultClass::Bug => Class::Bug,
    }
}

/// What whoever runs the server may do about a fault that a client was told.
pub(crate) fn hint_of(code: Code) -> Option<&'static str> {
    Some(match code {
        Code::NotFound => "the client named what is not here; rdma-cp --list HOST:/ lists exports",
        Code::Denied => {
            "see the owner and mode of the path, and for RDMA ports the gids of its export"
        }
        Code::ReadOnly => "export it with :rw, or mount it rw, if clients may write there",
        Code::NoSpace => {
            "make room in the file system of the export, or raise its quota_mb or quota_files"
        }
        Code::Changed => "somebody writes to the file while it is read; export a snapshot",
        Code::Mismatch => "memory, disk or cable alters data: check ECC, SMART and port errors",
        Code::Io => "see the kernel's log for the disk or network of this export",
        Code::Limit => "a bound was reached; those that can be raised are in [limits] and [rdma]",
        Code::Version => "use a client of the same release",
        Code::NotAuthenticated => {
            "if it may come in, make it a token with rdma-token add, or authorize its key"
        }
        Code::LinkLost => "the network or the client went away; it will go on",
        Code::TimedOut => "the client was silent, or kept what others wait for; it may come back",
        Code::BadPath => "links that lead out of an export are not followed",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let troubles = lock(&place.troubles);
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
            let told = lock(&place.troubles).len() + lock(&view.files).len();
            view.over(Direction::Read, id);
            lock(&place.troubles).clear();
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
