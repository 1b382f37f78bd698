//! Limits per client and per token name on the resources that all clients share: sessions,
//! threads, watches, descriptors, memory. One client leaves room for others; one name does too,
//! because a token may be used from many addresses. Owns which sessions count as one client;
//! `fair_pool` does the counting.

use crate::config::Limits;
use crate::limits::fair_pool::{FairPool, PoolShare};
use crate::limits::memory_budget;
use crate::limits::network::network_of;
use crate::limits::pattern_steps::PatternSteps;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;
use verbatim_files::watch::watches_max;

/// Threads for file work: opening, hashing, flushing.
pub const FILE_THREADS_MAX: usize = 32;

/// Threads for file work that one client may use at a time.
pub(crate) const CLIENT_THREADS_MAX: usize = FILE_THREADS_MAX / 4 * 3;

/// Threads for file work that all clients of one name may use: eight are left to others.
const NAME_THREADS_MAX: usize = CLIENT_THREADS_MAX;

/// Walks that may hash at a time, of all clients: half of the threads for file work.
pub(crate) const HASHED_WALKS_MAX: usize = 16;

/// Walks that may hash at a time, of one client.
const CLIENT_HASHED_WALKS_MAX: usize = 4;

/// Walks that may hash at a time, of all clients of one name.
const NAME_HASHED_WALKS_MAX: usize = HASHED_WALKS_MAX / 4 * 3;

/// Watches of all clients: each has a thread.
pub(crate) const WATCHES_MAX: usize = 256;

/// The quarters of the kernel's inotify limit that clients may use: the rest is for other programs
/// of this user.
const CLIENT_WATCHED_QUARTERS: u64 = 3;

/// The inotify limit assumed where the kernel does not report one.
const WATCHED_FOLDERS_DEFAULT: u64 = 1 << 18;

/// Connections that may be open without having authenticated.
pub(crate) const PENDING_HANDSHAKES_MAX: usize = 1024;

/// Descriptors reserved from files and connections: for keys and quotas, exports, metrics, the
/// digest cache, devices and folders that are scanned.
const RESERVED_DESCRIPTORS: usize = 1024;

/// The pools of a server, and the limits of each connected client.
pub(crate) struct ServerLimits {
    clients: Mutex<KnownClients>,
    pub sessions: Arc<FairPool>,
    pub watches: Arc<FairPool>,
    /// Folders in these watches: the kernel limits their number for each user.
    pub watched_folders: Arc<FairPool>,
    /// Descriptors of files opened for clients.
    pub files: Arc<FairPool>,
    /// Bytes of memory used for clients.
    pub memory: Arc<FairPool>,
}

/// Clients with a session or unfinished work, and names with a debt.
#[derive(Default)]
struct KnownClients {
    names: HashMap<String, Arc<NameLimits>>,
    shares: HashMap<(String, IpAddr), Arc<ClientLimits>>,
}

impl ServerLimits {
    /// Makes the pools, without clients.
    pub fn new(limits: &Limits, descriptors: usize) -> Self {
        Self {
            clients: Mutex::default(),
            sessions: FairPool::new(limits.sessions_max as usize),
            watches: FairPool::new(WATCHES_MAX),
            watched_folders: FairPool::new(watched_folders_for_clients(watches_max())),
            files: FairPool::new(file_descriptors_for_clients(limits, descriptors)),
            memory: FairPool::new(memory_budget::budget_bytes(limits)),
        }
    }

    /// Returns the limits of a client, shared by all its sessions.
    pub fn of(&self, who: &str, address: IpAddr) -> Arc<ClientLimits> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        // Bounds the map: it keeps clients with sessions or unfinished work only.
        clients.shares.retain(|_, share| share.is_used());
        // A debt outlives its sessions: reconnecting does not clear it.
        clients
            .names
            .retain(|_, name| Arc::strong_count(name) > 1 || name.pattern_steps.is_in_debt());
        let name = clients.names.entry(who.to_owned());
        let name = name.or_insert_with(|| Arc::new(NameLimits::new(self))).clone();
        let share = clients.shares.entry((who.to_owned(), network_of(address)));
        share.or_insert_with(|| Arc::new(ClientLimits::new(name))).clone()
    }
}

