//! The nodes that the kernel knows: their numbers, paths and attributes. A number is a
//! hash of the path, so it survives a restart. A file whose content changed gets a new
//! number: the kernel caches pages by number, and pages of two versions must never mix.
//! Pure; the caller holds the lock.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;
use verbatim_client::remote_fs::attributes::{Facts, Kind};
use verbatim_proto::{Code, Digest, Fault, WirePath};

/// The number of the root, fixed by FUSE.
pub const ROOT: u64 = 1;

/// The most versions of one name in one run; then numbers are reused.
const EPOCHS_MAX: u32 = 1 << 20;

/// One file, folder or symlink that the kernel knows.
#[derive(Debug)]
struct Node {
    parent: u64,
    name: Box<[u8]>,
    facts: Facts,
    /// How many lookups the kernel counts.
    lookups: u64,
    /// The version opened under this number. It never changes: the kernel may have cached its
    /// pages.
    version: Option<NonZeroU64>,
}

/// All nodes by number.
#[derive(Debug)]
pub struct Nodes {
    /// A B-tree: a hash table doubles as it grows, and a million nodes must not take twice the
    /// memory.
    nodes: BTreeMap<u64, Node>,
    /// By first number: how often the name got a new number.
    epochs: HashMap<u64, u32>,
}

impl Nodes {
    /// A table with only the root.
    pub fn new(facts: Facts) -> Self {
        let (parent, name, version) = (ROOT, Box::default(), None);
        let root = Node { parent, name, facts, lookups: 1, version };
        Self { nodes: BTreeMap::from([(ROOT, root)]), epochs: HashMap::new() }
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The attributes of a node.
    pub fn facts(&self, number: u64) -> Option<Facts> {
        self.nodes.get(&number).map(|node| node.facts)
    }

    /// The path of a node below the root.
    pub fn path(&self, number: u64) -> Result<WirePath, Fault> {
        let forgotten =
            || Fault::new(Code::NotFound, "the kernel asked for a number it has forgotten");
        let mut names = Vec::new();
        let mut at = number;
        while at != ROOT {
            let node = self.nodes.get(&at).ok_or_else(forgotten)?;
            names.push(&*node.name);
            at = node.parent;
        }
        names.reverse();
        WirePath::parse(&names.join(&b'/'))
    }

    /// The number that a lookup of this name would return now.
    pub fn number_of_name(&self, parent: u64, name: &[u8]) -> u64 {
        self.current_number(number_of(parent, name, 0), parent, name)
    }

    /// The current number of the name whose first number is `first`.
    fn current_number(&self, first: u64, parent: u64, name: &[u8]) -> u64 {
        match self.epochs.get(&first) {
            Some(epoch) => self.free_number(number_of(parent, name, *epoch), parent, name),
            None => self.free_number(first, parent, name),
        }
    }

    /// The st_ino of a name: the number of its first version, or one shared by all hard links of
    /// the file.
    pub fn ino_of_name(&self, parent: u64, name: &[u8], facts: &Facts) -> u64 {
        ino_of(facts, || number_of(parent, name, 0))
    }

    /// The st_ino of a node, which all its versions share.
    pub fn shown_ino(&self, number: u64) -> u64 {
        match self.nodes.get(&number) {
            Some(node) if number != ROOT => self.ino_of_name(node.parent, &node.name, &node.facts),
            _ => number,
        }
    }

    /// The number of a path, if the kernel knows it.
    pub fn find(&self, path: &WirePath) -> Option<u64> {
        let number = path.names().fold(ROOT, |parent, name| self.number_of_name(parent, name));
        self.nodes.contains_key(&number).then_some(number)
    }

    /// All paths below this one that the kernel knows; the empty path means all.
    pub fn below(&self, path: &WirePath) -> Vec<WirePath> {
        let paths = self.nodes.keys().filter_map(|number| self.path(*number).ok());
        let is_included = |it: &WirePath| !it.is_root() && (path.is_root() || it.is_below(path));
        paths.filter(is_included).collect()
    }

    /// The paths of all hard links of a file that the kernel knows. Scans all nodes; few files have
    /// several links.
    pub fn hard_links(&self, number: u64) -> Vec<WirePath> {
        let file_of = |node: &Node| node.facts.tied.file;
        let Some(file) = self.nodes.get(&number).and_then(file_of) else { return Vec::new() };
        let same = self.nodes.iter().filter(|(_, node)| file_of(node) == Some(file));
        same.filter_map(|(number, _)| self.path(*number).ok()).collect()
    }

    /// Updates the attributes of a folder.
    pub fn refresh(&mut self, number: u64, facts: Facts) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.facts = facts;
        }
    }

    /// The first number from here on that is free or belongs to this name.
    fn free_number(&self, mut number: u64, parent: u64, name: &[u8]) -> u64 {
        let others = |node: &Node| node.parent != parent || *node.name != *name;
        while self.nodes.get(&number).is_some_and(others) {
            number = number.wrapping_add(1).max(ROOT + 1);
        }
        number
    }

    /// Records the answer to a lookup: counts it and returns the node's number. A name whose opened
    /// version was replaced gets a new number.
    pub fn record_lookup(&mut self, parent: u64, name: &[u8], facts: Facts) -> u64 {
        self.record_lookup_with_ino(parent, name, facts).0
    }

    /// Records a lookup and returns the st_ino too. Each number of a name costs a hash, and a
    /// folder has many names.
    pub fn record_lookup_with_ino(&mut self, parent: u64, name: &[u8], facts: Facts) -> (u64, u64) {
        let first = number_of(parent, name, 0);
        let mut number = self.current_number(first, parent, name);
        if let Some(node) = self.nodes.get(&number)
            && (node.facts.kind != facts.kind
                || node.version.is_some() && !node.is_same_version(&facts))
        {
            self.invalidate(number);
            number = self.current_number(first, parent, name);
        }
        let node = self.nodes.entry(number).or_insert_with(|| Node {
            parent,
            name: name.into(),
            facts,
            lookups: 0,
            version: None,
        });
        node.facts = facts;
        node.lookups += 1;
        (number, ino_of(&facts, || first))
    }

    /// Counts a lookup that the kernel will give back by FORGET without having made it.
    pub fn add_lookup(&mut self, number: u64) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.lookups += 1;
        }
    }

    /// The opened version is no longer current: the name gets a new number.
    pub fn invalidate(&mut self, number: u64) {
        let Some(Node { parent, name, .. }) = self.nodes.get(&number) else { return };
        let (parent, name) = (*parent, name.clone());
        // An older version that is still open does not change the name.
        if self.number_of_name(parent, &name) == number {
            let epoch = self.epochs.entry(number_of(parent, &name, 0)).or_default();
            *epoch = (*epoch + 1) % EPOCHS_MAX;
        }
    }

    /// Binds a number to a version of this size and time. False if it is bound to another, or a
    /// later lookup returned other attributes.
    pub fn open(&mut self, number: u64, version: u64, (size, mtime_ns): (u64, i64)) -> bool {
        let Some(node) = self.nodes.get_mut(&number) else { return false };
        let Some(version) = NonZeroU64::new(version) else { return false };
        let recorded = (node.facts.size, node.facts.mtime_ns);
        recorded == (size, mtime_ns)
            && node.facts.may_be(version.get())
            && *node.version.get_or_insert(version) == version
    }

    /// Handles FORGET: removes the node when its lookups are all given back.
    pub fn forget(&mut self, number: u64, lookups: u64) {
        let Some(node) = self.nodes.get_mut(&number).filter(|_| number != ROOT) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0 {
            self.nodes.remove(&number);
        }
    }
}

