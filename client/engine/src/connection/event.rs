//! Reports of workers and links to an engine. Answers of jobs go to the activities that started
//! them.

use verbatim_fabric::{FabricError, Link};
use verbatim_proto::message::{LinkId, Tag};
use verbatim_proto::read::Outcome;
use verbatim_proto::write::Posted;

/// A report of a worker or a link, for [`Engine::event`](super::Engine::event).
pub enum WorkerEvent {
    /// The read of a chunk has completed or failed.
    Fetched {
        /// The link of the read.
        link: LinkId,
        /// The slot of the link that is free again.
        slot: u16,
        /// The outcome of each piece, or that the link was lost.
        outcome: Outcome,
        /// Bytes of the chunk that came from a local basis, not over a link.
        basis_bytes: u64,
    },
    /// The write of a chunk was posted, or could not be.
    Posted {
        /// The tag of the chunk's grant.
        tag: Tag,
        /// The digests of each piece, or why the chunk was not posted.
        posted: Posted,
    },
    /// A link was lost.
    LinkLost {
        /// The lost link.
        link: LinkId,
        /// The cause.
        error: FabricError,
    },
    /// A link was connected and proven, or could not be connected.
    LinkMade {
        /// The link that was requested.
        link: LinkId,
        /// The link, or why it could not be made.
        made: Result<Box<dyn Link>, FabricError>,
    },
    /// A queue pair was connected, but could not read a page of the server.
    LinkUnproven {
        /// The link of the queue pair.
        link: LinkId,
        /// Why the page did not arrive.
        error: FabricError,
    },
    /// The pause before a lost link reconnects is over.
    LinkWanted {
        /// The link to request.
        link: LinkId,
    },
    /// A worker could not allocate a buffer; the session ends.
    WorkerFailed(FabricError),
}
