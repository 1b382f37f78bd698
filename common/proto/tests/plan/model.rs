//! A file system in memory: what steps of a plan do to it is what they would do
//! to a real one. A change in a folder gives the folder the time of now, which no
//! generated tree has, so a folder that is finished too early shows.

use std::collections::BTreeMap;
use verbatim_proto::message::EntryKind;
use verbatim_proto::plan::{Step, What};
use verbatim_proto::tree::{Found, Node, Twin};
use verbatim_proto::{Digest, Meta, WirePath};

/// The time of everything that is changed and not finished.
pub const NOW: i64 = 1_000_000;

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thing {
    Folder(Meta),
    /// An inode, in `links`.
    Link(u64),
    /// An inode.
    File(u64),
    Special,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    pub content: u8,
    pub size: u64,
    pub meta: Meta,
}

/// A tree.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    pub things: BTreeMap<WirePath, Thing>,
    pub inodes: BTreeMap<u64, Inode>,
    /// Where symbolic links lead, and what else they are.
    pub links: BTreeMap<u64, (Vec<u8>, Meta)>,
    pub next: u64,
}

impl Tree {
    /// All of it, as a walk tells it.
    pub fn found(&self, device: u64) -> Vec<Found> {
        let mut nodes: Vec<Node> =
            self.things.iter().map(|(path, thing)| self.node(path, thing, device)).collect();
        nodes.sort_by(|a, b| a.path.tree_cmp(&b.path));
        nodes.into_iter().map(|node| Ok(Box::new(node))).collect()
    }

    fn node(&self, path: &WirePath, thing: &Thing, device: u64) -> Node {
        let (path, twin, digest) = (path.clone(), None, None);
        let plain = |kind, meta: &Meta| {
            let (path, meta) = (path.clone(), meta.clone());
            Node { path, kind, size: 0, meta, twin, digest }
        };
        let names = self.things.values().filter(|other| *other == thing).count();
        let twin_of = |inode: u64| (names > 1).then_some(Twin { device, inode });
        match thing {
            Thing::Folder(meta) => plain(EntryKind::Folder, meta),
            Thing::Special => plain(EntryKind::Special, &Meta::default()),
            Thing::Link(inode) => {
                let (target, meta) = &self.links[inode];
                let kind = EntryKind::Symlink { target: target.clone() };
                Node { twin: twin_of(*inode), ..plain(kind, meta) }
            }
            Thing::File(inode) => {
                let Inode { content, size, meta } = &self.inodes[inode];
                let twin = twin_of(*inode);
                let digest = Some(Digest::of(&[*content]));
                Node { size: *size, twin, digest, ..plain(EntryKind::File, meta) }
            }
        }
    }

    /// Does everything that a plan says, in the order that is asked of whoever does it.
    pub fn apply(&mut self, source: &Self, steps: &[Step]) {
        self.apply_but(source, steps, &[]);
    }

