//! What a command did to a folder, as a list of changes in their order: bytes,
//! lengths, names, flushes. Built from the calls of a `trace`; a call that could
//! change something in a way that is not known here fails the test, so that
//! nothing is overlooked. Sampled by `crash`.

use super::trace::{Argument, Call};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A file, folder or link, by its number.
pub type Node = usize;

/// The folder that was watched.
pub const ROOT: Node = 0;

/// What a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file, and what was in it before.
    File(Vec<u8>),
    /// A folder.
    Folder,
    /// A symbolic link, and where it leads.
    Link(Vec<u8>),
}

/// A name in a folder.
pub type Place = (Node, Vec<u8>);

/// Which names lead where.
pub type Names = BTreeMap<Place, Node>;

/// Something that was done.
#[derive(Debug)]
#[allow(missing_docs, reason = "its fields are plain words")]
pub enum Change {
    Bytes {
        node: Node,
        offset: u64,
        bytes: Vec<u8>,
    },
    Length {
        node: Node,
        length: u64,
    },
    Zeros {
        node: Node,
        offset: u64,
        length: u64,
    },
    /// Names that lead elsewhere from now on, all of them or none.
    Names(Vec<(Place, Option<Node>)>),
    /// All changes of a node are durable that are among the first so many.
    Flush {
        node: Node,
        covers: usize,
    },
}

/// A folder, what was in it, and what was done to it.
pub struct Disk {
    path: PathBuf,
    /// What the nodes are.
    pub kinds: Vec<Kind>,
    /// As they were.
    pub before: Names,
    /// In the order in which they were over.
    pub changes: Vec<Change>,
    now: Names,
    open: HashMap<i64, Open>,
}

/// What a descriptor means.
#[derive(Clone, Copy)]
struct Open {
    node: Node,
    appends: bool,
    at: u64,
}

impl Disk {
    /// Reads what is in a folder. All of that is durable.
    pub fn read(path: &Path) -> Self {
        let mut disk = Self {
            path: path.to_owned(),
            kinds: vec![Kind::Folder],
            before: Names::new(),
            changes: Vec::new(),
            now: Names::new(),
            open: HashMap::new(),
        };
        disk.read_folder(path, ROOT);
        disk.now = disk.before.clone();
        disk
    }

    fn read_folder(&mut self, path: &Path, folder: Node) {
        for entry in fs::read_dir(path).expect("lists") {
            let path = entry.expect("lists").path();
            let kind = match fs::symlink_metadata(&path).expect("looks").file_type() {
                kind if kind.is_dir() => Kind::Folder,
                kind if kind.is_symlink() => {
                    Kind::Link(fs::read_link(&path).expect("reads").into_os_string().into_vec())
                }
                _ => Kind::File(fs::read(&path).expect("reads")),
            };
            let is_folder = kind == Kind::Folder;
            let node = self.add(kind);
            let name = path.file_name().expect("it has one").as_bytes().to_vec();
            self.before.insert((folder, name), node);
            if is_folder {
                self.read_folder(&path, node);
            }
        }
    }

    fn add(&mut self, kind: Kind) -> Node {
        self.kinds.push(kind);
        self.kinds.len() - 1
    }

    /// Adds what these calls did.
    pub fn replay(&mut self, calls: &[Call]) {
        // How many changes there were when so many calls were over.
        let mut changes_at = vec![0];
        for call in calls {
            let covers = changes_at[call.began];
            match &call.name[..] {
                "open" | "openat" | "openat2" | "creat" => self.opens(call),
                "close" | "dup" | "dup2" | "dup3" | "fcntl" | "lseek" => self.describes(call),
                "fsync" | "fdatasync" => {
                    if let Some(node) = self.node_of(call, 0) {
                        self.changes.push(Change::Flush { node, covers });
                    }
                }
                // A tree that an earlier session left is flushed with all that is on its disk.
                "syncfs" if self.node_of(call, 0).is_some() => {
                    let all = 0..self.kinds.len();
                    self.changes.extend(all.map(|node| Change::Flush { node, covers }));
                }
                "mkdir" | "mkdirat" | "symlink" | "symlinkat" | "link" | "linkat" | "unlink"
                | "unlinkat" | "rmdir" | "rename" | "renameat" | "renameat2" => self.names(call),
                _ => self.writes(call),
            }
            changes_at.push(self.changes.len());
        }
    }

    /// Fails where something would be done that is not known here.
    fn unknown(&self, call: &Call) -> ! {
        panic!("the model of a disk does not know {} {:?}", call.name, call.arguments.first())
    }

