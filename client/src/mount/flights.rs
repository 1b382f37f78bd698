//! Blocks that are on their way: whoever wants one that another reader has asked for
//! waits for that one. A flight ends for all who wait at once, well or not.

use crate::part::Landed;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;
use verbatim_proto::Fault;

/// How a flight ended: the bytes from this offset on, verified; nothing while it is under way.
pub(crate) type Flown = Option<Result<Arc<(u64, Landed)>, Fault>>;

/// The blocks of one file that are on their way.
#[derive(Default)]
pub struct Flights(Mutex<HashMap<u32, watch::Receiver<Flown>>>);

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
        let mut under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Ends a flight.
    pub(crate) fn end(&self, flight: Flight, flown: Result<Arc<(u64, Landed)>, Fault>) {
        let mut under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for block in &flight.blocks {
            under_way.remove(block);
        }
        drop(under_way);
        // Nobody may wait any more.
        let _ = flight.sender.send(Some(flown));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
            flights.end(flight, Err(fault.clone()));
        }
        let ended = |at: &(u32, watch::Receiver<Flown>)| at.1.borrow().is_some();
        assert!(first.iter().all(ended) && ended(&second[0]) && !ended(&second[1]));
        // One that is let go of does not keep others waiting.
        drop(more);
        let (again, _) = flights.join(&[6], 2);
        assert_eq!(again.len(), 1);
    }
}
