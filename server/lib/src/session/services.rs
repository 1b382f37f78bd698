//! What all sessions of a server share: exports, digests, workers, devices, limits. `server` builds
//! it once; a session changes it only through the types in it.

use super::sync_lock::LockRegistry;
use crate::exports::dense_files::DenseFiles;
use crate::exports::open::Exports;
use crate::exports::quota::QuotaUsage;
use crate::exports::window_digests::WindowDigests;
use crate::limits::client_limits::ServerLimits;
use crate::limits::memory_budget::HeapTrimmer;
use crate::limits::rate::RateLimits;
use crate::net::data_tickets::Tickets;
use crate::observe::server_stats::{ServerStats, StatusSources};
use crate::rdma::rails::Rdma;
use crate::worker::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::Semaphore;
use verbatim_fabric::sim::SimNet;
use verbatim_fabric::worker::WorkerHandle;
use verbatim_files::accounts::Accounts;
use verbatim_files::bare::Bare;

/// What all sessions of a server share.
pub(crate) struct Services {
    pub exports: Exports,
    /// Bytes and files in the exports that earlier runs of the server counted.
    pub written: QuotaUsage,
    pub hashing: Arc<WindowDigests>,
    /// The limits of each client.
    pub shares: ServerLimits,
    pub surveys: DenseFiles,
    pub bare: Arc<Bare>,
    pub workers: Vec<WorkerHandle<Command>>,
    /// How many of them, from the first, may have links of a device.
    pub device_workers: usize,
    pub joins: Tickets,
    /// Which client locked which target of a mirror.
    pub locks: Arc<LockRegistry>,
    /// The accounts of this machine at the start.
    pub accounts: Accounts,
    pub next_link: AtomicU64,
    pub sim: Option<SimNet>,
    pub rdma: Rdma,
    pub observatory: Arc<ServerStats>,
    /// The rate limits of all clients.
    pub paces: RateLimits,
    pub links_max: u16,
    pub idle: Duration,
    /// Permits of walks that hash.
    pub hashed_walks: Arc<Semaphore>,
    /// Returns freed memory to the system when clients are gone.
    pub trimmer: Arc<HeapTrimmer>,
}

impl Services {
    /// The part that status page and metrics show.
    pub fn watched(&self) -> StatusSources {
        StatusSources {
            rails: self.rdma.clone(),
            exports: self.exports.clone(),
            digests: self.hashing.clone(),
            memory: self.shares.memory.clone(),
        }
    }
}
