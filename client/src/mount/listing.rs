//! What is in a folder, packed: names in one piece of memory, sorted, with what is
//! known of each; where a link points to follows its name. A million entries take about
//! 60 MB. Made page by page by a session, then only read, and written as bytes for who
//! asks while the server is away. Pure.

use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Code, Fault, WirePath};

/// The most entries of one folder.
pub const LISTING_ENTRIES_MAX: usize = 4 << 20;

/// What a thing in a folder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Symlink,
    /// A fifo, socket or device.
    Special,
}

/// What is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// What it is.
    pub kind: Kind,
    /// The permission bits.
    pub mode: u32,
    /// How many bytes a file has, or the target of a link.
    pub size: u64,
    /// When its content changed, in nanoseconds since 1970.
    pub mtime_ns: i64,
}

impl Facts {
    /// What the server says of an entry.
    pub fn of(entry: &Entry) -> Self {
        let (kind, size) = match &entry.kind {
            EntryKind::File => (Kind::File, entry.size),
            EntryKind::Folder => (Kind::Folder, 4096),
            EntryKind::Symlink { target } => (Kind::Symlink, target.len() as u64),
            EntryKind::Special => (Kind::Special, 0),
        };
        Self { kind, mode: entry.mode & 0o7777, size, mtime_ns: entry.mtime_ns }
    }
}

/// A folder.
#[derive(Debug, Default)]
pub struct Listing {
    names: Vec<u8>,
    entries: Vec<(u32, u8, Facts)>,
}

impl Listing {
    /// Adds a page; an error when the folder is too large.
    pub fn add(&mut self, page: Vec<Entry>) -> Result<(), Fault> {
        for entry in page {
            let start = u32::try_from(self.names.len()).ok();
            let (Some(start), true) = (start, self.entries.len() < LISTING_ENTRIES_MAX) else {
                let text = format!("more than {LISTING_ENTRIES_MAX} entries are in the folder");
                return Err(Fault::new(Code::Limit, text));
            };
            let Some(name) = entry.path.name() else { continue };
            // A name has a bound that fits.
            let Ok(len) = u8::try_from(name.len()) else { continue };
            self.names.extend_from_slice(name);
            if let EntryKind::Symlink { target } = &entry.kind {
                self.names.extend_from_slice(target);
            }
            self.entries.push((start, len, Facts::of(&entry)));
        }
        Ok(())
    }

    /// Only this, under this name.
    pub fn of(name: &[u8], entry: Entry) -> Result<Self, Fault> {
        let mut listing = Self::default();
        listing.add(vec![Entry { path: WirePath::parse(name)?, ..entry }])?;
        Ok(listing)
    }

    /// Sorts it: nothing is added any more.
    pub fn seal(&mut self) {
        let names = &self.names;
        self.entries.sort_unstable_by(|a, b| name_of(names, a).cmp(name_of(names, b)));
        self.entries.dedup_by(|a, b| name_of(names, a) == name_of(names, b));
        self.entries.shrink_to_fit();
        self.names.shrink_to_fit();
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entry at an index.
    pub fn at(&self, index: usize) -> Option<(&[u8], Facts)> {
        let entry = self.entries.get(index)?;
        Some((name_of(&self.names, entry), entry.2))
    }

    /// What is known of a name.
    pub fn find(&self, name: &[u8]) -> Option<Facts> {
        self.entry(name).map(|(_, _, facts)| *facts)
    }

    /// Where the link of a name points to.
    pub fn target(&self, name: &[u8]) -> Option<&[u8]> {
        let (start, len, facts) = self.entry(name)?;
        let start = *start as usize + usize::from(*len);
        let is_link = facts.kind == Kind::Symlink;
        is_link.then(|| self.names.get(start..start + facts.size as usize))?
    }

    fn entry(&self, name: &[u8]) -> Option<&(u32, u8, Facts)> {
        let found = self.entries.binary_search_by(|entry| name_of(&self.names, entry).cmp(name));
        self.entries.get(found.ok()?)
    }

    /// All of it as bytes: for each entry its numbers, its name, and where it points to.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.names.len() + self.entries.len() * ENTRY_BYTES);
        for entry in &self.entries {
            let Facts { kind, mode, size, mtime_ns } = entry.2;
            let name = name_of(&self.names, entry);
            bytes.extend_from_slice(&[kind as u8, entry.1]);
            bytes.extend_from_slice(&mode.to_le_bytes());
            bytes.extend_from_slice(&size.to_le_bytes());
            bytes.extend_from_slice(&mtime_ns.to_le_bytes());
            bytes.extend_from_slice(name);
            bytes.extend_from_slice(self.target(name).unwrap_or_default());
        }
        bytes
    }

