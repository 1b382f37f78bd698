//! What the kernel knows: numbers of files and folders, and what each is. A number is
//! made of the names it is reached by, so that it is the same after a restart. A file
//! whose content changed is another number: the kernel keeps pages by number, and pages
//! of two versions must never meet. Pure; the caller holds the lock.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;
use verbatim_client::remote_fs::attributes::{Facts, Kind};
use verbatim_proto::{Code, Digest, Fault, WirePath};

/// The number of the root, by the rules of FUSE.
pub const ROOT: u64 = 1;

/// The versions of one name in one run; then numbers are used again.
const EPOCHS_MAX: u32 = 1 << 20;

/// One thing that the kernel knows, or may ask for.
#[derive(Debug)]
struct Node {
    parent: u64,
    name: Box<[u8]>,
    facts: Facts,
    /// How often the kernel was told of it.
    lookups: u64,
    /// The version that was opened under this number, for good: the kernel may have pages of it.
    version: Option<NonZeroU64>,
}

/// All of them.
#[derive(Debug)]
pub struct Nodes {
    /// In a tree: a table grows by doubling, and a million of these must not take twice the room.
    nodes: BTreeMap<u64, Node>,
    /// Names of which the first number is no longer the current one.
    epochs: HashMap<u64, u32>,
}

impl Nodes {
    /// Only the root.
    pub fn new(facts: Facts) -> Self {
        let (parent, name, version) = (ROOT, Box::default(), None);
        let root = Node { parent, name, facts, lookups: 1, version };
        Self { nodes: BTreeMap::from([(ROOT, root)]), epochs: HashMap::new() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// What is known of a number.
    pub fn facts(&self, number: u64) -> Option<Facts> {
        self.nodes.get(&number).map(|node| node.facts)
    }

    /// Where a number is, below the root.
    pub fn path(&self, number: u64) -> Result<WirePath, Fault> {
        let gone = || Fault::new(Code::NotFound, "the kernel asked for a number it has forgotten");
        let mut names = Vec::new();
        let mut at = number;
        while at != ROOT {
            let node = self.nodes.get(&at).ok_or_else(gone)?;
            names.push(&*node.name);
            at = node.parent;
        }
        names.reverse();
        WirePath::parse(&names.join(&b'/'))
    }

    /// The number of a name in a folder, as it would be told now.
    pub fn number_of_name(&self, parent: u64, name: &[u8]) -> u64 {
        self.current_number(number_of(parent, name, 0), parent, name)
    }

    /// The same, of a name whose first number this is.
    fn current_number(&self, first: u64, parent: u64, name: &[u8]) -> u64 {
        match self.epochs.get(&first) {
            Some(epoch) => self.free_number(number_of(parent, name, *epoch), parent, name),
            None => self.free_number(first, parent, name),
        }
    }

    /// What a name in a folder is shown as: the number of its first version, or of the file that
    /// several names lead to.
    pub fn ino_of_name(&self, parent: u64, name: &[u8], facts: &Facts) -> u64 {
        ino_of(facts, || number_of(parent, name, 0))
    }

    /// What a number is shown as, whatever version it is.
    pub fn shown_ino(&self, number: u64) -> u64 {
        match self.nodes.get(&number) {
            Some(node) if number != ROOT => self.ino_of_name(node.parent, &node.name, &node.facts),
            _ => number,
        }
    }

    /// The number of a path that the kernel knows.
    pub fn find(&self, path: &WirePath) -> Option<u64> {
        let number = path.names().fold(ROOT, |parent, name| self.number_of_name(parent, name));
        self.nodes.contains_key(&number).then_some(number)
    }

    /// Everything that the kernel knows below a path, which is all if that is empty.
    pub fn below(&self, path: &WirePath) -> Vec<WirePath> {
        let paths = self.nodes.keys().filter_map(|number| self.path(*number).ok());
        let wanted = |it: &WirePath| !it.is_root() && (path.is_root() || it.is_below(path));
        paths.filter(wanted).collect()
    }

    /// The other names of a file that has several, as far as the kernel knows them. Looks at all
    /// there is, for the few that have.
    pub fn hard_links(&self, number: u64) -> Vec<WirePath> {
        let file_of = |node: &Node| node.facts.tied.file;
        let Some(file) = self.nodes.get(&number).and_then(file_of) else { return Vec::new() };
        let same = self.nodes.iter().filter(|(_, node)| file_of(node) == Some(file));
        same.filter_map(|(number, _)| self.path(*number).ok()).collect()
    }

    /// A folder is this now.
    pub fn refresh(&mut self, number: u64, facts: Facts) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.facts = facts;
        }
    }

