//! Sources with wildcards on the server: the names that match are found by
//! listing the folders they could be in, a name of the path at a time. Called
//! for what is not there under its literal name; quoting is the user's business.

use crate::session::Session;
use verbatim_engine::connection::error::ClientError;
use verbatim_engine::model::location::Remote;
use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Code, Fault, Pattern, WirePath};

/// The most names a pattern may stand for.
const MATCHES_MAX: usize = 1 << 16;

/// What is meant, and what is there, or why that cannot be told.
pub(crate) type Found = (Remote, Result<Entry, Fault>);

/// What a source stands for, given what is there under its own name: that, or all that matches.
/// What matches and cannot be looked at is among it.
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

/// Finds what a pattern stands for, in the order of the names. A pattern that ends with a slash
/// stands for folders only.
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
            // Behind the last wildcard there may be names that are not everywhere.
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

/// Whether it says only that nothing is there.
fn is_absence(fault: &Fault) -> bool {
    matches!(fault.code, Code::NotFound | Code::NotFolder)
}

struct Search {
    found: Vec<WirePath>,
    /// What kept folders from being looked into, besides not being there.
    faults: Vec<(WirePath, Fault)>,
}

impl Search {
    fn step_into(&mut self, name: &[u8]) {
        if let Ok(name) = WirePath::parse(name) {
            self.found.iter_mut().for_each(|path| *path = path.join(&name));
        }
    }

    /// Lists all that was found so far, and keeps what matches.
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
                    // The server says what is in a folder, not where that goes.
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
