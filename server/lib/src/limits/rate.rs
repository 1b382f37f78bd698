//! Rate limits in bytes per second: a token bucket for each client, shared by its sessions,
//! and one for each name, shared by its clients. A client is a name at one address (a /64 of
//! IPv6). Pure: callers pass the time. Sessions take from the bucket before they lease a window
//! and after they receive a chunk; `session/pacing` waits for the debt to be paid.
//!
//! A window may be leased whenever there is no debt, and is charged then. So the rate is kept
//! on average, however long windows are.

use crate::limits::network::network_of;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use verbatim_proto::units::{GRAIN_BYTES, WINDOW_BYTES};

/// The burst that an idle client saves up, as time.
const BURST: Duration = Duration::from_millis(250);

/// Windows of a limited client are cut so that this many fit into a second.
const WINDOWS_PER_SECOND: u64 = 4;

/// Buckets kept; beyond, those of disconnected clients are dropped with their debt.
const CLIENTS_MAX: usize = 4096;

/// The buckets of all clients.
pub(crate) struct RateLimits {
    /// Bytes per second of a client; `None` without a limit.
    client: Option<u64>,
    /// Bytes per second of all clients of a name.
    name: Option<u64>,
    started: Instant,
    buckets: Mutex<HashMap<BucketKey, Arc<Bucket>>>,
}

impl RateLimits {
    /// Sets the limits of each client and of all clients of a name, in MiB per second; 0 is no
    /// limit.
    pub fn new(client_mb_per_second: u32, name_mb_per_second: u32) -> Self {
        let bytes = |mb: u32| (mb > 0).then(|| u64::from(mb) << 20);
        let (client, name) = (bytes(client_mb_per_second), bytes(name_mb_per_second));
        Self { client, name, started: Instant::now(), buckets: Mutex::default() }
    }

    /// The clock of the buckets.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The buckets of a client; `None` if it has no limit.
    pub fn of(&self, who: &str, address: IpAddr, now: Duration) -> Option<RateLimit> {
        let of_name = self.name.map(|rate| (None, rate));
        let of_client = self.client.map(|rate| (Some(network_of(address)), rate));
        let wanted: Vec<_> = of_name.into_iter().chain(of_client).collect();
        if wanted.is_empty() {
            return None;
        }
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        // Reconnecting does not clear a debt; buckets without debt need not be kept.
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
        Some(RateLimit { buckets: wanted.into_iter().map(bucket).collect() })
    }
}

/// A bucket belongs to a client, with its address, or to a name.
type BucketKey = (String, Option<IpAddr>);

/// The buckets of one client: that of its name first, then its own.
pub(crate) struct RateLimit {
    buckets: Vec<Arc<Bucket>>,
}

impl RateLimit {
    /// Charges bytes that were transferred.
    pub fn take(&self, bytes: u64, now: Duration) {
        self.buckets.iter().for_each(|bucket| bucket.charge(&mut bucket.paid_until(), bytes, now));
    }

    /// Charges bytes before their transfer if there is no debt; returns whether. Of two sessions
    /// that try at the same moment, one fails.
    pub fn try_take(&self, bytes: u64, now: Duration) -> bool {
        // Lock order: names before clients.
        let mut all: Vec<_> =
            self.buckets.iter().map(|bucket| (bucket, bucket.paid_until())).collect();
        let is_free = all.iter().all(|(_, paid_until)| **paid_until <= now);
        if is_free {
            all.iter_mut().for_each(|(bucket, paid_until)| bucket.charge(paid_until, bytes, now));
        }
        is_free
    }

    /// Refunds bytes that were charged and not transferred.
    pub fn give_back(&self, bytes: u64) {
        for bucket in &self.buckets {
            let mut paid_until = bucket.paid_until();
            *paid_until = paid_until.saturating_sub(bucket.duration_of(bytes));
        }
    }

    /// The wait until the debt is paid; `None` without debt.
    pub fn wait(&self, now: Duration) -> Option<Duration> {
        self.buckets.iter().filter_map(|bucket| bucket.wait(now)).max()
    }

