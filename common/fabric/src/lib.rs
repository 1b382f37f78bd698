//! Links: how bytes get from registered memory on one node to memory on
//! another. One trait, completion style; `verbs`, `tcp` and `sim` behind it.
//! This crate knows no protocol message and no export: the drivers in
//! `client` and `server` translate. All unsafe code of the project is here.

pub mod domain;
pub mod error;
pub mod link;
pub mod memory;
pub mod ports;
pub mod proof;
pub mod region;
pub mod sim;
pub mod slots;
pub mod tcp;
pub mod verbs;
pub mod worker;

pub use domain::{Domain, SoftDomain};
pub use error::FabricError;
pub use link::{Completion, Full, Limits, Link, Op, RemoteRange, Ticket, Wake};
pub use memory::{
    Buffer, FROM_FILE_BYTES_MIN, FromFiles, MappedFile, MappedSpot, Memory, SharedSlot, SparePages,
};
pub use region::RegionHandle;
