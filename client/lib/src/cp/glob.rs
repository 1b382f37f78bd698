//! Expands wildcards in remote sources: lists the folders that may contain matches, one path
//! component at a time. Called for a source that does not exist under its literal name; the user
//! quotes the pattern from the shell.

use crate::session::Session;
use verbatim_engine::connection::error::ClientError;
use verbatim_engine::model::location::Remote;
use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Code, Fault, Pattern, WirePath};

/// The most names that a pattern may match.
const MATCHES_MAX: usize = 1 << 16;

/// A source, and its entry or the fault of its stat.
pub(crate) type Found = (Remote, Result<Entry, Fault>);

/// The sources that an argument stands for: itself if it exists, else all names that match it.
/// Matches that cannot be read are included with their fault.
pub(crate) async fn or_matches(
    session: &mut Session,
    source: &Remote,
    answer: Result<Entry, Fault>,
) -> Result<Vec<Found>, ClientError> {
    match answer {
        Err(fault) if fault.code == Code::NotFound && is_pattern(&source.path) => {
            expand(session, source).await
        }
        answer => Ok(vec![(source.clone(), answer)]),
    }
}

fn is_pattern(path: &WirePath) -> bool {
    path.as_bytes().iter().any(|byte| b"*?[\\".contains(byte))
}

/// Expands a pattern, sorted by name. A pattern with a trailing slash matches folders only.
async fn expand(session: &mut Session, source: &Remote) -> Result<Vec<Found>, ClientError> {
    let of = |path: &WirePath| Remote { path: path.clone(), ..source.clone() };
    let mut search = Search { found: vec![WirePath::root()], faults: Vec::new() };
    let names: Vec<&[u8]> = source.path.names().collect();
    let mut listed = false;
    for (index, name) in names.iter().enumerate() {
        let pattern = Pattern::parse(name);
        listed = pattern.literal().is_none();
        match pattern.literal() {
            Some(literal) => search.step_into(&literal),
            None => search.step(session, &pattern, index + 1 == names.len()).await?,
        }
        if let Some(fault) = search.too_many(source) {
            return Ok(vec![(source.clone(), Err(fault))]);
        }
    }
    search.found.sort();
    let mut matches = Vec::new();
    for (path, answer) in search.found.iter().zip(session.stat_all(&search.found).await?) {
        match answer {
            Ok(entry) if source.is_folder && entry.kind != EntryKind::Folder => {}
            // Components after the last wildcard need not exist under every match.
            Err(fault) if (!listed || source.is_folder) && is_absence(&fault) => {}
            answer => matches.push((of(path), answer)),
        }
    }
    matches.extend(search.faults.iter().map(|(path, fault)| (of(path), Err(fault.clone()))));
    if matches.is_empty() {
        let text = format!("no name matches the pattern /{}", source.path);
        matches.push((source.clone(), Err(Fault::new(Code::NotFound, text))));
    }
    Ok(matches)
}

/// Whether the fault says only that the entry does not exist.
fn is_absence(fault: &Fault) -> bool {
    matches!(fault.code, Code::NotFound | Code::NotFolder)
}

struct Search {
    found: Vec<WirePath>,
    /// Faults of folders that could not be listed, other than missing ones.
    faults: Vec<(WirePath, Fault)>,
}

impl Search {
    fn step_into(&mut self, name: &[u8]) {
        if let Ok(name) = WirePath::parse(name) {
            self.found.iter_mut().for_each(|path| *path = path.join(&name));
        }
    }

    /// Lists all folders found so far, and collects the entries that match.
    async fn step(
        &mut self,
        session: &mut Session,
        pattern: &Pattern,
        is_last: bool,
    ) -> Result<(), ClientError> {
        let Self { found, faults: noted } = self;
        for folder in std::mem::take(found) {
            let mut note = |fault: Fault| {
                if !is_absence(&fault) && noted.len() < MATCHES_MAX {
                    noted.push((folder.clone(), fault));
                }
            };
            let page = |entries: Vec<Entry>, faults: Vec<(WirePath, Fault)>| {
                faults.into_iter().for_each(|(_, fault)| note(fault));
                for entry in entries {
                    // Reject nested paths: the server must not choose where an entry goes.
                    if entry.path.names().count() != 1 {
                        let text = format!("the server says that {} is in it", entry.path);
                        note(Fault::new(Code::Protocol, text));
                        continue;
                    }
                    let way_on =
                        matches!(entry.kind, EntryKind::Folder | EntryKind::Symlink { .. });
                    let fits = pattern.matches_shown(entry.path.as_bytes());
                    if fits && (is_last || way_on) && found.len() <= MATCHES_MAX {
                        found.push(folder.join(&entry.path));
                    }
                }
            };
            session.list(&folder, false, page).await?;
        }
        Ok(())
    }

    fn too_many(&self, source: &Remote) -> Option<Fault> {
        (self.found.len() > MATCHES_MAX).then(|| {
            let text = format!(
                "the pattern /{} matches more than {MATCHES_MAX} names; copy the folder with -r",
                source.path
            );
            Fault::new(Code::Limit, text)
        })
    }
}
