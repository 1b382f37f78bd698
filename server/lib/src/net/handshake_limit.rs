//! The doorstep: connections that have not yet proven who they are. Owns how many
//! of them there may be, in all, from one address and from one site, and how often
//! each may begin to shake hands, which costs us more than it costs them. A
//! connection that comes too fast waits. Where there is no room for one more, the
//! oldest silent connection of the site that has the most is sent away for it.
//! Pure: it is told the time. A connection here takes no place of a session.

use crate::limits::client_limits::ARRIVALS_MAX;
use crate::limits::network::{cut, network_of};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Of the connections that may stand there, from one address: of IPv6, from one /64.
pub(crate) const ARRIVALS_PER_ADDRESS_MAX: usize = 256;

/// Of these, from one site: of IPv6, from one /48. The rate of its handshakes is as many times
/// that of an address.
const ARRIVALS_PER_SITE_MAX: usize = 2 * ARRIVALS_PER_ADDRESS_MAX;

/// From so many on, a connection has less time to say its first byte.
const ARRIVALS_CROWDED: usize = ARRIVALS_MAX / 2;

/// Networks that are remembered for their pace.
const NETWORKS_MAX: usize = 8192;

/// For how long nobody may have come so that many may come at once.
const BURST: Duration = Duration::from_secs(1);

/// The connections that have not yet proven who they are.
pub(crate) struct Doorstep {
    each: Duration,
    each_of_address: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How many connections have come so far: the number of the next.
    came: u64,
    /// The connections that stand there, by number: the oldest first.
    standing: BTreeMap<u64, Standing>,
    free_at: Duration,
    networks: HashMap<Network, Caller>,
}

/// A connection that stands there.
struct Standing {
    networks: Networks,
    /// Dropping it sends the connection away; none once the connection has sent a byte.
    silent: Option<oneshot::Sender<()>>,
}

/// What one network does.
#[derive(Default)]
struct Caller {
    standing: usize,
    silent: usize,
    free_at: Duration,
}

impl Doorstep {
    /// Lets so many shake hands in a second, in all and from one address.
    pub fn new(per_second: u32, per_second_of_address: u32) -> Arc<Self> {
        let every = |count: u32| Duration::from_secs(1) / count.max(1);
        let (each, each_of_address) = (every(per_second), every(per_second_of_address));
        Arc::new(Self { each, each_of_address, state: Mutex::default() })
    }

    /// Takes a connection, and sends another away for it if it must; or says why there is no
    /// room.
    pub fn arrive(self: &Arc<Self>, peer: IpAddr, now: Duration) -> Result<Arrival, &'static str> {
        let networks = Networks::of(peer);
        let mut state = self.state();
        if state.networks.len() >= NETWORKS_MAX {
            state.networks.retain(|_, caller| caller.standing > 0 || caller.free_at > now);
        }
        if state.networks.len() >= NETWORKS_MAX {
            return Err("too many addresses at once");
        }
        let full = networks.all().find(|network| state.standing_of(network) >= network.most);
        if let Some(network) = full
            && !state.evict(Some(network))
        {
            return Err("too many connections of its address that have not said who they are");
        }
        if state.standing.len() >= ARRIVALS_MAX && !state.evict(None) {
            return Err("too many connections that have not said who they are");
        }
        let (leave, sent_away) = oneshot::channel();
        let number = state.came;
        state.came += 1;
        for network in networks.all() {
            let caller = state.networks.entry(network).or_default();
            caller.standing += 1;
            caller.silent += 1;
        }
        state.standing.insert(number, Standing { networks, silent: Some(leave) });
        Ok(Arrival { doorstep: self.clone(), networks, number, sent_away })
    }

    /// Whether so many stand there that a connection has less time to say its first byte.
    pub fn is_crowded(&self) -> bool {
        self.state().standing.len() >= ARRIVALS_CROWDED
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn standing_of(&self, network: &Network) -> usize {
        self.networks.get(network).map_or(0, |caller| caller.standing)
    }

    /// Sends the oldest silent connection of a network away, by default of the site that has the
    /// most connections here; false if none is silent.
    fn evict(&mut self, network: Option<Network>) -> bool {
        let crowd = || {
            let silent = self
                .networks
                .iter()
                .filter(|(network, caller)| network.is_site && caller.silent > 0);
            silent.max_by_key(|(_, caller)| caller.standing).map(|(network, _)| *network)
        };
        let Some(network) = network.or_else(crowd) else { return false };
        let mut of_it = self.standing.iter().filter(|(_, one)| {
            one.silent.is_some() && one.networks.all().any(|other| other == network)
        });
        let Some((&oldest, _)) = of_it.next() else { return false };
        self.remove(oldest);
        true
    }

    /// Removes a connection, which is sent away if it has said nothing yet.
    fn remove(&mut self, number: u64) {
        let Some(gone) = self.standing.remove(&number) else { return };
        for network in gone.networks.all() {
            if let Some(caller) = self.networks.get_mut(&network) {
                caller.standing -= 1;
                caller.silent -= usize::from(gone.silent.is_some());
            }
        }
    }
}

