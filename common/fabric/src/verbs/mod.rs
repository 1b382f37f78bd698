//! The verbs link: one-sided operations done by an RDMA device, without a
//! link-time dependency: libibverbs is opened at run time, and where it is
//! missing, or there is no device that can be used, `usable` says why.
//!
//! From the bottom: `ffi` declares, `library` loads, `context` is an open device
//! with its events, `region` a piece of memory that a device knows, `registration` what
//! of ours it is, `domain` what one peer may name,
//! `queue` one queue pair, `endpoint` makes it, `link` drives it: `request` cuts,
//! `flights` keeps what is under way. `address` is what both ends tell, `device`
//! the library's list; `status` explains; `probe` tries files. What there is and
//! which of it is used is not decided here: `ports` does, without the library.
//!
//! Who keeps whom: link -> queue -> domain -> context; a region keeps its domain,
//! a buffer its regions. So nothing is freed under anything that uses it, in
//! whatever order its users are dropped.
//!
//! A region needs a domain that is alive, so there is no way to ask for one after:
//! ```compile_fail,E0382
//! use verbatim_fabric::{Domain, Memory, verbs::VerbsDomain};
//! fn late(domain: VerbsDomain, memory: Memory) {
//!     drop(domain);
//!     let _ = domain.register(memory);
//! }
//! ```

#![allow(unsafe_code)]

mod address;
mod context;
mod counters;
mod device;
mod domain;
mod endpoint;
#[doc(hidden)]
pub mod ffi;
mod flights;
mod library;
mod link;
mod options;
mod probe;
mod queue;
mod region;
mod registration;
mod request;
mod status;

use crate::error::FabricError;
pub use crate::ports::{
    DISTANCE_LOCAL, GidInfo, GidKind, LinkLayer, Machine, Place, Reason, Wish,
    local_address_towards,
};
pub use address::{ADDRESS_BYTES, Address};
pub use context::{Context, DeviceLimits};
pub use counters::Counters;
pub use domain::VerbsDomain;
pub use endpoint::VerbsEndpoint;
pub use link::VerbsLink;
pub use options::Options;
pub use probe::{FileWindows, probe, try_file};
pub(crate) use region::LocalRegions;
pub use region::{DomainLimits, leaked_count};
pub use status::{Status, explain};

/// Chooses where links start on this machine, or says the first reason why none can.
pub fn find_place(wish: &Wish) -> Result<Place, FabricError> {
    find_places(wish).map(|mut places| places.swap_remove(0))
}

/// Lists where links can start on this machine, the best first, or says the first reason why
/// none can. At least one.
pub fn find_places(wish: &Wish) -> Result<Vec<Place>, FabricError> {
    usable(wish).map_err(|reasons| {
        let first = reasons.into_iter().next();
        first.expect("a refusal has a reason").into()
    })
}

/// Lists where links can start on this machine, the best first, or says all reasons why none
/// can. The library is opened only where there is a device for it.
pub fn usable(wish: &Wish) -> Result<Vec<Place>, Vec<Reason>> {
    let places = crate::ports::choose(&Machine::here().with_open(&wish.open), wish)?;
    library::library().map_err(|reason| vec![reason])?;
    Ok(places)
}

/// Says why libibverbs cannot be opened, if it cannot. Opens it.
pub fn library_opens() -> Result<(), Reason> {
    library::library().map(drop)
}
