//! Simulated links: a network in memory, on a seeded schedule, with modelled
//! latency and bandwidth and with faults. Owns the public handles; the schedule
//! is in `net`, a link's state and copying in `link`, the luck in `faults`. It has
//! no thread: whoever polls an end, or moves the manual clock, makes everything
//! due happen, with no caller's code under the lock. Called by tests and by the
//! harnesses that measure the scheduler on links no test machine has.
//!
//! The same seed with the same submits, polls and clock gives the same completions
//! and the same faults.
//!
//! ```
//! use verbatim_fabric::sim::{Faults, SimClock, SimNet};
//! use verbatim_fabric::{Buffer, Domain, Link, Memory, Op, RemoteRange};
//! use verbatim_fabric::{SharedSlot, SoftDomain, Ticket};
//!
//! let net = SimNet::new(1, Faults { delay_ns: 500, ..Faults::default() }, SimClock::Manual);
//! let (here, there) = (SoftDomain::new(), SoftDomain::new());
//! let region = there.register(Memory::Staged(SharedSlot::new(16)?))?;
//! let (mut link, _far) = net.pair(here, there);
//! let from = RemoteRange { key: region.key, address: region.base };
//! link.submit(Ticket(1), Op::Read { from, into: Buffer::new(16)? }).expect("has room");
//! let mut completions = Vec::new();
//! net.advance_to(499);
//! link.poll(&mut completions)?;
//! assert!(completions.is_empty());
//! net.advance_to(500);
//! link.poll(&mut completions)?;
//! assert_eq!(completions.len(), 1);
//! # Ok::<(), verbatim_fabric::FabricError>(())
//! ```

mod faults;
mod link;
mod net;
#[cfg(test)]
mod tests;

pub use faults::Faults;

use crate::domain::SoftDomain;
use crate::error::FabricError;
use crate::link::{Completion, Full, Limits, Link, Op, Ticket, Wake};
use net::NetState;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A simulated network; clones are the same network.
#[derive(Clone)]
pub struct SimNet {
    state: Arc<Mutex<NetState>>,
}

/// What moves the time of a simulated network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimClock {
    /// `SimNet::advance_to`, from 0.
    Manual,
    /// The clock of the machine, from the creation of the network.
    Real,
}

/// What happened on a network so far, for tests that must know a fault really struck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimCounts {
    /// Operations that living links accepted.
    pub ops: u64,
    /// Bytes that reached a buffer or a slot.
    pub bytes: u64,
    /// Operations that delivered one wrong bit.
    pub corrupted: u64,
    /// Operations that will never complete.
    pub lost: u64,
    /// Notifications that arrived a second time.
    pub duplicated: u64,
    /// Operations that arrived after one submitted later on the same end.
    pub reordered: u64,
    /// Links killed by `death_ppm`, `die_after_bytes` or `cut_rail`.
    pub deaths: u64,
}

impl SimNet {
    /// Makes a network whose luck follows from the seed.
    pub fn new(seed: u64, faults: Faults, clock: SimClock) -> Self {
        Self { state: Arc::new(Mutex::new(NetState::new(seed, faults, clock))) }
    }

    /// Replaces the faults of links made from now on; those there are keep theirs.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Replaces the limits of links made from now on: 64 operations of 16 MiB by default.
    pub fn set_limits(&self, limits: Limits) {
        self.state().limits = limits;
    }

    /// Puts links made from now on onto a rail: they share its bandwidth, which is that of the
    /// faults they are made with. None gives each a wire of its own.
    pub fn set_rail(&self, rail: Option<u16>) {
        self.state().rail = rail;
    }

    /// Ends every link of a rail, as a port that goes down does.
    pub fn cut_rail(&self, rail: u16) {
        self.state().cut_rail(rail);
    }

    /// Makes a link and returns both ends; what one end submits names memory registered in
    /// the domain of the other.
    pub fn pair(&self, a_domain: Arc<SoftDomain>, b_domain: Arc<SoftDomain>) -> (SimLink, SimLink) {
        let mut state = self.state();
        let number = state.connect(a_domain, Some(b_domain));
        let limits = state.limits;
        drop(state);
        (self.handle(number, 0, limits), self.handle(number, 1, limits))
    }

    /// Makes a link and returns one end, with the number under which `take_end` gives out the
    /// other. Operations submitted here before that fail and end the link.
    pub fn listen_end(&self, domain: Arc<SoftDomain>) -> (u64, SimLink) {
        let mut state = self.state();
        let number = state.connect(domain, None);
        let limits = state.limits;
        drop(state);
        (number, self.handle(number, 0, limits))
    }

    /// Takes the far end of a listening one; absent when the number is unknown, already taken,
    /// or of a link that has ended.
    pub fn take_end(&self, endpoint: u64, domain: Arc<SoftDomain>) -> Option<SimLink> {
        let limits = self.state().take(endpoint, domain)?;
        Some(self.handle(endpoint, 1, limits))
    }

    /// Moves a manual clock forward and does all that is due by then; a real clock ignores
    /// the time given.
    pub fn advance_to(&self, now_ns: u64) {
        self.state().advance_to(now_ns);
    }

    /// Tells the time of the network, in nanoseconds from its creation.
    pub fn now_ns(&self) -> u64 {
        self.state().now_ns()
    }

    /// Tells when the next operation or notification arrives anywhere in the network; what is
    /// ready to be polled is not counted, and neither are lost operations.
    pub fn next_event_ns(&self) -> Option<u64> {
        self.state().next_event_ns()
    }

    /// Tells what happened so far.
    pub fn counts(&self) -> SimCounts {
        self.state().counts
    }

    fn handle(&self, number: u64, side: usize, limits: Limits) -> SimLink {
        SimLink { net: self.clone(), number, side, limits }
    }

    fn state(&self) -> MutexGuard<'_, NetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for SimNet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimNet").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// One end of a simulated link.
///
/// A dead link still yields by `poll` what completed or was flushed, together with the error.
/// Dropping an end ends the link as `abort` does.
pub struct SimLink {
    net: SimNet,
    number: u64,
    side: usize,
    limits: Limits,
}

impl Link for SimLink {
    fn submit(&mut self, ticket: Ticket, op: Op) -> Result<(), Full> {
        self.net.state().submit(self.number, self.side, ticket, op)
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        self.net.state().poll(self.number, self.side, completions)
    }

    fn wake(&self) -> Wake<'_> {
        let at_most = self.net.state().wait(self.number, self.side);
        Wake { fd: None, readable: false, writable: false, at_most: Some(at_most) }
    }

    fn abort(&mut self, completions: &mut Vec<Completion>) {
        self.net.state().abort(self.number, self.side, completions);
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn transport(&self) -> &str {
        "sim"
    }
}

impl Drop for SimLink {
    fn drop(&mut self) {
        // Buffers are unmapped after the lock is let go.
        let mut flushed = Vec::new();
        let mut state = self.net.state();
        state.abort(self.number, self.side, &mut flushed);
        state.release(self.number);
    }
}

impl std::fmt::Debug for SimLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimLink")
            .field("number", &self.number)
            .field("side", &self.side)
            .finish_non_exhaustive()
    }
}