/// The place of one connection; dropping it gives the place back.
pub(crate) struct Arrival {
    doorstep: Arc<Doorstep>,
    networks: Networks,
    number: u64,
    sent_away: oneshot::Receiver<()>,
}

impl Arrival {
    /// Ends when this connection has to leave, because it is silent and others come.
    pub async fn sent_away(&mut self) {
        // Its sender is dropped with its place.
        let _ = (&mut self.sent_away).await;
    }

    /// Notes that it said something: from now on it is not sent away for others. False if it
    /// was already.
    pub fn spoke(&mut self) -> bool {
        let mut state = self.doorstep.state();
        let State { standing, networks, .. } = &mut *state;
        let Some(one) = standing.get_mut(&self.number) else { return false };
        if one.silent.take().is_some() {
            for network in self.networks.all() {
                if let Some(caller) = networks.get_mut(&network) {
                    caller.silent -= 1;
                }
            }
        }
        true
    }

    /// How long to wait before shaking hands, and takes that turn; none if it would be longer
    /// than `at_most`. Who waits for its own address too long takes no turn of the others.
    pub fn turn(&self, now: Duration, at_most: Duration) -> Option<Duration> {
        let Doorstep { each, each_of_address, .. } = *self.doorstep;
        let mut state = self.doorstep.state();
        let mut wait = Duration::ZERO;
        for network in self.networks.all() {
            let each = each_of_address * ARRIVALS_PER_ADDRESS_MAX as u32 / network.most as u32;
            let caller = state.networks.entry(network).or_default();
            wait = wait.max(take_turn(&mut caller.free_at, each, now, at_most)?);
        }
        Some(wait.max(take_turn(&mut state.free_at, each, now, at_most)?))
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.doorstep.state().remove(self.number);
    }
}

/// Returns the wait until the next turn and moves it on; a second's worth may come at once.
fn take_turn(
    free_at: &mut Duration,
    each: Duration,
    now: Duration,
    at_most: Duration,
) -> Option<Duration> {
    let begin = (*free_at).max(now.saturating_sub(BURST));
    let wait = begin.saturating_sub(now);
    if wait > at_most {
        return None;
    }
    *free_at = begin + each;
    Some(wait)
}

