//! The folders that are watched, by the number the kernel gave each and by name.
//! A folder knows its parent, not its path, so that it takes its own name and no
//! more. Pure; asks nobody whether it is right. Used by `watcher`.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use verbatim_proto::WirePath;

/// Where a folder is: the one it is in, and its name.
pub(super) type Key = (i32, Box<[u8]>);

/// The watched folders.
#[derive(Debug)]
pub(super) struct Tree {
    root: i32,
    folders: HashMap<i32, Place>,
    names: BTreeMap<Key, i32>,
}

#[derive(Debug)]
struct Place {
    parent: i32,
    name: Box<[u8]>,
}

/// Deeper than any path can be.
const DEPTH_MAX: usize = verbatim_proto::units::PATH_BYTES_MAX / 2;

/// The parent of the root: no watch has this number.
const NOWHERE: i32 = -1;

impl Tree {
    /// A tree with its root.
    pub fn new(root: i32) -> Self {
        let place = Place { parent: NOWHERE, name: Box::default() };
        Self { root, folders: HashMap::from([(root, place)]), names: BTreeMap::new() }
    }

    /// How many folders there are.
    pub fn len(&self) -> usize {
        self.folders.len()
    }

    /// The root.
    pub fn root(&self) -> i32 {
        self.root
    }

    /// Whether a folder is the root.
    pub fn is_root(&self, folder: i32) -> bool {
        folder == self.root
    }

    /// Whether a folder is watched.
    pub fn has(&self, folder: i32) -> bool {
        self.folders.contains_key(&folder)
    }

    /// Whether a folder has this name in another, or is the root, which has none.
    pub fn is_at(&self, parent: i32, name: &[u8], folder: i32) -> bool {
        self.is_root(folder) || self.child(parent, name) == Some(folder)
    }

    /// Where a folder is; none for one that is not known, or deeper than any path.
    pub fn path(&self, folder: i32) -> Option<WirePath> {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = self.folders.get(&folder)?;
        while at.parent != NOWHERE {
            // Folders that were moved into each other while this was not told.
            if names.len() > DEPTH_MAX {
                return None;
            }
            names.push(&at.name);
            at = self.folders.get(&at.parent)?;
        }
        names.reverse();
        WirePath::parse(&names.join(&b'/')).ok()
    }

    /// The folder of this name in another.
    pub fn child(&self, parent: i32, name: &[u8]) -> Option<i32> {
        self.names.get(&(parent, name.into())).copied()
    }

    /// The folder at a path.
    pub fn find(&self, path: &WirePath) -> Option<i32> {
        path.names().try_fold(self.root, |folder, name| self.child(folder, name))
    }

    /// Puts a folder in its place. Returns what is not watched any more: another folder that had
    /// the place, and all below it. A folder that was elsewhere is moved.
    pub fn insert(&mut self, parent: i32, name: &[u8], folder: i32) -> Vec<i32> {
        if self.is_at(parent, name, folder) {
            return Vec::new();
        }
        let gone = self.child(parent, name).map_or_else(Vec::new, |other| self.remove(other));
        if let Some(old) = self.folders.remove(&folder) {
            self.names.remove(&(old.parent, old.name));
        }
        self.names.insert((parent, name.into()), folder);
        self.folders.insert(folder, Place { parent, name: name.into() });
        gone
    }

    /// The folder behind this place, in an order that stays; none behind the last.
    pub fn behind(&self, place: Option<&Key>) -> Option<(Key, i32)> {
        let from = place.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.names.range((from, Bound::Unbounded)).next();
        next.map(|(key, folder)| (key.clone(), *folder))
    }

    /// The folders that are in one.
    fn children(&self, folder: i32) -> impl Iterator<Item = i32> {
        let below = self.names.range((folder, Box::default())..);
        below.take_while(move |((parent, _), _)| *parent == folder).map(|(_, child)| *child)
    }

    /// A folder and all below it.
    pub fn with_all_below(&self, folder: i32) -> Vec<i32> {
        let mut all = vec![folder];
        let mut next = 0;
        while let Some(&folder) = all.get(next) {
            next += 1;
            all.extend(self.children(folder));
        }
        all
    }

    /// Forgets a folder and all below it; returns them.
    pub fn remove(&mut self, folder: i32) -> Vec<i32> {
        let mut gone = Vec::new();
        let mut next = vec![folder];
        while let Some(folder) = next.pop() {
            let Some(place) = self.folders.remove(&folder) else { continue };
            self.names.remove(&(place.parent, place.name));
            next.extend(self.children(folder));
            gone.push(folder);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(tree: &Tree, folder: i32) -> Option<String> {
        tree.path(folder).map(|path| path.to_string())
    }

    fn sample() -> Tree {
        let mut tree = Tree::new(1);
        for (parent, name, folder) in [(1, "a", 2), (2, "b", 3), (3, "c", 4), (1, "z", 5)] {
            assert!(tree.insert(parent, name.as_bytes(), folder).is_empty());
        }
        tree
    }

    #[test]
    fn a_folder_has_the_path_of_those_it_is_in() {
        let tree = sample();
        assert_eq!(shown(&tree, 1).as_deref(), Some(""));
        assert_eq!(shown(&tree, 4).as_deref(), Some("a/b/c"));
        assert_eq!(shown(&tree, 9), None);
        assert!(tree.is_root(1) && !tree.is_root(2) && !tree.is_root(9));
    }

    #[test]
    fn what_is_removed_goes_with_all_below_it() {
        let mut tree = sample();
        let mut gone = tree.remove(2);
        gone.sort_unstable();
        assert_eq!(gone, [2, 3, 4]);
        assert_eq!((tree.len(), tree.names.len()), (2, 1));
        assert_eq!((shown(&tree, 4), tree.child(1, b"a")), (None, None));
        assert_eq!(tree.child(1, b"z"), Some(5));
        assert!(tree.remove(2).is_empty());
    }

    #[test]
    fn a_folder_that_moves_takes_its_folders_along() {
        let mut tree = sample();
        assert!(tree.insert(5, b"b2", 3).is_empty());
        assert_eq!(shown(&tree, 4).as_deref(), Some("z/b2/c"));
        assert_eq!(tree.child(2, b"b"), None);
        assert_eq!((tree.len(), tree.names.len()), (5, 4));
    }

    #[test]
    fn a_folder_in_place_of_another_ends_that_one() {
        let mut tree = sample();
        let mut gone = tree.insert(1, b"a", 7);
        gone.sort_unstable();
        assert_eq!(gone, [2, 3, 4]);
        assert_eq!(tree.child(1, b"a"), Some(7));
        assert!(tree.insert(1, b"a", 7).is_empty(), "again");
        assert!(tree.insert(7, b"root", 1).is_empty(), "a root that is mounted below itself");
        assert_eq!(shown(&tree, 1).as_deref(), Some(""));
    }
}