/// Descriptors for files: the rest after every session has all of its links, and at least a
/// quarter.
fn file_descriptors_for_clients(limits: &Limits, descriptors: usize) -> usize {
    let of_session = 1 + limits.links_per_session_max as usize;
    let connections = PENDING_HANDSHAKES_MAX + limits.sessions_max as usize * of_session;
    descriptors.saturating_sub(connections + RESERVED_DESCRIPTORS).max(descriptors / 4)
}

/// Folders that clients may watch, given the kernel's limit for this user.
fn watched_folders_for_clients(allowed: Option<u64>) -> usize {
    let allowed = allowed.unwrap_or(WATCHED_FOLDERS_DEFAULT);
    usize::try_from(allowed / 4 * CLIENT_WATCHED_QUARTERS).unwrap_or(usize::MAX)
}

/// The limits of all clients of one name.
pub(crate) struct NameLimits {
    pub threads: Arc<Semaphore>,
    pub hashed_walks: Arc<Semaphore>,
    /// Rate limit on the processor time of their patterns.
    pub pattern_steps: Arc<PatternSteps>,
    sessions: Arc<PoolShare>,
    watches: Arc<PoolShare>,
    watched_folders: Arc<PoolShare>,
    files: Arc<PoolShare>,
    memory: Arc<PoolShare>,
}

impl NameLimits {
    fn new(of: &ServerLimits) -> Self {
        Self {
            threads: Arc::new(Semaphore::new(NAME_THREADS_MAX)),
            hashed_walks: Arc::new(Semaphore::new(NAME_HASHED_WALKS_MAX)),
            pattern_steps: PatternSteps::new(),
            sessions: PoolShare::for_name(&of.sessions),
            watches: PoolShare::for_name(&of.watches),
            watched_folders: PoolShare::for_name(&of.watched_folders),
            files: PoolShare::for_name(&of.files),
            memory: PoolShare::for_name(&of.memory),
        }
    }
}

/// The limits of one client.
pub(crate) struct ClientLimits {
    pub name: Arc<NameLimits>,
    pub threads: Arc<Semaphore>,
    pub hashed_walks: Arc<Semaphore>,
    pub sessions: Arc<PoolShare>,
    pub watches: Arc<PoolShare>,
    pub watched_folders: Arc<PoolShare>,
    pub files: Arc<PoolShare>,
    pub memory: Arc<PoolShare>,
}

impl ClientLimits {
    fn new(name: Arc<NameLimits>) -> Self {
        Self {
            threads: Arc::new(Semaphore::new(CLIENT_THREADS_MAX)),
            hashed_walks: Arc::new(Semaphore::new(CLIENT_HASHED_WALKS_MAX)),
            sessions: name.sessions.child(),
            watches: name.watches.child(),
            watched_folders: name.watched_folders.child(),
            files: name.files.child(),
            memory: name.memory.child(),
            name,
        }
    }

