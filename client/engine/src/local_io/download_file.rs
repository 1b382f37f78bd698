//! The partial file of one download. The worker with the first bytes creates it, so that many small
//! files are created in parallel. If the source changes, it is removed and created again. The
//! partial file of a large file outlives an interrupted copy, and a later copy resumes it.

use crate::local_io::delta_source::{Basis, BasisFile};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use verbatim_control::Fingerprint;
use verbatim_files::space::Room;
use verbatim_files::target::LASTING_BYTES_MIN;
use verbatim_files::{Folder, Target};
use verbatim_proto::message::{FileInfo, Piece};
use verbatim_proto::read::Have;
use verbatim_proto::{Code, Digest, Fault, WirePath};

/// The partial file of one download, created with its first bytes.
pub(crate) struct DownloadFile {
    folder: Arc<Folder>,
    path: WirePath,
    /// The source: its server and its path.
    server: Fingerprint,
    remote: WirePath,
    state: Mutex<DownloadState>,
    /// Files that may share chunks with the source.
    basis_files: OnceLock<Vec<BasisFile>>,
}

#[derive(Default)]
struct DownloadState {
    info: Option<FileInfo>,
    /// Bytes that an earlier run left in the partial file.
    resumed_bytes: u64,
    room: Option<Room>,
    target: Option<Arc<Target>>,
}

impl DownloadFile {
    /// A download to `path` below `folder`, of the file at `remote` on this server.
    pub fn new(
        folder: Arc<Folder>,
        path: WirePath,
        server: Fingerprint,
        remote: WirePath,
    ) -> Arc<Self> {
        let (state, basis_files) = (Mutex::default(), OnceLock::new());
        Arc::new(Self { folder, path, server, remote, state, basis_files })
    }

    /// Sets the basis files, which workers search for chunks.
    pub fn set_basis(&self, basis: &Basis) {
        let basis_files = basis.paths.iter().map(|path| BasisFile::new(path.clone(), basis.fuzzy));
        let _ = self.basis_files.set(basis_files.collect());
    }

    /// The bytes of a piece of a file of `size` bytes, if a basis file has them. Opens the basis
    /// file, so only workers call it.
    pub fn matching_bytes(&self, piece: &Piece, size: u64) -> Option<Vec<u8>> {
        let basis_files = self.basis_files.get()?;
        basis_files.iter().find_map(|old| old.matching_bytes(&self.folder, piece, size))
    }

    /// Whether a basis was set.
    pub fn has_basis_files(&self) -> bool {
        self.basis_files.get().is_some()
    }

    /// The key that names the partial file, the same in a later run of this copy.
    fn partial_key(&self) -> Digest {
        Digest::of(format!("{} {}", self.server, self.remote).as_bytes())
    }

    /// Whether an earlier run may have left a partial file, given the approximate size.
    pub fn may_resume(size: u64) -> bool {
        size >= LASTING_BYTES_MIN
    }

    /// Opens the partial file of an earlier run, if there is one. Adds to `hashed` the bytes that
    /// it hashes again.
    pub fn resume(&self, hashed: &AtomicU64) -> Option<Have> {
        let (over, key) = (AtomicBool::new(false), self.partial_key());
        let found = Target::find_lasting_unless((&over, hashed), &self.folder, &self.path, &key);
        let (target, have) = found?;
        if have.version.is_none() {
            // The source had no version, so the current source may be another file.
            target.discard();
            return None;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.target = Some(Arc::new(target));
        state.resumed_bytes = have.extents.bytes();
        Some(have)
    }

    /// The target path, for messages.
    pub fn shown(&self) -> String {
        self.folder.shown(&self.path)
    }

    /// Notes the size and times of the source, and reserves disk space for it. Fails if the disk is
    /// full.
    pub fn set_info(&self, info: FileInfo) -> Result<(), Fault> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.info = Some(info);
        // Releases the space reserved for another version first.
        state.room = None;
        let room = Target::room_for(&self.folder, &self.path, &info, state.resumed_bytes)?;
        match &state.target {
            Some(target) => {
                target.set_mode(info.mode);
                target.set_room(room);
                target.keep_sparse(&info)?;
            }
            None => state.room = room,
        }
        Ok(())
    }

    /// The partial file; creates it on the first call.
    pub fn target(&self) -> Result<Arc<Target>, Fault> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(target) = &state.target {
            return Ok(target.clone());
        }
        // Bytes arrive after the answer to the open, so only an abandoned copy has no answer.
        let gave_up = || Fault::new(Code::Interrupted, "the copy was given up");
        let info = state.info.ok_or_else(gave_up)?;
        let (folder, path) = (&self.folder, &self.path);
        let target = match info.size >= LASTING_BYTES_MIN {
            true => Target::create_lasting(folder, path, &info, &self.partial_key())?,
            false => {
                let target = Target::create(folder, path, info.size, info.mode)?;
                target.keep_sparse(&info)?;
                target
            }
        };
        target.set_room(state.room.take());
        Ok(state.target.insert(Arc::new(target)).clone())
    }

    /// Removes the partial file.
    pub fn discard(&self) {
        if let Some(target) = self.suspend() {
            target.discard();
        }
    }

    /// Writes no more bytes. A partial file that a later run can resume stays.
    pub fn suspend(&self) -> Option<Arc<Target>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *state).target
    }
}