    /// The longest window that takes at most a quarter of a second at this rate.
    pub fn window_bytes(&self) -> u64 {
        let most = self.buckets.iter().map(|bucket| bucket.bytes_per_second).min();
        let most = most.unwrap_or(u64::MAX) / WINDOWS_PER_SECOND;
        1 << most.clamp(GRAIN_BYTES, WINDOW_BYTES).ilog2()
    }
}

/// The token bucket of one client or one name.
pub(crate) struct Bucket {
    bytes_per_second: u64,
    /// When the debt is paid.
    paid_until: Mutex<Duration>,
}

impl Bucket {
    pub fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, paid_until: Mutex::default() }
    }

    /// Charges bytes that are already spent; returns the wait until they are paid for.
    pub fn spend(&self, bytes: u64, now: Duration) -> Option<Duration> {
        let mut paid_until = self.paid_until();
        self.charge(&mut paid_until, bytes, now);
        paid_until.checked_sub(now).filter(|wait| !wait.is_zero())
    }

    /// Charges bytes; a long idle time saves up one burst and no more.
    fn charge(&self, paid_until: &mut Duration, bytes: u64, now: Duration) {
        *paid_until = (*paid_until).max(now.saturating_sub(BURST)) + self.duration_of(bytes);
    }

    fn paid_until(&self) -> MutexGuard<'_, Duration> {
        self.paid_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn duration_of(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64)
    }

    pub fn wait(&self, now: Duration) -> Option<Duration> {
        self.paid_until().checked_sub(now).filter(|wait| !wait.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const NOW: Duration = Duration::from_secs(100);

    impl RateLimit {
        fn new(bytes_per_second: u64) -> Self {
            Self { buckets: vec![Arc::new(Bucket::new(bytes_per_second))] }
        }
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn what_is_taken_is_waited_for() {
        let pace = RateLimit::new(4 * MIB);
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
        let pace = RateLimit::new(4 * MIB);
        assert!(pace.try_take(2 * MIB, NOW));
        assert!(!pace.try_take(2 * MIB, NOW), "both were let through");
        let wait = pace.wait(NOW).expect("the first is owed for");
        assert_eq!(wait, Duration::from_millis(250), "and the second is not");
        assert!(pace.try_take(2 * MIB, NOW + wait));
        pace.give_back(2 * MIB);
        assert!(pace.wait(NOW + wait).is_none(), "what does not move is not waited for");
    }

    #[test]
    fn sessions_of_a_client_share_and_others_do_not() {
        let paces = RateLimits::new(1, 0);
        let of = |who: &str, last| paces.of(who, address(last), NOW).unwrap();
        of("alice", 1).take(10 * MIB, NOW);
        assert!(of("alice", 1).wait(NOW).is_some(), "it came back, and owes what it owed");
        assert!(of("bob", 1).wait(NOW).is_none() && of("alice", 2).wait(NOW).is_none());
        assert!(
            RateLimits::new(0, 0).of("alice", address(1), NOW).is_none(),
            "no limit, no bucket"
        );
    }

    #[test]
    fn a_name_has_one_rate_however_many_addresses_it_comes_from() {
        let paces = RateLimits::new(4, 8);
        let of = |who: &str, last| paces.of(who, address(last), NOW).unwrap();
        let moved: usize =
            (1..=10).map(|last| usize::from(of("alice", last).try_take(8 * MIB, NOW))).sum();
        assert_eq!(moved, 1, "of the name's second one address had all");
        assert!(of("bob", 1).try_take(8 * MIB, NOW), "another name has its own");
        let waits = [of("alice", 1), of("alice", 2)].map(|pace| pace.wait(NOW).unwrap());
        assert_eq!(waits.map(|wait| wait.as_millis()), [1750, 750], "its own rate, and its name's");
        of("alice", 1).give_back(8 * MIB);
        assert_eq!(of("alice", 2).wait(NOW), None);
        assert_eq!(of("alice", 2).window_bytes(), MIB);
        assert_eq!(
            RateLimits::new(0, 400).of("alice", address(1), NOW).unwrap().window_bytes(),
            16 * MIB
        );
    }

    #[test]
    fn clients_that_are_gone_are_forgotten_when_there_are_too_many() {
        let paces = RateLimits::new(1, 0);
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
            assert_eq!(RateLimit::new(rate * MIB).window_bytes(), window, "{rate} MiB/s");
        }
    }
}
