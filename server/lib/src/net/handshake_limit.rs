//! Admission control for connections that have not authenticated. Owns their maximum, in all,
//! per address and per site, and the rate of handshakes of each: a handshake costs the server
//! more than the client. A connection that exceeds the rate waits. Where the table is full, the
//! oldest silent connection of the busiest site is evicted. Pure: callers pass the time. A
//! connection counted here takes no permit for a session.

use crate::limits::client_limits::PENDING_HANDSHAKES_MAX;
use crate::limits::network::{network_of, prefix_of};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Pending handshakes from one address: of IPv6, from one /64.
pub(crate) const PENDING_PER_ADDRESS_MAX: usize = 256;

/// Pending handshakes from one site: of IPv6, from one /48. Its rate of handshakes is higher than
/// that of an address by the same factor.
const PENDING_PER_SITE_MAX: usize = 2 * PENDING_PER_ADDRESS_MAX;

/// From this number on, a connection has less time to send its first byte.
const PENDING_CROWDED: usize = PENDING_HANDSHAKES_MAX / 2;

/// Networks whose rate is kept.
const NETWORKS_MAX: usize = 8192;

/// The burst that an idle time saves up, as time.
const BURST: Duration = Duration::from_secs(1);

/// Limits connections that have not authenticated yet.
pub(crate) struct HandshakeLimit {
    each: Duration,
    address_interval: Duration,
    state: Mutex<PendingTable>,
}

#[derive(Default)]
struct PendingTable {
    /// The number of the next connection.
    next_number: u64,
    /// The pending connections by number: the oldest first.
    pending: BTreeMap<u64, PendingEntry>,
    free_at: Duration,
    networks: HashMap<Network, NetworkState>,
}

/// A pending connection.
struct PendingEntry {
    networks: Networks,
    /// Dropping it evicts the connection; `None` once the connection has sent a byte.
    silent: Option<oneshot::Sender<()>>,
}

/// The pending connections and the rate of one network.
#[derive(Default)]
struct NetworkState {
    pending: usize,
    silent: usize,
    free_at: Duration,
}

impl HandshakeLimit {
    /// Sets the rate of handshakes per second, in all and from one address.
    pub fn new(per_second: u32, per_second_of_address: u32) -> Arc<Self> {
        let every = |count: u32| Duration::from_secs(1) / count.max(1);
        let (each, address_interval) = (every(per_second), every(per_second_of_address));
        Arc::new(Self { each, address_interval, state: Mutex::default() })
    }

    /// Admits a connection, and evicts another for it if necessary; or returns why it is refused.
    pub fn admit(
        self: &Arc<Self>,
        peer: IpAddr,
        now: Duration,
    ) -> Result<PendingHandshake, &'static str> {
        let networks = Networks::of(peer);
        let mut state = self.state();
        if state.networks.len() >= NETWORKS_MAX {
            state.networks.retain(|_, counts| counts.pending > 0 || counts.free_at > now);
        }
        if state.networks.len() >= NETWORKS_MAX {
            return Err("too many addresses at once");
        }
        let full = networks.all().find(|network| state.pending_of(network) >= network.pending_max);
        if let Some(network) = full
            && !state.evict(Some(network))
        {
            return Err("too many connections of its address that have not said who they are");
        }
        if state.pending.len() >= PENDING_HANDSHAKES_MAX && !state.evict(None) {
            return Err("too many connections that have not said who they are");
        }
        let (evict_sender, evicted) = oneshot::channel();
        let number = state.next_number;
        state.next_number += 1;
        for network in networks.all() {
            let counts = state.networks.entry(network).or_default();
            counts.pending += 1;
            counts.silent += 1;
        }
        state.pending.insert(number, PendingEntry { networks, silent: Some(evict_sender) });
        Ok(PendingHandshake { limit: self.clone(), networks, number, evicted })
    }

    /// Whether so many are pending that a connection has less time to send its first byte.
    pub fn is_crowded(&self) -> bool {
        self.state().pending.len() >= PENDING_CROWDED
    }

    fn state(&self) -> MutexGuard<'_, PendingTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingTable {
    fn pending_of(&self, network: &Network) -> usize {
        self.networks.get(network).map_or(0, |counts| counts.pending)
    }

    /// Evicts the oldest silent connection of a network, by default of the site with most pending
    /// connections; false if none is silent.
    fn evict(&mut self, network: Option<Network>) -> bool {
        let crowd = || {
            let silent = self
                .networks
                .iter()
                .filter(|(network, counts)| network.is_site && counts.silent > 0);
            silent.max_by_key(|(_, counts)| counts.pending).map(|(network, _)| *network)
        };
        let Some(network) = network.or_else(crowd) else { return false };
        let mut candidates = self.pending.iter().filter(|(_, one)| {
            one.silent.is_some() && one.networks.all().any(|other| other == network)
        });
        let Some((&oldest, _)) = candidates.next() else { return false };
        self.remove(oldest);
        true
    }

    /// Removes a connection; one that has sent nothing yet is evicted by it.
    fn remove(&mut self, number: u64) {
        let Some(gone) = self.pending.remove(&number) else { return };
        for network in gone.networks.all() {
            if let Some(counts) = self.networks.get_mut(&network) {
                counts.pending -= 1;
                counts.silent -= usize::from(gone.silent.is_some());
            }
        }
    }
}

