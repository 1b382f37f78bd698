//! Events of upload jobs. In a file of their own, because the session's `Event` names them and
//! `Writing` stands above that.

use super::open_upload::Created;
use crate::observe::session_stats::SessionStats;
use std::time::Duration;
use verbatim_proto::message::{FileId, Offer};
use verbatim_proto::{Digest, Dropped, Extent, Fault};
use verbatim_telemetry::labels::{Operation, Spared, Step};

/// What an upload job reports.
pub(crate) enum WriteEvent {
    /// Temporary files were created or resumed. Or the errors.
    Created(Vec<(FileId, Result<Created, Fault>)>),
    /// A range was zeroed; its digests.
    Zeroed(FileId, Extent, Result<Vec<Digest>, Fault>),
    /// These ranges of an offer were copied from a file of an export.
    Taken(Box<Offer>, Result<Vec<Extent>, Fault>),
    /// Files were committed, or failed; and the metadata that was not kept.
    Committed(Vec<(FileId, Result<(), Fault>)>, Dropped),
}

impl WriteEvent {
    /// Adds a job's answer and its duration to the counters.
    pub fn count(&self, view: &SessionStats, time: Duration) {
        match self {
            Self::Created(answers) => {
                let faults = answers.iter().map(|(_, answer)| answer.as_ref().err());
                view.ended(Operation::Create, faults);
                let answers = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
                let have = answers.filter_map(|(_, have)| have.as_ref());
                view.count_spared(Spared::Resumed, have.map(|have| have.extents.bytes()).sum());
            }
            Self::Taken(offer, Ok(found)) => {
                view.spared(Spared::Found, offer.piece.file, found.iter().map(|of| of.len).sum());
            }
            Self::Zeroed(file, extent, Ok(_)) => view.spared(Spared::Hole, *file, extent.len),
            Self::Committed(answers, _) => {
                view.took(Step::Commit, time);
                let faults = answers.iter().map(|(_, answer)| answer.as_ref().err());
                view.ended(Operation::Commit, faults);
            }
            Self::Taken(_, Err(_)) | Self::Zeroed(_, _, Err(_)) => {}
        }
    }
}
