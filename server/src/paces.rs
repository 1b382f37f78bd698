//! How fast each client may move data: a bucket for each, which all its sessions
//! share. Owns who counts as one client: a name from one address (a /64 of IPv6).
//! Pure: it is told the time. Sessions ask before they lease a window, and after they
//! were sent a chunk; `session/pacing` waits where it says so.
//!
//! A window may be had whenever nothing is owed, and is owed for then, so the rate
//! is kept on average however long windows are.

use crate::doorstep::network_of;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use verbatim_proto::units::{GRAIN_BYTES, WINDOW_BYTES};

/// How much time may be saved up while nothing moves.
const BURST: Duration = Duration::from_millis(250);

/// Windows are as long as takes this part of a second.
const WINDOWS_PER_SECOND: u64 = 4;

/// Clients that are remembered; more, and those that are gone are forgotten with what they owe.
const CLIENTS_MAX: usize = 4096;

/// The buckets of all clients.
pub(crate) struct Paces {
    /// None where nobody is held back.
    bytes_per_second: Option<u64>,
    started: Instant,
    clients: Mutex<HashMap<(String, IpAddr), Arc<Pace>>>,
}

impl Paces {
    /// Lets each client move so many MiB a second; 0 is as many as it can.
    pub fn new(mb_per_second: u32) -> Self {
        let bytes_per_second = (mb_per_second > 0).then(|| u64::from(mb_per_second) << 20);
        Self { bytes_per_second, started: Instant::now(), clients: Mutex::default() }
    }

    /// The time that buckets are told.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The bucket of a client, if it has one.
    pub fn of(&self, who: &str, address: IpAddr, now: Duration) -> Option<Arc<Pace>> {
        let bytes_per_second = self.bytes_per_second?;
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        // Who comes back finds what it owes; who owes nothing need not be known.
        let is_here = |pace: &Arc<Pace>| Arc::strong_count(pace) > 1;
        if clients.len() >= CLIENTS_MAX {
            clients.retain(|_, pace| is_here(pace) || pace.wait(now).is_some());
        }
        if clients.len() >= CLIENTS_MAX {
            clients.retain(|_, pace| is_here(pace));
        }
        let client = (who.to_owned(), network_of(address));
        let pace = clients.entry(client).or_insert_with(|| Arc::new(Pace::new(bytes_per_second)));
        Some(pace.clone())
    }
}

/// What one client owes.
pub(crate) struct Pace {
    bytes_per_second: u64,
    /// When nothing is owed.
    free_at: Mutex<Duration>,
}

impl Pace {
    fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, free_at: Mutex::default() }
    }

    /// Counts what moved.
    pub fn take(&self, bytes: u64, now: Duration) {
        self.owe(&mut self.free_at(), bytes, now);
    }

    /// Counts what is about to move, if nothing is owed; says whether. Of two sessions that ask at
    /// the same moment one has to wait.
    pub fn take_if_free(&self, bytes: u64, now: Duration) -> bool {
        let mut free_at = self.free_at();
        let is_free = *free_at <= now;
        if is_free {
            self.owe(&mut free_at, bytes, now);
        }
        is_free
    }

    /// What was counted does not move after all.
    pub fn give_back(&self, bytes: u64) {
        let mut free_at = self.free_at();
        *free_at = free_at.saturating_sub(self.time_of(bytes));
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

    /// How long until something may move; none where it may now.
    pub fn wait(&self, now: Duration) -> Option<Duration> {
        self.free_at().checked_sub(now).filter(|wait| !wait.is_zero())
    }

    /// The longest window that does not make a client wait for long.
    pub fn window_bytes(&self) -> u64 {
        let most = (self.bytes_per_second / WINDOWS_PER_SECOND).clamp(GRAIN_BYTES, WINDOW_BYTES);
        1 << most.ilog2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const NOW: Duration = Duration::from_secs(100);

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
        let paces = Paces::new(1);
        let of = |who: &str, last| paces.of(who, address(last), NOW).unwrap();
        of("alice", 1).take(10 * MIB, NOW);
        assert!(of("alice", 1).wait(NOW).is_some(), "it came back, and owes what it owed");
        assert!(of("bob", 1).wait(NOW).is_none() && of("alice", 2).wait(NOW).is_none());
        assert!(Paces::new(0).of("alice", address(1), NOW).is_none(), "no limit, no bucket");
    }

    #[test]
    fn clients_that_are_gone_are_forgotten_when_there_are_too_many() {
        let paces = Paces::new(1);
        let of = |number: usize| paces.of(&number.to_string(), address(1), NOW).unwrap();
        let here = of(0);
        here.take(10 * MIB, NOW);
        of(1).take(10 * MIB, NOW);
        (2..CLIENTS_MAX + 1).for_each(|number| drop(of(number)));
        assert!(of(1).wait(NOW).is_some(), "who owes is known while there is room");
        (0..CLIENTS_MAX).for_each(|number| of(CLIENTS_MAX + number).take(10 * MIB, NOW));
        assert!(paces.clients.lock().unwrap().len() <= CLIENTS_MAX);
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