    /// The same, where files of these paths cannot be copied: they get no other names, and
    /// nothing is deleted, nor anything done that waits for a folder to be.
    pub fn apply_but(&mut self, source: &Self, steps: &[Step], failing: &[WirePath]) {
        let is_late = |what: &What| match what {
            What::Fetch { late, .. } | What::Symlink { late, .. } => *late,
            _ => false,
        };
        let fails = |what: &What| match what {
            What::Fetch { node, .. } => failing.contains(&node.path),
            What::Link { to, .. } => failing.contains(to),
            _ => false,
        };
        let any = steps.iter().any(|step| fails(&step.what));
        let waits = |what: &What| match what {
            What::Delete { .. } => true,
            What::Link { to, late, .. } => {
                let is_to = |step: &Step| is_late(&step.what) && step.what.path() == to;
                *late || steps.iter().any(is_to)
            }
            what => is_late(what),
        };
        let whats = || {
            let whats = steps.iter().map(|step| &step.what);
            whats.filter(move |what| !(fails(what) || any && waits(what)))
        };
        whats().filter(|what| !is_late(what)).for_each(|what| self.first(source, what));
        for what in whats().collect::<Vec<_>>().into_iter().rev() {
            if let What::Delete { path, .. } = what {
                assert!(!self.things.keys().any(|other| other.is_below(path)), "{path} not empty");
                assert!(self.things.remove(path).is_some(), "{path} is not there");
                self.touch(path);
            }
        }
        whats().filter(|what| is_late(what)).for_each(|what| self.first(source, what));
        for what in whats() {
            if let What::Link { path, to, .. } = what {
                let thing = self.things[to].clone();
                self.put(path, thing);
            }
        }
        for what in whats() {
            if let What::Finish { node } = what {
                let thing = self.things.get_mut(&node.path).expect("a folder that is there");
                assert!(matches!(thing, Thing::Folder(_)), "{}", node.path);
                *thing = Thing::Folder(node.meta.clone());
            }
        }
    }

    fn first(&mut self, source: &Self, what: &What) {
        match what {
            What::OpenUp { path } => match self.things.get_mut(path) {
                Some(Thing::Folder(meta)) => meta.mode |= 0o700,
                other => panic!("{path} is {other:?}"),
            },
            What::MakeFolder { node, replace } => {
                assert_eq!(self.things.contains_key(&node.path), *replace, "{}", node.path);
                let meta = Meta { mode: 0o700, mtime_ns: NOW, ..Meta::default() };
                self.put(&node.path, Thing::Folder(meta));
            }
            What::Fetch { node, .. } => {
                let Thing::File(inode) = &source.things[&node.path] else { panic!("no file") };
                self.next += 1;
                self.inodes.insert(self.next, source.inodes[inode].clone());
                self.put(&node.path, Thing::File(self.next));
            }
            What::Symlink { node, .. } => {
                let EntryKind::Symlink { target } = &node.kind else { panic!("no link") };
                self.next += 1;
                self.links.insert(self.next, (target.clone(), node.meta.clone()));
                self.put(&node.path, Thing::Link(self.next));
            }
            What::Describe { node } => {
                let Some(Thing::File(inode)) = self.things.get(&node.path) else {
                    panic!("{} is no file", node.path)
                };
                self.inodes.get_mut(inode).expect("known").meta = node.meta.clone();
            }
            _ => {}
        }
    }

    /// Gives a name to something; what had it is gone, and must not be a folder.
    fn put(&mut self, path: &WirePath, thing: Thing) {
        let folder = self.things.get(path).is_some_and(|old| matches!(old, Thing::Folder(_)));
        assert!(!folder, "a folder is at {path}");
        let parent = self.things.get(&path.parent());
        let open = |folder: Option<&Thing>| match folder {
            Some(Thing::Folder(meta)) => meta.mode & 0o700 == 0o700,
            _ => false,
        };
        assert!(path.is_root() || open(parent), "no open folder for {path}");
        self.things.insert(path.clone(), thing);
        self.touch(path);
    }

    fn touch(&mut self, path: &WirePath) {
        if let Some(Thing::Folder(meta)) = self.things.get_mut(&path.parent())
            && !path.is_root()
        {
            meta.mtime_ns = NOW;
        }
    }

    /// What is at a path, inodes told by their first name: equal where trees are.
    pub fn shown(&self, path: &WirePath) -> Option<(String, Option<WirePath>)> {
        let thing = self.things.get(path)?;
        let first = || {
            let first = self.things.iter().find(|(_, other)| *other == thing);
            first.map(|(path, _)| path.clone())
        };
        Some(match thing {
            Thing::File(inode) => (format!("{:?}", self.inodes[inode]), first()),
            Thing::Link(inode) => (format!("{:?}", self.links[inode]), first()),
            other => (format!("{other:?}"), None),
        })
    }
}
