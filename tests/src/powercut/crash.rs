//! What a disk may have after a power cut: a seeded sample of all that the rules
//! allow. What was flushed is there. Of what was not, any write may be there or
//! not, in any order; of names it depends on the manner of the file system.
//! Within one write all or nothing is kept, and a rename is never half done.

use super::disk::{Change, Disk, Kind, Names, Node, Place, ROOT};
use crate::dice::Dice;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use verbatim_proto::Digest;

/// How a file system keeps names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// In their order, as ext4 and xfs do: flushing anything makes all names durable that were
    /// given before, and of the others those that were given first are there.
    Ordered,
    /// Only as POSIX says: flushing a folder makes its names durable, and of the others any are
    /// there.
    Scattered,
}

/// The power cuts of one recorded command.
pub struct Cuts<'a> {
    disk: &'a Disk,
    changes_of: HashMap<Node, Vec<usize>>,
    digests: RefCell<HashMap<(Node, Vec<bool>), Digest>>,
}

impl<'a> Cuts<'a> {
    /// Of what was recorded.
    pub fn new(disk: &'a Disk) -> Self {
        let mut changes_of: HashMap<Node, Vec<usize>> = HashMap::new();
        for (index, change) in disk.changes.iter().enumerate() {
            if let Some(node) = change.node() {
                changes_of.entry(node).or_default().push(index);
            }
        }
        Self { disk, changes_of, digests: RefCell::default() }
    }

    /// A moment: how many changes are over. Often right behind a change of names, where most can
    /// go wrong, and often at the end, when the command has said that it is done.
    pub fn moment(&self, dice: &mut Dice) -> usize {
        let all = self.disk.changes.len();
        if dice.once_in(4) {
            return all;
        }
        let start = dice.below(all + 1);
        let later = self.disk.changes[start..].iter().position(|c| matches!(c, Change::Names(_)));
        match later {
            Some(later) if dice.once_in(2) => (start + later + 1 + dice.below(3)).min(all),
            _ => start,
        }
    }

    /// What is there if the command is killed at a moment: all that was done until then.
    pub fn kill(&'a self, at: usize) -> State<'a> {
        let mut names = self.disk.before.clone();
        for change in &self.disk.changes[..at] {
            if let Change::Names(list) = change {
                rename(&mut names, list);
            }
        }
        State { cuts: self, kept: vec![true; at], names }
    }

    /// What is there if the power is cut at a moment.
    pub fn cut(&'a self, at: usize, manner: Manner, dice: &mut Dice) -> State<'a> {
        let changes = &self.disk.changes[..at];
        let mut durable: HashMap<Node, usize> = HashMap::new();
        for change in changes {
            if let Change::Flush { node, covers } = change {
                let known = durable.entry(*node).or_default();
                *known = (*known).max(*covers);
            }
        }
        let is_durable = |node: &Node, index| durable.get(node).is_some_and(|end| index < *end);
        let journal = durable.values().copied().max().unwrap_or(0);
        // All that was given before, and some of the rest.
        let ordered_end = journal + dice.below(at - journal + 1);
        // Nothing more than must be, half of it, or nearly all.
        let luck = [0, 8, 15][dice.below(3)];
        let mut lucky = || dice.below(16) < luck;
        let mut names = self.disk.before.clone();
        let mut kept = vec![false; at];
        for (index, change) in changes.iter().enumerate() {
            kept[index] = match (change, change.node()) {
                (_, Some(node)) => is_durable(&node, index) || lucky(),
                (Change::Names(list), _) => match manner {
                    Manner::Ordered => index < ordered_end,
                    Manner::Scattered => {
                        list.iter().any(|((folder, _), _)| is_durable(folder, index)) || lucky()
                    }
                },
                _ => true,
            };
            if let Change::Names(list) = change
                && kept[index]
            {
                rename(&mut names, list);
            }
        }
        State { cuts: self, kept, names }
    }
}

/// Has names lead elsewhere.
fn rename(names: &mut Names, list: &[(Place, Option<Node>)]) {
    for (place, node) in list {
        match node {
            Some(node) => drop(names.insert(place.clone(), *node)),
            None => drop(names.remove(place)),
        }
    }
}

/// What is on a disk after a power cut.
pub struct State<'a> {
    cuts: &'a Cuts<'a>,
    kept: Vec<bool>,
    names: Names,
}

impl State<'_> {
    /// All that can be reached, by path.
    pub fn tree(&self) -> BTreeMap<PathBuf, Node> {
        let mut found = BTreeMap::new();
        let mut folders = vec![(PathBuf::new(), ROOT)];
        while let Some((path, folder)) = folders.pop() {
            let inside = self.names.range((folder, Vec::new())..(folder + 1, Vec::new()));
            for ((_, name), node) in inside {
                let path = path.join(OsStr::from_bytes(name));
                if self.kind(*node) == &Kind::Folder {
                    folders.push((path.clone(), *node));
                }
                found.insert(path, *node);
            }
        }
        found
    }

