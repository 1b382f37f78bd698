//! Delta transfer: the chunks of a file that a basis file at the target already has are not moved.
//! The basis is the replaced file or a similar one. On the way up the client offers digests to the
//! server; on the way down workers use this module. Before a worker fetches a chunk, it reads and
//! hashes the same range of the basis file. If the digests match those of the lease, which came
//! over TLS, it writes the bytes to the new file. It writes the bytes that it hashed, so the basis
//! file need not be trusted.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use verbatim_files::{Folder, Source};
use verbatim_proto::message::Piece;
use verbatim_proto::units::GRAIN_BYTES;
use verbatim_proto::{Digest, WirePath};

/// The smallest file for which a basis is tried.
pub const BASIS_BYTES_MIN: u64 = 1 << 20;

/// Files of the target that may share chunks with a file to copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basis {
    /// Their paths, the most likely first: below the target on the way down, export first on the
    /// way up.
    pub paths: Vec<WirePath>,
    /// Whether they are other files than the replaced one (rsync's `--fuzzy`).
    pub fuzzy: bool,
}

/// A file of the target that is searched for chunks.
pub(crate) struct BasisFile {
    path: WirePath,
    /// Whether a chunk has matched.
    matched: AtomicBool,
    /// Whether the first chunk differed, so that the file is not tried again.
    mismatched: AtomicBool,
}

impl BasisFile {
    /// A fuzzy basis is abandoned if the first chunk differs.
    pub fn new(path: WirePath, fuzzy: bool) -> Self {
        Self { path, matched: AtomicBool::new(!fuzzy), mismatched: AtomicBool::new(false) }
    }

    /// The bytes of a piece of a file of `size` bytes, if this file has the same.
    pub fn matching_bytes(&self, folder: &Folder, piece: &Piece, size: u64) -> Option<Vec<u8>> {
        if self.mismatched.load(Ordering::Relaxed) {
            return None;
        }
        let old = Source::open(folder, &self.path, &self.path).ok()?;
        let mut bytes = vec![0; piece.extent.len as usize];
        let read = old.file().read_exact_at(&mut bytes, piece.extent.offset);
        let starts = (piece.extent.offset..).step_by(GRAIN_BYTES as usize);
        let mut grains = starts.zip(bytes.chunks(GRAIN_BYTES as usize).zip(&piece.digests));
        // One grain that differs is enough: the worker then fetches the whole chunk.
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
