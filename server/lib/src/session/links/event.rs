//! What jobs report of queue pairs that are being made. Apart from what makes them, because the
//! sum of all events of a session names it.

use crate::observe::session_stats::View;
use crate::rdma::registrations::ConnectedQp;
use std::time::Duration;
use verbatim_fabric::FabricError;
use verbatim_proto::message::LinkId;

/// What jobs report of queue pairs.
pub(crate) enum PairEvent {
    /// A link is to end at this rail, or at none.
    Joined(LinkId, Result<u16, FabricError>),
    /// It was made, or not.
    Made(LinkId, Result<ConnectedQp, FabricError>),
}

impl PairEvent {
    /// No counter has queue pairs.
    pub fn count(&self, _view: &View, _time: Duration) {}
}
