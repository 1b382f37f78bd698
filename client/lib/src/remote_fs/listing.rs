//! The packed listing of a folder. One block of memory has the sorted names, each followed by the
//! target of a symbolic link; equal owners are stored once. A session builds it page by page; then
//! it is read-only. It can be encoded for a cache that serves mounts while the server is away.
//! Pure.

use crate::remote_fs::attributes::{Facts, Kind, OwnerAndInode, StatInfo};
use std::collections::HashMap;
use std::num::NonZeroU64;
use verbatim_proto::message::{Entry, EntryKind};
use verbatim_proto::{Code, Fault, Ties, WirePath};

/// The most entries of one folder.
pub const LISTING_ENTRIES_MAX: usize = 4 << 20;

/// The longest encoded listing, about the size in memory.
pub const LISTING_BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 512 << 20 };

/// The longest target of a symbolic link in any kernel.
const TARGET_BYTES_MAX: usize = 4095;

/// The listing of a folder.
#[derive(Debug, Default)]
pub struct Listing {
    names: Vec<u8>,
    entries: Vec<PackedEntry>,
    owners: Vec<OwnerRow>,
    /// The index in `owners` of each row, while entries are added.
    owner_index: HashMap<OwnerRow, u32>,
}

/// An entry; its name and owner are in `names` and `owners`.
#[derive(Clone, Copy, Debug)]
struct PackedEntry {
    size: u64,
    mtime_ns: i64,
    start: u32,
    owned: u32,
    mode: u16,
    len: u8,
    kind: Kind,
}

/// An owner and inode, and the number of hard links.
type OwnerRow = (OwnerAndInode, u32);

impl Listing {
    /// Adds a page, with the owner of each entry if known. Fails if the folder is too large.
    pub fn add(&mut self, page: Vec<Entry>, ties: &[Option<Ties>]) -> Result<(), Fault> {
        for (at, entry) in page.into_iter().enumerate() {
            let start = u32::try_from(self.names.len()).ok();
            let (Some(start), true) = (start, self.entries.len() < LISTING_ENTRIES_MAX) else {
                let text = format!("more than {LISTING_ENTRIES_MAX} entries are in the folder");
                return Err(Fault::new(Code::Limit, text));
            };
            if self.encoded_bytes() > LISTING_BYTES_MAX {
                let text = format!("the names in the folder take more than {LISTING_BYTES_MAX} B");
                return Err(Fault::new(Code::Limit, text));
            }
            // Leave out entries of other folders, and the folder itself.
            let Some(name) = entry.path.name().filter(|it| *it == entry.path.as_bytes()) else {
                continue;
            };
            // The length of a name fits: paths are bounded.
            let Ok(len) = u8::try_from(name.len()) else { continue };
            if matches!(&entry.kind, EntryKind::Symlink { target } if !is_target(target)) {
                continue;
            }
            self.names.extend_from_slice(name);
            if let EntryKind::Symlink { target } = &entry.kind {
                self.names.extend_from_slice(target);
            }
            let Facts { kind, mode, size, mtime_ns, names, tied } =
                Facts::of(&entry, ties.get(at).and_then(Option::as_ref));
            let owned = self.place((tied, names));
            self.entries.push(PackedEntry { size, mtime_ns, start, owned, mode, len, kind });
        }
        Ok(())
    }

    /// The index of an owner, stored once; there are no more rows than entries.
    fn place(&mut self, owned: OwnerRow) -> u32 {
        *self.owner_index.entry(owned).or_insert_with(|| {
            self.owners.push(owned);
            self.owners.len() as u32 - 1
        })
    }

    /// A listing of one entry, under this name.
    pub fn of(name: &[u8], seen: StatInfo) -> Result<Self, Fault> {
        let StatInfo { entry, ties } = seen;
        let mut listing = Self::default();
        listing.add(vec![Entry { path: WirePath::parse(name)?, ..entry }], &[ties])?;
        listing.seal();
        Ok(listing)
    }

    /// Sorts the listing. No entry is added afterwards.
    pub fn seal(&mut self) {
        let names = &self.names;
        self.entries.sort_unstable_by(|a, b| name_of(names, a).cmp(name_of(names, b)));
        self.entries.dedup_by(|a, b| name_of(names, a) == name_of(names, b));
        self.entries.shrink_to_fit();
        self.names.shrink_to_fit();
        self.owners.shrink_to_fit();
        self.owner_index = HashMap::new();
    }

