//! Where a downloaded file lands. The temporary file is made by the worker
//! that has its first bytes, so that a thousand small files are created side
//! by side; it is forgotten and made anew when the source changed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, PoisonError};
use verbatim_files::{Folder, Target};
use verbatim_proto::message::FileInfo;
use verbatim_proto::{Code, Fault, WirePath};

/// A place for one file, not yet on disk.
pub(crate) struct Sink {
    folder: Arc<Folder>,
    path: WirePath,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    info: Option<FileInfo>,
    target: Option<Arc<Target>>,
}

impl Sink {
    pub fn new(folder: Arc<Folder>, path: WirePath) -> Arc<Self> {
        Arc::new(Self { folder, path, state: Mutex::default() })
    }

    /// Where it will be, for people.
    pub fn shown(&self) -> String {
        let below = std::path::Path::new(OsStr::from_bytes(self.path.as_bytes()));
        self.folder.path().join(below).display().to_string()
    }

    /// The source is known now.
    pub fn opened(&self, info: FileInfo) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = State { info: Some(info), target: None };
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
        let target = Target::create(&self.folder, &self.path, info.size, info.mode)?;
        Ok(state.target.insert(Arc::new(target)).clone())
    }

    /// Removes what has landed.
    pub fn forget(&self) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::default();
    }
}
