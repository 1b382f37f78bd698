//! A range of a file and the digests of its grains: what leases, chunks and offers are
//! made of. Says nothing of where the bytes are, and checks nothing: `read/chunk` does.

use crate::ids::FileId;
use crate::{Digest, Extent};
use serde::{Deserialize, Serialize};

/// A range of a file in a window or a chunk, with the digest of each of its grains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The file.
    pub file: FileId,
    /// The range.
    pub extent: Extent,
    /// One digest per grain.
    pub digests: Vec<Digest>,
}
