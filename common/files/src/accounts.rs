//! The accounts of this machine, as `/etc/passwd` and `/etc/group` have them: names
//! of numbers, and numbers of names. Accounts of a directory service are not among
//! them: those have the same number on every machine that asks it. Never changes
//! anything. Read anew whenever a mirror asks, by either side of it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use verbatim_proto::owners::{Owner, OwnerName};

/// The longest list that is read; what is behind that is not known.
const LIST_BYTES_MAX: u64 = 16 << 20;

/// Names and numbers of users and groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    names: HashMap<Owner, String>,
    numbers: HashMap<OwnerName, u32>,
}

impl Accounts {
    /// Reads those of this machine.
    pub fn read() -> io::Result<Self> {
        let list = |path: &str| {
            let mut text = Vec::new();
            File::open(path)?.take(LIST_BYTES_MAX).read_to_end(&mut text)?;
            io::Result::Ok(text)
        };
        Ok(Self::parse(&list("/etc/passwd")?, &list("/etc/group")?))
    }

    /// Takes both lists apart. Where two lines have one name, or one number, the first counts.
    fn parse(passwd: &[u8], group: &[u8]) -> Self {
        let mut accounts = Self::default();
        for (is_group, text) in [(false, passwd), (true, group)] {
            for (name, number) in text.split(|&byte| byte == b'\n').filter_map(account) {
                accounts.names.entry(Owner { is_group, number }).or_insert_with(|| name.clone());
                accounts.numbers.entry(OwnerName { is_group, name }).or_insert(number);
            }
        }
        accounts
    }

    /// What each of these is called, in the same order.
    pub fn names_of(&self, owners: &[Owner]) -> Vec<Option<String>> {
        owners.iter().map(|owner| self.names.get(owner).cloned()).collect()
    }

    /// Which number each of these has, in the same order.
    pub fn numbers_of(&self, names: &[OwnerName]) -> Vec<Option<u32>> {
        names.iter().map(|name| self.numbers.get(name).copied()).collect()
    }
}

/// The name and the number in a line of either list.
fn account(line: &[u8]) -> Option<(String, u32)> {
    let mut fields = std::str::from_utf8(line).ok()?.split(':');
    let (name, _, number) = (fields.next()?, fields.next()?, fields.next()?);
    // A line of another list begins with a sign, and has no name of its own.
    let plain = !name.is_empty() && !name.starts_with(['+', '-', '#']);
    plain.then(|| Some((name.to_owned(), number.parse().ok()?)))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_none_are_left_out_and_the_first_counts() {
        let passwd = b"root:x:0:0:root:/root:/bin/sh\n# none\n+nis:x:9:\n\n:x:7:\nada:x:\n\
            ada:x:500:1::/:\nada:x:501:1::/:\ntwin:x:500:1::/:\n\xff:x:8:\nbad:x:-1:\nbig:x:9999999999:";
        let accounts = Accounts::parse(passwd, b"root:x:0:\nada:x:77:root\n");
        let name = |is_group, name: &str| OwnerName { is_group, name: name.into() };
        let asked = [name(false, "ada"), name(true, "ada"), name(false, "twin"), name(true, "no")];
        assert_eq!(accounts.numbers_of(&asked), [Some(500), Some(77), Some(500), None]);
        let asked = [Owner::user(500), Owner::group(500), Owner::group(77), Owner::user(9)];
        let ada = || Some("ada".to_owned());
        assert_eq!(accounts.names_of(&asked), [ada(), None, ada(), None]);
        assert_eq!(accounts.numbers.len(), 5);
    }

    #[test]
    fn this_machine_knows_root() {
        let accounts = Accounts::read().expect("there are lists");
        assert_eq!(accounts.names_of(&[Owner::user(0)]), [Some("root".to_owned())]);
    }
}
