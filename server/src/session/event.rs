//! What happens to a session beside the messages of its client: what jobs and workers
//! tell it, in one queue of its own. `mod.rs` routes each to what it concerns.

use super::{SpotEvent, catalog, making, mirror, reading, writing};
use crate::net::data_tickets::Arrived;
use crate::rdma::pin_budget::Ring;
use verbatim_fabric::FabricError;
use verbatim_files::Told;
use verbatim_proto::message::{FileId, LinkId, Offer, Tag, Verdict, WindowId};
use verbatim_proto::read::Prepared;
use verbatim_proto::{Digest, Dropped, Extent, Fault, Kept, Survey};

/// Events that may wait for one session; half of them are for answers of jobs and workers.
pub(crate) const EVENTS_MAX: usize = 16 << 10;

/// What jobs and workers tell a session.
pub(crate) enum Event {
    /// A job panicked: what it would have told will never come.
    Panicked,
    Stated(u32, catalog::Looked),
    Opened(Vec<(FileId, Result<reading::Opened, Fault>)>),
    Found(FileId, Survey),
    Prepared(WindowId, Prepared, Option<reading::Window>),
    Closed(Vec<(FileId, Result<Kept, Fault>)>),
    Created(Vec<(FileId, Result<writing::Created, Fault>)>),
    Zeroed(FileId, Extent, Result<Vec<Digest>, Fault>),
    Taken(Box<Offer>, Result<Vec<Extent>, Fault>),
    Committed(Vec<(FileId, Result<(), Fault>)>, Dropped),
    Page(u32, catalog::Page),
    Made(u32, Vec<Result<(), Fault>>, Dropped),
    Mirror(mirror::MirrorEvent),
    Pair(making::PairEvent),
    /// A data connection was made.
    Joined {
        link: LinkId,
        arrived: Arrived,
    },
    Notified {
        link: LinkId,
        tag: Tag,
    },
    Absorbed {
        tag: Tag,
        bytes: u64,
        verdicts: Vec<Verdict>,
    },
    Spot(SpotEvent),
    LinkDead {
        link: LinkId,
        why: Option<FabricError>,
    },
    /// A watched folder changed.
    Watched(u32, Told),
    /// Something is to be known about the pin budget.
    Pins(Ring),
}
