//! What a client may have with all its sessions of what all clients share: not all
//! there is, so that one that asks for much, or for what takes long, leaves some to
//! the others; and what all clients of one name may have, because a token may be used
//! at many addresses. Owns who counts as one client, as `rate` does; `fair_pool` counts.

use crate::config::Limits;
use crate::limits::fair_pool::{Places, Taker};
use crate::limits::memory_budget;
use crate::limits::network::network_of;
use crate::limits::pattern_steps::Matching;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;
use verbatim_files::watch::watches_max;

/// Threads for file work: opening, hashing, flushing.
pub const FILE_THREADS_MAX: usize = 32;

/// Of these, for one client.
pub(crate) const CLIENT_THREADS_MAX: usize = FILE_THREADS_MAX / 4 * 3;

/// Of these, for all clients of one name: eight are left to others.
const NAME_THREADS_MAX: usize = CLIENT_THREADS_MAX;

/// Walks of all clients that may hash at a time: half of the threads there are for files.
pub(crate) const HASHED_WALKS_MAX: usize = 16;

/// Walks of one client that may hash at a time, of those of all.
const CLIENT_HASHED_WALKS_MAX: usize = 4;

/// Of these, for all clients of one name.
const NAME_HASHED_WALKS_MAX: usize = HASHED_WALKS_MAX / 4 * 3;

/// Folders that all clients may watch: each has a thread.
pub(crate) const WATCHES_MAX: usize = 256;

/// Of the folders that the kernel lets this user watch, the part that clients may: the rest is for
/// other programs of the user, out of four.
const CLIENT_FOLDERS_QUARTERS: u64 = 3;

/// Folders that clients may watch where the kernel does not say how many it allows.
const WATCHED_FOLDERS_UNTOLD: u64 = 1 << 18;

/// Connections that may be open without having proven who they are.
pub(crate) const ARRIVALS_MAX: usize = 1024;

/// Descriptors that no file and no connection gets: of keys and quotas, exports, metrics, the
/// digest cache, devices, and folders that are looked through.
const RESERVED_DESCRIPTORS: usize = 1024;

/// The shares of all clients that are here, and what they are of.
pub(crate) struct Shares {
    clients: Mutex<Clients>,
    pub sessions: Arc<Places>,
    pub watches: Arc<Places>,
    /// Folders in these watches: the kernel has a number of them for each user.
    pub watched_folders: Arc<Places>,
    /// Descriptors of files that are open for clients.
    pub files: Arc<Places>,
    /// Bytes of memory that are kept for clients.
    pub memory: Arc<Places>,
}

/// Those who are here.
#[derive(Default)]
struct Clients {
    names: HashMap<String, Arc<Named>>,
    shares: HashMap<(String, IpAddr), Arc<Share>>,
}

impl Shares {
    /// Nobody is here yet.
    pub fn new(limits: &Limits, descriptors: usize) -> Self {
        Self {
            clients: Mutex::default(),
            sessions: Places::new(limits.sessions_max as usize),
            watches: Places::new(WATCHES_MAX),
            watched_folders: Places::new(for_clients(watches_max())),
            files: Places::new(for_files(limits, descriptors)),
            memory: Places::new(memory_budget::budget_bytes(limits)),
        }
    }

    /// The share of a client.
    pub fn of(&self, who: &str, address: IpAddr) -> Arc<Share> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        // No more than there are sessions, and what these left behind.
        clients.shares.retain(|_, share| share.is_used());
        // A name that comes back finds what it owes.
        clients.names.retain(|_, name| Arc::strong_count(name) > 1 || name.matching.owes());
        let name = clients.names.entry(who.to_owned());
        let name = name.or_insert_with(|| Arc::new(Named::new(self))).clone();
        let share = clients.shares.entry((who.to_owned(), network_of(address)));
        share.or_insert_with(|| Arc::new(Share::new(name))).clone()
    }
}

/// How many descriptors files may have: what is left when every session has all of its links, and
/// a quarter where that is less.
fn for_files(limits: &Limits, descriptors: usize) -> usize {
    let of_session = 1 + limits.links_per_session_max as usize;
    let connections = ARRIVALS_MAX + limits.sessions_max as usize * of_session;
    descriptors.saturating_sub(connections + RESERVED_DESCRIPTORS).max(descriptors / 4)
}

/// How many folders clients may watch, of what the kernel allows this user.
fn for_clients(allowed: Option<u64>) -> usize {
    let allowed = allowed.unwrap_or(WATCHED_FOLDERS_UNTOLD);
    usize::try_from(allowed / 4 * CLIENT_FOLDERS_QUARTERS).unwrap_or(usize::MAX)
}

/// What all clients of one name have.
pub(crate) struct Named {
    pub threads: Arc<Semaphore>,
    pub hashed_walks: Arc<Semaphore>,
    /// What patterns of theirs take.
    pub matching: Arc<Matching>,
    sessions: Arc<Taker>,
    watches: Arc<Taker>,
    watched_folders: Arc<Taker>,
    files: Arc<Taker>,
    memory: Arc<Taker>,
}