    /// The node that the descriptor at this place is, if it is one of ours.
    fn node_of(&self, call: &Call, place: usize) -> Option<Node> {
        let number = call.word(place).parse().ok()?;
        self.open.get(&number).map(|open| open.node)
    }

    /// Where a path leads whose folder is the argument before it, and the name at its end.
    fn place(&self, call: &Call, place: usize) -> Option<Place> {
        let path = Path::new(std::ffi::OsStr::from_bytes(call.bytes(place)));
        let (mut folder, rest) = match path.strip_prefix(&self.path) {
            Ok(rest) => (ROOT, rest),
            Err(_) if path.is_absolute() => return None,
            Err(_) => (self.node_of(call, place.checked_sub(1)?)?, path),
        };
        let mut names: Vec<Vec<u8>> = rest.iter().map(|name| name.as_bytes().to_vec()).collect();
        names.retain(|name| name != b".");
        let Some(last) = names.pop() else { return Some((folder, Vec::new())) };
        for name in names {
            folder = self.step(folder, &name)?;
        }
        match &last[..] {
            b".." => Some((self.step(folder, &last)?, Vec::new())),
            _ => Some((folder, last)),
        }
    }

    /// Where a name in a folder leads; above the root nothing is known.
    fn step(&self, folder: Node, name: &[u8]) -> Option<Node> {
        match name {
            b".." => self.now.iter().find(|(_, node)| **node == folder).map(|(place, _)| place.0),
            _ => self.now.get(&(folder, name.to_vec())).copied(),
        }
    }

    fn at(&self, place: &Place) -> Option<Node> {
        if place.1.is_empty() { Some(place.0) } else { self.now.get(place).copied() }
    }

    fn set(&mut self, changes: Vec<(Place, Option<Node>)>) {
        for (place, node) in &changes {
            match node {
                Some(node) => drop(self.now.insert(place.clone(), *node)),
                None => drop(self.now.remove(place)),
            }
        }
        self.changes.push(Change::Names(changes));
    }

    fn opens(&mut self, call: &Call) {
        let path = usize::from(call.name.starts_with("openat"));
        let Some(place) = self.place(call, path) else { return };
        let flags = if call.name == "creat" { self.unknown(call) } else { call.word(path + 1) };
        let has = |flag: &str| flags.contains(flag);
        let node = match self.at(&place) {
            _ if has("O_TMPFILE") => self.add(Kind::File(Vec::new())),
            Some(node) => node,
            None if has("O_CREAT") => {
                let node = self.add(Kind::File(Vec::new()));
                self.set(vec![(place, Some(node))]);
                node
            }
            None => panic!("{place:?} was opened, and is not known: {call:?}"),
        };
        if has("O_TRUNC") {
            self.changes.push(Change::Length { node, length: 0 });
        }
        self.open.insert(call.result, Open { node, appends: has("O_APPEND"), at: 0 });
    }

    fn describes(&mut self, call: &Call) {
        let number = call.number(0);
        let Some(&open) = self.open.get(&number) else { return };
        match &call.name[..] {
            "close" => drop(self.open.remove(&number)),
            "lseek" => {
                let at = call.result as u64;
                self.open.insert(number, Open { at, ..open });
            }
            "fcntl" if !call.word(1).starts_with("F_DUPFD") => {}
            // A place that two descriptors share is only known here while nobody moves it.
            _ => drop(self.open.insert(call.result, open)),
        }
    }

    fn names(&mut self, call: &Call) {
        let at = usize::from(call.name.contains("at"));
        let place = |place| self.place(call, place);
        match &call.name[..] {
            "mkdir" | "mkdirat" => {
                let Some(new) = place(at) else { return };
                let node = self.add(Kind::Folder);
                self.set(vec![(new, Some(node))]);
            }
            "symlink" | "symlinkat" => {
                let Some(new) = place(1 + at) else { return };
                let node = self.add(Kind::Link(call.bytes(0).to_vec()));
                self.set(vec![(new, Some(node))]);
            }
            "link" | "linkat" => {
                let Some(new) = place(1 + 2 * at) else { return };
                let node = self.linked(call, at);
                self.set(vec![(new, Some(node))]);
            }
            "unlink" | "unlinkat" | "rmdir" => {
                let Some(old) = place(at) else { return };
                self.set(vec![(old, None)]);
            }
            _ => {
                let (from, to) = (place(at), place(1 + 2 * at));
                let (Some(from), Some(to)) = (from, to) else { return };
                let exchange = call.name == "renameat2" && call.word(4).contains("EXCHANGE");
                let (node, other) = (self.at(&from), self.at(&to));
                // Of two names of one file both stay.
                if node != other {
                    let other = if exchange { other } else { None };
                    self.set(vec![(from, other), (to, node)]);
                }
            }
        }
    }

