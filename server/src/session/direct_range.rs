//! A range of a file that a device may write to: what workers tell of it, how it is taken
//! back, and what becomes of a session whose device keeps it. Which ranges there are is in
//! `spots`.

use super::End;
use crate::rdma::registrations::{Offered, SessionDomain};
use std::sync::Arc;
use verbatim_proto::message::Tag;
use verbatim_proto::{Code, Fault};

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
    pub(super) fn new(domain: &Arc<SessionDomain>, number: u64) -> Self {
        Self { domain: domain.clone(), number }
    }

    /// Takes it back; whether nobody can write to it any more.
    pub fn take_back(&self) -> bool {
        self.domain.take_back(self.number)
    }
}

/// Goes on where devices have let go of memory. Where one has not, its client can still reach it,
/// and only the end of the session, with every queue pair, helps. Its client may come back: a
/// device that failed is opened anew, or left for TCP.
pub(super) fn go_on_if(let_go: bool) -> Result<(), End> {
    let text = "the device does not let go of memory; see dmesg of the server";
    let_go.then_some(()).ok_or_else(|| End::Refused(Fault::new(Code::LinkLost, text)))
}
