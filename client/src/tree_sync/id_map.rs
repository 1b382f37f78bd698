//! Owners by name: a page of the source waits until the accounts that own its
//! entries are known at the target by their names. One side names the numbers, the
//! other numbers the names: this machine by a job, the server by a message. A
//! number that has no name there, or whose name is unknown here, stays as it is, and
//! so do root and what would become root's. Called by `sides` with every page.

use crate::session::Event;
use crate::session::dispatch::Core;
use crate::tree_sync::Mirroring;
use crate::tree_sync::spec::Way;
use std::collections::HashMap;
use verbatim_files::accounts::Accounts;
use verbatim_proto::message::ClientMessage;
use verbatim_proto::mirror::MirrorRequest;
use verbatim_proto::owners::{OWNERS_MAX, Owner, OwnerName};
use verbatim_proto::plan::Side;
use verbatim_proto::tree::Found;
use verbatim_proto::{Kept, Meta};

/// Owners that are remembered; more than a machine has accounts. Others keep their numbers.
const KNOWN_MAX: usize = 1 << 17;

/// Whom an owner of the source is at the target.
#[derive(Default)]
pub(crate) struct Owners(HashMap<Owner, u32>);

impl Owners {
    /// Owners of entries that were not asked for yet.
    fn unknown(&self, found: &[Found]) -> Vec<Owner> {
        let owners = |meta: &Meta| [Owner::user(meta.uid), Owner::group(meta.gid)];
        let all = found.iter().flatten().flat_map(|node| owners(&node.meta));
        let is_new = |owner: &Owner| owner.number != 0 && !self.0.contains_key(owner);
        let mut unknown: Vec<Owner> = all.filter(is_new).collect();
        unknown.sort_unstable();
        unknown.dedup();
        unknown.truncate(KNOWN_MAX.saturating_sub(self.0.len()).min(OWNERS_MAX));
        unknown
    }

    /// Notes whom an owner is; what is not root's does not become root's by a name.
    fn learn(&mut self, owner: Owner, number: Option<u32>) {
        let number = number.filter(|&number| number != 0 && number != u32::MAX);
        self.0.insert(owner, number.unwrap_or(owner.number));
    }

    /// Makes owners of the source those of the target.
    pub fn translate(&self, meta: &mut Meta) {
        let known = |owner: Owner| self.0.get(&owner).copied().unwrap_or(owner.number);
        (meta.uid, meta.gid) = (known(Owner::user(meta.uid)), known(Owner::group(meta.gid)));
    }

    /// The same, of metadata that comes with a file.
    pub fn translated(&self, mut kept: Kept) -> Kept {
        kept.iter_mut().for_each(|meta| self.translate(meta));
        kept
    }
}

/// A page of the source that waits, and the owners that it waits for.
pub(crate) struct Parked {
    found: Vec<Found>,
    done: bool,
    owners: Vec<Owner>,
    /// What the server was asked, if it is its turn.
    request: Option<u32>,
}

impl Parked {
    pub fn awaits_server(&self) -> bool {
        self.request.is_some()
    }
}

/// What a job found out about owners.
pub(crate) enum Looked {
    Names(Vec<Option<String>>),
    Numbers(Vec<Option<u32>>),
}

impl Core {
    /// Has a page wait where an owner is not known yet; gives back one that need not.
    pub(crate) fn park(
        &mut self,
        mirror: &mut Mirroring,
        found: Vec<Found>,
        done: bool,
    ) -> Option<Vec<Found>> {
        let owners = self.unknown_owners(mirror, &found);
        if owners.is_empty() {
            return Some(found);
        }
        let asked = owners.clone();
        let request = match mirror.of.way {
            Way::Down => {
                let request = self.request();
                let ask = MirrorRequest::NamesOf { request, owners: asked };
                self.sending.push_back(ClientMessage::Mirror(ask));
                Some(request)
            }
            Way::Up => {
                // Who cannot be looked up keeps the number.
                let look = move || Accounts::read().unwrap_or_default().names_of(&asked);
                self.job(move || Event::Looked(Looked::Names(look())));
                None
            }
        };
        mirror.parked = Some(Parked { found, done, owners, request });
        None
    }

