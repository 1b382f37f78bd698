//! Limits on resources that all clients share: sessions, threads, descriptors, memory, rate.
//! Never decides the access rights of a client: exports do. Imports the configuration alone;
//! every module that serves clients imports it.

pub(crate) mod client_limits;
pub(crate) mod fair_pool;
pub(crate) mod file_permits;
pub(crate) mod memory_budget;
pub(crate) mod network;
pub(crate) mod pattern_steps;
pub(crate) mod rate;
