//! Where a downloaded file lands. The temporary file is made by the worker
//! that has its first bytes, so that a thousand small files are created side
//! by side; it is removed and made anew when the source changed. That of a
//! large file lasts when a copy is cut short, and a later one goes on with it.

use crate::local_io::delta_source::{Basis, Old};
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
pub(crate) struct Sink {
    folder: Arc<Folder>,
    path: WirePath,
    /// Whom it is copied from, and what.
    server: Fingerprint,
    remote: WirePath,
    state: Mutex<State>,
    /// Files that may have some of it.
    olds: OnceLock<Vec<Old>>,
}

#[derive(Default)]
struct State {
    info: Option<FileInfo>,
    /// Bytes that an earlier run left.
    had: u64,
    room: Option<Room>,
    target: Option<Arc<Target>>,
}

impl Sink {
    /// A place below `folder` for what is at `remote` of this server.
    pub fn new(
        folder: Arc<Folder>,
        path: WirePath,
        server: Fingerprint,
        remote: WirePath,
    ) -> Arc<Self> {
        let (state, olds) = (Mutex::default(), OnceLock::new());
        Arc::new(Self { folder, path, server, remote, state, olds })
    }

    /// Takes what it has in common with files that are there from them.
    pub fn compare_with(&self, basis: &Basis) {
        let olds = basis.paths.iter().map(|path| Old::new(path.clone(), basis.guess));
        let _ = self.olds.set(olds.collect());
    }

    /// The bytes of a piece of a file of `size` bytes, where a file that is there has them. Opens
    /// it: for workers.
    pub fn bytes_there(&self, piece: &Piece, size: u64) -> Option<Vec<u8>> {
        let olds = self.olds.get()?;
        olds.iter().find_map(|old| old.bytes_of(&self.folder, piece, size))
    }

    /// Whether there is another file to look for bytes in.
    pub fn has_olds(&self) -> bool {
        self.olds.get().is_some()
    }

    /// What the same copy is known by in a later run.
    fn key(&self) -> Digest {
        Digest::of(format!("{} {}", self.server, self.remote).as_bytes())
    }

    /// Whether an earlier run may have left something of a file of about this size.
    pub fn may_resume(size: u64) -> bool {
        size >= LASTING_BYTES_MIN
    }

    /// Takes up what an earlier run left, if anything. Adds to `hashed` the bytes of it that are
    /// hashed again.
    pub fn resume(&self, hashed: &AtomicU64) -> Option<Have> {
        let (over, key) = (AtomicBool::new(false), self.key());
        let found = Target::find_lasting_unless((&over, hashed), &self.folder, &self.path, &key);
        let (target, have) = found?;
        if have.version.is_none() {
            // Its source was so young that what is there now cannot be told from it.
            target.discard();
            return None;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.target = Some(Arc::new(target));
        state.had = have.extents.bytes();
        Some(have)
    }

    /// Where it will be, for people.
    pub fn shown(&self) -> String {
        self.folder.shown(&self.path)
    }

    /// The source is known now; an error when there is no room for it.
    pub fn opened(&self, info: FileInfo) -> Result<(), Fault> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.info = Some(info);
        // What was set aside for another version of it comes back first.
        state.room = None;
        let room = Target::room_for(&self.folder, &self.path, &info, state.had)?;
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
            true => Target::create_lasting(folder, path, &info, &self.key())?,
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
    pub fn forget(&self) {
        if let Some(target) = self.leave() {
            target.discard();
        }
    }

    /// Takes no more bytes, and leaves what lasts for a later run.
    pub fn leave(&self) -> Option<Arc<Target>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *state).target
    }
}