    /// Owners of a page of the source that have to be asked for.
    pub(crate) fn unknown_owners(&self, mirror: &Mirroring, found: &[Found]) -> Vec<Owner> {
        let by_name = mirror.of.by_name && mirror.of.rules.give_away;
        if by_name { self.owners.unknown(found) } else { Vec::new() }
    }

    /// A job looked up names or numbers.
    pub(crate) fn looked_up(&mut self, looked: Looked) {
        let Some(mut mirror) = self.mirror.take() else { return };
        match looked {
            Looked::Names(names) => self.named(&mut mirror, names),
            Looked::Numbers(numbers) => self.numbered(&mut mirror, numbers),
        }
        self.mirror = Some(mirror);
    }

    /// The owners of the page that waits have these names at the source: now their numbers at
    /// the target are asked for.
    pub(crate) fn named(&mut self, mirror: &mut Mirroring, names: Vec<Option<String>>) {
        let Some(parked) = &mut mirror.parked else { return };
        let (mut owners, mut wanted) = (Vec::new(), Vec::new());
        for (owner, name) in std::mem::take(&mut parked.owners).into_iter().zip(names) {
            match name {
                Some(name) => {
                    owners.push(owner);
                    wanted.push(OwnerName { is_group: owner.is_group, name });
                }
                None => self.owners.learn(owner, None),
            }
        }
        (parked.owners, parked.request) = (owners, None);
        if wanted.is_empty() {
            return self.numbered(mirror, Vec::new());
        }
        match mirror.of.way {
            Way::Down => {
                let look = move || Accounts::read().unwrap_or_default().numbers_of(&wanted);
                self.job(move || Event::Looked(Looked::Numbers(look())));
            }
            Way::Up => {
                let request = self.request();
                parked.request = Some(request);
                let ask = MirrorRequest::NumbersOf { request, names: wanted };
                self.sending.push_back(ClientMessage::Mirror(ask));
            }
        }
    }

    /// All owners of the page that waits are known: it is compared.
    pub(crate) fn numbered(&mut self, mirror: &mut Mirroring, numbers: Vec<Option<u32>>) {
        let Some(Parked { found, done, owners, .. }) = mirror.parked.take() else { return };
        for (owner, number) in owners.into_iter().zip(numbers) {
            self.owners.learn(owner, number);
        }
        self.take_page(mirror, Side::Source, found, Vec::new(), done);
    }
}

impl Mirroring {
    /// Whether the server was asked this of so many owners.
    pub(crate) fn awaits_owners(&self, request: u32, count: usize) -> bool {
        let asked =
            |parked: &Parked| parked.request == Some(request) && parked.owners.len() == count;
        self.parked.as_ref().is_some_and(asked)
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

    fn translated(owners: &Owners, uid: u32, gid: u32) -> (u32, u32) {
        let mut meta = of(uid, gid);
        owners.translate(&mut meta);
        (meta.uid, meta.gid)
    }

    #[test]
    fn each_owner_is_asked_for_once_and_root_never() {
        let mut owners = Owners::default();
        let page = [found(5, 5), found(0, 7), found(5, 0)];
        assert_eq!(owners.unknown(&page), [Owner::user(5), Owner::group(5), Owner::group(7)]);
        owners.learn(Owner::user(5), Some(50));
        owners.learn(Owner::group(7), None);
        assert_eq!(owners.unknown(&page), [Owner::group(5)]);
        assert_eq!(translated(&owners, 5, 5), (50, 5), "a user is no group");
        assert_eq!(translated(&owners, 0, 7), (0, 7), "who is unknown keeps the number");
    }

    #[test]
    fn nobody_becomes_root_by_a_name() {
        let mut owners = Owners::default();
        owners.learn(Owner::user(5), Some(0));
        owners.learn(Owner::group(5), Some(u32::MAX));
        assert_eq!(translated(&owners, 5, 5), (5, 5));
    }
}