/// One pending connection; dropping it frees its entry.
pub(crate) struct PendingHandshake {
    limit: Arc<HandshakeLimit>,
    networks: Networks,
    number: u64,
    evicted: oneshot::Receiver<()>,
}

impl PendingHandshake {
    /// Completes when this connection is evicted, because it is silent and the table is full.
    pub async fn evicted(&mut self) {
        // Removing the entry drops the sender.
        let _ = (&mut self.evicted).await;
    }

    /// Notes its first byte: from now on it is not evicted. False if it was already.
    pub fn mark_first_byte(&mut self) -> bool {
        let mut state = self.limit.state();
        let PendingTable { pending, networks, .. } = &mut *state;
        let Some(one) = pending.get_mut(&self.number) else { return false };
        if one.silent.take().is_some() {
            for network in self.networks.all() {
                if let Some(counts) = networks.get_mut(&network) {
                    counts.silent -= 1;
                }
            }
        }
        true
    }

    /// Reserves a handshake, and returns the wait before it; `None` if that exceeds `wait_max`. A
    /// connection whose own address is over its rate uses up none of the rate of others.
    pub fn reserve(&self, now: Duration, wait_max: Duration) -> Option<Duration> {
        let HandshakeLimit { each, address_interval, .. } = *self.limit;
        let mut state = self.limit.state();
        let mut wait = Duration::ZERO;
        for network in self.networks.all() {
            let each =
                address_interval * PENDING_PER_ADDRESS_MAX as u32 / network.pending_max as u32;
            let counts = state.networks.entry(network).or_default();
            wait = wait.max(reserve_slot(&mut counts.free_at, each, now, wait_max)?);
        }
        Some(wait.max(reserve_slot(&mut state.free_at, each, now, wait_max)?))
    }
}

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        self.limit.state().remove(self.number);
    }
}

/// Reserves the next handshake and returns the wait; a burst of a second may start at once.
fn reserve_slot(
    free_at: &mut Duration,
    each: Duration,
    now: Duration,
    wait_max: Duration,
) -> Option<Duration> {
    let begin = (*free_at).max(now.saturating_sub(BURST));
    let wait = begin.saturating_sub(now);
    if wait > wait_max {
        return None;
    }
    *free_at = begin + each;
    Some(wait)
}

/// A network whose connections are counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Network {
    address: IpAddr,
    /// The maximum of its pending connections.
    pending_max: usize,
    /// Whether no larger network is counted.
    is_site: bool,
}

/// The networks a connection counts in: an address of IPv4, or a /64 of IPv6 and its /48, which
/// one machine can have all of.
#[derive(Clone, Copy)]
struct Networks {
    address: Network,
    site: Option<Network>,
}

