//! Single-flight fetches: a reader that needs a block another reader is fetching waits
//! for that fetch. Each fetch finishes once, with data or a fault, for all its waiters.
//! A received block stays available here until `recent_blocks` removes it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use verbatim_engine::local_io::range_buffer::{Priority, VerifiedRange};
use verbatim_proto::Fault;

/// The result of a fetch; `None` while it is running.
pub(crate) type FetchResult = Option<Result<Arc<VerifiedRange>, Fault>>;

/// The blocks of one file that are being fetched, or were received recently.
#[derive(Default)]
pub struct InFlight(Mutex<FetchesByBlock>);

type FetchesByBlock = HashMap<u32, (watch::Receiver<FetchResult>, Priority)>;

/// A running fetch of consecutive blocks. The owner finishes it; if the owner drops it unfinished,
/// all waiters get an error.
pub(crate) struct BlockFetch {
    pub blocks: Vec<u32>,
    /// Whether a reader waits for the fetch.
    pub priority: Priority,
    sender: watch::Sender<FetchResult>,
}

impl InFlight {
    fn fetches(&self) -> MutexGuard<'_, FetchesByBlock> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the running fetches of these blocks, and raises their priority if a reader `waits`.
    /// Blocks without a fetch get new ones, of at most `blocks_max` consecutive blocks. Returns the
    /// new fetches, which the caller runs, and a receiver for each block.
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
            // A closed channel without a result belongs to a fetch that was dropped.
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
                            priority: Priority::default(),
                            sender,
                        });
                        started.last_mut().expect("it was just pushed")
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

    /// Finishes a fetch. Received data stays available until the fetch is removed or dropped.
    pub(crate) fn finish(&self, fetch: &BlockFetch, result: Result<Arc<VerifiedRange>, Fault>) {
        let failed = result.is_err();
        // All waiters may be gone.
        let _ = fetch.sender.send(Some(result));
        if failed {
            self.remove(fetch);
        }
    }

    /// Removes the blocks of a fetch.
    pub(crate) fn remove(&self, fetch: &BlockFetch) {
        let mut fetches = self.fetches();
        let own = fetch.sender.subscribe();
        for block in &fetch.blocks {
            // A newer fetch may own the block.
            if fetches.get(block).is_some_and(|(it, _)| it.same_channel(&own)) {
                fetches.remove(block);
            }
        }
    }

    /// Removes one received block: the cache punched it.
    pub(crate) fn remove_block(&self, block: u32) {
        let mut fetches = self.fetches();
        if fetches.get(&block).is_some_and(|(it, _)| it.borrow().is_some()) {
            fetches.remove(&block);
        }
    }

    /// The data of a received block.
    pub(crate) fn received(&self, block: u32) -> Option<Arc<VerifiedRange>> {
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
        // A dropped fetch does not block later readers.
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