impl Named {
    fn new(of: &Shares) -> Self {
        Self {
            threads: Arc::new(Semaphore::new(NAME_THREADS_MAX)),
            hashed_walks: Arc::new(Semaphore::new(NAME_HASHED_WALKS_MAX)),
            matching: Matching::new(),
            sessions: Taker::named(&of.sessions),
            watches: Taker::named(&of.watches),
            watched_folders: Taker::named(&of.watched_folders),
            files: Taker::named(&of.files),
            memory: Taker::named(&of.memory),
        }
    }
}

/// What one client has.
pub(crate) struct Share {
    pub name: Arc<Named>,
    pub threads: Arc<Semaphore>,
    pub hashed_walks: Arc<Semaphore>,
    pub sessions: Arc<Taker>,
    pub watches: Arc<Taker>,
    pub watched_folders: Arc<Taker>,
    pub files: Arc<Taker>,
    pub memory: Arc<Taker>,
}

impl Share {
    fn new(name: Arc<Named>) -> Self {
        Self {
            threads: Arc::new(Semaphore::new(CLIENT_THREADS_MAX)),
            hashed_walks: Arc::new(Semaphore::new(CLIENT_HASHED_WALKS_MAX)),
            sessions: name.sessions.part(),
            watches: name.watches.part(),
            watched_folders: name.watched_folders.part(),
            files: name.files.part(),
            memory: name.memory.part(),
            name,
        }
    }

    /// Whether somebody has it, or something of it: work may go on when its session is over.
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

    fn shares() -> Shares {
        Shares::new(&Limits::default(), 65_536)
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
        let all = |client: &Arc<Share>| {
            std::iter::from_fn(|| client.sessions.take(1)).collect::<Vec<_>>()
        };
        let taken: Vec<_> = clients.iter().flat_map(all).collect();
        assert!((1500..=1536).contains(&taken.len()), "{}", taken.len());
        let bob = shares.of("bob", IpAddr::from([10, 0, 0, 1]));
        assert!(all(&bob).len() >= 256, "others find some");
    }

    #[test]
    fn clients_leave_folders_to_watch_to_others_and_to_the_rest_of_the_machine() {
        let shares = Shares { watched_folders: Places::new(for_clients(Some(8192))), ..shares() };
        let at = |who: &str, last: u8| shares.of(who, IpAddr::from([10, 0, 0, last]));
        let alice = at("alice", 1);
        // 128 watches, each of a tree of a thousand folders, as far as there is room.
        let watch = |_: usize| {
            let mut held = alice.watched_folders.none();
            let has = (1..=1000).take_while(|&folders| held.hold(folders)).count();
            (held, has)
        };
        let all: Vec<_> = (0..128).map(watch).collect();
        assert_eq!(alice.watched_folders.has(), 3072, "half of three quarters of 8192");
        let mut bob = at("bob", 1).watched_folders.none();
        assert!(bob.hold(1000), "another client finds some");
        drop(all);
        assert_eq!(alice.watched_folders.has(), 0);
        assert_eq!(for_clients(None), 196_608);
    }

    #[test]
    fn a_name_that_comes_back_finds_what_its_patterns_took() {
        let shares = shares();
        let here = IpAddr::from([10, 0, 0, 1]);
        let name = shares.of("alice", here).name.clone();
        name.matching.take(u64::MAX >> 20);
        drop(name);
        shares.of("bob", here);
        assert!(shares.of("alice", here).name.matching.owes());
        assert!(!shares.of("bob", here).name.matching.owes());
    }

    #[test]
    fn who_comes_back_finds_what_its_work_still_has() {
        let shares = shares();
        let here = IpAddr::from([10, 0, 0, 1]);
        let of = |who| shares.of(who, here);
        let thread = of("alice").threads.clone().try_acquire_owned().expect("it is free");
        let file = of("bob").files.part().take(1).expect("it is free");
        let (alice, bob) = (of("alice").threads.available_permits(), of("bob").files.has());
        assert_eq!((alice, bob), (CLIENT_THREADS_MAX - 1, 1));
        drop((thread, file));
        of("carol");
        assert_eq!(shares.clients.lock().unwrap().shares.len(), 1);
    }

    #[test]
    fn files_leave_descriptors_to_all_connections_and_to_keys() {
        let limits = Limits::default();
        let connections = limits.sessions_max * (1 + limits.links_per_session_max);
        let files = for_files(&limits, 65_536);
        assert!(files > 16_384, "{files} are for files");
        assert!(files + connections as usize + ARRIVALS_MAX + RESERVED_DESCRIPTORS <= 65_536);
        assert_eq!(for_files(&limits, 1024), 256, "a quarter where there are few");
    }
}