/// A network that connections are counted for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Network {
    address: IpAddr,
    /// Connections that may stand there.
    most: usize,
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
            most: ARRIVALS_PER_ADDRESS_MAX,
            is_site: !is_ipv6,
        };
        let site = Network { address: cut(peer, 48), most: ARRIVALS_PER_SITE_MAX, is_site: true };
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

    impl Doorstep {
        /// So many connections of an address, which have said something.
        fn spoken(self: &Arc<Self>, peer: IpAddr, count: usize) -> Vec<Arrival> {
            let mut arrivals = self.silent(peer, count);
            assert!(arrivals.iter_mut().all(Arrival::spoke));
            arrivals
        }

        /// So many that have not.
        fn silent(self: &Arc<Self>, peer: IpAddr, count: usize) -> Vec<Arrival> {
            (0..count).map(|_| self.arrive(peer, NOW).unwrap()).collect()
        }
    }

    /// How many of these have been sent away.
    fn gone(arrivals: &mut [Arrival]) -> usize {
        arrivals
            .iter_mut()
            .map(|one| one.sent_away.try_recv())
            .filter(|gone| *gone == Err(TryRecvError::Closed))
            .count()
    }

    #[test]
    fn one_address_cannot_fill_the_doorstep() {
        let doorstep = Doorstep::new(1000, 1000);
        let flood = doorstep.spoken(address(1), ARRIVALS_PER_ADDRESS_MAX);
        assert!(doorstep.arrive(address(1), NOW).err().unwrap().contains("of its address"));
        assert!(doorstep.arrive(address(2), NOW).is_ok(), "others have room");
        drop(flood);
        assert!(doorstep.arrive(address(1), NOW).is_ok(), "who left makes room");
    }

    #[test]
    fn one_site_of_six_cannot_fill_the_doorstep() {
        let doorstep = Doorstep::new(1000, 1000);
        let networks = ["2001:db8:1:1", "2001:db8:1:2"].map(six);
        let _flood = networks.map(|peer| doorstep.spoken(peer, ARRIVALS_PER_ADDRESS_MAX));
        assert!(doorstep.arrive(six("2001:db8:1:3"), NOW).is_err(), "the /48 has its share");
        assert!(doorstep.arrive(six("2001:db8:2:1"), NOW).is_ok(), "another site has room");
    }

    #[test]
    fn the_doorstep_has_an_end() {
        let doorstep = Doorstep::new(1000, 1000);
        let many: Vec<_> = (0..ARRIVALS_MAX)
            .flat_map(|number| doorstep.spoken(address((number % 250) as u8), 1))
            .collect();
        assert!(doorstep.arrive(address(251), NOW).err().unwrap().contains("too many"));
        drop(many);
        assert_eq!(doorstep.state().standing.len(), 0);
        let networks = &doorstep.state().networks;
        assert!(networks.values().all(|caller| caller.standing == 0 && caller.silent == 0));
    }

    #[test]
    fn where_it_is_full_the_oldest_silent_of_the_largest_crowd_leaves() {
        let doorstep = Doorstep::new(1000, 1000);
        // One of another address is older than all of these, and keeps its place.
        let mut honest = doorstep.silent(address(9), 1);
        let mut crowds: Vec<_> =
            (1..=3).map(|last| doorstep.silent(address(last), ARRIVALS_PER_ADDRESS_MAX)).collect();
        crowds.push(doorstep.silent(address(4), ARRIVALS_PER_ADDRESS_MAX - 1));
        assert_eq!(doorstep.state().standing.len(), ARRIVALS_MAX);
        let more = doorstep.silent(address(5), 10);
        assert_eq!(doorstep.state().standing.len(), ARRIVALS_MAX, "one leaves for each that comes");
        assert_eq!(gone(&mut honest), 0);
        let left: Vec<_> = crowds.iter_mut().map(|crowd| gone(crowd)).collect();
        assert_eq!(left.iter().sum::<usize>(), 10, "{left:?}");
        assert!(left.iter().all(|gone| (1..=4).contains(gone)), "spread over crowds: {left:?}");
        let oldest =
            crowds.iter_mut().zip(&left).all(|(crowd, &left)| gone(&mut crowd[..left]) == left);
        assert!(oldest, "the oldest of each");
        drop((more, crowds, honest));
        assert_eq!(
            doorstep.state().standing.len(),
            0,
            "an evicted connection is not counted twice"
        );
    }

    #[test]
    fn many_networks_of_one_site_are_one_crowd() {
        let doorstep = Doorstep::new(1000, 1000);
        let mut machines: Vec<_> =
            (1..=128).flat_map(|last| doorstep.silent(address(last), 4)).collect();
        let mut site: Vec<_> = (0..ARRIVALS_PER_SITE_MAX)
            .flat_map(|number| doorstep.silent(six(&format!("2001:db8:1:{number:x}")), 1))
            .collect();
        assert_eq!(doorstep.state().standing.len(), ARRIVALS_MAX);
        let _more = doorstep.silent(address(200), 20);
        assert_eq!((gone(&mut machines), gone(&mut site)), (0, 20));
    }

    #[test]
    fn a_connection_that_spoke_keeps_its_place() {
        let doorstep = Doorstep::new(1000, 1000);
        let mut first = doorstep.spoken(address(1), ARRIVALS_PER_ADDRESS_MAX - 1);
        let mut silent = doorstep.silent(address(1), 1);
        let mut next = doorstep.spoken(address(1), 1);
        assert_eq!(gone(&mut silent), 1, "of its own address, where only that is full");
        assert!(!silent[0].spoke(), "it is too late");
        assert!(doorstep.arrive(address(1), NOW).is_err());
        assert!(first.iter_mut().chain(&mut next).all(Arrival::spoke), "each still stands there");
    }

    #[test]
    fn a_fast_address_waits_and_others_do_not() {
        let doorstep = Doorstep::new(1000, 10);
        let turn = |last| doorstep.arrive(address(last), NOW).unwrap().turn(NOW, LONG).unwrap();
        // A second's worth at once, then one every tenth of a second.
        assert!((0..11).all(|_| turn(1) == Duration::ZERO));
        assert_eq!(turn(1), Duration::from_millis(100));
        assert_eq!(turn(1), Duration::from_millis(200));
        assert_eq!(turn(2), Duration::ZERO);
    }

    #[test]
    fn a_flood_is_turned_away_and_delays_others_little() {
        let doorstep = Doorstep::new(500, 100);
        let turn = |last| doorstep.arrive(address(last), NOW).unwrap().turn(NOW, LONG);
        let served = (0..100_000).filter(|_| turn(1).is_some()).count();
        assert_eq!(served, 1101, "a burst and ten seconds of its own pace");
        let delayed = turn(2).unwrap();
        assert!(delayed < Duration::from_secs(2), "{delayed:?}");
    }

    #[test]
    fn all_together_keep_to_the_rate() {
        let doorstep = Doorstep::new(10, 1000);
        let waits: Vec<_> = (1..=13)
            .map(|last| doorstep.arrive(address(last), NOW).unwrap().turn(NOW, LONG))
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
