//! What workers and links report to an engine. Answers of jobs go to the
//! activities that began them instead.

use verbatim_fabric::{FabricError, Link};
use verbatim_proto::message::{LinkId, Tag};
use verbatim_proto::read::Outcome;
use verbatim_proto::write::Posted;

/// A report of a worker or a link, for [`Engine::event`](super::Engine::event).
pub enum WorkerEvent {
    /// A read of a chunk ended, well or badly.
    Fetched {
        /// The link it was for.
        link: LinkId,
        /// Its slot on that link, which is free again.
        slot: u16,
        /// The outcome of each piece, or that the link broke first.
        outcome: Outcome,
        /// Bytes of the chunk that a local basis had, so that no link carried them.
        basis_bytes: u64,
    },
    /// A write of a chunk was posted, or could not be.
    Posted {
        /// The chunk, as the machine that writes named it.
        tag: Tag,
        /// The digests of each piece, or why it was not posted.
        posted: Posted,
    },
    /// A link broke while in use.
    LinkLost {
        /// The link that is gone.
        link: LinkId,
        /// Why it broke.
        error: FabricError,
    },
    /// A link was connected and tried, or could not be connected.
    LinkMade {
        /// The link that was asked for.
        link: LinkId,
        /// The link, or why there is none.
        made: Result<Box<dyn Link>, FabricError>,
    },
    /// A queue pair was connected, but read no page of the server.
    LinkUnproven {
        /// The link that was tried.
        link: LinkId,
        /// Why the page did not arrive.
        error: FabricError,
    },
    /// The pause before a lost link is asked for again is over.
    LinkWanted {
        /// The link to ask for.
        link: LinkId,
    },
    /// A worker has no memory for a chunk; the session ends.
    WorkerFailed(FabricError),
}
