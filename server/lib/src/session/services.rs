//! What all sessions of a server share: exports, digests, workers, the device. Made
//! once by the listener; a session changes none of it but through what is in it.

use super::sync_lock::LockRegistry;
use crate::exports::dense_files::Surveys;
use crate::exports::open::Exports;
use crate::exports::quota::Counts;
use crate::exports::window_digests::Hashing;
use crate::limits::client_limits::Shares;
use crate::limits::memory_budget::Trimmer;
use crate::limits::rate::Paces;
use crate::net::data_tickets::Joins;
use crate::observe::observatory::{Observatory, Watched};
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

/// What all sessions share.
pub(crate) struct Services {
    pub exports: Exports,
    /// What was written into them before this server began.
    pub written: Counts,
    pub hashing: Arc<Hashing>,
    /// What each client has of what all share.
    pub shares: Shares,
    pub surveys: Surveys,
    pub bare: Arc<Bare>,
    pub workers: Vec<WorkerHandle<Command>>,
    /// How many of them, the first, have links of a device.
    pub device_workers: usize,
    pub joins: Joins,
    /// Which client locked which target of a mirror.
    pub locks: Arc<LockRegistry>,
    /// The accounts that this machine had at the start.
    pub accounts: Accounts,
    pub next_link: AtomicU64,
    pub sim: Option<SimNet>,
    pub rdma: Rdma,
    pub observatory: Arc<Observatory>,
    /// How fast each client may be.
    pub paces: Paces,
    pub links_max: u16,
    pub idle: Duration,
    /// Room for walks that hash.
    pub hashed_walks: Arc<Semaphore>,
    /// What gives memory back when clients are gone.
    pub trimmer: Arc<Trimmer>,
}

impl Services {
    /// What of this is shown to people.
    pub fn watched(&self) -> Watched {
        Watched {
            rails: self.rdma.clone(),
            exports: self.exports.clone(),
            digests: self.hashing.clone(),
            memory: self.shares.memory.clone(),
        }
    }
}
