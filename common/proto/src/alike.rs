//! Pages that two trees have in common need not be told: one digest says that a
//! page of one side is a page of the other. Pages end behind certain paths, so that
//! those of two trees are the same again soon behind what differs. Pure; used
//! by both sides of a mirror for their own tree.

use crate::entry::EntryKind;
use crate::meta::Xattr;
use crate::tree::{Found, Node};
use crate::{Digest, WirePath};
use serde::Serialize;

/// About one path in so many ends a page.
const PATHS_BY_PAGE: u64 = 1024;

/// Whether a page ends behind this path, of whichever tree it is.
pub fn ends_page(path: &WirePath) -> bool {
    // Odd, with its bits spread evenly; every build must say the same.
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let bytes = path.as_bytes();
    let mut sum = MIX ^ bytes.len() as u64;
    for piece in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..piece.len()].copy_from_slice(piece);
        sum = (sum ^ u64::from_le_bytes(word)).wrapping_mul(MIX);
        sum ^= sum >> 29;
    }
    sum.wrapping_mul(MIX) >> 32 & (PATHS_BY_PAGE - 1) == 0
}

/// All of an entry that a mirror compares without looking into it: not when it was read last.
#[derive(Serialize)]
struct Compared<'a> {
    path: &'a WirePath,
    kind: &'a EntryKind,
    size: u64,
    mode: u32,
    owner: Option<(u32, u32)>,
    mtime_ns: i64,
    xattrs: &'a [Xattr],
}

/// What a page says, as one digest: pages that have the same are the same for a mirror, one that
/// compares `owners` or does not. None where something of it has to be told: an entry that cannot
/// be looked at, the digest of a file, and which file a name is one of several of.
pub fn digest_of(page: &[Found], owners: bool) -> Option<Digest> {
    let mut bytes = Vec::with_capacity(page.len() * 64);
    for found in page {
        let node = found.as_ref().ok()?;
        let Node { path, kind, size, meta, twin: None, digest: None } = &**node else {
            return None;
        };
        // Whether bits that speak of an owner may be kept depends on who it is.
        let is_owned = owners || meta.mode & 0o6000 != 0;
        let owner = is_owned.then_some((meta.uid, meta.gid));
        let (mode, mtime_ns, xattrs) = (meta.mode, meta.mtime_ns, &meta.xattrs[..]);
        let compared = Compared { path, kind, size: *size, mode, owner, mtime_ns, xattrs };
        bytes = postcard::to_extend(&compared, bytes).ok()?;
    }
    Some(Digest::of(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Code, Fault, Meta, Twin};

    fn path(text: &str) -> WirePath {
        WirePath::parse(text.as_bytes()).expect("plain")
    }

    fn node() -> Node {
        let xattrs = vec![Xattr { name: b"user.a".to_vec(), value: b"b".to_vec() }];
        let (mode, uid, gid, atime_ns, mtime_ns) = (0o644, 1, 2, 3, 4);
        let meta = Meta { mode, uid, gid, atime_ns, mtime_ns, xattrs };
        let (path, kind) = (path("a/b"), EntryKind::File);
        Node { path, kind, size: 5, meta, twin: None, digest: None }
    }

    fn digest(change: impl FnOnce(&mut Node)) -> Option<Digest> {
        digest_by(true, change)
    }

    fn digest_by(owners: bool, change: impl FnOnce(&mut Node)) -> Option<Digest> {
        let mut node = node();
        change(&mut node);
        digest_of(&[Ok(Box::new(node))], owners)
    }

    #[test]
    fn whatever_a_mirror_compares_makes_another_page_and_the_time_of_access_does_not() {
        let same = digest(|_| ());
        assert!(same.is_some());
        let target = || EntryKind::Symlink { target: b"x".to_vec() };
        let other = |byte: u8| vec![Xattr { name: b"user.a".to_vec(), value: vec![byte] }];
        let changes: [&dyn Fn(&mut Node); 11] = [
            &|node| node.path = path("a/c"),
            &|node| node.kind = EntryKind::Folder,
            &|node| node.kind = target(),
            &|node| node.size = 6,
            &|node| node.meta.mode = 0o640,
            &|node| node.meta.uid = 9,
            &|node| node.meta.gid = 9,
            &|node| node.meta.mtime_ns = 9,
            &|node| node.meta.xattrs.clear(),
            &|node| node.meta.xattrs = other(1),
            &|node| node.meta.xattrs[0].name = b"user.b".to_vec(),
        ];
        let mut digests: Vec<_> = changes.iter().map(|change| digest(change)).collect();
        digests.push(same);
        let all: std::collections::HashSet<_> = digests.iter().flatten().collect();
        assert_eq!(all.len(), changes.len() + 1, "each is another page");
        assert_eq!(digest(|node| node.meta.atime_ns = 9), same);
        let two = |first: &str, second: &str| {
            let of = |text: &str| Ok(Box::new(Node { path: path(text), ..node() }));
            digest_of(&[of(first), of(second)], true)
        };
        assert_ne!(two("ab", "c"), two("a", "bc"));
        assert_ne!(digest_of(&[], true), same);
    }

    #[test]
    fn where_no_owner_is_compared_none_counts_but_for_bits_that_speak_of_one() {
        let same = digest_by(false, |_| ());
        assert_eq!(digest_by(false, |node| (node.meta.uid, node.meta.gid) = (8, 9)), same);
        assert_ne!(digest_by(false, |node| node.meta.mode = 0o640), same);
        for bit in [0o4000, 0o2000] {
            let by = |uid: u32| {
                digest_by(false, |node| (node.meta.mode, node.meta.uid) = (0o755 | bit, uid))
            };
            assert_ne!(by(1), by(2), "{bit:o}");
        }
    }

    #[test]
    fn what_has_to_be_told_has_no_digest() {
        assert_eq!(digest(|node| node.twin = Some(Twin { device: 1, inode: 2 })), None);
        assert_eq!(digest(|node| node.digest = Some(Digest([0; 32]))), None);
        let fault = Err((path("a"), Fault::new(Code::Denied, "no")));
        assert_eq!(digest_of(&[Ok(Box::new(node())), fault], true), None);
    }

    #[test]
    fn about_one_path_in_so_many_ends_a_page_whatever_they_are_called() {
        let names: [&dyn Fn(usize) -> String; 4] = [
            &|number| format!("{number}"),
            &|number| format!("d{:03}/f{:04}", number / 1000, number % 1000),
            &|number| format!("train/n{:08}/n{:08}_{number}.JPEG", number / 1300, number / 1300),
            &|number| format!("{}/same", number),
        ];
        for name in names {
            let ends = (0..100 * PATHS_BY_PAGE as usize).filter(|&at| ends_page(&path(&name(at))));
            let count = ends.count();
            assert!((60..=140).contains(&count), "{count} of {}", name(1));
        }
    }

    #[test]
    fn pages_end_where_they_always_did_and_none_behind_the_root() {
        assert!(!ends_page(&WirePath::root()), "an empty tree has one page");
        let said = digest(|_| ()).expect("it has one").to_string();
        assert_eq!(&said[..16], "d15acb6c2700eb26", "and say what they always did");
        let ends = (0..4096).filter(|number| ends_page(&path(&format!("f{number}"))));
        assert_eq!(ends.collect::<Vec<_>>(), [799, 1054, 2416, 2886, 2989, 3156]);
    }
}
