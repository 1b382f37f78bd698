//! The doorstep: connections that have not yet proven who they are. Owns how many
//! of them there may be, in all and from one address, and how often one may begin
//! to shake hands, which costs us more than it costs them. Who is too fast waits;
//! who is too many is sent away. Pure: it is told the time. Nobody here takes the
//! place of a session.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Connections that may stand there.
pub(crate) const ARRIVALS_MAX: usize = 1024;

/// Of these, from one address.
pub(crate) const ARRIVALS_PER_ADDRESS_MAX: usize = 256;

/// Addresses that are remembered for their pace.
const ADDRESSES_MAX: usize = 4096;

/// For how long nobody may have come so that many may come at once.
const BURST: Duration = Duration::from_secs(1);

/// All who stand there.
pub(crate) struct Doorstep {
    each: Duration,
    each_of_address: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: usize,
    free_at: Duration,
    addresses: HashMap<IpAddr, Caller>,
}

/// What one address does.
#[derive(Default)]
struct Caller {
    waiting: usize,
    free_at: Duration,
}

impl Doorstep {
    /// Lets so many shake hands in a second, in all and from one address.
    pub fn new(per_second: u32, per_second_of_address: u32) -> Arc<Self> {
        let every = |count: u32| Duration::from_secs(1) / count.max(1);
        let (each, each_of_address) = (every(per_second), every(per_second_of_address));
        Arc::new(Self { each, each_of_address, state: Mutex::default() })
    }

    /// Takes a connection, or says why there is no room for it.
    pub fn arrive(self: &Arc<Self>, peer: IpAddr, now: Duration) -> Result<Arrival, &'static str> {
        let address = network_of(peer);
        let mut state = self.state();
        if state.waiting >= ARRIVALS_MAX {
            return Err("too many connections that have not said who they are");
        }
        if state.addresses.len() >= ADDRESSES_MAX {
            state.addresses.retain(|_, caller| caller.waiting > 0 || caller.free_at > now);
        }
        if state.addresses.len() >= ADDRESSES_MAX && !state.addresses.contains_key(&address) {
            return Err("too many addresses at once");
        }
        let caller = state.addresses.entry(address).or_default();
        if caller.waiting >= ARRIVALS_PER_ADDRESS_MAX {
            return Err("too many connections of its address that have not said who they are");
        }
        caller.waiting += 1;
        state.waiting += 1;
        Ok(Arrival { doorstep: self.clone(), address })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One who stands there; dropping it leaves.
pub(crate) struct Arrival {
    doorstep: Arc<Doorstep>,
    address: IpAddr,
}

impl Arrival {
    /// How long to wait before shaking hands, and takes that turn; none if it would be longer
    /// than `at_most`. Who waits for its own address too long takes no turn of the others.
    pub fn turn(&self, now: Duration, at_most: Duration) -> Option<Duration> {
        let Doorstep { each, each_of_address, .. } = *self.doorstep;
        let mut state = self.doorstep.state();
        let caller = state.addresses.entry(self.address).or_default();
        let own = take_turn(&mut caller.free_at, each_of_address, now, at_most)?;
        Some(own.max(take_turn(&mut state.free_at, each, now, at_most)?))
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let mut state = self.doorstep.state();
        state.waiting -= 1;
        if let Some(caller) = state.addresses.get_mut(&self.address) {
            caller.waiting -= 1;
        }
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

/// What counts as one address: a network of IPv6 is one customer's.
pub(crate) fn network_of(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    /// As long as a handshake may take.
    const LONG: Duration = Duration::from_secs(10);

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn one_address_cannot_fill_the_doorstep() {
        let doorstep = Doorstep::new(1000, 1000);
        let flood: Vec<_> =
            (0..ARRIVALS_PER_ADDRESS_MAX).map(|_| doorstep.arrive(address(1), NOW)).collect();
        assert!(flood.iter().all(Result::is_ok));
        assert!(doorstep.arrive(address(1), NOW).err().unwrap().contains("of its address"));
        assert!(doorstep.arrive(address(2), NOW).is_ok(), "others have room");
        drop(flood);
        assert!(doorstep.arrive(address(1), NOW).is_ok(), "who left makes room");
    }

    #[test]
    fn the_doorstep_has_an_end() {
        let doorstep = Doorstep::new(1000, 1000);
        let many: Vec<_> = (0..ARRIVALS_MAX)
            .map(|number| doorstep.arrive(address((number % 250) as u8), NOW).unwrap())
            .collect();
        assert!(doorstep.arrive(address(251), NOW).err().unwrap().contains("too many"));
        drop(many);
        assert_eq!(doorstep.state().waiting, 0);
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
