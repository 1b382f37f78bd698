//! Stat and scans: looks up paths, and lists a folder or a tree in pages. Owns the maximum of a
//! page. Jobs of `namespace` call it.

use crate::exports::client_view::ClientView;
use std::sync::atomic::{AtomicBool, Ordering};
use verbatim_control::Expected;
use verbatim_files::Walk;
use verbatim_files::walk::Describe;
use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::units::{FRAME_BYTES_MAX, PAGE_ENTRIES_MAX};
use verbatim_proto::{Code, Excludes, Fault, Look, Meter, Scan as ScanRequest, Ties, WirePath};

/// The entries at some paths, and the ties of those that exist, if the client wants them.
pub(crate) struct StatAnswers {
    pub(super) answers: Vec<Result<Entry, Fault>>,
    pub(super) ties: Vec<Option<Ties>>,
    /// The indices of answers that are errors.
    pub(super) errors: Vec<usize>,
    /// Counts the answers as unread until they are sent.
    pub(super) _expected: Expected,
}

impl StatAnswers {
    /// The errors: a missing path is an answer, unless it is an export.
    pub(crate) fn errors(&self) -> impl Iterator<Item = &Fault> {
        self.errors.iter().filter_map(|&at| self.answers[at].as_ref().err())
    }
}

pub(super) enum Scan {
    Walk(Box<Walk>, Excludes),
    Exports(Vec<Entry>),
}

/// A page, and the rest of the scan.
#[derive(Default)]
pub(crate) struct Page {
    pub(super) scan: Option<Scan>,
    pub(super) entries: Vec<Entry>,
    pub(super) ties: Vec<Option<Ties>>,
    pub(super) faults: Vec<(WirePath, Fault)>,
}

impl Page {
    /// The errors of the listing.
    pub(crate) fn errors(&self) -> impl Iterator<Item = &Fault> {
        self.faults.iter().map(|(_, fault)| fault)
    }
}

/// Looks up paths, with owner and link count where the client wants them.
pub(super) fn look_at_all(
    reach: &ClientView,
    look: &Look,
    with_ties: bool,
    expected: Expected,
) -> StatAnswers {
    let mut ties = Vec::new();
    let mut look_at = |path| {
        let (entry, its) = stat(reach, path, look.follow)?;
        ties.extend(with_ties.then_some(its));
        Ok(entry)
    };
    let answers: Vec<_> = look.paths.iter().map(&mut look_at).collect();
    let is_error = |(path, answer): (&WirePath, &Result<Entry, Fault>)| {
        let code = answer.as_ref().err().map(|fault| fault.code);
        code.is_some_and(|code| code != Code::NotFound || path.parent().is_root())
    };
    let flags = look.paths.iter().zip(&answers).map(is_error).enumerate();
    let errors = flags.filter_map(|(at, is_error)| is_error.then_some(at)).collect();
    StatAnswers { answers, ties, errors, _expected: expected }
}

fn stat(reach: &ClientView, path: &WirePath, follow: bool) -> Result<(Entry, Option<Ties>), Fault> {
    if path.is_root() {
        return Ok((folder_entry(WirePath::root()), None));
    }
    let (export, below) = reach.resolve(path)?;
    let (entry, ties) = export.folder.look(&below, follow)?;
    // The client knows the paths it asked for.
    Ok((Entry { path: WirePath::root(), ..entry }, Some(ties)))
}

/// Begins a scan.
pub(super) fn begin(
    reach: &ClientView,
    scan: ScanRequest,
    ties: bool,
    meter: Meter,
) -> Result<Scan, Fault> {
    let ScanRequest { path, recursive, follow, describe, exclude } = scan;
    let exclude = Excludes::parse(exclude)?.metered(meter);
    if path.is_root() {
        let names = reach.names().map(WirePath::parse);
        let entries: Result<Vec<_>, Fault> = names.map(|name| name.map(folder_entry)).collect();
        return entries.map(Scan::Exports);
    }
    let (export, below) = reach.resolve(&path)?;
    let mut walk = match follow {
        true => Walk::following(export.folder.share(), below, recursive)?,
        false => Walk::new(export.folder.open_folder(&below)?, recursive)?
            .crossing(export.folder.crosses()),
    };
    if describe {
        walk = walk.describing(Describe { trusted: export.rules.privileged_xattrs })?;
    }
    let walk = if ties { walk.telling_ties() } else { walk };
    Ok(Scan::Walk(Box::new(walk), exclude))
}

fn folder_entry(path: WirePath) -> Entry {
    Entry { path, kind: EntryKind::Folder, size: 0, mode: 0o755, mtime_ns: 0, meta: None }
}

/// Fills a page, until the client is gone: a scan may exclude entries for long.
pub(super) fn next_page(scan: Scan, over: &AtomicBool) -> Page {
    let mut page = Page::default();
    let (mut walk, exclude) = match scan {
        Scan::Exports(entries) => return Page { entries, ..page },
        Scan::Walk(walk, exclude) => (walk, exclude),
    };
    let mut bytes = 0;
    while page.entries.len() + page.faults.len() < PAGE_ENTRIES_MAX
        && bytes < FRAME_BYTES_MAX / 4
        && !over.load(Ordering::Relaxed)
    {
        match walk.next() {
            Some(Ok(entry)) => {
                match exclude.excludes(&entry.path, entry.kind == EntryKind::Folder) {
                    Ok(false) => {}
                    Ok(true) => {
                        walk.leave();
                        continue;
                    }
                    // The pattern would take as long for the next path.
                    Err(fault) => {
                        page.faults.push((entry.path, fault));
                        return page;
                    }
                }
                bytes += entry.weight();
                page.entries.push(entry);
                if walk.tells_ties() {
                    page.ties.push(walk.ties());
                }
            }
            Some(Err((path, fault))) => {
                bytes += path.as_bytes().len() + fault.text.len();
                page.faults.push((path, fault));
            }
            None => return page,
        }
    }
    page.scan = Some(Scan::Walk(walk, exclude));
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_files::Folder;

    #[test]
    fn a_cancelled_scan_ends_although_its_filter_excludes_every_entry() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("a"), b"").expect("writes");
        let folder = Folder::open(dir.path()).expect("opens");
        let walk = Walk::new(folder.open_folder(&WirePath::root()).expect("opens"), true);
        let none = Excludes::parse(vec![b"*".to_vec()]).expect("a pattern");
        let scan = Scan::Walk(Box::new(walk.expect("begins")), none);
        let page = next_page(scan, &AtomicBool::new(true));
        let page = next_page(page.scan.expect("it was not gone through"), &AtomicBool::new(false));
        assert!(page.scan.is_none() && page.entries.is_empty());
    }
}