    /// What was written; none when it was not written here.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut listing = Self::default();
        while let Some(([kind, len], rest)) = bytes.split_first_chunk::<2>() {
            let (mode, rest) = rest.split_first_chunk()?;
            let (size, rest) = rest.split_first_chunk()?;
            let (mtime_ns, rest) = rest.split_first_chunk()?;
            let kind = *KINDS.get(usize::from(*kind))?;
            let (mode, size) = (u32::from_le_bytes(*mode), u64::from_le_bytes(*size));
            let facts = Facts { kind, mode, size, mtime_ns: i64::from_le_bytes(*mtime_ns) };
            let target = if kind == Kind::Symlink { usize::try_from(size).ok()? } else { 0 };
            let (names, rest) = rest.split_at_checked(usize::from(*len).checked_add(target)?)?;
            let start = u32::try_from(listing.names.len()).ok()?;
            listing.names.extend_from_slice(names);
            listing.entries.push((start, *len, facts));
            bytes = rest;
        }
        (bytes.is_empty() && listing.len() <= LISTING_ENTRIES_MAX).then_some(listing)
    }
}

/// What the numbers of an entry take.
const ENTRY_BYTES: usize = 22;

/// The kinds by their numbers.
const KINDS: [Kind; 4] = [Kind::File, Kind::Folder, Kind::Symlink, Kind::Special];

fn name_of<'a>(names: &'a [u8], (start, len, _): &(u32, u8, Facts)) -> &'a [u8] {
    let start = *start as usize;
    &names[start..start + usize::from(*len)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_what_is_cut_is_not() {
        let entry = |name: &str, kind, size| {
            let path = WirePath::parse(name.as_bytes()).expect("plain");
            Entry { path, kind, size, mode: 0o751, mtime_ns: -3, meta: None }
        };
        let link = EntryKind::Symlink { target: b"../there".to_vec() };
        let mut listing = Listing::default();
        let page = vec![entry("link", link, 0), entry("b", EntryKind::Folder, 0)];
        listing.add(page).expect("fits");
        listing.add(vec![entry("a", EntryKind::File, 7)]).expect("fits");
        listing.seal();
        let bytes = listing.encode();
        let read = Listing::decode(&bytes).expect("is whole");
        for name in [b"a".as_slice(), b"b", b"link", b"c"] {
            assert_eq!(read.find(name), listing.find(name));
        }
        assert_eq!(read.target(b"link"), Some(b"../there".as_slice()));
        assert_eq!((read.target(b"a"), read.len()), (None, 3));
        for cut in 0..bytes.len() {
            let less = Listing::decode(&bytes[..cut]);
            assert!(less.is_none_or(|less| less.len() < 3), "cut at {cut}");
        }
        assert!(Listing::decode(&[9; 40]).is_none());
    }

    #[test]
    fn what_came_in_pages_is_found_by_name_and_in_order() {
        let entry = |name: &str, size| {
            let path = WirePath::parse(name.as_bytes()).expect("plain");
            Entry { path, kind: EntryKind::File, size, mode: 0o100_644, mtime_ns: 3, meta: None }
        };
        let mut listing = Listing::default();
        listing.add(vec![entry("b", 2), entry("c", 3)]).expect("fits");
        listing.add(vec![entry("a", 1), entry("b", 2)]).expect("fits");
        listing.seal();
        let names: Vec<&[u8]> =
            (0..listing.len()).filter_map(|at| listing.at(at)).map(|(name, _)| name).collect();
        assert_eq!(names, [b"a", b"b", b"c"], "each once");
        let facts = listing.find(b"c").expect("is there");
        assert_eq!((facts.size, facts.mode, facts.kind), (3, 0o644, Kind::File));
        assert_eq!(listing.find(b"d"), None);
        assert!(std::mem::size_of::<(u32, u8, Facts)>() <= 40, "a million must stay small");
    }
}