    /// The file that gets another name.
    fn linked(&self, call: &Call, at: usize) -> Node {
        let path = String::from_utf8_lossy(call.bytes(at));
        let found = match path.strip_prefix("/proc/self/fd/") {
            Some(number) => {
                number.parse().ok().and_then(|n: i64| self.open.get(&n)).map(|o| o.node)
            }
            None => self.place(call, at).and_then(|place| self.at(&place)),
        };
        found.unwrap_or_else(|| self.unknown(call))
    }

    fn writes(&mut self, call: &Call) {
        // A source of bytes only, unless it is the other side.
        let place = match &call.name[..] {
            "copy_file_range" | "splice" => 2,
            "mmap" => 4,
            _ => 0,
        };
        if !matches!(call.arguments.get(place), Some(Argument::Word(_))) {
            return;
        }
        let Some(node) = self.node_of(call, place) else { return };
        let change = match &call.name[..] {
            "write" => self.appended(call, node),
            "pwrite64" => {
                let bytes = call.bytes(1)[..call.result as usize].to_vec();
                Change::Bytes { node, offset: call.number(3) as u64, bytes }
            }
            "ftruncate" => Change::Length { node, length: call.number(1) as u64 },
            "fallocate" if call.word(1).contains("PUNCH_HOLE") => {
                let (offset, length) = (call.number(2) as u64, call.number(3) as u64);
                Change::Zeros { node, offset, length }
            }
            "copy_file_range" => self.copied(call, node),
            "ioctl" if call.word(1).ends_with("FICLONE") => self.cloned(call, node),
            // Asks, or only reads.
            "ioctl" if call.word(1).contains("GET") => return,
            "ioctl" if call.word(1).contains("TCGETS") => return,
            "mmap" if !call.word(2).contains("PROT_WRITE") => return,
            "mmap" if call.word(3).contains("MAP_PRIVATE") => return,
            _ => self.unknown(call),
        };
        self.changes.push(change);
    }

    fn appended(&mut self, call: &Call, node: Node) -> Change {
        let bytes = call.bytes(1)[..call.result as usize].to_vec();
        let length = self.content(node, |_| true).len() as u64;
        let open = self.open.get_mut(&call.number(0)).expect("it is open");
        let offset = if open.appends { length } else { open.at };
        open.at = offset + bytes.len() as u64;
        Change::Bytes { node, offset, bytes }
    }

    fn copied(&self, call: &Call, node: Node) -> Change {
        let from = self.node_of(call, 0).unwrap_or_else(|| self.unknown(call));
        let offset = |place| call.word(place).trim_matches(['[', ']']).split(" =>").next();
        let offset = |place| offset(place).and_then(|text| text.parse().ok()).expect("an offset");
        let start: usize = offset(1);
        let bytes = self.content(from, |_| true)[start..start + call.result as usize].to_vec();
        Change::Bytes { node, offset: offset(3) as u64, bytes }
    }

    fn cloned(&self, call: &Call, node: Node) -> Change {
        let from = self.node_of(call, 2).unwrap_or_else(|| self.unknown(call));
        Change::Bytes { node, offset: 0, bytes: self.content(from, |_| true) }
    }

    /// What is in a file after those of all changes that are `kept`.
    pub fn content(&self, node: Node, kept: impl Fn(usize) -> bool) -> Vec<u8> {
        let Kind::File(before) = &self.kinds[node] else { panic!("{node} is no file") };
        let mut content = before.clone();
        for (index, change) in self.changes.iter().enumerate() {
            if change.node() == Some(node) && kept(index) {
                change.apply(&mut content);
            }
        }
        content
    }
}

impl Change {
    /// The file whose content it changes.
    pub fn node(&self) -> Option<Node> {
        match self {
            Self::Bytes { node, .. } | Self::Length { node, .. } | Self::Zeros { node, .. } => {
                Some(*node)
            }
            Self::Names(_) | Self::Flush { .. } => None,
        }
    }

    fn apply(&self, content: &mut Vec<u8>) {
        let mut put = |offset: usize, bytes: &[u8]| {
            content.resize(content.len().max(offset + bytes.len()), 0);
            content[offset..offset + bytes.len()].copy_from_slice(bytes);
        };
        match self {
            Self::Bytes { offset, bytes, .. } => put(*offset as usize, bytes),
            Self::Length { length, .. } => content.resize(*length as usize, 0),
            Self::Zeros { offset, length, .. } => {
                let end = content.len().min((offset + length) as usize);
                content[(*offset as usize).min(end)..end].fill(0);
            }
            Self::Names(_) | Self::Flush { .. } => {}
        }
    }
}
