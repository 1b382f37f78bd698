//! Folders get their metadata last: a file that lands in a folder changes its
//! time, and a folder that may not be written to must take its files first.
//!
//! Everything that is still to be done in a folder holds its `DirGuard`; when the
//! last holder is gone, the ending is due. A folder holds that of the folder it
//! is in, so the innermost come first. At any time there are as many endings as
//! the walk is deep and files are under way, however large the tree is.

use crate::connection::ledger::ItemKey;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use verbatim_files::Folder;
use verbatim_proto::{Meta, WirePath};

/// A folder whose metadata is set when nothing in it is left to do.
pub(crate) struct DirGuard {
    due: Option<DirMetaJob>,
    jobs: Sender<DirMetaJob>,
    /// The folder it is in ends after it.
    _parent: ParentGuard,
}

/// What holds up the end of a folder, if it has one.
pub(crate) type ParentGuard = Option<Arc<DirGuard>>;

/// The ledger key of an item that is copied, and the folder that waits for it: travels with the item
/// from the walk that finds it until it is over.
pub struct WorkItem {
    /// The key of the item in the ledger.
    pub(crate) item: ItemKey,
    /// The folder it is in, which ends after it: it is let go of with this, whatever becomes
    /// of the rest.
    pub(crate) parent: ParentGuard,
}

impl WorkItem {
    /// Marks an item that no folder waits for.
    pub fn unguarded(item: ItemKey) -> Self {
        Self { item, parent: None }
    }
}

/// A folder that got all that is in it.
pub(crate) struct DirMetaJob {
    pub item: ItemKey,
    pub place: DirLocation,
    pub label: String,
    pub meta: Meta,
}

/// Where a folder is.
pub(crate) enum DirLocation {
    Local(Arc<Folder>, WirePath),
    Remote(WirePath),
}

impl Drop for DirGuard {
    fn drop(&mut self) {
        if let Some(due) = self.due.take() {
            // A session that is over sets no more metadata.
            let _ = self.jobs.send(due);
        }
    }
}

/// The folders a walk is in, the innermost last.
#[derive(Default)]
pub(crate) struct DirStack {
    open: Vec<(WirePath, Arc<DirGuard>)>,
}

impl DirStack {
    /// Leaves the folders that `path` is not in, and returns the one it is in.
    pub fn parent_of(&mut self, path: &WirePath) -> ParentGuard {
        while self.open.last().is_some_and(|(folder, _)| !path.is_below(folder)) {
            self.open.pop();
        }
        self.open.last().map(|(_, guard)| guard.clone())
    }

    /// Enters a folder.
    pub fn push(&mut self, path: WirePath, guard: Arc<DirGuard>) {
        self.open.push((path, guard));
    }
}

/// The endings of a session.
pub(crate) struct DirGuards {
    sender: Sender<DirMetaJob>,
    receiver: Receiver<DirMetaJob>,
    /// Those of local folders that are due.
    local: Vec<DirMetaJob>,
    /// Those of remote folders that are due.
    remote: Vec<DirMetaJob>,
}

impl Default for DirGuards {
    fn default() -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver, local: Vec::new(), remote: Vec::new() }
    }
}

impl DirGuards {
    /// Plans the end of a folder.
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

    /// How many folders are done and wait for their metadata.
    pub fn queued(&self) -> usize {
        self.local.len() + self.remote.len()
    }

    /// The next local folders that are due, at most so many.
    pub fn take_local(&mut self, count_max: usize) -> Vec<DirMetaJob> {
        self.gather();
        self.local.drain(..self.local.len().min(count_max)).collect()
    }

    /// The same of remote ones.
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

    /// The labels of the endings that are due.
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
    fn a_folder_ends_after_all_in_it_and_the_inner_ones_first() {
        let mut guards = DirGuards::default();
        let mut dir_stack = DirStack::default();
        drop(enter(&guards, &mut dir_stack, ""));
        drop(enter(&guards, &mut dir_stack, "a"));
        let file = dir_stack.parent_of(&path("a/file"));
        drop(enter(&guards, &mut dir_stack, "a/b"));
        drop(enter(&guards, &mut dir_stack, "a/b/c"));
        // A name that only begins alike is not in the folder.
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
