//! Owns the threads that move data of sessions: each has links of several clients
//! (`verbatim_serve::link_worker`), and verifies and stores their uploads (`chunk_store`). Never
//! imports a session: sessions send commands, and workers answer to their event queues. `session`
//! and `server` stand above it, `exports` and `observe` below.

pub(crate) mod chunk_store;

use chunk_store::ChunkStore;
use verbatim_serve::link_worker;

/// A command of a session to a worker.
pub(crate) type Command = link_worker::Command<ChunkStore>;

/// A worker's report about a link of a session.
pub(crate) type LinkEvent = link_worker::LinkEvent<ChunkStore>;

/// A chunk that a client uploads.
pub(crate) type Upload = link_worker::Upload<ChunkStore>;

/// The handler of one worker thread.
pub(crate) type Worker = link_worker::LinkWorker<ChunkStore>;

#[cfg(test)]
mod tests;
