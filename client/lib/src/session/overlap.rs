//! Refuses to copy a folder into itself, or an entry onto itself, as `cp` does. A copy would find
//! its own files and copy them again, or overwrite its source. Both sides must be one machine for
//! that, and the server sends its boot id. Folders are compared by identity, files by their folder
//! and name. Called by `cp` before anything is written.

use crate::session::Session;
use std::path::Path;
use verbatim_engine::connection::error::ClientError;
use verbatim_engine::local_io::local_path::open_parent;
use verbatim_engine::model::copy_policy::{CopyPolicy, Task};
use verbatim_files::hold::{above, which};
use verbatim_files::journal::boot_id;
use verbatim_files::{Folder, Over};
use verbatim_proto::message::EntryKind;
use verbatim_proto::mirror::About;
use verbatim_proto::{Code, Fault, Twin, WirePath};

/// Checks sources against one target.
pub(crate) struct OverlapCheck {
    /// The target and its ancestors; empty if the server is another machine.
    ancestors: Vec<Twin>,
    /// Whether the target is local and the sources are remote.
    downloads: bool,
    /// Whether the policy may replace entries there.
    replaces: bool,
    /// The last remote folder and its identity: sources often share a folder.
    asked: Option<(WirePath, Option<Twin>)>,
}

impl OverlapCheck {
    fn new(ancestors: Vec<Twin>, downloads: bool, policy: &CopyPolicy) -> Self {
        let replaces = policy.task != Task::Verify && policy.overwrite() == Over::Anything;
        Self { ancestors, downloads, replaces, asked: None }
    }

    /// For a local target; if it is missing, its nearest existing ancestor counts.
    pub fn of_local(target: &Path, policy: &CopyPolicy) -> Self {
        let whole = std::path::absolute(target).unwrap_or_else(|_| target.to_owned());
        let nearest = whole.ancestors().find_map(|path| Folder::open(path).ok());
        Self::new(nearest.as_ref().map_or_else(Vec::new, ancestors), true, policy)
    }

    /// For a remote target; if it is missing, its nearest existing ancestor counts.
    pub async fn of_remote(
        session: &mut Session,
        target: &WirePath,
        policy: &CopyPolicy,
    ) -> Result<Self, ClientError> {
        let mut path = target.clone();
        let ancestors = loop {
            match session.describe_dir(&path, false).await? {
                Ok(about) if !is_here(&about) => break Vec::new(),
                Ok(About { root: Some(root), above, .. }) => {
                    break std::iter::once(root).chain(above).collect();
                }
                Ok(_) | Err(Fault { code: Code::NotFolder, .. }) if !path.parent().is_root() => {
                    path = path.parent();
                }
                // Reported when the copy writes there.
                Ok(_) | Err(_) => break Vec::new(),
            }
        };
        Ok(Self::new(ancestors, false, policy))
    }

    /// Refuses a source that contains the target or is the target. `here` and `there` are its paths
    /// on both sides, whichever is the source.
    pub async fn check(
        &mut self,
        session: &mut Session,
        kind: &EntryKind,
        here: &Path,
        there: &WirePath,
    ) -> Result<Result<(), Fault>, ClientError> {
        if self.ancestors.is_empty() {
            return Ok(Ok(()));
        }
        if *kind != EntryKind::Folder {
            let Ok((folder, name)) = open_parent(here) else { return Ok(Ok(())) };
            let same = Some(name.as_bytes()) == there.name()
                && is_same(
                    identity_of(&folder),
                    self.remote_identity(session, &there.parent()).await?,
                );
            return Ok(if same && self.replaces { Err(onto_itself("file")) } else { Ok(()) });
        }
        let here = Folder::open(here).ok().and_then(|folder| identity_of(&folder));
        let there = self.remote_identity(session, there).await?;
        let source = if self.downloads { there } else { here };
        if source.is_some_and(|source| self.ancestors.contains(&source)) {
            return Ok(Err(into_itself()));
        }
        let same = is_same(here, there);
        Ok(if same && self.replaces { Err(onto_itself("folder")) } else { Ok(()) })
    }

    /// The identity of a remote folder; `None` if the server is another machine, which is found out
    /// once.
    async fn remote_identity(
        &mut self,
        session: &mut Session,
        path: &WirePath,
    ) -> Result<Option<Twin>, ClientError> {
        if let Some((asked, twin)) = &self.asked
            && asked == path
        {
            return Ok(*twin);
        }
        let twin = match session.describe_dir(path, false).await? {
            Ok(about) if is_here(&about) => about.root,
            Ok(_) => {
                self.ancestors.clear();
                None
            }
            // Reported when the copy reads or writes it.
            Err(_) => None,
        };
        self.asked = Some((path.clone(), twin));
        Ok(twin)
    }
}

fn ancestors(folder: &Folder) -> Vec<Twin> {
    identity_of(folder).into_iter().chain(above(&**folder.fd())).collect()
}

fn identity_of(folder: &Folder) -> Option<Twin> {
    which(&**folder.fd()).ok()
}

fn is_same(here: Option<Twin>, there: Option<Twin>) -> bool {
    here.is_some() && here == there
}

fn into_itself() -> Fault {
    let text = "cannot copy a folder into itself; rdma-sync leaves the target out";
    Fault::new(Code::BadPath, text)
}

fn onto_itself(what: &str) -> Fault {
    Fault::new(Code::Exists, format!("source and target are the same {what}"))
}

/// Whether the server is on this machine.
pub(crate) fn is_here(about: &About) -> bool {
    let here = boot_id();
    about.boot == here && here.iter().any(|&byte| byte != 0)
}
