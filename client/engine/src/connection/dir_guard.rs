//! Defers the metadata of folders until their contents are complete. A new file changes the time of
//! its folder, and a read-only folder must be writable until then.
//!
//! Each unfinished item in a folder holds the folder's `DirGuard`. When the last one is dropped,
//! the metadata is due. A guard holds that of its parent, so inner folders come first. The number
//! of guards is bounded by the depth of the walk and the files in flight, not by the size of the
//! tree.

use crate::connection::ledger::ItemKey;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use verbatim_files::Folder;
use verbatim_proto::{Meta, WirePath};

/// Defers the metadata of one folder until the last clone is dropped.
pub(crate) struct DirGuard {
    due: Option<DirMetaJob>,
    jobs: Sender<DirMetaJob>,
    /// The parent folder gets its metadata later.
    _parent: ParentGuard,
}

/// The guard of the parent folder, if its metadata is deferred.
pub(crate) type ParentGuard = Option<Arc<DirGuard>>;

/// An item of a copy: its ledger key and the guard of its parent folder. It travels with the item
/// from the scan until the item is finished.
pub struct WorkItem {
    /// The key of the item in the ledger.
    pub(crate) item: ItemKey,
    /// The guard of the parent folder, released when this is dropped.
    pub(crate) parent: ParentGuard,
}

impl WorkItem {
    /// An item whose parent folder has no deferred metadata.
    pub fn unguarded(item: ItemKey) -> Self {
        Self { item, parent: None }
    }
}

/// A folder whose contents are complete and whose metadata is due.
pub(crate) struct DirMetaJob {
    pub item: ItemKey,
    pub place: DirLocation,
    pub label: String,
    pub meta: Meta,
}

/// The path of a folder, here or at the server.
pub(crate) enum DirLocation {
    Local(Arc<Folder>, WirePath),
    Remote(WirePath),
}

impl Drop for DirGuard {
    fn drop(&mut self) {
        if let Some(due) = self.due.take() {
            // The session has ended and sets no more metadata.
            let _ = self.jobs.send(due);
        }
    }
}

/// The folders that a walk is in, the innermost last.
#[derive(Default)]
pub(crate) struct DirStack {
    open: Vec<(WirePath, Arc<DirGuard>)>,
}

impl DirStack {
    /// Pops the folders that do not contain `path`. Returns the guard of its parent.
    pub fn parent_of(&mut self, path: &WirePath) -> ParentGuard {
        while self.open.last().is_some_and(|(folder, _)| !path.is_below(folder)) {
            self.open.pop();
        }
        self.open.last().map(|(_, guard)| guard.clone())
    }

    /// Pushes a folder that the walk enters.
    pub fn push(&mut self, path: WirePath, guard: Arc<DirGuard>) {
        self.open.push((path, guard));
    }
}

/// The deferred metadata of a session.
pub(crate) struct DirGuards {
    sender: Sender<DirMetaJob>,
    receiver: Receiver<DirMetaJob>,
    /// Local folders whose metadata is due.
    local: Vec<DirMetaJob>,
    /// Remote folders whose metadata is due.
    remote: Vec<DirMetaJob>,
}

impl Default for DirGuards {
    fn default() -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver, local: Vec::new(), remote: Vec::new() }
    }
}

impl DirGuards {
    /// Defers the metadata of a folder until the returned guard is dropped.
    pub fn guard(
        &self,
        place: DirLocation,
        work_item: WorkItem,
        label: String,
        meta: Meta,
    ) -> Arc<DirGuard> {
        let due = Some(DirMetaJob { item: work_item.item, place, label, meta });
        Arc::new(DirGuard { due, jobs: self.sender.clone(), _parent: work_item.parent })
    }

    pub fn is_idle(&mut self) -> bool {
        self.gather();
        self.local.is_empty() && self.remote.is_empty()
    }

    /// How many folders wait for their metadata to be set.
    pub fn queued(&self) -> usize {
        self.local.len() + self.remote.len()
    }

    /// Takes at most `count_max` local folders whose metadata is due.
    pub fn take_local(&mut self, count_max: usize) -> Vec<DirMetaJob> {
        self.gather();
        self.local.drain(..self.local.len().min(count_max)).collect()
    }

    /// Takes at most `count_max` remote folders whose metadata is due.
    pub fn take_remote(&mut self, count_max: usize) -> Vec<DirMetaJob> {
        self.gather();
        self.remote.drain(..self.remote.len().min(count_max)).collect()
    }

    fn gather(&mut self) {
        for due in self.receiver.try_iter() {
            match due.place {
                DirLocation::Local(..) => self.local.push(due),
                DirLocation::Remote(_) => self.remote.push(due),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> WirePath {
        WirePath::parse(text.as_bytes()).expect("plain")
    }

    /// The labels of the folders whose metadata is due.
    fn due(guards: &mut DirGuards) -> Vec<String> {
        guards.gather();
        guards.remote.drain(..).map(|due| due.label).collect()
    }

    fn enter(guards: &DirGuards, dir_stack: &mut DirStack, name: &str) -> ParentGuard {
        let parent = dir_stack.parent_of(&path(name));
        let place = DirLocation::Remote(path(name));
        let work_item = WorkItem { item: ItemKey::new(0, &path(name)), parent };
        let guard = guards.guard(place, work_item, name.into(), Meta::default());
        dir_stack.push(path(name), guard.clone());
        Some(guard)
    }

    #[test]
    fn folders_are_due_after_their_contents_and_inner_folders_first() {
        let mut guards = DirGuards::default();
        let mut dir_stack = DirStack::default();
        drop(enter(&guards, &mut dir_stack, ""));
        drop(enter(&guards, &mut dir_stack, "a"));
        let file = dir_stack.parent_of(&path("a/file"));
        drop(enter(&guards, &mut dir_stack, "a/b"));
        drop(enter(&guards, &mut dir_stack, "a/b/c"));
        // A name with the same prefix is not in the folder.
        drop(enter(&guards, &mut dir_stack, "a/bc"));
        assert_eq!(due(&mut guards), ["a/b/c", "a/b"]);
        drop(enter(&guards, &mut dir_stack, "d"));
        assert_eq!(due(&mut guards), ["a/bc"], "a file of a is under way");
        drop(file);
        assert_eq!(due(&mut guards), ["a"]);
        assert!(guards.is_idle());
        drop(dir_stack);
        assert_eq!(due(&mut guards), ["d", ""]);
    }
}
