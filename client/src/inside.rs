//! Whether a folder would be copied into itself, which `cp` refuses too: what was
//! copied would be met, and copied again. That can only be where both sides are one
//! machine, which the server tells. Called by `copy`, before anything is made.

use crate::session::{ClientError, Session};
use std::path::Path;
use verbatim_files::Folder;
use verbatim_files::hold::{above, which};
use verbatim_files::journal::boot_id;
use verbatim_proto::mirror::About;
use verbatim_proto::{Code, Fault, Twin, WirePath};

/// The folders that a target lies in, itself first.
#[derive(Default)]
pub(crate) struct Inside {
    around: Vec<Twin>,
}

impl Inside {
    /// Of a target here; where it is missing, of the nearest folder that is there.
    pub fn of_path(target: &Path) -> Self {
        let whole = std::path::absolute(target).unwrap_or_else(|_| target.to_owned());
        let nearest = whole.ancestors().find_map(|path| Folder::open(path).ok());
        Self { around: nearest.as_ref().map_or_else(Vec::new, around) }
    }

    /// The same of a target of the server; of none where that is another machine.
    pub async fn of_remote(session: &mut Session, target: &WirePath) -> Result<Self, ClientError> {
        let mut path = target.clone();
        loop {
            match session.begin(&path, false).await? {
                Ok(about) if !is_here(&about) => return Ok(Self::default()),
                Ok(About { root: Some(root), above, .. }) => {
                    return Ok(Self { around: std::iter::once(root).chain(above).collect() });
                }
                Ok(_) if !path.parent().is_root() => path = path.parent(),
                // Told when something is written there.
                Ok(_) | Err(_) => return Ok(Self::default()),
            }
        }
    }

    /// Refuses a source here that the target lies in.
    pub fn check(&self, source: &Folder) -> Result<(), Fault> {
        match which(&**source.fd()) {
            Ok(twin) if self.around.contains(&twin) => Err(into_itself()),
            _ => Ok(()),
        }
    }

    /// The same of a folder of the server. Another machine is asked once.
    pub async fn check_remote(
        &mut self,
        session: &mut Session,
        source: &WirePath,
    ) -> Result<Result<(), Fault>, ClientError> {
        if self.around.is_empty() {
            return Ok(Ok(()));
        }
        match session.begin(source, false).await? {
            Ok(about) if !is_here(&about) => self.around.clear(),
            Ok(about) if about.root.is_some_and(|root| self.around.contains(&root)) => {
                return Ok(Err(into_itself()));
            }
            // Told when it is read.
            Ok(_) | Err(_) => {}
        }
        Ok(Ok(()))
    }
}

fn around(folder: &Folder) -> Vec<Twin> {
    which(&**folder.fd()).into_iter().chain(above(&**folder.fd())).collect()
}

fn into_itself() -> Fault {
    let text = "cannot copy a folder into itself; rdma-sync leaves the target out";
    Fault::new(Code::BadPath, text)
}

/// Whether a place of the server is on this machine.
pub(crate) fn is_here(about: &About) -> bool {
    let here = boot_id();
    about.boot == here && here.iter().any(|&byte| byte != 0)
}
