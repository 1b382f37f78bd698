//! What is in a folder, packed: names in one piece of memory, sorted, with what is
//! known of each. A million entries take about 60 MB. Made page by page by a session,
//! then only read. Pure.

use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Code, Fault};

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
            self.entries.push((start, len, Facts::of(&entry)));
        }
        Ok(())
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
        let found = self.entries.binary_search_by(|entry| name_of(&self.names, entry).cmp(name));
        Some(self.entries[found.ok()?].2)
    }
}

fn name_of<'a>(names: &'a [u8], (start, len, _): &(u32, u8, Facts)) -> &'a [u8] {
    let start = *start as usize;
    &names[start..start + usize::from(*len)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_proto::WirePath;

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
