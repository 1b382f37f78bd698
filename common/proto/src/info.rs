//! What one side tells the other of a file before any of it moves, on the way
//! down and on the way up alike. Plain values; part of the messages.

use crate::units::{BLOCK_BYTES, FILE_BYTES_MAX};
use crate::{Code, Fault, FileId, WirePath};
use serde::{Deserialize, Serialize};

/// From this version on a server knows `TellRehashed`.
pub const REHASHED_VERSION: usize = 5;

/// What is known of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    /// How many bytes it has.
    pub size: u64,
    /// The permission bits.
    pub mode: u32,
    /// When its content changed, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// How many bytes it takes where it is. Holes take none.
    pub allocated: u64,
    /// Changes with everything that tells one content of the file from another, more than its
    /// time. None while a later write could hide: what is copied then cannot be gone on with.
    pub version: Option<u64>,
}

impl FileInfo {
    /// Refuses what is longer than can be copied, before anybody counts with it.
    pub(crate) fn checked(self) -> Result<Self, Fault> {
        if self.size <= FILE_BYTES_MAX {
            return Ok(self);
        }
        let text = format!("the server says that the file has {} bytes", self.size);
        Err(Fault::new(Code::Protocol, text))
    }

    /// How much room a copy takes at least: holes stay holes, and what is compressed or not yet
    /// allocated at the source is not known to be more.
    pub fn room(&self) -> u64 {
        self.size.min(self.allocated)
    }

    /// Whether it takes at least a block less than it has bytes: its copy does not store blocks of
    /// zeros. True also of what is compressed or not yet allocated at the source.
    pub fn is_sparse(&self) -> bool {
        self.size.saturating_sub(self.allocated) >= BLOCK_BYTES
    }
}

/// A file to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateFile {
    /// Its number in this session.
    pub file: FileId,
    /// Where it goes, export first.
    pub path: WirePath,
    /// What it will be.
    pub info: FileInfo,
    /// Whether its size is not known yet: it is what `End` will say.
    pub stream: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_sparse_from_a_block_on_that_it_does_not_take() {
        let info = |size, allocated| {
            let info = FileInfo { size, mode: 0o644, mtime_ns: 0, allocated, version: None };
            info.is_sparse()
        };
        for (size, allocated) in [(0, 0), (1, 4096), (4095, 0), (5000, 8192), (8191, 4096)] {
            assert!(!info(size, allocated), "{allocated} of {size}");
        }
        for (size, allocated) in [(4096, 0), (8192, 4096), (u64::MAX, 0)] {
            assert!(info(size, allocated), "{allocated} of {size}");
        }
    }
}
