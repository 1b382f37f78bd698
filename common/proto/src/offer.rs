//! What a file of the server may have in common with one that is sent: the client
//! tells the digests of a range of its own, and the server takes what it has of
//! it from a file of its own. Nothing of that file is trusted: what is taken is
//! hashed, and what was hashed is what is written.

use crate::ids::FileId;
use crate::piece::Piece;
use crate::{Extent, Fault, WirePath};
use serde::{Deserialize, Serialize};

/// A range that need not be sent, where a file of the server has it at the same place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The file that may have it, export first.
    pub basis: WirePath,
    /// The file that is sent, the range, a window at most, and its digests.
    pub piece: Piece,
}

/// The answer to an offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// The file.
    pub file: FileId,
    /// The range that was offered.
    pub extent: Extent,
    /// What of it is in the temporary file now and need not be sent: whole grains. An error says
    /// that the basis is of no use.
    pub answer: Result<Vec<Extent>, Fault>,
}
