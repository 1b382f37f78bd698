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
    pub priority: Haste,
    sender: watch::Sender<FetchResult>,
}

impl InFlight {
    fn fetches(&self) -> MutexGuard<'_, FetchesByBlock> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the flights of these blocks, as somebody who `waits` or who does not. Those that
    /// nobody has asked for begin, in runs of at most `blocks_max`: they are returned first, to be
    /// flown.
    pub(crate) fn join(
        &self,
        blocks: &[u32],
        blocks_max: usize,
        waits: bool,
    ) -> (Vec<BlockFetch>, Vec<(u32, watch::Receiver<FetchResult>)>) {
        let mut fetches = self.fetches();
        let mut started: Vec<BlockFetch> = Vec::new();
        let mut joined = Vec::with_capacity(blocks.len());
        for &block in blocks {
            // One that ended without its end being told was let go of.
            let existing = fetches.get(&block).filter(|it| it.0.has_changed().is_ok()).cloned();
            let (receiver, priority) = existing.unwrap_or_else(|| {
                let extends_run = |fetch: &&mut BlockFetch| {
                    fetch.blocks.len() < blocks_max && fetch.blocks.last() == Some(&(block - 1))
                };
                let fetch = match started.last_mut().filter(|it| block > 0 && extends_run(it)) {
                    Some(fetch) => fetch,
                    None => {
                        let (sender, _) = watch::channel(None);
                        started.push(BlockFetch {
                            blocks: Vec::new(),
                            priority: Haste::default(),
                            sender,
                        });
                        started.last_mut().expect("it was just put there")
                    }
                };
                fetch.blocks.push(block);
                let entry = (fetch.sender.subscribe(), fetch.priority.clone());
                fetches.insert(block, entry.clone());
                entry
            });
            if waits {
                priority.raise();
            }
            joined.push((block, receiver));
        }
        (started, joined)
    }

    /// Ends a flight. One that came stays at hand until it is forgotten or dropped.
    pub(crate) fn finish(&self, fetch: &BlockFetch, result: Result<Arc<Landed>, Fault>) {
        let failed = result.is_err();
        // Nobody may wait any more.
        let _ = fetch.sender.send(Some(result));
        if failed {
            self.remove(fetch);
        }
    }

    /// Nothing of a flight is at hand any more.
    pub(crate) fn remove(&self, fetch: &BlockFetch) {
        let mut fetches = self.fetches();
        let own = fetch.sender.subscribe();
        for block in &fetch.blocks {
            // Another one may have begun since.
            if fetches.get(block).is_some_and(|(it, _)| it.same_channel(&own)) {
                fetches.remove(block);
            }
        }
    }

    /// One block is not at hand any more: it was given up.
    pub(crate) fn remove_block(&self, block: u32) {
        let mut fetches = self.fetches();
        if fetches.get(&block).is_some_and(|(it, _)| it.borrow().is_some()) {
            fetches.remove(&block);
        }
    }

    /// What brought a block, if that is at hand.
    pub(crate) fn received(&self, block: u32) -> Option<Arc<Landed>> {
        let fetches = self.fetches();
        let (receiver, _) = fetches.get(&block)?;
        let result = receiver.borrow();
        result.as_ref()?.as_ref().ok().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_proto::Code;

    #[test]
    fn readers_of_one_block_share_a_fetch_and_its_result() {
        let in_flight = InFlight::default();
        let (started, first) = in_flight.join(&[3, 4, 5, 9], 2, false);
        let runs: Vec<_> = started.iter().map(|fetch| fetch.blocks.clone()).collect();
        assert_eq!(runs, [vec![3, 4], vec![5], vec![9]]);
        let (more, second) = in_flight.join(&[4, 6], 2, true);
        assert_eq!(more.len(), 1, "four is on its way");
        let priorities = started.iter().chain(&more).map(|fetch| fetch.priority.is_urgent());
        assert_eq!(priorities.collect::<Vec<_>>(), [true, false, false, true], "who is waited for");
        let fault = Fault::new(Code::LinkLost, "gone");
        for fetch in &started {
            in_flight.finish(fetch, Err(fault.clone()));
        }
        let ended = |at: &(u32, watch::Receiver<FetchResult>)| at.1.borrow().is_some();
        assert!(first.iter().all(ended) && ended(&second[0]) && !ended(&second[1]));
        // One that is let go of does not keep others waiting.
        drop(more);
        let (again, _) = in_flight.join(&[6], 2, false);
        assert_eq!(again.len(), 1);
    }

    #[test]
    fn a_received_block_is_served_from_memory_until_it_is_removed() {
        let in_flight = InFlight::default();
        let receive = |blocks: &[u32]| {
            let (mut started, _) = in_flight.join(blocks, 4, false);
            let fetch = started.pop().expect("nobody has asked for it");
            assert!(in_flight.received(blocks[0]).is_none(), "it is under way");
            in_flight.finish(&fetch, Ok(Arc::default()));
            fetch
        };
        let first = receive(&[1, 2]);
        let (started, joined) = in_flight.join(&[2], 4, false);
        assert!(started.is_empty() && joined[0].1.borrow().is_some(), "it is still here");
        in_flight.remove_block(2);
        assert!(in_flight.received(1).is_some() && in_flight.received(2).is_none());
        let again = receive(&[2]);
        in_flight.remove(&first);
        assert!(
            in_flight.received(1).is_none() && in_flight.received(2).is_some(),
            "that is another"
        );
        drop(again);
        assert_eq!(in_flight.join(&[2], 4, false).0.len(), 1, "it was let go of");
    }
}
