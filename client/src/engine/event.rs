//! What workers and links report to an engine. Answers of jobs go to the
//! activities that began them instead.

use verbatim_fabric::{FabricError, Link};
use verbatim_proto::message::{LinkId, Tag};
use verbatim_proto::read::Outcome;
use verbatim_proto::write::Posted;

/// What workers and links tell an engine.
pub(crate) enum WorkerEvent {
    Fetched {
        link: LinkId,
        slot: u16,
        outcome: Outcome,
        /// Bytes of the chunk that no link carried.
        spared_bytes: u64,
    },
    Posted {
        tag: Tag,
        posted: Posted,
    },
    LinkLost {
        link: LinkId,
        error: FabricError,
    },
    LinkMade {
        link: LinkId,
        made: Result<Box<dyn Link>, FabricError>,
    },
    LinkUnproven {
        link: LinkId,
        error: FabricError,
    },
    LinkWanted {
        link: LinkId,
    },
    WorkerFailed(FabricError),
}
