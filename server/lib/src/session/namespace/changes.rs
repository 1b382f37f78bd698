//! Applies changes of the namespace: new folders and symlinks, hard links, metadata, owners,
//! removals. Owns the maximum of waiting requests. Jobs of `namespace` call it.

use crate::exports::client_view::ClientView;
use crate::exports::quota;
use crate::session::sync_lock::LockCarrier;
use std::sync::Arc;
use verbatim_files::Over;
use verbatim_proto::message::{EntryKind, NewEntry};
use verbatim_proto::mirror::Edit;
use verbatim_proto::{Code, Dropped, Fault};

/// Change requests that may wait: as many as a client has under way.
pub(in crate::session) const CHANGES_WAITING_MAX: usize = 64;

/// From this many waiting change requests on the bytes of further requests are counted.
pub(in crate::session) const CHANGES_UNMETERED_MAX: usize = 2;

/// Edits of a mirror, in order.
pub(in crate::session) struct Edits {
    pub request: u32,
    pub edits: Vec<Edit>,
}

/// A batch of new entries, or of edits.
pub(super) enum Change {
    Make(Vec<NewEntry>),
    Edit(Vec<Edit>),
}

/// Makes entries in order; returns one answer each, and the metadata that was not kept.
pub(super) fn make_all(
    reach: &ClientView,
    entries: &[NewEntry],
    over: Over,
    locks: &LockCarrier,
) -> (Vec<Result<(), Fault>>, Dropped) {
    let mut dropped = Dropped::default();
    let mut make_one = |entry| {
        locks.check_client()?;
        make(reach, entry, over).map(|not_kept| dropped += not_kept)
    };
    let answers = entries.iter().map(&mut make_one).collect();
    (answers, dropped)
}

fn make(reach: &ClientView, entry: &NewEntry, over: Over) -> Result<Dropped, Fault> {
    let (export, path) = reach.resolve(&entry.path)?;
    // The client may ask for a folder that exists anyway.
    if !path.is_root() {
        export.writable("make", &entry.path)?;
    }
    let (folder, rules) = (&export.folder, &export.rules);
    let keep = entry.meta.as_deref().map(|meta| (meta, rules));
    match &entry.kind {
        EntryKind::Folder => match keep {
            // The administrator decides the metadata of an export's own folder.
            Some(_) if path.is_root() => Ok(Dropped::default()),
            Some((meta, rules)) => {
                export.may_write(quota::attribute_bytes(meta, rules))?;
                folder.describe(&path, meta, rules)
            }
            None => {
                let made = match entry.force {
                    true => folder.force_folder(&path, entry.mode, entry.unfinished),
                    false => folder.make_folder(&path, entry.mode, entry.unfinished),
                };
                made.map(|()| Dropped::default())
            }
        },
        EntryKind::Symlink { target } => folder.make_symlink(&path, target, keep, over),
        EntryKind::File | EntryKind::Special => Err(Fault::new(
            Code::Protocol,
            format!("{} is neither a folder nor a symbolic link", entry.path),
        )),
    }
}

/// Applies edits in order; returns one answer each, and the metadata that was not kept.
pub(super) fn change_all(
    reach: &ClientView,
    changes: &[Edit],
    locks: &LockCarrier,
) -> (Vec<Result<(), Fault>>, Dropped) {
    let mut dropped = Dropped::default();
    let mut change_one = |change: &Edit| {
        locks.check_client()?;
        let (export, path) = reach.resolve(change.path())?;
        export.writable("change", change.path())?;
        match change {
            Edit::Link { to, .. } => {
                let (other, to) = reach.resolve(to)?;
                if !Arc::ptr_eq(&export, &other) {
                    let text = format!("{} and {to} are in two exports", change.path());
                    return Err(Fault::new(Code::BadPath, text));
                }
                export.folder.link(&path, &to)
            }
            // The administrator decides the metadata of an export's own folder.
            Edit::Describe { .. } if path.is_root() => Ok(()),
            Edit::Describe { meta, .. } | Edit::Own { meta, .. } => {
                export.may_write(quota::attribute_bytes(meta, &export.rules))?;
                if matches!(change, Edit::Own { .. }) {
                    export.folder.own(&path, &|bytes| export.may_write(bytes))?;
                }
                dropped += export.folder.describe_any(&path, meta, &export.rules)?;
                Ok(())
            }
            Edit::Remove { is_folder, .. } => export.folder.remove(&path, *is_folder),
            Edit::Sweep { path: whole } => match locks.tree_of(whole) {
                Some((staging, below)) => staging.revert(&path, &below),
                None => export.folder.sweep(&path),
            },
        }
    };
    let answers = changes.iter().map(&mut change_one).collect();
    (answers, dropped)
}
