//! What of a file need not move because a file of the target has it, the one it
//! replaces or one that looks like it: on the way up the server is offered it, on
//! the way down it is taken here. Before a
//! chunk is fetched, the same range of the old file is read and hashed, and where
//! it matches the digests of the lease, which came over TLS, it is written to the
//! new file instead. What was hashed is what is written, so nothing of the old
//! file is trusted. Called by workers.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use verbatim_files::{Folder, Source};
use verbatim_proto::message::Piece;
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::{Digest, WirePath};

/// The least size of a file that is compared with a basis.
pub const BASIS_BYTES_MIN: u64 = 1 << 20;

/// Files of the target that may have something in common with one that is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basis {
    /// Where they are, the best first: on the way down below the target, on the way up export
    /// first.
    pub paths: Vec<WirePath>,
    /// Whether they are other files than the one that is replaced.
    pub fuzzy: bool,
}

/// A file of the target that is compared with what is wanted.
pub(crate) struct BasisFile {
    path: WirePath,
    /// It has something of what is wanted.
    matched: AtomicBool,
    /// It has something else, and nothing was taken from it before.
    mismatched: AtomicBool,
}

impl BasisFile {
    /// One that is a guess is given up when it has not what it is first asked for.
    pub fn new(path: WirePath, fuzzy: bool) -> Self {
        Self { path, matched: AtomicBool::new(!fuzzy), mismatched: AtomicBool::new(false) }
    }

    /// The bytes of a piece of a file of `size` bytes, where it has them.
    pub fn matching_bytes(&self, folder: &Folder, piece: &Piece, size: u64) -> Option<Vec<u8>> {
        if self.mismatched.load(Ordering::Relaxed) {
            return None;
        }
        let old = Source::open(folder, &self.path, &self.path).ok()?;
        let mut bytes = vec![0; piece.extent.len as usize];
        let read = old.file().read_exact_at(&mut bytes, piece.extent.offset);
        let starts = (piece.extent.offset..).step_by(GRAIN_BYTES as usize);
        let mut grains = starts.zip(bytes.chunks(GRAIN_BYTES as usize).zip(&piece.digests));
        // One that differs is enough: all of the chunk is fetched then.
        let same = piece.digests.len() == bytes.len().div_ceil(GRAIN_BYTES as usize)
            && grains
                .all(|(offset, (grain, digest))| Digest::of_grain(offset, size, grain) == *digest);
        if read.is_ok() && same {
            self.matched.store(true, Ordering::Relaxed);
            return Some(bytes);
        }
        self.mismatched.store(!self.matched.load(Ordering::Relaxed), Ordering::Relaxed);
        None
    }
}
