//! Local paths that a user names: the entry there, its name, its parent folder. Follows symbolic
//! links, because the user named them.

use crate::model::placement::TargetKind;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use verbatim_files::Folder;
use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Code, Fault, Resolution, WirePath};

/// The kind of entry at a local target; follows links. An error counts as missing.
pub fn target_kind(target: &Path) -> TargetKind {
    match std::fs::metadata(target) {
        Ok(metadata) if metadata.is_dir() => TargetKind::Folder,
        Ok(_) => TargetKind::File,
        Err(_) => TargetKind::Missing,
    }
}

/// The resolution of timestamps at a local target, or in its parent folder if the target is no
/// folder.
pub fn local_resolution(target: &Path) -> Resolution {
    let folder = Folder::open(target).or_else(|_| open_parent(target).map(|(folder, _)| folder));
    folder.map(|folder| folder.habits(&WirePath::root(), false).resolution).unwrap_or_default()
}

/// Stats a local path; follows links.
pub fn stat_local(path: &Path) -> Result<Entry, Fault> {
    let metadata = std::fs::metadata(path)
        .map_err(|e| Fault::from_io(format!("cannot look at {}", path.display()), &e))?;
    let kind = match metadata.file_type() {
        kind if kind.is_dir() => EntryKind::Folder,
        kind if kind.is_file() => EntryKind::File,
        _ => EntryKind::Special,
    };
    let mtime_ns =
        metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec());
    let (size, mode) = (metadata.len(), metadata.mode() & 0o7777);
    Ok(Entry { path: WirePath::root(), kind, size, mode, mtime_ns, meta: None })
}

/// Opens the parent folder of a new local file. Returns it with the name of the file.
pub fn open_parent(target: &Path) -> Result<(Folder, WirePath), Fault> {
    let name = target.file_name().ok_or_else(|| {
        Fault::new(Code::BadPath, format!("{} has no name to write to", target.display()))
    })?;
    let parent = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    Ok((Folder::open(&parent)?, WirePath::parse(name.as_bytes())?))
}

/// The last name of a local path; fails for a path such as `..`.
pub fn name_of(path: &Path) -> Result<&[u8], Fault> {
    let no_name = || Fault::new(Code::BadPath, format!("{} has no name", path.display()));
    path.file_name().map(OsStr::as_bytes).ok_or_else(no_name)
}
