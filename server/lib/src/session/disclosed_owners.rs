//! The owners that a client has seen in entries, the most recent ones: it may ask for the names of
//! these alone. Owns their maximum. Looks up no account: `mirror::owners` does.

use std::collections::HashSet;
use verbatim_proto::owners::{OWNERS_MAX, Owner};
use verbatim_proto::{Meta, Ties};

/// Owners that a session remembers at least: a page has `OWNERS_MAX`, and a client asks when it has
/// a page. A forgotten owner has no name until another entry discloses it.
const DISCLOSED_MAX: usize = 4 * OWNERS_MAX;

/// Owners that the server has sent to the client, twice `DISCLOSED_MAX` at most.
#[derive(Default)]
pub(super) struct DisclosedOwners {
    now: HashSet<Owner>,
    before: HashSet<Owner>,
}

impl DisclosedOwners {
    /// Remembers the owners of entries.
    pub fn note(&mut self, owned: impl Iterator<Item = (u32, u32)>) {
        let mut last = None;
        for (uid, gid) in owned {
            // Most entries have the owner of the entry before.
            if last.replace((uid, gid)) != Some((uid, gid)) {
                self.add(Owner::user(uid));
                self.add(Owner::group(gid));
            }
        }
    }

    fn add(&mut self, owner: Owner) {
        if self.now.len() >= DISCLOSED_MAX {
            self.before = std::mem::take(&mut self.now);
        }
        self.now.insert(owner);
    }

    /// Whether an owner is remembered.
    pub fn has(&self, owner: &Owner) -> bool {
        self.now.contains(owner) || self.before.contains(owner)
    }
}

/// The user and group of an entry, by its metadata.
pub(super) fn of_meta(meta: &Meta) -> (u32, u32) {
    (meta.uid, meta.gid)
}

/// The user and group of an entry, by its ties.
pub(super) fn of_ties(ties: &Ties) -> (u32, u32) {
    (ties.uid, ties.gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_of_the_last_pages_are_remembered_and_a_bounded_number_of_others() {
        let mut disclosed = DisclosedOwners::default();
        assert!(!disclosed.has(&Owner::user(0)) && !disclosed.has(&Owner::group(0)));
        let many = 10 * DISCLOSED_MAX as u32;
        for number in 0..many {
            disclosed.note([(number, number), (number, number)].into_iter());
            let oldest = number.saturating_sub(DISCLOSED_MAX as u32 / 2 - 1);
            assert!(
                disclosed.has(&Owner::user(number)) && disclosed.has(&Owner::group(oldest)),
                "{number}"
            );
            assert!(disclosed.now.len() + disclosed.before.len() <= 2 * DISCLOSED_MAX, "{number}");
        }
        assert!(!disclosed.has(&Owner::user(0)) && !disclosed.has(&Owner::user(many)));
    }
}
