//! Translates the owners of a source to those of the target: numeric ids, looked up by name. An id
//! without a name at the target stays as it is. So does root, and any id whose name is root's at
//! the target. Pure.

use std::collections::HashMap;
use verbatim_proto::owners::{OWNERS_MAX, Owner};
use verbatim_proto::tree::Found;
use verbatim_proto::{Kept, Meta};

/// Translations that are kept, more than a machine has accounts. Other ids stay as they are.
const KNOWN_MAX: usize = 1 << 17;

/// The ids of users and groups at the target, by those of the source.
#[derive(Default)]
pub struct IdTranslation(HashMap<Owner, u32>);

impl IdTranslation {
    /// The owners of these entries without a translation yet, each once and without root; at most
    /// as many as one request may name.
    pub fn unknown(&self, found: &[Found]) -> Vec<Owner> {
        let owners = |meta: &Meta| [Owner::user(meta.uid), Owner::group(meta.gid)];
        let all = found.iter().flatten().flat_map(|node| owners(&node.meta));
        let is_new = |owner: &Owner| owner.number != 0 && !self.0.contains_key(owner);
        let mut unknown: Vec<Owner> = all.filter(is_new).collect();
        unknown.sort_unstable();
        unknown.dedup();
        unknown.truncate(KNOWN_MAX.saturating_sub(self.0.len()).min(OWNERS_MAX));
        unknown
    }

    /// Notes the id of an owner at the target. Without one, or with root's, the id stays as it is.
    pub fn learn(&mut self, owner: Owner, number: Option<u32>) {
        let number = number.filter(|&number| number != 0 && number != u32::MAX);
        self.0.insert(owner, number.unwrap_or(owner.number));
    }

    /// Replaces the user and group ids of the source by those of the target, where they are known.
    pub fn translate(&self, meta: &mut Meta) {
        let known = |owner: Owner| self.0.get(&owner).copied().unwrap_or(owner.number);
        (meta.uid, meta.gid) = (known(Owner::user(meta.uid)), known(Owner::group(meta.gid)));
    }

    /// Translates the metadata that comes with a file.
    pub(crate) fn translated(&self, mut kept: Kept) -> Kept {
        kept.iter_mut().for_each(|meta| self.translate(meta));
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_proto::tree::EntryKind;
    use verbatim_proto::{Node, WirePath};

    fn of(uid: u32, gid: u32) -> Meta {
        Meta { uid, gid, ..Meta::default() }
    }

    fn found(uid: u32, gid: u32) -> Found {
        let (path, kind) = (WirePath::root(), EntryKind::File);
        Ok(Box::new(Node { path, kind, size: 0, meta: of(uid, gid), twin: None, digest: None }))
    }

    fn translated(owners: &IdTranslation, uid: u32, gid: u32) -> (u32, u32) {
        let mut meta = of(uid, gid);
        owners.translate(&mut meta);
        (meta.uid, meta.gid)
    }

    #[test]
    fn each_owner_is_looked_up_once_and_root_never() {
        let mut owners = IdTranslation::default();
        let page = [found(5, 5), found(0, 7), found(5, 0)];
        assert_eq!(owners.unknown(&page), [Owner::user(5), Owner::group(5), Owner::group(7)]);
        owners.learn(Owner::user(5), Some(50));
        owners.learn(Owner::group(7), None);
        assert_eq!(owners.unknown(&page), [Owner::group(5)]);
        assert_eq!(translated(&owners, 5, 5), (50, 5), "a user is no group");
        assert_eq!(translated(&owners, 0, 7), (0, 7), "who is unknown keeps the number");
    }

    #[test]
    fn no_owner_is_translated_to_root() {
        let mut owners = IdTranslation::default();
        owners.learn(Owner::user(5), Some(0));
        owners.learn(Owner::group(5), Some(u32::MAX));
        assert_eq!(translated(&owners, 5, 5), (5, 5));
    }
}
