//! How fast clients may move data: a bucket for each client, which all its sessions
//! share, and one for each name, which all clients of that name share. Owns who counts
//! as one client: a name from one address (a /64 of IPv6). Pure: it is told the time.
//! Sessions ask before they lease a window, and after they were sent a chunk;
//! `session/pacing` waits where it says so.
//!
//! A window may be had whenever nothing is owed, and is owed for then, so the rate
//! is kept on average however long windows are.

use crate::limits::network::network_of;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use verbatim_proto::units::{GRAIN_BYTES, WINDOW_BYTES};

/// How much time may be saved up while nothing moves.
const BURST: Duration = Duration::from_millis(250);

/// Windows are as long as takes this part of a second.
const WINDOWS_PER_SECOND: u64 = 4;

/// Buckets that are remembered; more, and those of clients that are gone are forgotten with what
/// they owe.
const CLIENTS_MAX: usize = 4096;

/// The buckets of all clients.
pub(crate) struct Paces {
    /// Bytes a second of a client; none where no client is held back.
    client: Option<u64>,
    /// Of all clients of a name.
    name: Option<u64>,
    started: Instant,
    buckets: Mutex<HashMap<Owner, Arc<Bucket>>>,
}

impl Paces {
    /// Lets each client, and all clients of a name, move so many MiB a second; 0 is as many as
    /// they can.
    pub fn new(client_mb_per_second: u32, name_mb_per_second: u32) -> Self {
        let bytes = |mb: u32| (mb > 0).then(|| u64::from(mb) << 20);
        let (client, name) = (bytes(client_mb_per_second), bytes(name_mb_per_second));
        Self { client, name, started: Instant::now(), buckets: Mutex::default() }
    }

    /// The time that buckets are told.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// What a client takes from, if it is held back at all.
    pub fn of(&self, who: &str, address: IpAddr, now: Duration) -> Option<Pace> {
        let of_name = self.name.map(|rate| (None, rate));
        let of_client = self.client.map(|rate| (Some(network_of(address)), rate));
        let wanted: Vec<_> = of_name.into_iter().chain(of_client).collect();
        if wanted.is_empty() {
            return None;
        }
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        // Who comes back finds what it owes; who owes nothing need not be known.
        let is_here = |bucket: &Arc<Bucket>| Arc::strong_count(bucket) > 1;
        if buckets.len() + wanted.len() > CLIENTS_MAX {
            buckets.retain(|_, bucket| is_here(bucket) || bucket.wait(now).is_some());
        }
        if buckets.len() + wanted.len() > CLIENTS_MAX {
            buckets.retain(|_, bucket| is_here(bucket));
        }
        let bucket = |(address, rate): (Option<IpAddr>, u64)| {
            let of = (who.to_owned(), address);
            buckets.entry(of).or_insert_with(|| Arc::new(Bucket::new(rate))).clone()
        };
        Some(Pace { buckets: wanted.into_iter().map(bucket).collect() })
    }
}

/// Whose a bucket is: a client's, with its address, or a name's.
type Owner = (String, Option<IpAddr>);

/// What one client takes from: the bucket of its name first, then its own.
pub(crate) struct Pace {
    buckets: Vec<Arc<Bucket>>,
}

impl Pace {
    /// Counts what moved.
    pub fn take(&self, bytes: u64, now: Duration) {
        self.buckets.iter().for_each(|bucket| bucket.owe(&mut bucket.free_at(), bytes, now));
    }

    /// Counts what is about to move, if nothing is owed; says whether. Of two sessions that ask at
    /// the same moment one has to wait.
    pub fn take_if_free(&self, bytes: u64, now: Duration) -> bool {
        // Names before clients, always, so that no two wait for each other.
        let mut all: Vec<_> =
            self.buckets.iter().map(|bucket| (bucket, bucket.free_at())).collect();
        let is_free = all.iter().all(|(_, free_at)| **free_at <= now);
        if is_free {
            all.iter_mut().for_each(|(bucket, free_at)| bucket.owe(free_at, bytes, now));
        }
        is_free
    }

    /// What was counted does not move after all.
    pub fn give_back(&self, bytes: u64) {
        for bucket in &self.buckets {
            let mut free_at = bucket.free_at();
            *free_at = free_at.saturating_sub(bucket.time_of(bytes));
        }
    }

    /// How long until something may move; none where it may now.
    pub fn wait(&self, now: Duration) -> Option<Duration> {
        self.buckets.iter().filter_map(|bucket| bucket.wait(now)).max()
    }

    /// The longest window that does not make a client wait for long.
    pub fn window_bytes(&self) -> u64 {
        let most = self.buckets.iter().map(|bucket| bucket.bytes_per_second).min();
        let most = most.unwrap_or(u64::MAX) / WINDOWS_PER_SECOND;
        1 << most.clamp(GRAIN_BYTES, WINDOW_BYTES).ilog2()
    }
}

/// What one client, or one name, owes.
pub(crate) struct Bucket {
    bytes_per_second: u64,
    /// When nothing is owed.
    free_at: Mutex<Duration>,
}

