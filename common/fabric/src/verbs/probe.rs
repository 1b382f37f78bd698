//! Whether files of a folder can be registered as they are mapped, or have to be
//! staged; and whether a device can write to files that cannot be pinned. Kernels and file systems differ, so one page of one file is tried; the
//! server asks once per export and tells the answer in its log.

use super::context::Context;
use super::region::{DomainLimits, Pd};
use super::registration::Registered;
use crate::error::FabricError;
use crate::memory::{MappedFile, MappedSpot, Memory};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Entries of a folder that are looked at for a file to try.
const ENTRIES_MAX: usize = 256;

/// One page: enough for the kernel to refuse.
const PROBE_BYTES: usize = 4096;

/// How files of a file system are offered to readers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileWindows {
    /// Mapped and registered as they are.
    Mapped,
    /// Read into registered slots.
    Staged {
        /// Why not mapped.
        reason: FabricError,
    },
}

/// Tries to register a read-only mapping of a file of this folder: a nameless one where the
/// folder can be written, else one that is there.
pub fn probe(context: &Arc<Context>, folder: &Path) -> FileWindows {
    let tried = file_to_try(folder).and_then(|file| try_file(context, file));
    tried.map_or_else(|reason| FileWindows::Staged { reason }, |()| FileWindows::Mapped)
}

/// Tries to register a read-only mapping of this file, which must have a byte or more.
pub fn try_file(context: &Arc<Context>, file: File) -> Result<(), FabricError> {
    let size = file.metadata().map_err(|e| FabricError::system("cannot probe a file", e))?.len();
    let len = usize::try_from(size).map_or(PROBE_BYTES, |size| size.min(PROBE_BYTES));
    let window = MappedFile::new(Arc::new(file), 0, len)?;
    let pd = Pd::new(context, DomainLimits::default())?;
    Registered::new(&pd, Memory::File(window)).map(drop)
}

/// Whether the device looks for the pages of a file when it writes to them (on-demand paging),
/// as it must where they cannot be pinned. Tried once, on a page of memory.
pub(super) fn pages_on_demand(context: &Arc<Context>) -> bool {
    let tried = || {
        let name = c"verbatim-on-demand";
        let page = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).map(File::from);
        let page = page.map_err(|e| FabricError::system("cannot make a page to try", e))?;
        let sized = page.set_len(PROBE_BYTES as u64);
        sized.map_err(|e| FabricError::system("cannot make a page to try", e))?;
        let spot = MappedSpot::new(&page, 0, PROBE_BYTES)?.on_demand();
        let pd = Pd::new(context, DomainLimits::default())?;
        Registered::new(&pd, Memory::Spot(spot)).map(drop)
    };
    *context.on_demand.get_or_init(|| match tried() {
        Ok(()) => true,
        Err(error) => {
            tracing::debug!(device = context.name(), %error, "nothing is paged on demand");
            false
        }
    })
}

fn file_to_try(folder: &Path) -> Result<File, FabricError> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    if let Ok(fd) = rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR) {
        let file = File::from(fd);
        if file.write_all_at(&[1; PROBE_BYTES], 0).is_ok() {
            return Ok(file);
        }
    }
    let cannot = |cause: String| {
        FabricError::device(
            format!("cannot probe {}", folder.display()),
            cause,
            "put a file there that the server can read, and start it again",
        )
    };
    let entries = std::fs::read_dir(folder).map_err(|e| cannot(e.to_string()))?;
    let mut files = entries.flatten().take(ENTRIES_MAX).filter(|entry| {
        // Not through links: they may lead to another file system.
        entry.metadata().is_ok_and(|meta| meta.is_file() && meta.len() > 0)
    });
    let file = files.find_map(|entry| File::open(entry.path()).ok());
    file.ok_or_else(|| cannot("it can neither be written nor has it a file to try".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_to_try_is_made_and_leaves_no_name() {
        let folder = tempfile::tempdir().expect("folder");
        let file = file_to_try(folder.path()).expect("a file");
        assert_eq!(file.metadata().expect("size").len(), PROBE_BYTES as u64);
        assert_eq!(std::fs::read_dir(folder.path()).expect("lists").count(), 0);
    }

    #[test]
    fn a_folder_that_cannot_be_read_is_named() {
        let error = file_to_try(Path::new("/nowhere/at/all")).expect_err("nothing there");
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    }
}
