//! What a client asks of a folder it watches, and what it is told. Plain values,
//! carried by `Watch`. A batch of changes is told when the client has asked for
//! one more, so what waits for a slow client is bounded by who collects it: too
//! much becomes `rescan`.

use crate::{Fault, WirePath};
use serde::{Deserialize, Serialize};

/// A folder to watch, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// The folder, export first.
    pub path: WirePath,
    /// What is neither watched nor told: patterns as `Excludes` reads them.
    pub exclude: Vec<Vec<u8>>,
}

/// Something that is no longer what it was: made, written, renamed or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Where, from the folder that is watched; the empty path is that folder itself.
    pub path: WirePath,
    /// Whether all below it may have changed as well, and is not told one by one.
    pub below: bool,
}

/// A batch of changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// What changed, `CHANGES_MAX` at most, a folder before what is in it.
    pub changes: Vec<Change>,
    /// Whether anything may have changed: all must be looked at again.
    pub rescan: bool,
}

impl Changes {
    /// Everything may have changed.
    pub fn rescan() -> Self {
        Self { changes: Vec::new(), rescan: true }
    }
}

/// A client asks about folders it watches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatchRequest {
    /// Watch a folder. The first batch comes by itself, when everything is watched: it says
    /// `rescan`.
    Begin {
        /// Comes back with every batch.
        request: u32,
        /// The folder, and how.
        watch: Watch,
    },
    /// One more batch, when there is something to tell.
    More {
        /// Which watch.
        request: u32,
    },
    /// No longer. A batch that is under way may still come.
    End {
        /// Which watch.
        request: u32,
    },
}

/// What a client is told of folders it watches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatchReply {
    /// A batch.
    Changed {
        /// Which watch.
        request: u32,
        /// What changed.
        changes: Changes,
    },
    /// The folder cannot be watched, or no longer.
    Ended {
        /// Which watch.
        request: u32,
        /// Why.
        fault: Fault,
    },
}