    /// The number of entries.
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
        Some((name_of(&self.names, entry), self.facts(entry)))
    }

    /// The attributes of a name.
    pub fn find(&self, name: &[u8]) -> Option<Facts> {
        self.entry(name).map(|entry| self.facts(entry))
    }

    fn facts(&self, entry: &PackedEntry) -> Facts {
        let PackedEntry { size, mtime_ns, mode, kind, .. } = *entry;
        let (tied, names) = self.owners[entry.owned as usize];
        Facts { kind, mode, size, mtime_ns, names, tied }
    }

    /// The target of the symbolic link with this name.
    pub fn target(&self, name: &[u8]) -> Option<&[u8]> {
        let entry = self.entry(name)?;
        let start = entry.start as usize + usize::from(entry.len);
        let is_link = entry.kind == Kind::Symlink;
        is_link.then(|| self.names.get(start..start + entry.size as usize))?
    }

    fn entry(&self, name: &[u8]) -> Option<&PackedEntry> {
        let found = self.entries.binary_search_by(|entry| name_of(&self.names, entry).cmp(name));
        self.entries.get(found.ok()?)
    }

    /// The most bytes that `encode` returns.
    pub fn encoded_bytes(&self) -> usize {
        let numbers = self.owners.len() * OWNED_BYTES + self.entries.len() * ENTRY_BYTES;
        4 + self.names.len() + numbers
    }

    /// Encodes the listing: the owners, then the numbers, name and link target of each entry.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.encoded_bytes());
        bytes.extend_from_slice(&(self.owners.len() as u32).to_le_bytes());
        for (OwnerAndInode { file, version, uid, gid }, names) in &self.owners {
            let number = |it: &Option<NonZeroU64>| it.map_or(0, NonZeroU64::get).to_le_bytes();
            bytes.extend_from_slice(&[number(file), number(version)].concat());
            bytes.extend([uid, gid, names].iter().flat_map(|number| number.to_le_bytes()));
        }
        for entry in &self.entries {
            let PackedEntry { size, mtime_ns, owned, mode, len, kind, .. } = *entry;
            let name = name_of(&self.names, entry);
            bytes.extend_from_slice(&[kind as u8, len]);
            bytes.extend_from_slice(&mode.to_le_bytes());
            bytes.extend_from_slice(&owned.to_le_bytes());
            bytes.extend_from_slice(&size.to_le_bytes());
            bytes.extend_from_slice(&mtime_ns.to_le_bytes());
            bytes.extend_from_slice(name);
            bytes.extend_from_slice(self.target(name).unwrap_or_default());
        }
        bytes
    }

    /// Decodes a listing; `None` if the bytes are damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (count, mut bytes) = bytes.split_first_chunk()?;
        let mut listing = Self::default();
        for _ in 0..u32::from_le_bytes(*count) {
            let (owned, rest) = bytes.split_first_chunk::<OWNED_BYTES>()?;
            listing.owners.push(read_owned(owned)?);
            bytes = rest;
        }
        while let Some(([kind, len], rest)) = bytes.split_first_chunk::<2>() {
            let (mode, rest) = rest.split_first_chunk()?;
            let (owned, rest) = rest.split_first_chunk()?;
            let (size, rest) = rest.split_first_chunk()?;
            let (mtime_ns, rest) = rest.split_first_chunk()?;
            let (kind, len) = (*KINDS.get(usize::from(*kind))?, *len);
            let (mode, size) = (u16::from_le_bytes(*mode), u64::from_le_bytes(*size));
            let (owned, mtime_ns) = (u32::from_le_bytes(*owned), i64::from_le_bytes(*mtime_ns));
            listing.owners.get(owned as usize)?;
            let target = if kind == Kind::Symlink { usize::try_from(size).ok()? } else { 0 };
            let (names, rest) = rest.split_at_checked(usize::from(len).checked_add(target)?)?;
            let start = u32::try_from(listing.names.len()).ok()?;
            listing.names.extend_from_slice(names);
            listing.entries.push(PackedEntry { size, mtime_ns, start, owned, mode, len, kind });
            bytes = rest;
        }
        (bytes.is_empty() && listing.len() <= LISTING_ENTRIES_MAX).then_some(listing)
    }
}

/// Whether a symbolic link can have this target.
pub fn is_target(target: &[u8]) -> bool {
    (1..=TARGET_BYTES_MAX).contains(&target.len()) && !target.contains(&0)
}

/// Encoded bytes of an entry without its name, and of an owner.
const ENTRY_BYTES: usize = 24;
const OWNED_BYTES: usize = 28;

/// The kinds by their encoded numbers.
const KINDS: [Kind; 4] = [Kind::File, Kind::Folder, Kind::Symlink, Kind::Special];

fn read_owned(bytes: &[u8; OWNED_BYTES]) -> Option<OwnerRow> {
    let (file, rest) = bytes.split_first_chunk()?;
    let (version, rest) = rest.split_first_chunk()?;
    let mut numbers = rest.chunks_exact(4).map_while(|it| it.first_chunk().copied());
    let mut number = || numbers.next().map(u32::from_le_bytes);
    let (uid, gid, names) = (number()?, number()?, number()?);
    let file = NonZeroU64::new(u64::from_le_bytes(*file));
    let version = NonZeroU64::new(u64::from_le_bytes(*version));
    Some((OwnerAndInode { file, version, uid, gid }, names))
}

