//! A walk of a tree in pages, with digests where they are asked for. Both sides
//! of a mirror page their own tree with this: the server to send it, the client
//! to compare it. How a digest is come by is the caller's: the server has a cache.

use crate::{Folder, Source, TreeWalk};
use verbatim_proto::alike::ends_page;
use verbatim_proto::message::EntryKind;
use verbatim_proto::tree::{Found, path_of};
use verbatim_proto::units::{FRAME_BYTES_MAX, PAGE_ENTRIES_MAX, WINDOW_BYTES};
use verbatim_proto::{Code, Digest, Extent, Fault, Node, RootBuilder, WirePath};

/// How many bytes are hashed for one page, a last file of any size not counted: whoever waits
/// for the page hears something.
const HASHED_BYTES_MAX: u64 = 64 << 20;

/// A page of a walk.
#[derive(Default)]
pub struct TreePage {
    /// What was found, in order.
    pub found: Vec<Found>,
    /// What copies that were cut short left.
    pub leftovers: Vec<WirePath>,
}

/// Tells the digest of a file of the tree.
pub type DigestOf<'a> = dyn FnMut(&WirePath) -> Result<Digest, Fault> + 'a;

/// Fills a page; says whether there is more. `digest` tells the digest of a file, where it is
/// wanted.
pub fn next_page(walk: &mut TreeWalk, mut digest: Option<&mut DigestOf<'_>>) -> (TreePage, bool) {
    let mut page = TreePage::default();
    let (mut bytes, mut hashed, mut ends) = (0, 0, false);
    while page.found.len() < PAGE_ENTRIES_MAX
        && bytes < FRAME_BYTES_MAX / 4
        && hashed < HASHED_BYTES_MAX
        && !ends
    {
        // What is hashed is looked at just before that; else some of the next page may be.
        let room = if digest.is_some() { 1 } else { PAGE_ENTRIES_MAX };
        let Some(found) = walk.advance(room) else {
            let more = walk.is_full();
            page.leftovers = walk.take_leftovers();
            return (page, more);
        };
        let found = match (found, &mut digest) {
            (Ok(node), Some(digest)) if node.kind == EntryKind::File => {
                hashed += node.size;
                with_digest(node, walk, *digest)
            }
            (found, _) => Some(found),
        };
        bytes += found.as_ref().map_or(0, weight);
        ends = found.as_ref().is_some_and(|found| ends_page(path_of(found)));
        page.found.extend(found);
    }
    page.leftovers = walk.take_leftovers();
    (page, true)
}

/// Adds its digest to a file; one that is gone by now was never there. One that is not found and
/// yet is where it was seen went with a folder that was renamed: whoever took it for gone would
/// delete it elsewhere.
fn with_digest(mut node: Box<Node>, walk: &TreeWalk, digest: &mut DigestOf<'_>) -> Option<Found> {
    match digest(&node.path) {
        Ok(digest) => {
            node.digest = Some(digest);
            Some(Ok(node))
        }
        Err(fault) if fault.code == Code::NotFound && !walk.still_has(&node.path) => None,
        Err(fault) if fault.code == Code::NotFound => {
            let text = format!("{}: a folder it is in was renamed while it was read", node.path);
            Some(Err((node.path, Fault::new(Code::Changed, text))))
        }
        Err(fault) => Some(Err((node.path, fault))),
    }
}

fn weight(found: &Found) -> usize {
    match found {
        Ok(node) => node.weight(),
        Err((path, fault)) => path.as_bytes().len() + fault.text.len(),
    }
}

/// The digest of all of a file, a window at a time; `hash` says that of a range.
pub fn root_of(
    source: &Source,
    mut hash: impl FnMut(&Source, Extent) -> Result<Vec<Digest>, Fault>,
) -> Result<Digest, Fault> {
    let size = source.identity().size;
    let mut root = RootBuilder::new(size);
    let mut offset = 0;
    loop {
        let extent = Extent::new(offset, WINDOW_BYTES.min(size - offset));
        root.insert_run(offset, &hash(source, extent)?);
        offset += extent.len;
        if offset >= size {
            break;
        }
    }
    root.finish().ok_or_else(|| Fault::new(Code::Changed, "it changed while it was hashed"))
}

/// The digest of a file below a folder, by hashing it.
pub fn hash_file(folder: &Folder, path: &WirePath) -> Result<Digest, Fault> {
    root_of(&Source::open(folder, path, path)?, Source::hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use verbatim_proto::Filter;

    #[test]
    fn a_file_whose_folder_is_renamed_is_not_taken_for_gone() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("data")).expect("makes");
        for name in ["data/a", "data/b", "data/c"] {
            fs::write(at(name), b"bytes").expect("writes");
        }
        let folder = Folder::open(dir.path()).expect("opens");
        let root = folder.open_folder(&WirePath::root()).expect("opens");
        let mut walk = TreeWalk::new(root, Filter::default(), true);
        let mut digest = |path: &WirePath| {
            let digest = hash_file(&folder, path);
            if path.as_bytes() == b"data/a" {
                fs::rename(at("data"), at("moved")).expect("renames");
                fs::remove_file(at("moved/b")).expect("removes");
            }
            digest
        };
        let (page, _) = next_page(&mut walk, Some(&mut digest));
        let shown = |found: &Found| match found {
            Ok(node) => node.path.to_string(),
            Err((path, fault)) => format!("({path}: {:?})", fault.code),
        };
        let found: Vec<String> = page.found.iter().map(shown).collect();
        assert_eq!(found, ["", "data", "data/a", "(data/c: Changed)"], "b alone is gone");
    }
}