    /// What a node is.
    pub fn kind(&self, node: Node) -> &Kind {
        &self.cuts.disk.kinds[node]
    }

    /// What is in a file.
    pub fn content(&self, node: Node) -> Vec<u8> {
        self.cuts.disk.content(node, |index| self.kept.get(index).is_some_and(|&kept| kept))
    }

    /// The digest of a file; hashed once for each version of it.
    pub fn digest(&self, node: Node) -> Digest {
        let of = self.cuts.changes_of.get(&node).map_or(&[][..], |of| of);
        let kept = of.iter().map(|&index| self.kept.get(index) == Some(&true)).collect();
        let mut digests = self.cuts.digests.borrow_mut();
        *digests.entry((node, kept)).or_insert_with(|| Digest::of(&self.content(node)))
    }

    /// Makes it a real folder.
    pub fn write_to(&self, root: &Path) {
        for (path, node) in self.tree() {
            let path = root.join(path);
            match self.kind(node) {
                Kind::Folder => fs::create_dir(path).expect("makes a folder"),
                Kind::File(_) => fs::write(path, self.content(node)).expect("writes"),
                Kind::Link(to) => {
                    std::os::unix::fs::symlink(OsStr::from_bytes(to), path).expect("links");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::powercut::trace;

    const WRITES: &str = "\"\\x6e\\x65\\x77\", 3, 0) = 3\n";
    const CREATE: &str = "1 openat(3, \"\\x74\", O_RDWR|O_CREAT|O_EXCL, 0644) = 4\n";
    const RENAME: &str = "1 renameat(3, \"\\x74\", 3, \"\\x66\") = 0\n";
    const FLUSH: &str = "1 fsync(4) = 0\n";
    const FLUSH_FOLDER: &str = "1 fsync(3) = 0\n";

    /// What `f`, which was "old", may be after power cuts at any time, and at the end.
    fn outcomes(calls: &[&str], manner: Manner) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("f"), "old").expect("writes");
        let path: String = dir.path().as_os_str().as_bytes().iter().map(hex).collect();
        let log = format!("1 openat(AT_FDCWD, \"{path}\", O_RDONLY) = 3\n{}", calls.concat());
        let mut disk = Disk::read(dir.path());
        disk.replay(&trace::parse(log.as_bytes()));
        let cuts = Cuts::new(&disk);
        let (mut any, mut last) = (Vec::new(), Vec::new());
        for seed in 0..400 {
            let mut dice = Dice::new("outcomes", seed);
            let at = cuts.moment(&mut dice);
            let state = cuts.cut(at, manner, &mut dice);
            let content = state.content(state.tree()[Path::new("f")]);
            if at == disk.changes.len() {
                last.push(content.clone());
            }
            any.push(content);
        }
        for list in [&mut any, &mut last] {
            list.sort();
            list.dedup();
        }
        (any, last)
    }

    fn hex(byte: &u8) -> String {
        format!("\\x{byte:02x}")
    }

    fn texts(list: &[&str]) -> Vec<Vec<u8>> {
        list.iter().map(|text| text.as_bytes().to_vec()).collect()
    }

    #[test]
    fn a_file_that_is_flushed_and_renamed_is_old_or_new_and_new_when_its_folder_is_flushed() {
        let write = format!("1 pwrite64(4, {WRITES}");
        for manner in [Manner::Ordered, Manner::Scattered] {
            let good = [CREATE, &write, FLUSH, RENAME, FLUSH_FOLDER];
            assert_eq!(outcomes(&good, manner), (texts(&["new", "old"]), texts(&["new"])));
            let (any, last) = outcomes(&[CREATE, &write, FLUSH, RENAME], manner);
            assert_eq!((any, last), (texts(&["new", "old"]), texts(&["new", "old"])));
        }
    }

    #[test]
    fn what_was_there_when_all_of_a_disk_is_flushed_stays() {
        let (write, all) = (format!("1 pwrite64(4, {WRITES}"), "1 syncfs(3) = 0\n");
        for manner in [Manner::Ordered, Manner::Scattered] {
            let good = [CREATE, &write, RENAME, all];
            assert_eq!(outcomes(&good, manner).1, texts(&["new"]), "{manner:?}");
            let early = [CREATE, all, &write, RENAME, FLUSH_FOLDER];
            assert_eq!(outcomes(&early, manner).1, texts(&["", "new"]), "{manner:?}");
        }
    }

    #[test]
    fn a_rename_before_the_flush_is_found() {
        let write = format!("1 pwrite64(4, {WRITES}");
        for manner in [Manner::Ordered, Manner::Scattered] {
            let bad = [CREATE, &write, RENAME, FLUSH_FOLDER];
            assert_eq!(outcomes(&bad, manner).1, texts(&["", "new"]), "{manner:?}");
            let late = [CREATE, &write, RENAME, FLUSH, FLUSH_FOLDER];
            assert_eq!(outcomes(&late, manner).0, texts(&["", "new", "old"]), "{manner:?}");
        }
    }
}
