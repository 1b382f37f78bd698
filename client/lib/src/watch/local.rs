//! Watches a local folder: forwards the changes that the watcher's thread reports. The folder is
//! opened by its name in its parent, so a replaced folder or link is noticed. This module also
//! checks the parent's identity from time to time, because copies resolve the whole path.

use crate::watch::{EventSender, WatchEvent};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use verbatim_engine::connection::error::ClientError;
use verbatim_files::hold::which;
use verbatim_files::watch::Timing;
use verbatim_files::{Folder, Told};
use verbatim_proto::{Code, Excludes, Fault, Twin, WirePath};

/// A watch of a local folder.
pub(crate) struct LocalWatch {
    path: PathBuf,
    excludes: Excludes,
}

impl LocalWatch {
    pub fn new(path: PathBuf, excludes: Excludes) -> Self {
        Self { path, excludes }
    }

    /// Watches until the source is lost or the receiver is dropped; `began` tells whether the watch
    /// ever started.
    pub async fn run(&mut self, out: &EventSender, began: &mut bool) -> Result<(), ClientError> {
        let (folder, base) = parent_and_name(&self.path)?;
        let (parent, timing) = (identity_of(&folder)?, Timing::default());
        let mut look = tokio::time::interval(timing.place_check);
        // The receiver may be slow.
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (sender, mut told) = mpsc::channel(1);
        // The receiver may be gone.
        let tell = move |told| drop(sender.blocking_send(told));
        let excludes = self.excludes.clone();
        let watching = verbatim_files::Watching::begin(folder, base, excludes, timing, tell)?;
        let mut healed = false;
        loop {
            let told = tokio::select! {
                told = told.recv() => told,
                () = out.closed() => return Ok(()),
                _ = look.tick() => {
                    self.check_parent(parent).await?;
                    continue;
                }
            };
            match told {
                Some(Told::Changed(changes)) => {
                    *began = true;
                    if out.send(Ok(WatchEvent::Changed(changes))).await.is_err() {
                        return Ok(());
                    }
                    watching.more();
                }
                Some(Told::Healed(count, path)) => {
                    // Log it once: a continuing cause would repeat it.
                    if !std::mem::replace(&mut healed, true) {
                        tracing::warn!(%path, count, "change found that no event told");
                    }
                    if out.send(Ok(WatchEvent::Healed(count))).await.is_err() {
                        return Ok(());
                    }
                }
                Some(Told::Ended(fault)) => {
                    // The watcher names the folder relative to its parent; the user gave the whole
                    // path.
                    let text = format!("cannot watch {}: {fault}", self.path.display());
                    return Err(Fault::new(fault.code, text).into());
                }
                None => return Err(Fault::new(Code::Bug, "the watching thread failed").into()),
            }
        }
    }

    /// Fails if the path of the parent folder now leads elsewhere.
    async fn check_parent(&self, parent: Twin) -> Result<(), Fault> {
        let path = self.path.clone();
        let there =
            tokio::task::spawn_blocking(move || identity_of(&parent_and_name(&path)?.0)).await;
        match there.map_err(|_| Fault::new(Code::Bug, "looking at a folder failed"))? {
            Ok(there) if there == parent => Ok(()),
            Err(fault) if fault.code != Code::NotFound => Err(fault),
            _ => {
                let text = "a folder that it is in was exchanged, renamed or removed";
                let text = format!("cannot watch {}: {text}", self.path.display());
                Err(Fault::new(Code::NotFound, text))
            }
        }
    }
}

/// The identity of a folder.
fn identity_of(folder: &Folder) -> Result<Twin, Fault> {
    let what = || format!("cannot look at {}", folder.path().display());
    which(&**folder.fd()).map_err(|error| Fault::from_io(what(), &error))
}

/// The parent folder of a path, and the name in it; the folder itself if it has no name.
fn parent_and_name(path: &Path) -> Result<(Folder, WirePath), Fault> {
    let Some(name) = path.file_name() else {
        return Ok((Folder::open_free(path)?, WirePath::root()));
    };
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok((Folder::open_free(parent)?, WirePath::parse(name.as_bytes())?))
}
