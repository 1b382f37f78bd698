//! Where a downloaded file lands. The temporary file is made by the worker
//! that has its first bytes, so that a thousand small files are created side
//! by side; it is removed and made anew when the source changed. That of a
//! large file lasts when a copy is cut short, and a later one goes on with it.

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

/// A place for one file, not yet on disk.
pub(crate) struct DownloadFile {
    folder: Arc<Folder>,
    path: WirePath,
    /// Whom it is copied from, and what.
    server: Fingerprint,
    remote: WirePath,
    state: Mutex<DownloadState>,
    /// Files that may have some of it.
    basis_files: OnceLock<Vec<BasisFile>>,
}

#[derive(Default)]
struct DownloadState {
    info: Option<FileInfo>,
    /// Bytes that an earlier run left.
    resumed_bytes: u64,
    room: Option<Room>,
    target: Option<Arc<Target>>,
}

impl DownloadFile {
    /// A place below `folder` for what is at `remote` of this server.
    pub fn new(
        folder: Arc<Folder>,
        path: WirePath,
        server: Fingerprint,
        remote: WirePath,
    ) -> Arc<Self> {
        let (state, basis_files) = (Mutex::default(), OnceLock::new());
        Arc::new(Self { folder, path, server, remote, state, basis_files })
    }

    /// Takes what it has in common with files that are there from them.
    pub fn set_basis(&self, basis: &Basis) {
        let basis_files = basis.paths.iter().map(|path| BasisFile::new(path.clone(), basis.fuzzy));
        let _ = self.basis_files.set(basis_files.collect());
    }

    /// The bytes of a piece of a file of `size` bytes, where a file that is there has them. Opens
    /// it: for workers.
    pub fn matching_bytes(&self, piece: &Piece, size: u64) -> Option<Vec<u8>> {
        let basis_files = self.basis_files.get()?;
        basis_files.iter().find_map(|old| old.matching_bytes(&self.folder, piece, size))
    }

    /// Whether there is another file to look for bytes in.
    pub fn has_basis_files(&self) -> bool {
        self.basis_files.get().is_some()
    }

    /// What the same copy is known by in a later run.
    fn partial_key(&self) -> Digest {
        Digest::of(format!("{} {}", self.server, self.remote).as_bytes())
    }

    /// Whether an earlier run may have left something of a file of about this size.
    pub fn may_resume(size: u64) -> bool {
        size >= LASTING_BYTES_MIN
    }

    /// Takes up what an earlier run left, if anything. Adds to `hashed` the bytes of it that are
    /// hashed again.
    pub fn resume(&self, hashed: &AtomicU64) -> Option<Have> {
        let (over, key) = (AtomicBool::new(false), self.partial_key());
        let found = Target::find_lasting_unless((&over, hashed), &self.folder, &self.path, &key);
        let (target, have) = found?;
        if have.version.is_none() {
            // Its source was so young that what is there now cannot be told from it.
            target.discard();
            return None;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.target = Some(Arc::new(target));
        state.resumed_bytes = have.extents.bytes();
        Some(have)
    }

    /// Where it will be, for people.
    pub fn shown(&self) -> String {
        self.folder.shown(&self.path)
    }

    /// The source is known now; an error when there is no room for it.
    pub fn set_info(&self, info: FileInfo) -> Result<(), Fault> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.info = Some(info);
        // What was set aside for another version of it comes back first.
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

    /// The temporary file, made if it is not there.
    pub fn target(&self) -> Result<Arc<Target>, Fault> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(target) = &state.target {
            return Ok(target.clone());
        }
        // Bytes come after the answer to open, so only a copy that was given up has no answer.
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

    /// Removes what has landed.
    pub fn discard(&self) {
        if let Some(target) = self.suspend() {
            target.discard();
        }
    }

    /// Takes no more bytes, and leaves what lasts for a later run.
    pub fn suspend(&self) -> Option<Arc<Target>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *state).target
    }
}