impl Bucket {
    pub fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, free_at: Mutex::default() }
    }

    /// Counts what was taken already, and says how long until it is paid for.
    pub fn spend(&self, bytes: u64, now: Duration) -> Option<Duration> {
        let mut free_at = self.free_at();
        self.owe(&mut free_at, bytes, now);
        free_at.checked_sub(now).filter(|wait| !wait.is_zero())
    }

    /// Who was idle for long has saved up a burst and no more.
    fn owe(&self, free_at: &mut Duration, bytes: u64, now: Duration) {
        *free_at = (*free_at).max(now.saturating_sub(BURST)) + self.time_of(bytes);
    }

    fn free_at(&self) -> MutexGuard<'_, Duration> {
        self.free_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn time_of(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64)
    }

    pub fn wait(&self, now: Duration) -> Option<Duration> {
        self.free_at().checked_sub(now).filter(|wait| !wait.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const NOW: Duration = Duration::from_secs(100);

    impl Pace {
        fn new(bytes_per_second: u64) -> Self {
            Self { buckets: vec![Arc::new(Bucket::new(bytes_per_second))] }
        }
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn what_is_taken_is_waited_for() {
        let pace = Pace::new(4 * MIB);
        let mut now = NOW;
        for _ in 0..40 {
            pace.take(MIB, now);
            now += pace.wait(now).unwrap_or_default();
        }
        // Ten seconds, less what was saved up.
        assert_eq!(now - NOW, Duration::from_millis(9750));
        assert_eq!(pace.wait(now + Duration::from_secs(1)), None);
    }

    #[test]
    fn of_two_who_ask_at_once_one_has_to_wait() {
        let pace = Pace::new(4 * MIB);
        assert!(pace.take_if_free(2 * MIB, NOW));
        assert!(!pace.take_if_free(2 * MIB, NOW), "both were let through");
        let wait = pace.wait(NOW).expect("the first is owed for");
        assert_eq!(wait, Duration::from_millis(250), "and the second is not");
        assert!(pace.take_if_free(2 * MIB, NOW + wait));
        pace.give_back(2 * MIB);
        assert!(pace.wait(NOW + wait).is_none(), "what does not move is not waited for");
    }

    #[test]
    fn sessions_of_a_client_share_and_others_do_not() {
        let paces = Paces::new(1, 0);
        let of = |who: &str, last| paces.of(who, address(last), NOW).unwrap();
        of("alice", 1).take(10 * MIB, NOW);
        assert!(of("alice", 1).wait(NOW).is_some(), "it came back, and owes what it owed");
        assert!(of("bob", 1).wait(NOW).is_none() && of("alice", 2).wait(NOW).is_none());
        assert!(Paces::new(0, 0).of("alice", address(1), NOW).is_none(), "no limit, no bucket");
    }

    #[test]
    fn a_name_has_one_rate_however_many_addresses_it_comes_from() {
        let paces = Paces::new(4, 8);
        let of = |who: &str, last| paces.of(who, address(last), NOW).unwrap();
        let moved: usize =
            (1..=10).map(|last| usize::from(of("alice", last).take_if_free(8 * MIB, NOW))).sum();
        assert_eq!(moved, 1, "of the name's second one address had all");
        assert!(of("bob", 1).take_if_free(8 * MIB, NOW), "another name has its own");
        let waits = [of("alice", 1), of("alice", 2)].map(|pace| pace.wait(NOW).unwrap());
        assert_eq!(waits.map(|wait| wait.as_millis()), [1750, 750], "its own rate, and its name's");
        of("alice", 1).give_back(8 * MIB);
        assert_eq!(of("alice", 2).wait(NOW), None);
        assert_eq!(of("alice", 2).window_bytes(), MIB);
        assert_eq!(
            Paces::new(0, 400).of("alice", address(1), NOW).unwrap().window_bytes(),
            16 * MIB
        );
    }

    #[test]
    fn clients_that_are_gone_are_forgotten_when_there_are_too_many() {
        let paces = Paces::new(1, 0);
        let of = |number: usize| paces.of(&number.to_string(), address(1), NOW).unwrap();
        let here = of(0);
        here.take(10 * MIB, NOW);
        of(1).take(10 * MIB, NOW);
        (2..CLIENTS_MAX + 1).for_each(|number| drop(of(number)));
        assert!(of(1).wait(NOW).is_some(), "who owes is known while there is room");
        (0..CLIENTS_MAX).for_each(|number| of(CLIENTS_MAX + number).take(10 * MIB, NOW));
        assert!(paces.buckets.lock().unwrap().len() <= CLIENTS_MAX);
        assert!(of(0).wait(NOW).is_some(), "who is here is never forgotten");
    }

    #[test]
    fn windows_are_whole_grains_and_no_longer_than_they_may_be() {
        for (rate, window) in [(1, MIB / 4), (4, MIB), (7, MIB), (100, 16 * MIB), (9999, 16 * MIB)]
        {
            assert_eq!(Pace::new(rate * MIB).window_bytes(), window, "{rate} MiB/s");
        }
    }
}
