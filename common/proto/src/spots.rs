//! Spots on the wire: a range of a temporary file, registered for one write, so
//! that a device puts the bytes where they stay. The server says which files take
//! them; the client turns a granted slot into a spot and names it by the slot's
//! tag. Plain values. Neither side says any of this unless the server is set so
//! and the client has said, in the address of its queue pair, that it knows spots.

use crate::message::{FileId, Region, Tag};
use crate::{Extent, Fault};
use serde::{Deserialize, Serialize};

/// A client asks about spots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpotRequest {
    /// Let these grants be for ranges of files, instead of for their slots.
    Ask(Vec<Spot>),
    /// Nothing was written there, nor will be: these grants are for their slots again.
    Return(Vec<Tag>),
}

/// A range of a file that is to be written in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spot {
    /// The grant it takes the place of.
    pub tag: Tag,
    /// The file.
    pub file: FileId,
    /// The range.
    pub extent: Extent,
}

/// The server answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpotReply {
    /// These files take spots; said before they are said to be created.
    Taken(Vec<FileId>),
    /// The answer to `Ask`: where to write, or why the slot has to do.
    Made(Vec<(Tag, Result<Region, Fault>)>),
}
