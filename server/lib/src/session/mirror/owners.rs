//! Names and numbers of the accounts of this machine, for mirrors that keep owners
//! by name. A client learns the names of owners that the server told it of in entries
//! of its exports, and numbers only where it may give files to them; of all others it
//! is answered what it would be where there is no such account. The lists are read anew
//! for every question; where they can no longer be (Landlock lets go of a file that is
//! replaced), those that were there at the start answer. Called by jobs of `mirror`.

use crate::session::end::End;
use verbatim_files::accounts::Accounts;
use verbatim_proto::owners::{OWNERS_MAX, Owner, OwnerName};
use verbatim_proto::{Code, Fault};

/// Refuses a question about too many accounts.
pub(super) fn check_count(count: usize) -> Result<(), End> {
    if count > OWNERS_MAX {
        let text = format!("more than {OWNERS_MAX} owners at a time");
        return Err(End::Refused(Fault::new(Code::Limit, text)));
    }
    Ok(())
}

/// The names of owners, but none of those that the client was not told of.
pub(super) fn names_of(
    at_start: &Accounts,
    owners: &[Owner],
    told: Vec<bool>,
) -> Vec<Option<String>> {
    with_accounts(at_start, |accounts| {
        let names = accounts.names_of(owners).into_iter().zip(told);
        names.map(|(name, told)| name.filter(|_| told)).collect()
    })
}

/// The numbers of accounts, or none at all for a client that `may` not give files away.
pub(super) fn numbers_of(at_start: &Accounts, names: &[OwnerName], may: bool) -> Vec<Option<u32>> {
    with_accounts(at_start, |accounts| match may {
        true => accounts.numbers_of(names),
        false => vec![None; names.len()],
    })
}

fn with_accounts<T>(at_start: &Accounts, answer: impl FnOnce(&Accounts) -> T) -> T {
    match Accounts::read() {
        Ok(accounts) => answer(&accounts),
        Err(error) => {
            tracing::debug!(%error, "accounts are those of the start");
            answer(at_start)
        }
    }
}
