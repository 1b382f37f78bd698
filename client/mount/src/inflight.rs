//! Blocks that are on their way: whoever wants one that another reader has asked for
//! waits for that one. A flight ends for all who wait at once, well or not. What came may
//! stay at hand for who comes later, until it is forgotten: `recent_blocks` says for how long.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use verbatim_engine::local_io::range_buffer::{Haste, Landed};
use verbatim_proto::Fault;

/// How a flight ended, and what it brought; nothing while it is under way.
pub(crate) type FetchResult = Option<Result<Arc<Landed>, Fault>>;

/// The blocks of one file that are on their way, or at hand.
#[derive(Default)]
pub struct InFlight(Mutex<FetchesByBlock>);

type FetchesByBlock = HashMap<u32, (watch::Receiver<FetchResult>, Haste)>;

/// A flight, for whoever has to end it. Dropped without an end, those who wait hear so.
pub(crate) struct BlockFetch {
    pub blocks: Vec<u32>,
    /// Whether somebody waits for it.
    pub haste: Haste,
    sender: watch::Sender<FetchResult>,
}

impl InFlight {
    fn blocks(&self) -> MutexGuard<'_, FetchesByBlock> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the flights of these blocks, as somebody who `waits` or who does not. Those that
    /// nobody has asked for begin, in runs of at most `run_max`: they are returned first, to be
    /// flown.
    pub(crate) fn join(
        &self,
        blocks: &[u32],
        run_max: usize,
        waits: bool,
    ) -> (Vec<BlockFetch>, Vec<(u32, watch::Receiver<FetchResult>)>) {
        let mut under_way = self.blocks();
        let mut begun: Vec<BlockFetch> = Vec::new();
        let mut joined = Vec::with_capacity(blocks.len());
        for &block in blocks {
            // One that ended without its end being told was let go of.
            let known = under_way.get(&block).filter(|it| it.0.has_changed().is_ok()).cloned();
            let (receiver, haste) = known.unwrap_or_else(|| {
                let goes_on = |flight: &&mut BlockFetch| {
                    flight.blocks.len() < run_max && flight.blocks.last() == Some(&(block - 1))
                };
                let flight = match begun.last_mut().filter(|it| block > 0 && goes_on(it)) {
                    Some(flight) => flight,
                    None => {
                        let (sender, _) = watch::channel(None);
                        begun.push(BlockFetch {
                            blocks: Vec::new(),
                            haste: Haste::default(),
                            sender,
                        });
                        begun.last_mut().expect("it was just put there")
                    }
                };
                flight.blocks.push(block);
                let flown = (flight.sender.subscribe(), flight.haste.clone());
                under_way.insert(block, flown.clone());
                flown
            });
            if waits {
                haste.raise();
            }
            joined.push((block, receiver));
        }
        (begun, joined)
    }

    /// Ends a flight. One that came stays at hand until it is forgotten or dropped.
    pub(crate) fn end(&self, flight: &BlockFetch, flown: Result<Arc<Landed>, Fault>) {
        let failed = flown.is_err();
        // Nobody may wait any more.
        let _ = flight.sender.send(Some(flown));
        if failed {
            self.forget(flight);
        }
    }

    /// Nothing of a flight is at hand any more.
    pub(crate) fn forget(&self, flight: &BlockFetch) {
        let mut under_way = self.blocks();
        let own = flight.sender.subscribe();
        for block in &flight.blocks {
            // Another one may have begun since.
            if under_way.get(block).is_some_and(|(it, _)| it.same_channel(&own)) {
                under_way.remove(block);
            }
        }
    }

    /// One block is not at hand any more: it was given up.
    pub(crate) fn forget_block(&self, block: u32) {
        let mut under_way = self.blocks();
        if under_way.get(&block).is_some_and(|(it, _)| it.borrow().is_some()) {
            under_way.remove(&block);
        }
    }

    /// What brought a block, if that is at hand.
    pub(crate) fn at_hand(&self, block: u32) -> Option<Arc<Landed>> {
        let under_way = self.blocks();
        let (receiver, _) = under_way.get(&block)?;
        let flown = receiver.borrow();
        flown.as_ref()?.as_ref().ok().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_proto::Code;

    #[test]
    fn who_wants_the_same_block_shares_a_flight_and_hears_its_end() {
        let flights = InFlight::default();
        let (begun, first) = flights.join(&[3, 4, 5, 9], 2, false);
        let runs: Vec<_> = begun.iter().map(|flight| flight.blocks.clone()).collect();
        assert_eq!(runs, [vec![3, 4], vec![5], vec![9]]);
        let (more, second) = flights.join(&[4, 6], 2, true);
        assert_eq!(more.len(), 1, "four is on its way");
        let hastes = begun.iter().chain(&more).map(|flight| flight.haste.is_urgent());
        assert_eq!(hastes.collect::<Vec<_>>(), [true, false, false, true], "who is waited for");
        let fault = Fault::new(Code::LinkLost, "gone");
        for flight in &begun {
            flights.end(flight, Err(fault.clone()));
        }
        let ended = |at: &(u32, watch::Receiver<FetchResult>)| at.1.borrow().is_some();
        assert!(first.iter().all(ended) && ended(&second[0]) && !ended(&second[1]));
        // One that is let go of does not keep others waiting.
        drop(more);
        let (again, _) = flights.join(&[6], 2, false);
        assert_eq!(again.len(), 1);
    }

    #[test]
    fn what_came_is_at_hand_until_it_is_forgotten_and_is_not_flown_again() {
        let flights = InFlight::default();
        let fly = |blocks: &[u32]| {
            let (mut begun, _) = flights.join(blocks, 4, false);
            let flight = begun.pop().expect("nobody has asked for it");
            assert!(flights.at_hand(blocks[0]).is_none(), "it is under way");
            flights.end(&flight, Ok(Arc::default()));
            flight
        };
        let first = fly(&[1, 2]);
        let (begun, joined) = flights.join(&[2], 4, false);
        assert!(begun.is_empty() && joined[0].1.borrow().is_some(), "it is still here");
        flights.forget_block(2);
        assert!(flights.at_hand(1).is_some() && flights.at_hand(2).is_none());
        let again = fly(&[2]);
        flights.forget(&first);
        assert!(flights.at_hand(1).is_none() && flights.at_hand(2).is_some(), "that is another");
        drop(again);
        assert_eq!(flights.join(&[2], 4, false).0.len(), 1, "it was let go of");
    }
}
