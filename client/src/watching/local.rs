//! A local folder that is watched: the watcher's thread tells, this passes it on.
//! The folder is found by its name in the one it is in, so that one that is put
//! in its place, or a link that leads elsewhere now, is noticed.

use super::{Heard, Out};
use crate::session::ClientError;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;
use verbatim_files::watch::Timing;
use verbatim_files::{Folder, Told};
use verbatim_proto::{Code, Excludes, Fault, WirePath};

/// A local folder to watch.
pub(super) struct Local {
    path: PathBuf,
    excludes: Excludes,
}

impl Local {
    pub fn new(path: PathBuf, excludes: Excludes) -> Self {
        Self { path, excludes }
    }

    /// Watches until it is lost, or nobody listens; `stood` says whether it ever began.
    pub async fn attend(&mut self, out: &Out, stood: &mut bool) -> Result<(), ClientError> {
        let (folder, base) = place(&self.path)?;
        let (sender, mut told) = mpsc::channel(1);
        // Whoever listened may be gone.
        let tell = move |told| drop(sender.blocking_send(told));
        let excludes = self.excludes.clone();
        let watching =
            verbatim_files::Watching::begin(folder, base, excludes, Timing::default(), tell)?;
        loop {
            let told = tokio::select! {
                told = told.recv() => told,
                () = out.closed() => return Ok(()),
            };
            match told {
                Some(Told::Changed(changes)) => {
                    *stood = true;
                    if out.send(Ok(Heard::Changed(changes))).await.is_err() {
                        return Ok(());
                    }
                    watching.more();
                }
                Some(Told::Ended(fault)) => {
                    // Below its parent a folder has a short name; the user gave a longer one.
                    let text = format!("cannot watch {}: {fault}", self.path.display());
                    return Err(Fault::new(fault.code, text).into());
                }
                None => return Err(Fault::new(Code::Bug, "the watching thread failed").into()),
            }
        }
    }
}

/// A folder, and where in it the path is: its own name, unless it has none.
fn place(path: &Path) -> Result<(Folder, WirePath), Fault> {
    let Some(name) = path.file_name() else {
        return Ok((Folder::open_free(path)?, WirePath::root()));
    };
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok((Folder::open_free(parent)?, WirePath::parse(name.as_bytes())?))
}
