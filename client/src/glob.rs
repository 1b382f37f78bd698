//! Sources with wildcards on the server: the names that match are found by
//! listing the folders they could be in, a name of the path at a time. Called
//! for what is not there under its literal name; quoting is the user's business.

use crate::location::Remote;
use crate::session::{ClientError, Session};
use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Code, Fault, Pattern, WirePath};

/// The most names a pattern may stand for.
const MATCHES_MAX: usize = 1 << 16;

/// What a source stands for, given what is there under its own name: that, or all that matches.
pub(crate) async fn or_matches(
    session: &mut Session,
    source: &Remote,
    answer: Result<Entry, Fault>,
) -> Result<Result<Vec<(Remote, Entry)>, Fault>, ClientError> {
    match answer {
        Ok(entry) => Ok(Ok(vec![(source.clone(), entry)])),
        Err(fault) if fault.code == Code::NotFound && is_pattern(&source.path) => {
            expand(session, source).await
        }
        Err(fault) => Ok(Err(fault)),
    }
}

fn is_pattern(path: &WirePath) -> bool {
    path.as_bytes().iter().any(|byte| b"*?[\\".contains(byte))
}

/// Finds what a pattern stands for, in the order of the names. A pattern that ends with a slash
/// stands for folders only.
async fn expand(
    session: &mut Session,
    source: &Remote,
) -> Result<Result<Vec<(Remote, Entry)>, Fault>, ClientError> {
    let mut search = Search { found: vec![WirePath::root()], fault: None };
    let names: Vec<&[u8]> = source.path.names().collect();
    for (index, name) in names.iter().enumerate() {
        let pattern = Pattern::parse(name);
        match pattern.literal() {
            Some(literal) => search.step_into(&literal),
            None => search.step(session, &pattern, index + 1 == names.len()).await?,
        }
        if let Some(fault) = search.too_many(source) {
            return Ok(Err(fault));
        }
    }
    search.found.sort();
    // Behind the last wildcard there may be names that are not everywhere.
    let mut matches = Vec::new();
    for answer in session.stat_all(&search.found).await? {
        match answer {
            Ok(entry) if source.is_folder && entry.kind != EntryKind::Folder => {}
            Ok(entry) => {
                matches.push((Remote { path: entry.path.clone(), ..source.clone() }, entry))
            }
            Err(fault) => search.note(fault),
        }
    }
    if matches.is_empty() {
        let text = format!("no name matches the pattern /{}", source.path);
        return Ok(Err(search.fault.unwrap_or(Fault::new(Code::NotFound, text))));
    }
    Ok(Ok(matches))
}

struct Search {
    found: Vec<WirePath>,
    /// What kept a folder from being looked into, besides not being there.
    fault: Option<Fault>,
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
        for folder in std::mem::take(&mut self.found) {
            let mut faults = Vec::new();
            let mut page = |entries: Vec<Entry>, more: Vec<(WirePath, Fault)>| {
                faults.extend(more.into_iter().map(|(_, fault)| fault));
                for entry in entries {
                    let way_on =
                        matches!(entry.kind, EntryKind::Folder | EntryKind::Symlink { .. });
                    let fits = pattern.matches_shown(entry.path.as_bytes());
                    if fits && (is_last || way_on) && self.found.len() <= MATCHES_MAX {
                        self.found.push(folder.join(&entry.path));
                    }
                }
            };
            session.list(&folder, false, &mut page).await?;
            faults.into_iter().for_each(|fault| self.note(fault));
        }
        Ok(())
    }

    fn note(&mut self, fault: Fault) {
        if !matches!(fault.code, Code::NotFound | Code::NotFolder) {
            self.fault.get_or_insert(fault);
        }
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
