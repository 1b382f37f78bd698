//! Names and ids of the accounts of this machine, for mirrors that map owners by name. A client
//! learns names only of owners that the server sent it in entries of its exports, and ids only if
//! it may give files away. For others it gets the answer for a missing account.
//!
//! Every question reads the account files again. If that fails (a Landlock rule does not follow a
//! replaced file), the lists of the start answer. Jobs of `mirror` call it.

use crate::session::end::End;
use verbatim_files::accounts::Accounts;
use verbatim_proto::Code;
use verbatim_proto::owners::{OWNERS_MAX, Owner, OwnerName};

/// Refuses a question about too many accounts.
pub(super) fn check_count(count: usize) -> Result<(), End> {
    if count > OWNERS_MAX {
        let text = format!("more than {OWNERS_MAX} owners at a time");
        return Err(End::refused(Code::Limit, text));
    }
    Ok(())
}

/// The names of owners, without those that were never disclosed to the client.
pub(super) fn names_of(
    at_start: &Accounts,
    owners: &[Owner],
    disclosed: Vec<bool>,
) -> Vec<Option<String>> {
    with_accounts(at_start, |accounts| {
        let names = accounts.names_of(owners).into_iter().zip(disclosed);
        names.map(|(name, disclosed)| name.filter(|_| disclosed)).collect()
    })
}

/// The ids of accounts; none for a client that `may` not give files away.
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