    /// Whether a session or a job still uses it: jobs may outlive their session.
    fn is_used(self: &Arc<Self>) -> bool {
        let Self { sessions, watches, watched_folders, files, memory, .. } = &**self;
        let takers = [sessions, watches, watched_folders, files, memory].map(Arc::strong_count);
        let Self { threads, hashed_walks, .. } = &**self;
        let counts = [Arc::strong_count(self), Arc::strong_count(threads)];
        let counts = counts.into_iter().chain([Arc::strong_count(hashed_walks)]).chain(takers);
        counts.max() > Some(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares() -> ServerLimits {
        ServerLimits::new(&Limits::default(), 65_536)
    }

    #[test]
    fn sessions_of_one_client_have_one_share_and_others_another() {
        let shares = shares();
        let [here, there] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let first = shares.of("alice", here);
        assert!(Arc::ptr_eq(&first, &shares.of("alice", here)));
        let others = [shares.of("bob", here), shares.of("alice", there)];
        assert!(others.iter().all(|other| !Arc::ptr_eq(&first, other)));
        assert!(first.threads.available_permits() < FILE_THREADS_MAX, "some are left to others");
        drop((first, others));
        shares.of("carol", here);
        assert_eq!(shares.clients.lock().unwrap().shares.len(), 1, "who is gone is forgotten");
    }

    #[test]
    fn a_name_at_many_addresses_leaves_threads_and_sessions_to_others() {
        let shares = shares();
        let at = |last: u8| shares.of("alice", IpAddr::from([10, 0, 0, last]));
        let clients: Vec<_> = (1..=10).map(at).collect();
        assert!(clients.iter().all(|client| Arc::ptr_eq(&client.name, &clients[0].name)));
        let threads = clients[0].name.threads.available_permits();
        assert!(threads < FILE_THREADS_MAX, "{threads} of {FILE_THREADS_MAX}");
        let all = |client: &Arc<ClientLimits>| {
            std::iter::from_fn(|| client.sessions.take(1)).collect::<Vec<_>>()
        };
        let taken: Vec<_> = clients.iter().flat_map(all).collect();
        assert!((1500..=1536).contains(&taken.len()), "{}", taken.len());
        let bob = shares.of("bob", IpAddr::from([10, 0, 0, 1]));
        assert!(all(&bob).len() >= 256, "others find some");
    }

    #[test]
    fn clients_leave_folders_to_watch_to_others_and_to_the_rest_of_the_machine() {
        let shares = ServerLimits {
            watched_folders: FairPool::new(watched_folders_for_clients(Some(8192))),
            ..shares()
        };
        let at = |who: &str, last: u8| shares.of(who, IpAddr::from([10, 0, 0, last]));
        let alice = at("alice", 1);
        // 128 watches, each of a tree of a thousand folders, as far as there is room.
        let watch = |_: usize| {
            let mut held = alice.watched_folders.empty();
            let has = (1..=1000).take_while(|&folders| held.resize(folders)).count();
            (held, has)
        };
        let all: Vec<_> = (0..128).map(watch).collect();
        assert_eq!(alice.watched_folders.used(), 3072, "half of three quarters of 8192");
        let mut bob = at("bob", 1).watched_folders.empty();
        assert!(bob.resize(1000), "another client finds some");
        drop(all);
        assert_eq!(alice.watched_folders.used(), 0);
        assert_eq!(watched_folders_for_clients(None), 196_608);
    }

    #[test]
    fn a_name_that_comes_back_finds_what_its_patterns_took() {
        let shares = shares();
        let here = IpAddr::from([10, 0, 0, 1]);
        let name = shares.of("alice", here).name.clone();
        name.pattern_steps.take(u64::MAX >> 20);
        drop(name);
        shares.of("bob", here);
        assert!(shares.of("alice", here).name.pattern_steps.is_in_debt());
        assert!(!shares.of("bob", here).name.pattern_steps.is_in_debt());
    }

    #[test]
    fn who_comes_back_finds_what_its_work_still_has() {
        let shares = shares();
        let here = IpAddr::from([10, 0, 0, 1]);
        let of = |who| shares.of(who, here);
        let thread = of("alice").threads.clone().try_acquire_owned().expect("it is free");
        let file = of("bob").files.child().take(1).expect("it is free");
        let (alice, bob) = (of("alice").threads.available_permits(), of("bob").files.used());
        assert_eq!((alice, bob), (CLIENT_THREADS_MAX - 1, 1));
        drop((thread, file));
        of("carol");
        assert_eq!(shares.clients.lock().unwrap().shares.len(), 1);
    }

    #[test]
    fn files_leave_descriptors_to_all_connections_and_to_keys() {
        let limits = Limits::default();
        let connections = limits.sessions_max * (1 + limits.links_per_session_max);
        let files = file_descriptors_for_clients(&limits, 65_536);
        assert!(files > 16_384, "{files} are for files");
        assert!(
            files + connections as usize + PENDING_HANDSHAKES_MAX + RESERVED_DESCRIPTORS <= 65_536
        );
        assert_eq!(
            file_descriptors_for_clients(&limits, 1024),
            256,
            "a quarter where there are few"
        );
    }
}
