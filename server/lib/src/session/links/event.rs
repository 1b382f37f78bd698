//! Events of the jobs that set up queue pairs. In a file of their own, because the session's
//! `Event` names them and `Links` stands above that.

use crate::observe::session_stats::SessionStats;
use crate::rdma::registrations::ConnectedQp;
use std::time::Duration;
use verbatim_fabric::FabricError;
use verbatim_proto::message::LinkId;

/// What a job reports of a queue pair.
pub(crate) enum PairEvent {
    /// The device joined: the link ends at this rail. Or the error.
    Joined(LinkId, Result<u16, FabricError>),
    /// The queue pair is connected. Or the error.
    Made(LinkId, Result<ConnectedQp, FabricError>),
}

impl PairEvent {
    /// No counter has queue pairs.
    pub fn count(&self, _view: &SessionStats, _time: Duration) {}
}
