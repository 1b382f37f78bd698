//! A range of a file that a device may write to: what workers tell of it, and how it is taken
//! back. Which ranges a session has is in `session::spots`.

use crate::rdma::registrations::{Offered, SessionDomain};
use std::sync::Arc;
use verbatim_proto::Fault;
use verbatim_proto::message::Tag;

/// What workers tell a session about spots.
pub(crate) enum SpotEvent {
    /// A range of a file can be written to, or cannot.
    Made(Tag, Result<Offered, Fault>),
    /// A device keeps memory that it must not: only the end of all queue pairs helps.
    Stuck,
}

/// A spot that is to be taken back before it is looked at.
pub(crate) struct Taking {
    domain: Arc<SessionDomain>,
    number: u64,
}

impl Taking {
    /// The spot of this number in a domain.
    pub fn new(domain: &Arc<SessionDomain>, number: u64) -> Self {
        Self { domain: domain.clone(), number }
    }

    /// Takes it back; whether nobody can write to it any more.
    pub fn take_back(&self) -> bool {
        self.domain.take_back(self.number)
    }
}
