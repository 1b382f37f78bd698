//! Applies the policy of a download to each entry: fetch, skip, report or compare. Stats the local
//! target.

use crate::connection::Engine;
use crate::connection::dir_guard::WorkItem;
use crate::connection::ledger::ItemKey;
use crate::model::copy_policy::Task;
use crate::model::report::Planned;
use crate::transfer::Files;
use crate::transfer::download::Download;
use crate::transfer::upload::UploadSource;
use crate::transfer::verify::Comparison;
use std::sync::Arc;
use verbatim_files::Folder;
use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Code, Fault, WirePath};

/// Fetches, skips, reports or compares a file.
pub(crate) fn add_download(
    engine: &mut Engine,
    files: &mut Files,
    work_item: WorkItem,
    download: Download,
) {
    let item = work_item.item;
    if engine.outcomes().ledger().is_finished(item) {
        return;
    }
    if engine.policy().task == Task::Verify {
        let Download { remote, folder, local, size, label, .. } = download;
        let shown = folder.shown(&local);
        let source = UploadSource::Below(folder, local);
        let compare = Comparison { item, remote, source, size, label, shown };
        return files.verifier.add(engine, compare);
    }
    let Download { folder, local, mtime_ns, label, .. } = &download;
    match skip_at(engine, item, folder, local, *mtime_ns, label) {
        Ok(false) => {}
        Ok(true) => return,
        Err(fault) => return engine.outcomes().failed(item, download.label, fault),
    }
    if engine.policy().task == Task::DryRun {
        let (path, target) = (download.label, download.folder.shown(&download.local));
        let (kind, bytes) = (EntryKind::File, download.size);
        return engine.outcomes().planned(item, Planned { path, target, kind, bytes });
    }
    files.downloads.add(engine, work_item, download);
}

/// Creates, reports or compares a folder. If its metadata is preserved, it is private until that is
/// set.
pub(crate) fn apply_folder(
    engine: &mut Engine,
    item: ItemKey,
    folder: &Arc<Folder>,
    local: &WirePath,
    mode: u32,
    label: &str,
) -> Result<(), Fault> {
    match engine.policy().task {
        Task::Copy => {
            let unfinished = engine.options().preserve;
            let mode = if unfinished { 0o700 } else { mode };
            match engine.policy().force && !is_link(folder, local) {
                true => folder.force_folder(local, mode, unfinished),
                false => folder.make_folder(local, mode, unfinished),
            }
        }
        Task::DryRun => {
            let (path, target) = (label.to_owned(), folder.shown(local));
            engine
                .outcomes()
                .planned(item, Planned { path, target, kind: EntryKind::Folder, bytes: 0 });
            Ok(())
        }
        Task::Verify => compare_kinds(&EntryKind::Folder, &folder.stat(local, true)?),
    }
}

/// Creates, skips, reports or compares a symbolic link.
pub(crate) fn apply_link(
    engine: &mut Engine,
    item: ItemKey,
    folder: &Arc<Folder>,
    local: &WirePath,
    link: &Entry,
    label: &str,
) -> Result<(), Fault> {
    if engine.policy().task == Task::Verify {
        return compare_kinds(&link.kind, &folder.stat(local, false)?);
    }
    if skip_at(engine, item, folder, local, link.mtime_ns, label)? {
        return Ok(());
    }
    match &link.kind {
        EntryKind::Symlink { target } if engine.policy().task == Task::Copy => {
            let allowed = verbatim_files::Rules::of_user();
            let keep = link.meta.as_deref().map(|meta| (meta, &allowed));
            let dropped = folder.make_symlink(local, target, keep, engine.policy().overwrite())?;
            engine.outcomes().ledger().summary.dropped += dropped;
        }
        kind => {
            let (path, target) = (label.to_owned(), folder.shown(local));
            let kind = kind.clone();
            engine.outcomes().planned(item, Planned { path, target, kind, bytes: 0 });
        }
    }
    Ok(())
}

/// Whether the policy skips an entry, given the local target; reports the skip.
fn skip_at(
    engine: &mut Engine,
    item: ItemKey,
    folder: &Folder,
    local: &WirePath,
    mtime_ns: i64,
    label: &str,
) -> Result<bool, Fault> {
    if !engine.policy().must_stat_target() {
        return Ok(false);
    }
    let there = existing(folder.stat(local, false))?;
    let skip = engine.policy().skip(there.as_ref(), mtime_ns);
    if let Some(reason) = skip {
        engine.outcomes().skipped(item, label.to_owned(), reason);
    }
    Ok(skip.is_some())
}

/// Whether a link is in the place of a folder. Unlike a file it is not removed: the user may want
/// the files where it leads.
fn is_link(folder: &Folder, path: &WirePath) -> bool {
    matches!(folder.stat(path, false), Ok(Entry { kind: EntryKind::Symlink { .. }, .. }))
}

/// The entry at a target, or `None` if there is none.
pub(crate) fn existing(answer: Result<Entry, Fault>) -> Result<Option<Entry>, Fault> {
    match answer {
        Ok(entry) => Ok(Some(entry)),
        // A file in the place of a parent folder fails when the target is created.
        Err(fault) if matches!(fault.code, Code::NotFound | Code::NotFolder) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Compares the kinds of a folder or link and of its target.
pub(crate) fn compare_kinds(wanted: &EntryKind, there: &Entry) -> Result<(), Fault> {
    let differs = match (wanted, &there.kind) {
        (wanted, there) if wanted == there => return Ok(()),
        (EntryKind::Folder, _) => "it is no folder at the target".to_owned(),
        (_, EntryKind::Symlink { target }) => {
            format!("its copy leads to {}", String::from_utf8_lossy(target))
        }
        _ => "it is no link at the target".to_owned(),
    };
    Err(Fault::new(Code::Mismatch, differs))
}