impl Node {
    fn is_same_version(&self, facts: &Facts) -> bool {
        self.facts.kind != Kind::File
            || (self.facts.size, self.facts.mtime_ns) == (facts.size, facts.mtime_ns)
                && self.facts.tied.version.is_none_or(|version| facts.may_be(version.get()))
    }
}

/// The st_ino of a file: derived from its hard-link group, or else its first number.
fn ino_of(facts: &Facts, first: impl FnOnce() -> u64) -> u64 {
    match facts.tied.file {
        // Parent 0 is no folder, so no name has this number.
        Some(file) => number_of(0, &file.get().to_le_bytes(), 0),
        None => first(),
    }
}

/// The hash of a name in a folder, the same in every run.
fn number_of(parent: u64, name: &[u8], epoch: u32) -> u64 {
    let mut bytes = [&parent.to_le_bytes()[..], &epoch.to_le_bytes()[..]].concat();
    bytes.extend_from_slice(name);
    let Digest(value) = Digest::of(&bytes);
    let number = u64::from_le_bytes(*value.first_chunk().expect("a digest is longer"));
    // FUSE reserves zero, and one is the root.
    number.max(ROOT + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(kind: Kind, size: u64) -> Facts {
        Facts::unknown(kind, 0o644, size, 1)
    }

    /// Opens a file of this size as a version.
    fn open(nodes: &mut Nodes, number: u64, version: u64, size: u64) -> bool {
        nodes.open(number, version, (size, 1))
    }

    fn nodes() -> Nodes {
        Nodes::new(facts(Kind::Folder, 0))
    }

    #[test]
    fn a_name_has_the_same_number_in_every_run_and_resolves_to_its_path() {
        let (mut one, mut two) = (nodes(), nodes());
        two.record_lookup(ROOT, b"other", facts(Kind::File, 1));
        let path = |nodes: &mut Nodes| {
            let folder = nodes.record_lookup(ROOT, b"a", facts(Kind::Folder, 0));
            let file = nodes.record_lookup(folder, b"b", facts(Kind::File, 1));
            (folder, file, nodes.path(file).expect("known").to_string())
        };
        assert_eq!(path(&mut one), path(&mut two));
        assert_eq!(path(&mut one).2, "a/b");
    }

    #[test]
    fn an_opened_version_keeps_its_number_and_the_next_version_gets_another() {
        let mut nodes = nodes();
        let old = nodes.record_lookup(ROOT, b"a", facts(Kind::File, 1));
        assert_eq!(
            nodes.record_lookup(ROOT, b"a", facts(Kind::File, 2)),
            old,
            "nobody has seen it"
        );
        assert!(open(&mut nodes, old, 7, 2));
        assert!(!open(&mut nodes, old, 8, 2), "one number, one version");
        assert_eq!(nodes.record_lookup(ROOT, b"a", facts(Kind::File, 2)), old);
        let new = nodes.record_lookup(ROOT, b"a", facts(Kind::File, 3));
        assert_ne!(new, old);
        assert_eq!((nodes.shown_ino(new), nodes.shown_ino(old)), (old, old), "it is shown as one");
        let path = WirePath::parse(b"a").expect("plain");
        assert_eq!((nodes.find(&path), nodes.below(&WirePath::root()).len()), (Some(new), 2));
        assert_eq!(nodes.facts(old).expect("still open").size, 2, "what is open stays");
        // Another version of the same size and time: only an open reveals it.
        assert!(open(&mut nodes, new, 8, 3));
        nodes.invalidate(new);
        let newest = nodes.record_lookup(ROOT, b"a", facts(Kind::File, 3));
        assert!(newest != new && newest != old);
        nodes.invalidate(old);
        assert_eq!(
            nodes.record_lookup(ROOT, b"a", facts(Kind::File, 3)),
            newest,
            "that was another"
        );
    }

    #[test]
    fn an_open_of_a_superseded_version_binds_no_version_to_the_number() {
        let mut nodes = nodes();
        let file = nodes.record_lookup(ROOT, b"a", facts(Kind::File, 1));
        // During the open a lookup finds the file longer.
        assert_eq!(nodes.record_lookup(ROOT, b"a", facts(Kind::File, 2)), file);
        assert!(!open(&mut nodes, file, 7, 1), "the kernel has the new size");
        assert!(!nodes.open(file, 7, (2, 0)), "nor of another time");
        assert!(open(&mut nodes, file, 8, 2), "nothing was bound");
        // Same size and time, but the server reports another version.
        let mut linked = facts(Kind::File, 1);
        linked.tied.version = NonZeroU64::new(5);
        let linked = nodes.record_lookup(ROOT, b"b", linked);
        assert!(!open(&mut nodes, linked, 4, 1) && open(&mut nodes, linked, 5, 1));
    }

    #[test]
    fn hard_links_share_an_inode_number_and_find_each_other() {
        let mut nodes = nodes();
        let mut file = facts(Kind::File, 1);
        (file.names, file.tied.file) = (2, NonZeroU64::new(77));
        let folder = nodes.record_lookup(ROOT, b"d", facts(Kind::Folder, 0));
        let one = nodes.record_lookup(ROOT, b"a", file);
        let two = nodes.record_lookup(folder, b"b", file);
        let other = nodes.record_lookup(ROOT, b"c", facts(Kind::File, 1));
        assert_ne!(one, two, "each is a number of its own, with a path of its own");
        assert_eq!(
            (nodes.shown_ino(one), nodes.ino_of_name(folder, b"b", &file)),
            (nodes.shown_ino(two), nodes.shown_ino(one))
        );
        assert_ne!(nodes.shown_ino(one), nodes.shown_ino(other));
        let links = nodes.hard_links(one).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(links.len() == 2 && links.contains(&"d/b".to_owned()), "{links:?}");
        assert_eq!(nodes.hard_links(other), []);
        // Same size and time, another version: a process that has the old one open keeps its
        // number.
        file.tied.version = NonZeroU64::new(5);
        nodes.record_lookup(ROOT, b"a", file);
        assert!(open(&mut nodes, one, 5, 1));
        file.tied.version = NonZeroU64::new(6);
        let new = nodes.record_lookup(ROOT, b"a", file);
        assert!(new != one && nodes.shown_ino(new) == nodes.shown_ino(one));
    }

    #[test]
    fn a_forgotten_node_is_removed_and_the_root_stays() {
        let mut nodes = nodes();
        let file = nodes.record_lookup(ROOT, b"a", facts(Kind::File, 1));
        nodes.record_lookup(ROOT, b"a", facts(Kind::File, 1));
        nodes.forget(file, 1);
        assert!(nodes.facts(file).is_some());
        nodes.forget(file, 1);
        nodes.forget(ROOT, 1);
        assert!(nodes.path(file).is_err());
        assert_eq!(nodes.len(), 1);
    }
}
