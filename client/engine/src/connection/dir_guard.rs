//! Folders get their metadata last: a file that lands in a folder changes its
//! time, and a folder that may not be written to must take its files first.
//!
//! Everything that is still to be done in a folder holds its `Ending`; when the
//! last holder is gone, the ending is due. A folder holds that of the folder it
//! is in, so the innermost come first. At any time there are as many endings as
//! the walk is deep and files are under way, however large the tree is.

use crate::connection::ledger::Item;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use verbatim_files::Folder;
use verbatim_proto::{Meta, WirePath};

/// A folder whose metadata is set when nothing in it is left to do.
pub(crate) struct Ending {
    due: Option<Due>,
    endings: Sender<Due>,
    /// The folder it is in ends after it.
    _within: Within,
}

/// What holds up the end of a folder, if it has one.
pub(crate) type Within = Option<Arc<Ending>>;

/// The ledger key of an item that is copied, and the folder that waits for it: travels with the item
/// from the walk that finds it until it is over.
pub struct Mark {
    /// The key of the item in the ledger.
    pub(crate) item: Item,
    /// The folder it is in, which ends after it: it is let go of with this, whatever becomes
    /// of the rest.
    pub(crate) within: Within,
}

impl Mark {
    /// Marks an item that no folder waits for.
    pub fn alone(item: Item) -> Self {
        Self { item, within: None }
    }
}

/// A folder that got all that is in it.
pub(crate) struct Due {
    pub item: Item,
    pub place: Place,
    pub label: String,
    pub meta: Meta,
}

/// Where a folder is.
pub(crate) enum Place {
    Local(Arc<Folder>, WirePath),
    Remote(WirePath),
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(due) = self.due.take() {
            // A session that is over sets no more metadata.
            let _ = self.endings.send(due);
        }
    }
}

/// The folders a walk is in, the innermost last.
#[derive(Default)]
pub(crate) struct Nest {
    open: Vec<(WirePath, Arc<Ending>)>,
}

impl Nest {
    /// Leaves the folders that `path` is not in, and returns the one it is in.
    pub fn around(&mut self, path: &WirePath) -> Within {
        while self.open.last().is_some_and(|(folder, _)| !path.is_below(folder)) {
            self.open.pop();
        }
        self.open.last().map(|(_, ending)| ending.clone())
    }

    /// Enters a folder.
    pub fn enter(&mut self, path: WirePath, ending: Arc<Ending>) {
        self.open.push((path, ending));
    }
}

/// The endings of a session.
pub(crate) struct Endings {
    sender: Sender<Due>,
    receiver: Receiver<Due>,
    /// Those of local folders that are due.
    local: Vec<Due>,
    /// Those of remote folders that are due.
    remote: Vec<Due>,
}

impl Default for Endings {
    fn default() -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver, local: Vec::new(), remote: Vec::new() }
    }
}

impl Endings {
    /// Plans the end of a folder.
    pub fn plan(&self, place: Place, mark: Mark, label: String, meta: Meta) -> Arc<Ending> {
        let due = Some(Due { item: mark.item, place, label, meta });
        Arc::new(Ending { due, endings: self.sender.clone(), _within: mark.within })
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
    pub fn take_local(&mut self, count_max: usize) -> Vec<Due> {
        self.gather();
        self.local.drain(..self.local.len().min(count_max)).collect()
    }

    /// The same of remote ones.
    pub fn take_remote(&mut self, count_max: usize) -> Vec<Due> {
        self.gather();
        self.remote.drain(..self.remote.len().min(count_max)).collect()
    }

    fn gather(&mut self) {
        for due in self.receiver.try_iter() {
            match due.place {
                Place::Local(..) => self.local.push(due),
                Place::Remote(_) => self.remote.push(due),
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
    fn due(endings: &mut Endings) -> Vec<String> {
        endings.gather();
        endings.remote.drain(..).map(|due| due.label).collect()
    }

    fn enter(endings: &Endings, nest: &mut Nest, name: &str) -> Within {
        let within = nest.around(&path(name));
        let place = Place::Remote(path(name));
        let mark = Mark { item: Item::new(0, &path(name)), within };
        let ending = endings.plan(place, mark, name.into(), Meta::default());
        nest.enter(path(name), ending.clone());
        Some(ending)
    }

    #[test]
    fn a_folder_ends_after_all_in_it_and_the_inner_ones_first() {
        let mut endings = Endings::default();
        let mut nest = Nest::default();
        drop(enter(&endings, &mut nest, ""));
        drop(enter(&endings, &mut nest, "a"));
        let file = nest.around(&path("a/file"));
        drop(enter(&endings, &mut nest, "a/b"));
        drop(enter(&endings, &mut nest, "a/b/c"));
        // A name that only begins alike is not in the folder.
        drop(enter(&endings, &mut nest, "a/bc"));
        assert_eq!(due(&mut endings), ["a/b/c", "a/b"]);
        drop(enter(&endings, &mut nest, "d"));
        assert_eq!(due(&mut endings), ["a/bc"], "a file of a is under way");
        drop(file);
        assert_eq!(due(&mut endings), ["a"]);
        assert!(endings.is_idle());
        drop(nest);
        assert_eq!(due(&mut endings), ["d", ""]);
    }
}
