//! What this machine keeps to save itself work later is of use for a while: files
//! of one kind in one folder go when nobody has used them for a week, by the time
//! that whoever uses them gives them. Used by `memo` and `bare`, each for its own
//! folder.

use crate::reap::is_leftover;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// How long they are kept.
pub(crate) const KEEP: Duration = Duration::from_secs(7 * 24 * 3600);

/// Entries of the folder that are looked at.
const ENTRIES_MAX: usize = 4096;

/// Removes the old ones whose names end so.
pub(crate) fn remove(folder: &Path, suffix: &str, now: SystemTime) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.take(ENTRIES_MAX).flatten() {
        let name = entry.file_name();
        // Of what was just being replaced as well.
        let ours = name.as_bytes().ends_with(suffix.as_bytes()) || is_leftover(name.as_bytes());
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let old = modified.is_ok_and(|at| now.duration_since(at).is_ok_and(|age| age > KEEP));
        if ours && old {
            // It is only a convenience, as is its removal.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
