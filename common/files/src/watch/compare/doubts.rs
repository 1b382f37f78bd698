//! Differences between a tree and what is known of it, which may be explained by an
//! event that is on the way. Each waits; then it is looked at again, and told and
//! counted if it is still there. Never looks for differences: `compare` does.

use super::super::coalesce::Sign;
use super::super::folders::descend;
use super::super::watcher::{Notice, Watcher};
use super::Stamp;
use crate::walk::DEPTH_MAX;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use verbatim_proto::{Fault, WirePath};

/// A difference whose event may be on the way.
pub(super) struct Doubt {
    path: WirePath,
    of: Of,
    /// When it was found, by both clocks.
    at: Duration,
    found: Stamp,
}

/// What differs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// The watch of a folder.
    Watch,
    /// The names in a folder.
    Names,
    /// A name that changed since then.
    Name(Stamp),
}

impl Watcher {
    pub(super) fn doubt(&mut self, path: WirePath, of: Of, at: Duration) {
        if !self.pending.waits(&path) {
            self.compared.doubts.push(Doubt { path, of, at, found: super::now() });
        }
    }

    /// Whether a folder that has no watch should have one.
    pub(super) fn lacks_watch(&self, path: &WirePath) -> bool {
        if self.unread.contains(path) || path.names().count() >= DEPTH_MAX {
            return false;
        }
        let Ok(fd) = descend(&self.root, path) else { return false };
        // A folder that is mounted at two places has one watch.
        self.number_of(fd.as_fd()).is_none_or(|other| !self.stands(other))
    }

    /// Whether a watch is that of the folder at its place.
    fn stands(&self, folder: i32) -> bool {
        let fd = self.tree.path(folder).and_then(|path| descend(&self.root, &path).ok());
        fd.is_some_and(|fd: OwnedFd| self.is_watch_of(folder, fd.as_fd()))
    }

    /// Tells the differences whose events had time to come.
    pub(super) fn resolve(&mut self, now: Duration) -> Result<(), Fault> {
        let doubts = std::mem::take(&mut self.compared.doubts);
        for doubt in doubts {
            if now.saturating_sub(doubt.at) < self.compared.doubt {
                self.compared.doubts.push(doubt);
            } else if !self.pending.waits(&doubt.path) {
                self.settle(doubt, now)?;
            }
        }
        Ok(())
    }

    fn settle(&mut self, doubt: Doubt, now: Duration) -> Result<(), Fault> {
        let Doubt { path, of, found, .. } = doubt;
        let folder = self.tree.find(&path);
        let parent = self.tree.find(&path.parent()).zip(path.name());
        match (of, folder, parent) {
            (Of::Watch, None, Some((parent, name))) if self.lacks_watch(&path) => {
                self.pending.note(path.clone(), Sign::Below, now);
                self.compared.heal(&path);
                self.look_again(parent, name, &path, Notice::None, now)
            }
            (Of::Watch, Some(folder), Some((parent, name))) if !self.stands(folder) => {
                self.pending.note(path.clone(), Sign::Below, now);
                self.compared.heal(&path);
                self.look_again(parent, name, &path, Notice::None, now)
            }
            (Of::Names, Some(folder), _) => {
                let known = self.compared.folders.get(&folder);
                let stirred = known.is_none_or(|known| known.stirred);
                if !stirred && self.compared.all_told(folder) < found {
                    self.compared.heal(&path);
                    self.pending.note(path, Sign::Below, now);
                }
                Ok(())
            }
            (Of::Name(until), _, Some((parent, name))) => {
                let Some((changed, written)) = self.changed(parent, name) else { return Ok(()) };
                let told = self.compared.is_told(parent, name, changed);
                if !told && self.compared.all_told(parent) < found {
                    // Another name of the file that comes or goes elsewhere changes it as well:
                    // that is compared, and is nothing that was missed.
                    if written > until {
                        self.compared.heal(&path);
                    }
                    self.pending.note(path, Sign::Complete, now);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