fn name_of<'a>(names: &'a [u8], entry: &PackedEntry) -> &'a [u8] {
    let start = entry.start as usize;
    &names[start..start + usize::from(entry.len)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_listing_decodes_and_a_truncated_one_does_not() {
        let entry = |name: &str, kind, size| {
            let path = WirePath::parse(name.as_bytes()).expect("plain");
            Entry { path, kind, size, mode: 0o751, mtime_ns: -3, meta: None }
        };
        let link = EntryKind::Symlink { target: b"../there".to_vec() };
        let mut listing = Listing::default();
        let page = vec![entry("link", link, 0), entry("b", EntryKind::Folder, 0)];
        listing.add(page, &[]).expect("fits");
        let named = verbatim_proto::Named { file: 300, version: Some(9) };
        let ties = Ties { uid: 1000, gid: 7, names: 3, twin: Some(named) };
        listing.add(vec![entry("a", EntryKind::File, 7)], &[Some(ties)]).expect("fits");
        listing.seal();
        let bytes = listing.encode();
        assert_eq!(bytes.len(), listing.encoded_bytes());
        let read = Listing::decode(&bytes).expect("is whole");
        for name in [b"a".as_slice(), b"b", b"link", b"c"] {
            assert_eq!(read.find(name), listing.find(name));
        }
        let (a, b) = (read.find(b"a").expect("is there"), read.find(b"b").expect("is there"));
        assert_eq!(
            (a.owner(), a.names, a.shared().map(u64::from)),
            (Some((1000, 7)), 3, Some(300))
        );
        assert_eq!((b.owner(), b.names, b.shared()), (None, 2, None));
        assert_eq!(read.target(b"link"), Some(b"../there".as_slice()));
        assert_eq!((read.target(b"a"), read.len()), (None, 3));
        for cut in 0..bytes.len() {
            let less = Listing::decode(&bytes[..cut]);
            assert!(less.is_none_or(|less| less.len() < 3), "cut at {cut}");
        }
        assert!(Listing::decode(&[9; 40]).is_none());
    }

    #[test]
    fn invalid_entries_are_left_out() {
        let entry = |path: WirePath, kind| {
            let (size, mode, mtime_ns, meta) = (5, 0o107_777, i64::MIN, None);
            Entry { path, kind, size, mode, mtime_ns, meta }
        };
        let path = |text: &str| WirePath::parse(text.as_bytes()).expect("plain");
        let link = |target: &[u8]| EntryKind::Symlink { target: target.to_vec() };
        let page = vec![
            entry(WirePath::root(), EntryKind::File),
            entry(path("elsewhere/a"), EntryKind::File),
            entry(path("nul"), link(b"a\0b")),
            entry(path("long"), link(&[b'a'; TARGET_BYTES_MAX + 1])),
            entry(path("link"), link(&[b'a'; TARGET_BYTES_MAX])),
        ];
        let mut listing = Listing::default();
        listing.add(page, &[]).expect("fits");
        listing.seal();
        assert_eq!((listing.len(), listing.at(0).map(|it| it.0)), (1, Some(&b"link"[..])));
    }

    #[test]
    fn names_beyond_the_bound_on_bytes_are_refused() {
        let mut listing = Listing::default();
        let target = vec![b'a'; TARGET_BYTES_MAX];
        let mut add = |number: usize| {
            let path = WirePath::parse(format!("{number}").as_bytes()).expect("plain");
            let kind = EntryKind::Symlink { target: target.clone() };
            let (size, mode, mtime_ns, meta) = (0, 0o777, 0, None);
            let added = listing.add(vec![Entry { path, kind, size, mode, mtime_ns, meta }], &[]);
            added.map_err(|fault| fault.code)
        };
        let fitted = (0..1000).take_while(|number| add(*number).is_ok()).count();
        assert_eq!(add(1000), Err(Code::Limit), "it stays full");
        let entry_max = 2 * TARGET_BYTES_MAX;
        assert!(fitted > LISTING_BYTES_MAX / entry_max, "{fitted} fit");
        assert!(listing.encoded_bytes() < LISTING_BYTES_MAX + entry_max);
    }

    #[test]
    fn entries_of_several_pages_are_sorted_and_found_by_name() {
        let entry = |name: &str, size| {
            let path = WirePath::parse(name.as_bytes()).expect("plain");
            Entry { path, kind: EntryKind::File, size, mode: 0o100_644, mtime_ns: 3, meta: None }
        };
        let mut listing = Listing::default();
        listing.add(vec![entry("b", 2), entry("c", 3)], &[]).expect("fits");
        listing.add(vec![entry("a", 1), entry("b", 2)], &[]).expect("fits");
        listing.seal();
        let names: Vec<&[u8]> =
            (0..listing.len()).filter_map(|at| listing.at(at)).map(|(name, _)| name).collect();
        assert_eq!(names, [b"a", b"b", b"c"], "each once");
        let facts = listing.find(b"c").expect("is there");
        assert_eq!((facts.size, facts.mode, facts.kind), (3, 0o644, Kind::File));
        assert_eq!(listing.find(b"d"), None);
        assert_eq!(listing.owners.len(), 1, "what is alike is kept once");
        assert!(std::mem::size_of::<PackedEntry>() <= 40, "a million must stay small");
        assert!(std::mem::size_of::<Facts>() <= 48, "the kernel may know a million");
    }
}
