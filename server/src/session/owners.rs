//! Names and numbers of the accounts of this machine, for mirrors that keep owners
//! by name. A client learns the names of owners that the server told it of in entries
//! of its exports, and numbers only where it may give files to them; of all others it
//! is answered what it would be where there is no such account. The lists are read anew
//! for every question; where they can no longer be (Landlock lets go of a file that is
//! replaced), those that were there at the start answer. Called by `mirror`.

use super::Session;
use super::end::End;
use super::event::Event;
use super::mirror::MirrorEvent;
use verbatim_files::accounts::Accounts;
use verbatim_proto::owners::{OWNERS_MAX, Owner, OwnerName};
use verbatim_proto::{Code, Fault, MirrorReply};

impl Session {
    pub(super) fn names_of(&mut self, request: u32, owners: Vec<Owner>) -> Result<(), End> {
        let told: Vec<bool> = owners.iter().map(|owner| self.told_owners.has(owner)).collect();
        self.look_up(owners.len(), move |accounts| {
            let names = accounts.names_of(&owners).into_iter().zip(told);
            let names = names.map(|(name, told)| name.filter(|_| told)).collect();
            MirrorReply::Names { request, names }
        })
    }

    pub(super) fn numbers_of(&mut self, request: u32, names: Vec<OwnerName>) -> Result<(), End> {
        let may = self.client.reach.may_give_away();
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
        let shared = self.client.shared.clone();
        self.jobs.run(move || {
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
