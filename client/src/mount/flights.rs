//! Blocks that are on their way: whoever wants one that another reader has asked for
//! waits for that one. A flight ends for all who wait at once, well or not. The last one
//! whose blocks could not be kept stays for a while, for who comes late: readers want a
//! block in many small pieces.

use crate::part::Landed;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, watch};
use verbatim_proto::Fault;

/// How a flight ended: the bytes from this offset on, verified; nothing while it is under way.
pub(crate) type Flown = Option<Result<Arc<(u64, Landed)>, Fault>>;

/// The blocks of one file that are on their way.
#[derive(Default)]
pub struct Flights(Mutex<State>);

#[derive(Default)]
struct State {
    under_way: HashMap<u32, watch::Receiver<Flown>>,
    /// What has landed and could not be kept, with the right to stay.
    lingers: Option<(Flight, OwnedSemaphorePermit)>,
}

/// A flight, for whoever has to end it. Dropped without an end, those who wait hear so.
pub(crate) struct Flight {
    pub blocks: Vec<u32>,
    sender: watch::Sender<Flown>,
}

impl Flights {
    /// Joins the flights of these blocks. Those that nobody has asked for begin, in runs of at
    /// most `run_max`: they are returned first, to be flown.
    pub(crate) fn join(
        &self,
        blocks: &[u32],
        run_max: usize,
    ) -> (Vec<Flight>, Vec<(u32, watch::Receiver<Flown>)>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let under_way = &mut state.under_way;
        let mut begun: Vec<Flight> = Vec::new();
        let mut joined = Vec::with_capacity(blocks.len());
        for &block in blocks {
            // One that ended without its end being told was let go of.
            let known = under_way.get(&block).filter(|it| it.has_changed().is_ok()).cloned();
            let receiver = known.unwrap_or_else(|| {
                let goes_on = |flight: &&mut Flight| {
                    flight.blocks.len() < run_max && flight.blocks.last() == Some(&(block - 1))
                };
                let flight = match begun.last_mut().filter(|it| block > 0 && goes_on(it)) {
                    Some(flight) => flight,
                    None => {
                        let (sender, _) = watch::channel(None);
                        begun.push(Flight { blocks: Vec::new(), sender });
                        begun.last_mut().expect("it was just put there")
                    }
                };
                flight.blocks.push(block);
                let receiver = flight.sender.subscribe();
                under_way.insert(block, receiver.clone());
                receiver
            });
            joined.push((block, receiver));
        }
        (begun, joined)
    }

    /// Ends a flight. One with a right to stay does, until the next one does.
    pub(crate) fn end(
        &self,
        flight: Flight,
        flown: Result<Arc<(u64, Landed)>, Fault>,
        stay: Option<OwnedSemaphorePermit>,
    ) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody may wait any more.
        let _ = flight.sender.send(Some(flown));
        let gone = match stay {
            Some(stay) => state.lingers.replace((flight, stay)).map(|(gone, _)| gone),
            None => Some(flight),
        };
        for block in gone.iter().flat_map(|flight| &flight.blocks) {
            state.under_way.remove(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Semaphore;
    use verbatim_proto::Code;

    #[test]
    fn who_wants_the_same_block_shares_a_flight_and_hears_its_end() {
        let flights = Flights::default();
        let (begun, first) = flights.join(&[3, 4, 5, 9], 2);
        let runs: Vec<_> = begun.iter().map(|flight| flight.blocks.clone()).collect();
        assert_eq!(runs, [vec![3, 4], vec![5], vec![9]]);
        let (more, second) = flights.join(&[4, 6], 2);
        assert_eq!(more.len(), 1, "four is on its way");
        let fault = Fault::new(Code::LinkLost, "gone");
        for flight in begun {
            flights.end(flight, Err(fault.clone()), None);
        }
        let ended = |at: &(u32, watch::Receiver<Flown>)| at.1.borrow().is_some();
        assert!(first.iter().all(ended) && ended(&second[0]) && !ended(&second[1]));
        // One that is let go of does not keep others waiting.
        drop(more);
        let (again, _) = flights.join(&[6], 2);
        assert_eq!(again.len(), 1);
    }

    #[test]
    fn one_that_may_stay_does_until_the_next_and_is_not_flown_again() {
        let (flights, rights) = (Flights::default(), Arc::new(Semaphore::new(1)));
        let fly = |blocks: &[u32]| {
            let (begun, _) = flights.join(blocks, 4);
            for flight in begun {
                let right = rights.clone().try_acquire_owned().ok();
                flights.end(flight, Ok(Arc::default()), right);
            }
        };
        fly(&[1, 2]);
        let (begun, joined) = flights.join(&[2], 4);
        assert!(begun.is_empty() && joined[0].1.borrow().is_some(), "it is still here");
        fly(&[3]);
        assert_eq!(flights.join(&[3], 4).0.len(), 1, "there was no right left");
        drop(flights);
        assert_eq!(rights.available_permits(), 1);
    }
}
