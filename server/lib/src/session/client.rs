//! The client of a session, as every activity gets it: connection, rights, limits, and the memory
//! that it may name. Owns the count of metadata that could not be kept, and the flag that cancels
//! jobs.

use super::Services;
use super::end::End;
use crate::exports::client_view::ClientView;
use crate::limits::client_limits::ClientLimits;
use crate::limits::fair_pool::PoolShare;
use crate::observe::session_stats::SessionStats;
use crate::rdma::registrations::SessionDomain;
use crate::worker::Command;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::Instant;
use verbatim_control::{Outbox, Who};
use verbatim_proto::message::ServerMessage;
use verbatim_proto::{Code, Dropped};

/// The client of a session.
pub(crate) struct Client {
    pub id: u64,
    pub services: Arc<Services>,
    pub outbox: Outbox<ServerMessage>,
    pub domain: Arc<SessionDomain>,
    /// The server's address, as the client reached it.
    pub local: Option<IpAddr>,
    pub chunk_bytes: u32,
    /// The session as status page and metrics show it.
    pub view: Arc<SessionStats>,
    /// The authenticated identity of the client.
    pub who: Who,
    /// The exports as this client sees them.
    pub reach: Arc<ClientView>,
    pub share: Arc<ClientLimits>,
    /// The session's part of the client's memory limit.
    pub memory: Arc<PoolShare>,
    /// Metadata of the client that could not be kept.
    pub dropped: Dropped,
    pub cancel: CancelFlag,
    /// Since when there is no memory for a window or a slot.
    pub memory_wait: Option<Instant>,
}

/// Cancels the jobs of a session whose client is gone.
#[derive(Default)]
pub(crate) struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// The flag that jobs poll: true when the client is gone.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// Cancels all jobs.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Drop for CancelFlag {
    fn drop(&mut self) {
        self.set();
    }
}

impl Client {
    /// Queues a message to the client.
    pub fn send(&self, message: ServerMessage) -> Result<(), End> {
        Ok(self.outbox.push(&message)?)
    }

    /// Reports metadata that was not kept, before the answer about the files.
    pub fn tell_dropped(&mut self, dropped: Dropped) -> Result<(), End> {
        if dropped.is_empty() {
            return Ok(());
        }
        self.dropped += dropped;
        self.send(ServerMessage::Dropped(dropped))
    }

    /// Notes that there was no memory for a window or a slot.
    pub fn lacks_memory(&mut self) {
        self.memory_wait.get_or_insert_with(Instant::now);
    }

    /// Sends a command to a worker.
    pub fn send_to_worker(&self, worker: usize, command: Command) -> Result<(), End> {
        let sent = self.services.workers[worker].send(command);
        sent.map_err(|error| End::refused(Code::Limit, error.to_string()))
    }
}
