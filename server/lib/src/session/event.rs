//! The events of a session: whatever jobs, workers and threads report, in one queue. The session's
//! dispatcher (`mod.rs`) routes each event to its activity.

use super::folder_watches::WatchEvent;
use super::links::PairEvent;
use super::writing::WriteEvent;
use super::{mirror, namespace};
use crate::net::data_tickets::DataConnection;
use crate::rdma::pin_budget::PinEvent;
use crate::worker::LinkEvent;
use verbatim_serve::{Panicked, ReadEvent};

/// An event of a job, a worker or a thread.
pub(crate) enum Event {
    /// A job panicked: its event will never come.
    Panicked,
    Read(ReadEvent),
    Write(WriteEvent),
    Namespace(namespace::NamespaceEvent),
    Mirror(mirror::MirrorEvent),
    Pair(PairEvent),
    /// A data connection was accepted.
    Joined(DataConnection),
    Link(LinkEvent),
    Watch(WatchEvent),
    /// The pin budget has memory again, or wants it back.
    Pins(PinEvent),
}

impl From<ReadEvent> for Event {
    fn from(event: ReadEvent) -> Self {
        Self::Read(event)
    }
}

impl From<namespace::NamespaceEvent> for Event {
    fn from(event: namespace::NamespaceEvent) -> Self {
        Self::Namespace(event)
    }
}

impl From<mirror::MirrorEvent> for Event {
    fn from(event: mirror::MirrorEvent) -> Self {
        Self::Mirror(event)
    }
}

impl From<mirror::WalkedPage> for Event {
    fn from(walked: mirror::WalkedPage) -> Self {
        Self::Mirror(walked.into())
    }
}

impl From<mirror::StagingEvent> for Event {
    fn from(event: mirror::StagingEvent) -> Self {
        Self::Mirror(event.into())
    }
}

impl From<WriteEvent> for Event {
    fn from(event: WriteEvent) -> Self {
        Self::Write(event)
    }
}

impl From<PairEvent> for Event {
    fn from(event: PairEvent) -> Self {
        Self::Pair(event)
    }
}

impl From<DataConnection> for Event {
    fn from(joined: DataConnection) -> Self {
        Self::Joined(joined)
    }
}

impl From<LinkEvent> for Event {
    fn from(event: LinkEvent) -> Self {
        Self::Link(event)
    }
}

impl From<WatchEvent> for Event {
    fn from(event: WatchEvent) -> Self {
        Self::Watch(event)
    }
}

impl From<PinEvent> for Event {
    fn from(event: PinEvent) -> Self {
        Self::Pins(event)
    }
}

impl From<Panicked> for Event {
    fn from(_: Panicked) -> Self {
        Self::Panicked
    }
}

impl Event {
    /// Whether a job sent it: each job sends exactly one.
    pub fn is_of_job(&self) -> bool {
        !matches!(self, Self::Joined(_) | Self::Link(_) | Self::Watch(_) | Self::Pins(_))
    }
}
