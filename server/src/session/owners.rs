//! Names and numbers of the accounts of this machine, for mirrors that keep owners
//! by name. A client learns the names of owners that the server told it of in entries
//! of its exports, and numbers only where it may give files to them; of all others it
//! is answered what it would be where there is no such account. The lists are read anew
//! for every question; where they can no longer be (Landlock lets go of a file that is
//! replaced), those that were there at the start answer. Called by `mirror`.

use super::mirror::MirrorEvent;
use super::{End, Event, Session};
use std::collections::HashSet;
use verbatim_files::accounts::Accounts;
use verbatim_proto::owners::{OWNERS_MAX, Owner, OwnerName};
use verbatim_proto::{Code, Fault, Meta, MirrorReply, Ties};

/// How many owners a session surely remembers, those it told last: a page has `OWNERS_MAX`, and a
/// client asks when it has a page. One that is forgotten has no name until it is told again.
const TOLD_MAX: usize = 4 * OWNERS_MAX;

/// The owners of entries that a client was told, twice `TOLD_MAX` at most.
#[derive(Default)]
pub(super) struct ToldOwners {
    now: HashSet<Owner>,
    before: HashSet<Owner>,
}

impl ToldOwners {
    /// Notes the owners of entries.
    pub fn note(&mut self, owned: impl Iterator<Item = (u32, u32)>) {
        let mut last = None;
        for (uid, gid) in owned {
            // Most entries have the owners of the one before.
            if last.replace((uid, gid)) != Some((uid, gid)) {
                self.add(Owner::user(uid));
                self.add(Owner::group(gid));
            }
        }
    }

    fn add(&mut self, owner: Owner) {
        if self.now.len() >= TOLD_MAX {
            self.before = std::mem::take(&mut self.now);
        }
        self.now.insert(owner);
    }

    fn has(&self, owner: &Owner) -> bool {
        self.now.contains(owner) || self.before.contains(owner)
    }
}

/// Whose something is, by its metadata.
pub(super) fn of_meta(meta: &Meta) -> (u32, u32) {
    (meta.uid, meta.gid)
}

/// The same, by its ties.
pub(super) fn of_ties(ties: &Ties) -> (u32, u32) {
    (ties.uid, ties.gid)
}

impl Session {
    pub(super) fn names_of(&mut self, request: u32, owners: Vec<Owner>) -> Result<(), End> {
        let told: Vec<bool> =
            owners.iter().map(|owner| self.mirrors.told_owners.has(owner)).collect();
        self.look_up(owners.len(), move |accounts| {
            let names = accounts.names_of(&owners).into_iter().zip(told);
            let names = names.map(|(name, told)| name.filter(|_| told)).collect();
            MirrorReply::Names { request, names }
        })
    }

    pub(super) fn numbers_of(&mut self, request: u32, names: Vec<OwnerName>) -> Result<(), End> {
        let may = self.reach.may_give_away();
        self.look_up(names.len(), move |accounts| {
            let numbers = match may {
                true => accounts.numbers_of(&names),
                false => vec![None; names.len()],
            };
            MirrorReply::Numbers { request, numbers }
        })
    }

    /// Answers a question about so many accounts.
    fn look_up(
        &mut self,
        count: usize,
        answer: impl FnOnce(&Accounts) -> MirrorReply + Send + 'static,
    ) -> Result<(), End> {
        if count > OWNERS_MAX {
            let text = format!("more than {OWNERS_MAX} owners at a time");
            return Err(End::Refused(Fault::new(Code::Limit, text)));
        }
        let shared = self.shared.clone();
        self.job(move || {
            let reply = match Accounts::read() {
                Ok(accounts) => answer(&accounts),
                Err(error) => {
                    tracing::debug!(%error, "accounts are those of the start");
                    answer(&shared.accounts)
                }
            };
            Event::Mirror(MirrorEvent::LookedUp(reply))
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_of_the_last_pages_are_remembered_and_a_bounded_number_of_others() {
        let mut told = ToldOwners::default();
        assert!(!told.has(&Owner::user(0)) && !told.has(&Owner::group(0)));
        let many = 10 * TOLD_MAX as u32;
        for number in 0..many {
            told.note([(number, number), (number, number)].into_iter());
            let oldest = number.saturating_sub(TOLD_MAX as u32 / 2 - 1);
            assert!(told.has(&Owner::user(number)) && told.has(&Owner::group(oldest)), "{number}");
            assert!(told.now.len() + told.before.len() <= 2 * TOLD_MAX, "{number}");
        }
        assert!(!told.has(&Owner::user(0)) && !told.has(&Owner::user(many)));
    }
}