impl Networks {
    fn of(peer: IpAddr) -> Self {
        let is_ipv6 = peer.to_canonical().is_ipv6();
        let address = Network {
            address: network_of(peer),
            pending_max: PENDING_PER_ADDRESS_MAX,
            is_site: !is_ipv6,
        };
        let site = Network {
            address: prefix_of(peer, 48),
            pending_max: PENDING_PER_SITE_MAX,
            is_site: true,
        };
        Self { address, site: is_ipv6.then_some(site) }
    }

    fn all(&self) -> impl Iterator<Item = Network> + use<> {
        [Some(self.address), self.site].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oneshot::error::TryRecvError;

    const NOW: Duration = Duration::from_secs(100);

    /// As long as a handshake may take.
    const LONG: Duration = Duration::from_secs(10);

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// The last byte of a network: others of it are one address.
    fn six(network: &str) -> IpAddr {
        format!("{network}::7").parse().unwrap()
    }

    impl HandshakeLimit {
        /// So many connections of an address, which have said something.
        fn spoken(self: &Arc<Self>, peer: IpAddr, count: usize) -> Vec<PendingHandshake> {
            let mut pending = self.silent(peer, count);
            assert!(pending.iter_mut().all(PendingHandshake::mark_first_byte));
            pending
        }

        /// So many that have not.
        fn silent(self: &Arc<Self>, peer: IpAddr, count: usize) -> Vec<PendingHandshake> {
            (0..count).map(|_| self.admit(peer, NOW).unwrap()).collect()
        }
    }

    /// How many of these have been sent away.
    fn gone(pending: &mut [PendingHandshake]) -> usize {
        pending
            .iter_mut()
            .map(|one| one.evicted.try_recv())
            .filter(|gone| *gone == Err(TryRecvError::Closed))
            .count()
    }

    #[test]
    fn one_address_cannot_use_up_pending_handshakes() {
        let limit = HandshakeLimit::new(1000, 1000);
        let flood = limit.spoken(address(1), PENDING_PER_ADDRESS_MAX);
        assert!(limit.admit(address(1), NOW).err().unwrap().contains("of its address"));
        assert!(limit.admit(address(2), NOW).is_ok(), "others have room");
        drop(flood);
        assert!(limit.admit(address(1), NOW).is_ok(), "who left makes room");
    }

    #[test]
    fn one_ipv6_site_cannot_use_up_pending_handshakes() {
        let limit = HandshakeLimit::new(1000, 1000);
        let networks = ["2001:db8:1:1", "2001:db8:1:2"].map(six);
        let _flood = networks.map(|peer| limit.spoken(peer, PENDING_PER_ADDRESS_MAX));
        assert!(limit.admit(six("2001:db8:1:3"), NOW).is_err(), "the /48 has its share");
        assert!(limit.admit(six("2001:db8:2:1"), NOW).is_ok(), "another site has room");
    }

    #[test]
    fn pending_handshakes_are_bounded() {
        let limit = HandshakeLimit::new(1000, 1000);
        let many: Vec<_> = (0..PENDING_HANDSHAKES_MAX)
            .flat_map(|number| limit.spoken(address((number % 250) as u8), 1))
            .collect();
        assert!(limit.admit(address(251), NOW).err().unwrap().contains("too many"));
        drop(many);
        assert_eq!(limit.state().pending.len(), 0);
        let networks = &limit.state().networks;
        assert!(networks.values().all(|counts| counts.pending == 0 && counts.silent == 0));
    }

    #[test]
    fn where_it_is_full_the_oldest_silent_of_the_largest_crowd_leaves() {
        let limit = HandshakeLimit::new(1000, 1000);
        // One of another address is older than all of these, and keeps its place.
        let mut honest = limit.silent(address(9), 1);
        let mut crowds: Vec<_> =
            (1..=3).map(|last| limit.silent(address(last), PENDING_PER_ADDRESS_MAX)).collect();
        crowds.push(limit.silent(address(4), PENDING_PER_ADDRESS_MAX - 1));
        assert_eq!(limit.state().pending.len(), PENDING_HANDSHAKES_MAX);
        let more = limit.silent(address(5), 10);
        assert_eq!(
            limit.state().pending.len(),
            PENDING_HANDSHAKES_MAX,
            "one leaves for each that comes"
        );
        assert_eq!(gone(&mut honest), 0);
        let left: Vec<_> = crowds.iter_mut().map(|crowd| gone(crowd)).collect();
        assert_eq!(left.iter().sum::<usize>(), 10, "{left:?}");
        assert!(left.iter().all(|gone| (1..=4).contains(gone)), "spread over crowds: {left:?}");
        let oldest =
            crowds.iter_mut().zip(&left).all(|(crowd, &left)| gone(&mut crowd[..left]) == left);
        assert!(oldest, "the oldest of each");
        drop((more, crowds, honest));
        assert_eq!(limit.state().pending.len(), 0, "an evicted connection is not counted twice");
    }

    #[test]
    fn many_networks_of_one_site_are_one_crowd() {
        let limit = HandshakeLimit::new(1000, 1000);
        let mut machines: Vec<_> =
            (1..=128).flat_map(|last| limit.silent(address(last), 4)).collect();
        let mut site: Vec<_> = (0..PENDING_PER_SITE_MAX)
            .flat_map(|number| limit.silent(six(&format!("2001:db8:1:{number:x}")), 1))
            .collect();
        assert_eq!(limit.state().pending.len(), PENDING_HANDSHAKES_MAX);
        let _more = limit.silent(address(200), 20);
        assert_eq!((gone(&mut machines), gone(&mut site)), (0, 20));
    }

    #[test]
    fn a_connection_that_spoke_keeps_its_place() {
        let limit = HandshakeLimit::new(1000, 1000);
        let mut first = limit.spoken(address(1), PENDING_PER_ADDRESS_MAX - 1);
        let mut silent = limit.silent(address(1), 1);
        let mut next = limit.spoken(address(1), 1);
        assert_eq!(gone(&mut silent), 1, "of its own address, where only that is full");
        assert!(!silent[0].mark_first_byte(), "it is too late");
        assert!(limit.admit(address(1), NOW).is_err());
        assert!(
            first.iter_mut().chain(&mut next).all(PendingHandshake::mark_first_byte),
            "each still stands there"
        );
    }

    #[test]
    fn a_fast_address_waits_and_others_do_not() {
        let limit = HandshakeLimit::new(1000, 10);
        let turn = |last| limit.admit(address(last), NOW).unwrap().reserve(NOW, LONG).unwrap();
        // A second's worth at once, then one every tenth of a second.
        assert!((0..11).all(|_| turn(1) == Duration::ZERO));
        assert_eq!(turn(1), Duration::from_millis(100));
        assert_eq!(turn(1), Duration::from_millis(200));
        assert_eq!(turn(2), Duration::ZERO);
    }

    #[test]
    fn a_flood_is_turned_away_and_delays_others_little() {
        let limit = HandshakeLimit::new(500, 100);
        let turn = |last| limit.admit(address(last), NOW).unwrap().reserve(NOW, LONG);
        let served = (0..100_000).filter(|_| turn(1).is_some()).count();
        assert_eq!(served, 1101, "a burst and ten seconds of its own pace");
        let delayed = turn(2).unwrap();
        assert!(delayed < Duration::from_secs(2), "{delayed:?}");
    }

    #[test]
    fn all_together_keep_to_the_rate() {
        let limit = HandshakeLimit::new(10, 1000);
        let waits: Vec<_> = (1..=13)
            .map(|last| limit.admit(address(last), NOW).unwrap().reserve(NOW, LONG))
            .collect();
        assert_eq!(waits[10], Some(Duration::ZERO));
        assert_eq!(waits[12], Some(Duration::from_millis(200)));
    }

    #[test]
    fn a_network_of_six_is_one_address() {
        let (one, two) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        assert_eq!(network_of(one), network_of(two));
        assert_ne!(network_of(one), network_of("2001:db8:0:1::1".parse().unwrap()));
        assert_eq!(network_of("::ffff:10.0.0.1".parse().unwrap()), address(1));
    }
}
