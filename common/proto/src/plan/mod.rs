//! What has to be done to make one tree equal to another: a pure merge of two
//! sorted streams of entries into steps, each with its reasons. Nothing here
//! reads a file system; the client feeds pages of both sides as they come, takes
//! steps as they are known, and does them. What is held is the two pages, the
//! folders the merge is in, and the names of files with several names.
//!
//! Steps come in the order of the tree. Whoever does them keeps four kinds for
//! later: links until every file is there, deletes until all else is done and
//! then the last first, late files behind the deletes, folders at the very end.

mod compare;
mod links;
mod merge;
mod side;
mod streams;

pub use compare::Why;
pub use merge::{Counts, Diff, Next};
pub use side::Side;

use crate::tree::Node;
use crate::{Fault, Habits, WirePath};
use serde::{Deserialize, Serialize};

/// What makes two trees equal, and what may be done about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether what only the target has is deleted.
    pub delete: bool,
    /// Whether contents are compared by their digests, and not by size and time.
    pub checksum: bool,
    /// Whether the target takes names that differ only in case for one. Nothing is deleted then.
    pub fold_case: bool,
    /// Whether a file that gets other metadata becomes another file, because others share it: then
    /// its other names are linked again.
    pub apart: bool,
    /// Whether only some of both trees is looked at: a file of the target that has several names
    /// may have one of them elsewhere.
    pub part: bool,
    /// What the target can keep: what it cannot is no difference.
    pub habits: Habits,
}

/// One thing to do at the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What.
    pub what: What,
    /// Why; empty where it only follows from another step.
    pub why: Why,
}

/// What a step does. It can be written down: what is done later may be too much to keep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// Make a folder, in place of something that is no folder where `replace` says so. It gets
    /// its metadata with `Finish`.
    MakeFolder {
        /// The folder.
        node: Box<Node>,
        /// Whether something is in its place.
        replace: bool,
    },
    /// Let the owner of a folder write to it, because something in it changes. `Finish` follows.
    OpenUp {
        /// The folder.
        path: WirePath,
    },
    /// Copy a file.
    Fetch {
        /// The file.
        node: Box<Node>,
        /// Whether there is another version of it at the target.
        there: bool,
        /// Whether a folder is in its place, which is deleted first.
        late: bool,
    },
    /// Give a file or symbolic link another name, when all of them are there.
    Link {
        /// The name.
        path: WirePath,
        /// A name it has.
        to: WirePath,
        /// Whether a folder is in its place, which is deleted first.
        late: bool,
    },
    /// Make a symbolic link, in place of one that is there.
    Symlink {
        /// The link.
        node: Box<Node>,
        /// Whether a folder is in its place, which is deleted first.
        late: bool,
    },
    /// Give a file its metadata; its content is right.
    Describe {
        /// The file.
        node: Box<Node>,
    },
    /// Give a folder its metadata, when all in it is done.
    Finish {
        /// The folder.
        node: Box<Node>,
    },
    /// Delete what only the target has. A folder comes before what is in it.
    Delete {
        /// Where it is.
        path: WirePath,
        /// Whether it is a folder.
        is_folder: bool,
    },
    /// Make what only a tree beside the target has what the target itself has: nothing, unless an
    /// interrupted run replaced it. A folder comes before what is in it.
    Revert {
        /// Where it is.
        path: WirePath,
    },
    /// Leave out what no copy can keep: a fifo, socket or device.
    Skip {
        /// Where it is.
        path: WirePath,
    },
    /// Something cannot be done, and why; all below it is left alone.
    Refuse {
        /// Where it is.
        path: WirePath,
        /// Why.
        fault: Fault,
    },
}

impl What {
    /// What it is done to.
    pub fn path(&self) -> &WirePath {
        match self {
            Self::MakeFolder { node, .. }
            | Self::Fetch { node, .. }
            | Self::Symlink { node, .. }
            | Self::Describe { node }
            | Self::Finish { node } => &node.path,
            Self::OpenUp { path }
            | Self::Link { path, .. }
            | Self::Delete { path, .. }
            | Self::Revert { path }
            | Self::Skip { path }
            | Self::Refuse { path, .. } => path,
        }
    }

    /// Whether the target is not the same after it.
    pub fn is_change(&self) -> bool {
        !matches!(self, Self::Skip { .. } | Self::Refuse { .. })
    }
}
