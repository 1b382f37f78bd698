//! Open handles: files with the version that each reader has, and folders. Decides
//! about FUSE passthrough: all handles of one node use it or none, because the kernel
//! rejects a mixture.

use super::cache::CacheFile;
use super::read_ahead::ReadAhead;
use fuser::BackingId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use verbatim_client::remote_fs::listing::Listing;
use verbatim_proto::WirePath;

/// An open file.
pub(super) struct OpenFile {
    pub number: u64,
    pub path: WirePath,
    pub file: Arc<CacheFile>,
    pub read_ahead: Mutex<ReadAhead>,
    /// Whether the file is pinned in the cache for passthrough.
    pinned: bool,
}

/// An open folder; a read from its beginning lists it.
pub(super) struct OpenFolder {
    pub number: u64,
    pub path: WirePath,
    pub listing: Mutex<Option<FolderSnapshot>>,
}

/// The change count and the listing that an open folder was read at.
pub(super) type FolderSnapshot = (u64, Arc<Listing>);

/// How the open handles of one node read it.
struct ReadMode {
    opens: u32,
    backing: Option<Arc<BackingId>>,
}

#[derive(Default)]
struct HandleTable {
    next: u64,
    files: HashMap<u64, Arc<OpenFile>>,
    folders: HashMap<u64, Arc<OpenFolder>>,
    modes: HashMap<u64, ReadMode>,
}

/// All open handles.
#[derive(Default)]
pub(super) struct Handles(Mutex<HandleTable>);

impl Handles {
    fn state(&self) -> MutexGuard<'_, HandleTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a file; `pinned` if it is pinned in the cache. Calls `open_backing` for the first
    /// handle of a node; later handles follow it. Returns the handle and its backing.
    pub fn open(
        &self,
        number: u64,
        path: WirePath,
        (file, pinned): (Arc<CacheFile>, bool),
        open_backing: impl FnOnce(&CacheFile) -> Option<BackingId>,
    ) -> (u64, Option<Arc<BackingId>>) {
        let mut state = self.state();
        let mode = state
            .modes
            .entry(number)
            .or_insert_with(|| ReadMode { opens: 0, backing: open_backing(&file).map(Arc::new) });
        mode.opens += 1;
        let backing = mode.backing.clone();
        state.next += 1;
        let handle = state.next;
        let pinned = match (&backing, pinned) {
            (Some(_), true) => true,
            (Some(_), false) => file.pin(),
            (None, pinned) => {
                if pinned {
                    file.unpin();
                }
                false
            }
        };
        let open = Arc::new(OpenFile { number, path, file, read_ahead: Mutex::default(), pinned });
        state.files.insert(handle, open);
        (handle, backing)
    }

    pub fn file(&self, handle: u64) -> Option<Arc<OpenFile>> {
        self.state().files.get(&handle).cloned()
    }

    /// Closes a file and unpins it.
    pub fn close(&self, handle: u64) -> Option<Arc<OpenFile>> {
        let mut state = self.state();
        let open = state.files.remove(&handle)?;
        if let Some(mode) = state.modes.get_mut(&open.number) {
            mode.opens -= 1;
            if mode.opens == 0 {
                state.modes.remove(&open.number);
            }
        }
        if open.pinned {
            open.file.unpin();
        }
        Some(open)
    }

    pub fn open_folder(&self, number: u64, path: WirePath) -> u64 {
        let mut state = self.state();
        state.next += 1;
        let handle = state.next;
        let folder = OpenFolder { number, path, listing: Mutex::default() };
        state.folders.insert(handle, Arc::new(folder));
        handle
    }

    pub fn folder(&self, handle: u64) -> Option<Arc<OpenFolder>> {
        self.state().folders.get(&handle).cloned()
    }

    pub fn close_folder(&self, handle: u64) {
        self.state().folders.remove(&handle);
    }
}