    /// The number from here on that is this name's, or nobody's.
    fn free_number(&self, mut number: u64, parent: u64, name: &[u8]) -> u64 {
        let others = |node: &Node| node.parent != parent || *node.name != *name;
        while self.nodes.get(&number).is_some_and(others) {
            number = number.wrapping_add(1).max(ROOT + 1);
        }
        number
    }

    /// The server says what a name is: returns its number, and counts that the kernel is told.
    /// One that was opened and is something else now gets a new number.
    pub fn record_lookup(&mut self, parent: u64, name: &[u8], facts: Facts) -> u64 {
        self.record_lookup_with_ino(parent, name, facts).0
    }

    /// The same, and what it is shown as: each number of a name costs a hash, and a folder has
    /// many names.
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

    /// The kernel will give back a number once more than it was told of it.
    pub fn add_lookup(&mut self, number: u64) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.lookups += 1;
        }
    }

    /// What this number was opened as is no longer what is there: its name gets another one.
    pub fn invalidate(&mut self, number: u64) {
        let Some(Node { parent, name, .. }) = self.nodes.get(&number) else { return };
        let (parent, name) = (*parent, name.clone());
        // An older version that is still open says nothing of the name.
        if self.number_of_name(parent, &name) == number {
            let epoch = self.epochs.entry(number_of(parent, &name, 0)).or_default();
            *epoch = (*epoch + 1) % EPOCHS_MAX;
        }
    }

    /// Opens a number as this version, of this size and time; false when it was opened as another,
    /// or the kernel has been told of another since it asked.
    pub fn open(&mut self, number: u64, version: u64, (size, mtime_ns): (u64, i64)) -> bool {
        let Some(node) = self.nodes.get_mut(&number) else { return false };
        let Some(version) = NonZeroU64::new(version) else { return false };
        let told = (node.facts.size, node.facts.mtime_ns);
        told == (size, mtime_ns)
            && node.facts.may_be(version.get())
            && *node.version.get_or_insert(version) == version
    }

    /// The kernel forgets what it was told so often.
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

/// What something is shown as whose name has this number first.
fn ino_of(facts: &Facts, first: impl FnOnce() -> u64) -> u64 {
    match facts.tied.file {
        // In no folder: no name has this number.
        Some(file) => number_of(0, &file.get().to_le_bytes(), 0),
        None => first(),
    }
}

/// A number that a name in a folder has in every run.
fn number_of(parent: u64, name: &[u8], epoch: u32) -> u64 {
    let mut bytes = [&parent.to_le_bytes()[..], &epoch.to_le_bytes()[..]].concat();
    bytes.extend_from_slice(name);
    let Digest(value) = Digest::of(&bytes);
    let number = u64::from_le_bytes(*value.first_chunk().expect("a digest is longer"));
    // Zero is none, and one is the root.
    number.max(ROOT + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(kind: Kind, size: u64) -> Facts {
        Facts::unknown(kind, 0o644, size, 1)
    }

    /// Opens what is of this size as a version.
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
        // Of the same size and time, and yet another: only opening it shows that.
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
        // While it is opened, somebody looks at it, and it is longer.
        assert_eq!(nodes.record_lookup(ROOT, b"a", facts(Kind::File, 2)), file);
        assert!(!open(&mut nodes, file, 7, 1), "the kernel has the new size");
        assert!(!nodes.open(file, 7, (2, 0)), "nor of another time");
        assert!(open(&mut nodes, file, 8, 2), "nothing was bound");
        // Of the same size and time, and yet said to be another.
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
        // Of the same size and time, but of another version: whoever opened it keeps its number.
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
