//! The threads that move data for sessions: a worker owns links of several clients
//! (`verbatim_serve::link_worker`), and checks and stores what they upload (`chunk_store`). Knows
//! no session: sessions tell workers what to do, and hear of it in their event queues.

pub(crate) mod chunk_store;

use chunk_store::ChunkStore;
use verbatim_serve::link_worker;

/// What a session tells a worker.
pub(crate) type Command = link_worker::Command<ChunkStore>;

/// What a worker tells a session of one of its links.
pub(crate) type LinkEvent = link_worker::LinkEvent<ChunkStore>;

/// A chunk that a client sends.
pub(crate) type Upload = link_worker::Upload<ChunkStore>;

/// The handler of one worker thread.
pub(crate) type Worker = link_worker::LinkWorker<ChunkStore>;

#[cfg(test)]
mod tests;
